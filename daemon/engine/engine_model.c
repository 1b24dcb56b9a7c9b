/* SPDX-License-Identifier: MIT */
/* See engine_model.h. */
#include "daemon/engine/engine_model.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/engine_layout.h"
#include "daemon/engine/ranks.h"
#include "daemon/engine/weights_keep.h"
#include "daemon/log.h"
#include "daemon/model/chat.h"
#include "daemon/model/gguf.h"
#include "daemon/model/model.h"
#include "daemon/model/runner.h"
#include "daemon/msgid.h"
#include "ipc/proto.h"

/* Positions whose whole distribution one step yields at most; more take more steps. */
#define ENGINE_DIST_ROWS 64

struct engine_model {
	struct ranks ranks;
	struct kv_layout layout; /* of one rank */
	char format_name[32];    /* as in [cache] kv_cache_dtype */
	uint32_t n_blocks;
	uint32_t n_tails; /* 0 where the layout keeps partial blocks in the pool */
	struct tokenizer *tokenizer;
	struct chat_template *chat;
	struct image_file file; /* that the weights came from */
	bool file_known;
	bool weights_kept; /* they are those that a former daemon packed */
};

/* A block of the cache is the blocks of that number of all ranks. */
static size_t block_bytes(const struct engine_model *m)
{
	return m->layout.block_bytes * m->ranks.n;
}

static size_t pool_bytes(const struct engine_model *m)
{
	return m->n_blocks * block_bytes(m);
}

static size_t tail_bytes(const struct engine_model *m)
{
	return m->n_tails * m->layout.tail_bytes * m->ranks.n;
}

static uint32_t n_threads(const struct engine_model *m)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->ranks.n; i++)
		n += m->ranks.rank[i].device.props.n_threads;
	return n;
}

static int fail(char *error, size_t size, int code, const char *text)
{
	snprintf(error, size, "%s: %s", text, strerror(-code));
	return code;
}

/* Without a tokenizer or chat template that kvd knows the model still serves tokens. */
static int open_text(struct engine *engine, struct engine_model *m,
		     const struct gguf *gguf, char *error, size_t size)
{
	static const char *const names[] = {
		[CONFIG_CHAT_AUTO] = NULL,
		[CONFIG_CHAT_CHATML] = "chatml",
		[CONFIG_CHAT_PLAIN] = "plain",
	};
	struct load_error why = {""};
	int r;

	r = tokenizer_new(&m->tokenizer, gguf, &why);
	if (r == -ENOTSUP) {
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_MODEL_BAD),
			  "%s; only requests with token ids are served", why.text);
		return 0;
	}
	if (r) {
		snprintf(error, size, "%s", *why.text ? why.text : strerror(-r));
		return r;
	}
	engine->text.tokenizer = m->tokenizer;
	r = chat_template_new(&m->chat, gguf, m->tokenizer,
			      names[engine->config->model.chat_template], &why);
	if (r < 0) {
		snprintf(error, size, "%s", *why.text ? why.text : strerror(-r));
		return r;
	}
	if (r > 0)
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_MODEL_BAD),
			  "%s; chat requests are refused", why.text);
	else
		engine->text.chat = m->chat;
	return 0;
}

/* Who holds which block; the memory is the backend's and comes later. */
static int choose_blocks(const struct engine *engine, struct engine_model *m, char *error,
			 size_t size)
{
	const struct config *config = engine->config;
	uint64_t n_blocks;
	int r;

	r = engine_layout(config, &m->ranks.rank->model, m->tokenizer, &m->layout, error,
			  size);
	if (r)
		return r;
	engine_layout_name(&m->layout, m->format_name, sizeof(m->format_name));
	if (!(m->ranks.rank->device.props.formats >> m->layout.k_format &
	      m->ranks.rank->device.props.formats >> m->layout.v_format & 1)) {
		snprintf(error, size,
			 "[cache] kv_cache_dtype: the device \"%s\" has no pools in %s",
			 m->ranks.rank->device.name, m->format_name);
		return error_origin(-ENOTSUP);
	}
	n_blocks = config->cache.kv_cache_memory / block_bytes(m);
	if (n_blocks < 1 || n_blocks > INT32_MAX) {
		snprintf(error, size,
			 "[cache] kv_cache_memory of %llu bytes holds %llu blocks of %zu "
			 "bytes; at least one is needed",
			 (unsigned long long)config->cache.kv_cache_memory,
			 (unsigned long long)n_blocks, block_bytes(m));
		return error_origin(-EINVAL);
	}
	m->n_blocks = (uint32_t)n_blocks;
	/* one for each sequence that may run, as the scheduler hands them out */
	if (kv_layout_needs_tail(&m->layout))
		m->n_tails = config->scheduler.max_num_seqs;
	return 0;
}

