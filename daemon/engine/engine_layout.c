/* SPDX-License-Identifier: MIT */
/* See engine_layout.h. */
#include "daemon/engine/engine_layout.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/log.h"
#include "daemon/model/model.h"
#include "daemon/model/quality.h"
#include "daemon/msgid.h"

/*
 * Mean KL, in nats, above which int4 costs a model too much: four times the 0.011 that int4
 * may show on the default model over 4,096 tokens. A few hundred tokens are within a factor
 * of two of that figure; models that int4 hurts show ten times as much.
 */
#define QUALITY_MAX_KL 0.044

void engine_layout_name(const struct kv_layout *layout, char *ret_text, size_t size)
{
	const char *k = kv_format_name(layout->k_format);
	const char *v = kv_format_name(layout->v_format);

	if (layout->k_format == layout->v_format)
		snprintf(ret_text, size, "%s", k);
	else
		snprintf(ret_text, size, "k=%s,v=%s", k, v);
}

static int layout_of(const struct config *config, const struct model *model,
		     enum kv_format k, enum kv_format v, struct kv_layout *ret_layout,
		     char *error, size_t size)
{
	const struct model_params *p = &model->params;
	int r;

	r = kv_layout_init(ret_layout, k, v, p->n_layers, p->n_kv_heads, p->head_dim,
			   config->cache.block_size);
	if (r == -ENOTSUP)
		snprintf(error, size,
			 "[cache] kv_cache_dtype: this build cannot store it with a "
			 "head_dim of %u and a block_size of %u; use fp16",
			 p->head_dim, config->cache.block_size);
	else if (r)
		snprintf(error, size,
			 "the KV cache has no block for %u layers of %u KV heads of %u",
			 p->n_layers, p->n_kv_heads, p->head_dim);
	return r;
}

static enum kv_format without_int4(enum kv_format format)
{
	return format == KV_FORMAT_INT4 ? KV_FORMAT_INT8 : format;
}

/* It costs this model too much quality: as [cache] kv_quality_check says. */
static int reject_format(const struct config *config, const struct model *model,
			 const struct quality *q, struct kv_layout *layout, char *error,
			 size_t size)
{
	char name[32], better[32];
	struct kv_layout other;
	int r;

	r = layout_of(config, model, without_int4(layout->k_format),
		      without_int4(layout->v_format), &other, error, size);
	if (r)
		return r;
	engine_layout_name(layout, name, sizeof(name));
	engine_layout_name(&other, better, sizeof(better));
	if (config->cache.kv_quality_check == CONFIG_QUALITY_REFUSE) {
		snprintf(error, size,
			 "[cache] kv_cache_dtype: %s hurts this model's answers: KL %.3f "
			 "from fp16, where %.3f is the most; use %s, or let [cache] "
			 "kv_quality_check only warn",
			 name, q->kl, QUALITY_MAX_KL, better);
		return error_origin(-ENOTSUP);
	}
	if (config->cache.kv_quality_check == CONFIG_QUALITY_WARN) {
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_FORMAT_FAR),
			  "[cache] kv_cache_dtype: %s hurts this model's answers: KL "
			  "%.3f from fp16, where %.3f is the most; %s would not",
			  name, q->kl, QUALITY_MAX_KL, better);
		return 0;
	}
	log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_FORMAT_FAR),
		  "[cache] kv_cache_dtype: %s takes the place of %s, which hurts this "
		  "model's answers: KL %.3f from fp16, where %.3f is the most",
		  better, name, q->kl, QUALITY_MAX_KL);
	*layout = other;
	return 0;
}

int engine_layout(const struct config *config, const struct model *model,
		  const struct tokenizer *tokenizer, struct kv_layout *ret_layout,
		  char *error, size_t error_size)
{
	struct quality q;
	char name[32];
	int r;

	r = layout_of(config, model, (enum kv_format)config->cache.kv_cache_dtype.k,
		      (enum kv_format)config->cache.kv_cache_dtype.v, ret_layout, error,
		      error_size);
	/* the other formats leave no model known to suffer */
	if (r || !kv_layout_needs_tail(ret_layout) ||
	    config->cache.kv_quality_check == CONFIG_QUALITY_OFF)
		return r;
	if (model->shard.n_ranks > 1) {
		log_warning(
			"[cache] kv_quality_check: not run, as the model is spread over "
			"%u devices",
			model->shard.n_ranks);
		return 0;
	}
	r = quality_measure(model, tokenizer, ret_layout, &q);
	if (r == -EINVAL)
		return 0; /* a context of one block: nothing is ever coded */
	if (r) {
		snprintf(error, error_size,
			 "[cache] kv_quality_check: the run failed: %s", strerror(-r));
		return r;
	}
	/* not a number is too far as well */
	if (!(q.kl <= QUALITY_MAX_KL))
		return reject_format(config, model, &q, ret_layout, error, error_size);
	engine_layout_name(ret_layout, name, sizeof(name));
	log_event(
		LOG_INFO, LOG_FIELDS(.message_id = MSGID_MODEL_LOADED),
		"%s suits the model: KL %.4f from fp16, the likeliest token is the same "
		"in %.1f %% of %u places",
		name, q.kl, 100 * q.same_top, q.n);
	return 0;
}