/* Everything besides tokens that makes the bytes of a block differ. @rope_text: its memory. */
static struct prefix_model identify(const struct engine_model *m, char *rope_text,
				    size_t size)
{
	const struct kv_rope_params *rope = &m->ranks.rank->model.params.rope;
	struct prefix_model identity = {
		.k_format = kv_format_name(m->layout.k_format),
		.v_format = kv_format_name(m->layout.v_format),
		.backend = m->ranks.variant,
		.rope = rope_text,
		.block_tokens = m->layout.block_tokens,
	};

	/* The frequencies' divisors are part of the file and so of the fingerprint. */
	snprintf(rope_text, size, "%d:%u:%a:%a", (int)rope->mode, rope->rope_dims,
		 (double)rope->freq_base, (double)rope->freq_scale);
	memcpy(identity.fingerprint, m->ranks.rank->model.fingerprint,
	       sizeof(identity.fingerprint));
	return identity;
}

/* What was asked for, with what there is. */
static int fail_pool(struct engine_model *m, int code, char *error, size_t size)
{
	uint64_t available = 0, total = 0;

	(void)m->ranks.rank->device.backend->mem_info(m->ranks.rank->device.dev,
						      &available, &total);
	snprintf(error, size,
		 "cannot get the memory of [cache] kv_cache_memory%s: %s; of %llu MiB of "
		 "the device \"%s\" %llu are free, %zu are wanted",
		 m->n_tails ? ", and of one partial block for each of [scheduler] "
			      "max_num_seqs"
			    : "",
		 strerror(-code), (unsigned long long)total >> 20,
		 m->ranks.rank->device.name, (unsigned long long)available >> 20,
		 (pool_bytes(m) + tail_bytes(m)) >> 20);
	return code;
}

/* The cache, the memory of its blocks, and what a former daemon left in it. */
static int open_cache(struct engine *engine, struct engine_model *m, char *error,
		      size_t size)
{
	char rope_text[96];
	const struct prefix_model identity = identify(m, rope_text, sizeof(rope_text));
	struct cache_config config = {
		.identity = &identity,
		.block_bytes = block_bytes(m),
		.n_blocks = m->n_blocks,
		.evict = &evict_adaptive,
	};
	struct image_model image;
	int r;

	if (getrandom(&config.secret, sizeof(config.secret), 0) !=
	    (ssize_t)sizeof(config.secret))
		return fail(error, size,
			    errno ? error_origin(-errno) : error_origin(-EIO),
			    "no random numbers are to be had for the cache's keys");
	r = cache_init(&engine->cache, &config);
	if (r)
		return fail(error, size, r, "cannot make the cache");
	image = cache_image_model(&engine->cache, &identity);
	engine_keep_open(&engine->keep, &image, m->file_known ? &m->file : NULL);
	r = ranks_open_pools(&m->ranks, &m->layout, m->n_blocks, m->n_tails,
			     engine->keep.pool_fd);
	if (r)
		return fail_pool(m, r, error, size);
	r = engine_keep_restore(
		&engine->keep, &engine->cache, &image,
		m->ranks.rank->device.backend->pool_base(m->ranks.rank->pool));
	return r ? fail(error, size, r, "cannot rebuild the prefix index") : 0;
}

static uint32_t min_nonzero(uint32_t limit, uint32_t value)
{
	return limit && limit < value ? limit : value;
}

/* Words of the longest thing that SCORE can ask for of one position. */
static uint32_t dist_row_words(const struct engine_model *m)
{
	uint32_t n_vocab = m->ranks.rank->model.params.n_vocab;

	return n_vocab > 2 * KVD_MAX_TOP ? n_vocab : 2 * KVD_MAX_TOP;
}

static int open_sched(struct engine *engine, struct engine_model *m, char *error,
		      size_t size)
{
	const struct config *config = engine->config;
	struct sched_config sc = {
		.max_num_seqs = config->scheduler.max_num_seqs,
		.max_num_batched_tokens = config->scheduler.max_num_batched_tokens,
		.max_model_len = engine->info.context_length,
		.max_waiting = ENGINE_MAX_WAITING,
		.block_tokens = m->layout.block_tokens,
		.max_dist_words = ENGINE_DIST_ROWS * dist_row_words(m),
		.enable_prefix_caching = config->cache.enable_prefix_caching,
		/* a partial block in a tail slot has no rows in the pool to copy */
		.copy_rows = !kv_layout_needs_tail(&m->layout),
	};
	struct plan_caps caps;
	int r;

	for (int32_t id = 0;
	     m->tokenizer && id < (int32_t)tokenizer_n_tokens(m->tokenizer); id++)
		if (tokenizer_is_eog(m->tokenizer, id) && sc.n_eos < SCHED_MAX_EOS)
			sc.eos[sc.n_eos++] = id;
	r = sched_new(&sc, &engine->cache, &engine->sched);
	if (r == -EINVAL) {
		snprintf(error, size,
			 "no sequence runs with a context of %u tokens, [scheduler] "
			 "max_num_seqs %u and max_num_batched_tokens %u: a context holds "
			 "2 or more; see [scheduler] max_model_len",
			 sc.max_model_len, sc.max_num_seqs, sc.max_num_batched_tokens);
		return r;
	}
	if (r)
		return fail(error, size, r, "cannot make the scheduler");
	sched_plan_caps(engine->sched, &caps);
	r = ranks_start(&m->ranks, &caps);
	if (r == -EINVAL) {
		snprintf(
			error, size,
			"[scheduler] max_num_batched_tokens is %u; this backend takes %u "
			"rows at most",
			caps.rows, m->ranks.rank->device.props.max_rows);
		return r;
	}
	if (r == -EAGAIN)
		return fail(error, size, r,
			    "cannot start a thread for each of [model] "
			    "tensor_parallel_size; TasksMax= or RLIMIT_NPROC permits no "
			    "more");
	if (r)
		return fail(error, size, r,
			    "cannot get the memory for a step; lower [scheduler] "
			    "max_num_batched_tokens");
	m->ranks.rank->runner.progress = worker_beat;
	m->ranks.rank->runner.progress_ctx = &engine->worker;
	return 0;
}

/* The file's own name for the model, or the file's. */
static void name_model(struct engine *engine, const struct gguf *gguf)
{
	const char *slash = strrchr(engine->config->model.path, '/');
	struct gguf_str name = {0};
	struct load_error ignored;
	char text[KVD_NAME_MAX];

	if (*engine->config->model.name)
		snprintf(text, sizeof(text), "%s", engine->config->model.name);
	else if (gguf_get_str(gguf, "general.name", &name, &ignored) == 0 && name.len)
		snprintf(text, sizeof(text), "%.*s",
			 (int)(name.len < sizeof(text) ? name.len : sizeof(text) - 1),
			 name.data);
	else
		snprintf(text, sizeof(text), "%s",
			 slash ? slash + 1 : engine->config->model.path);
	proto_set_string(engine->info.name, sizeof(engine->info.name), text);
}

static void describe_model(struct engine *engine, struct engine_model *m)
{
	const struct model_params *p = &m->ranks.rank->model.params;
	struct kvd_model_info *info = &engine->info;

	proto_set_string(info->arch, sizeof(info->arch),
			 m->ranks.rank->model.family->name);
	info->n_layers = p->n_layers;
	info->n_kv_heads = p->n_kv_heads * m->ranks.n;
	info->head_dim = p->head_dim;
	info->n_vocab = p->n_vocab;
	engine->text.n_vocab = p->n_vocab;
	info->context_length =
		min_nonzero(engine->config->scheduler.max_model_len, p->context_length);
	info->block_tokens = m->layout.block_tokens;
	info->bos_id = m->tokenizer ? tokenizer_bos(m->tokenizer) : -1;
	info->eos_id = m->tokenizer ? tokenizer_eos(m->tokenizer) : -1;
	info->block_bytes = block_bytes(m);
	memcpy(info->fingerprint, m->ranks.rank->model.fingerprint,
	       sizeof(info->fingerprint));
}

/* Return: whether the model's file can be told from every other. */
static bool stamp_file(const struct gguf *gguf, struct image_file *ret)
{
	struct gguf_stamp stamp;

	if (!gguf_stamp(gguf, &stamp))
		return false;
	*ret = (struct image_file){
		.dev = stamp.dev,
		.ino = stamp.ino,
		.size = stamp.size,
		.mtime_ns = stamp.mtime_ns,
		.ctime_ns = stamp.ctime_ns,
	};
	return true;
}

/*
 * Where the pool and the packed weights outlive the process; NULL: nowhere. They do as memory
 * files, so the device has to compute in the host's memory, and to be the only one. What came
 * back from a daemon with another device is of no use then.
 */
static struct fdstore *open_store(struct engine *engine, const struct engine_model *m)
{
	if ((m->ranks.rank->device.props.host_memory && m->ranks.n == 1) ||
	    !engine->fdstore)
		return engine->fdstore;
	engine_keep_discard(engine->fdstore, "these devices keep no blocks");
	weights_keep_discard(engine->fdstore);
	return NULL;
}

/* The weights, if possible those that a former daemon packed. */
static int open_weights(struct engine *engine, struct engine_model *m,
			const struct gguf *gguf, struct weights_keep *weights,
			char *error, size_t size)
{
	struct fdstore *store = open_store(engine, m);
	struct load_error why = {""};
	uint8_t fingerprint[32];
	bool known, keep;
	int r;

	engine_keep_take(&engine->keep, store);
	m->file_known = stamp_file(gguf, &m->file);
	known = m->file_known && engine_keep_recall(&engine->keep, &m->file, fingerprint);
	keep = m->file_known && engine->config->cpu.huge_pages != CONFIG_HUGE_PAGES_NEVER;
	weights_keep_begin(weights, store, m->ranks.rank->device.backend,
			   m->ranks.rank->device.dev, keep ? &m->file : NULL,
			   known ? fingerprint : NULL);
	r = ranks_load(&m->ranks, gguf, known ? fingerprint : NULL, &why);
	if (!r)
		r = weights_keep_end(weights, m->ranks.rank->model.fingerprint);
	m->weights_kept = weights->filled;
	if (r)
		snprintf(error, size, "%s",
			 *why.text ? why.text : "the model does not fit in memory");
	return r;
}

static int load_parts(struct engine *engine, struct engine_model *m,
		      const struct gguf *gguf, struct weights_keep *weights, char *error,
		      size_t size)
{
	int r;

	r = ranks_open(&m->ranks, engine->config, error, size);
	if (!r)
		r = open_weights(engine, m, gguf, weights, error, size);
	if (r)
		return r;
	r = open_text(engine, m, gguf, error, size);
	if (!r && m->tokenizer &&
	    tokenizer_n_tokens(m->tokenizer) > m->ranks.rank->model.params.n_vocab) {
		snprintf(error, size,
			 "%s: the tokenizer has %u tokens, the model only %u",
			 gguf_name(gguf), tokenizer_n_tokens(m->tokenizer),
			 m->ranks.rank->model.params.n_vocab);
		r = error_origin(-EINVAL);
	}
	if (!r)
		r = choose_blocks(engine, m, error, size);
	if (!r)
		r = open_cache(engine, m, error, size);
	if (r)
		return r;
	name_model(engine, gguf);
	describe_model(engine, m);
	return open_sched(engine, m, error, size);
}

static int load(struct engine *engine, struct engine_model *m, const struct gguf *gguf,
		char *error, size_t size)
{
	struct weights_keep weights = {0};
	struct load_error why = {""};
	int r, lost;

	r = load_parts(engine, m, gguf, &weights, error, size);
	lost = gguf_check_read(gguf, 0, &why);
	if (lost) {
		snprintf(error, size, "%s", why.text);
		r = lost;
	}
	/* without its image the next start does not know the file's digest */
	if (!r && engine->keep.map)
		weights_keep_push(&weights);
	weights_keep_close(&weights);
	return r;
}

int engine_model_load(struct engine *engine, char *error, size_t error_size)
{
	struct load_error why = {""};
	struct gguf *gguf;
	int r;

	engine->model = calloc(1, sizeof(*engine->model));
	if (!engine->model)
		return fail(error, error_size, -ENOMEM, "cannot load the model");
	r = gguf_open(&gguf, engine->config->model.path, &why);
	if (r) {
		snprintf(error, error_size, "%s", why.text);
		return r;
	}
	r = load(engine, engine->model, gguf, error, error_size);
	gguf_free(gguf);
	if (!r)
		log_event(LOG_INFO, LOG_FIELDS(.message_id = MSGID_MODEL_LOADED),
			  "model %s ready on %s with %u threads: %zu MiB of weights%s, "
			  "%u blocks of %u tokens in %s (%zu MiB, and %zu MiB for open "
			  "blocks)",
			  engine->info.name, engine->model->ranks.rank->device.name,
			  n_threads(engine->model),
			  ranks_weight_bytes(&engine->model->ranks) >> 20,
			  engine->model->weights_kept ? " (kept)" : "",
			  engine->model->n_blocks, engine->info.block_tokens,
			  engine->model->format_name, pool_bytes(engine->model) >> 20,
			  tail_bytes(engine->model) >> 20);
	return r;
}

void engine_model_unload(struct engine *engine)
{
	struct engine_model *m = engine->model;

	if (!m)
		return;
	sched_free(engine->sched);
	engine->sched = NULL;
	engine_keep_close(&engine->keep, &engine->cache);
	cache_deinit(&engine->cache);
	ranks_close(&m->ranks);
	chat_template_free(m->chat);
	tokenizer_free(m->tokenizer);
	free(m);
	engine->model = NULL;
}

int engine_model_worker_start(struct engine *engine)
{
	const struct engine_model *m = engine->model;
	int r;

	r = worker_init(&engine->worker, "kvd-worker", engine_model_run, engine);
	if (!r && m && CPU_COUNT(&m->ranks.rank->device.worker_cpus))
		r = worker_bind(&engine->worker, &m->ranks.rank->device.worker_cpus);
	return r;
}

void engine_model_run(void *ctx)
{
	struct engine *engine = ctx;

	ranks_run(&engine->model->ranks, &engine->plan,
		  &engine->results[engine->current]);
}

void engine_model_stats(const struct engine *engine, struct kvd_stats *stats)
{
	const struct engine_model *m = engine->model;

	if (!m)
		return;
	proto_set_string(stats->backend, sizeof(stats->backend),
			 m->ranks.rank->device.name);
	proto_set_string(stats->cache_format, sizeof(stats->cache_format),
			 m->format_name);
	stats->pool_bytes = pool_bytes(m);
	stats->tail_bytes = tail_bytes(m);
	stats->bytes_per_token = kv_layout_bytes_per_token(&m->layout) * m->ranks.n;
	stats->affinity_refused = m->ranks.rank->device.affinity_refused;
	stats->threads = n_threads(m);
	stats->cpus = m->ranks.rank->device.n_cpus;
}
