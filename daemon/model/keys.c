/* SPDX-License-Identifier: MIT */
/* See keys.h. */
#include "daemon/model/keys.h"
#include "ipc/base.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* A key is read, says nothing about the computation, has the value that changes nothing, or ends
 * the load. */
enum key_kind {
	KEY_READ,    /* by shape.c */
	KEY_INERT,   /* says nothing about the computation */
	KEY_NEUTRAL, /* read by nobody, so only the value that changes nothing */
};

/* Source: gguf-py's constants, and what llama.cpp does with each for "llama". */
static const struct known_key {
	const char *name;
	enum key_kind kind;
	float neutral;
} known_keys[] = {
	{"block_count", KEY_READ, 0},
	{"context_length", KEY_READ, 0},
	{"embedding_length", KEY_READ, 0},
	{"feed_forward_length", KEY_READ, 0},
	{"attention.head_count", KEY_READ, 0},
	{"attention.head_count_kv", KEY_READ, 0},
	{"attention.key_length", KEY_READ, 0},
	{"attention.value_length", KEY_READ, 0},
	{"attention.layer_norm_rms_epsilon", KEY_READ, 0},
	{"rope.dimension_count", KEY_READ, 0},
	{"rope.freq_base", KEY_READ, 0},
	{"rope.scaling.type", KEY_READ, 0},
	{"rope.scaling.factor", KEY_READ, 0},
	{"rope.scale_linear", KEY_READ, 0},

	/* the rows of the embedding say it */
	{"vocab_size", KEY_INERT, 0},
	/* how the source of the conversion was laid out */
	{"tensor_data_layout", KEY_INERT, 0},
	/* of norms that subtract the mean, which no family here has */
	{"attention.layer_norm_epsilon", KEY_INERT, 0},
	/* of yarn and longrope, which are refused by their type */
	{"rope.scaling.original_context_length", KEY_INERT, 0},
	{"rope.scaling.finetuned", KEY_INERT, 0},

	{"expert_count", KEY_NEUTRAL, 0},
	{"expert_used_count", KEY_NEUTRAL, 0},
	{"nextn_predict_layers", KEY_NEUTRAL, 0},
	{"use_parallel_residual", KEY_NEUTRAL, 0},
	{"attn_logit_softcapping", KEY_NEUTRAL, 0},
	{"final_logit_softcapping", KEY_NEUTRAL, 0},
	{"embedding_scale", KEY_NEUTRAL, 1},
	{"residual_scale", KEY_NEUTRAL, 1},
	{"logit_scale", KEY_NEUTRAL, 1},
	{"attention.causal", KEY_NEUTRAL, 1},
	{"attention.sliding_window", KEY_NEUTRAL, 0},
	{"attention.clamp_kqv", KEY_NEUTRAL, 0},
	{"attention.max_alibi_bias", KEY_NEUTRAL, 0},
	{"rope.scaling.attn_factor", KEY_NEUTRAL, 1},
	{"rope.scaling.yarn_attn_factor", KEY_NEUTRAL, 1},
	{"rope.scaling.yarn_ext_factor", KEY_NEUTRAL, 0},
	{"rope.scaling.yarn_log_multiplier", KEY_NEUTRAL, 0},
};

static const struct known_key *find_key(struct gguf_str name)
{
	for (size_t i = 0; i < KVD_ARRAY_LEN(known_keys); i++)
		if (gguf_str_eq(name, known_keys[i].name))
			return &known_keys[i];
	return NULL;
}

static int check_neutral(const struct gguf *gguf, const struct gguf_kv *kv,
			 const struct known_key *known, struct load_error *err)
{
	double value;

	if (gguf_number(kv, &value) && value == (double)known->neutral)
		return 0;
	return gguf_fail(err, gguf, -ENOTSUP,
			 "%.*s changes what the model computes in a way that this build "
			 "does not know; it runs only %g",
			 (int)kv->key.len, kv->key.data, (double)known->neutral);
}

static int check_key(const struct gguf *gguf, const struct gguf_kv *kv,
		     struct gguf_str name, struct load_error *err)
{
	const struct known_key *known = find_key(name);

	if (!known)
		return gguf_fail(err, gguf, -ENOTSUP,
				 "key %.*s is unknown to this build and may change what "
				 "the model computes",
				 (int)(kv->key.len < 96 ? kv->key.len : 96),
				 kv->key.data);
	return known->kind == KEY_NEUTRAL ? check_neutral(gguf, kv, known, err) : 0;
}

int model_keys_check(const struct gguf *gguf, struct gguf_str arch,
		     struct load_error *err)
{
	const struct gguf_kv *kv;
	int r = 0;

	for (uint64_t i = 0; !r && (kv = gguf_kv_at(gguf, i)); i++) {
		struct gguf_str name = kv->key;

		if (name.len <= arch.len || memcmp(name.data, arch.data, arch.len) != 0 ||
		    name.data[arch.len] != '.')
			continue;
		name.data += arch.len + 1;
		name.len -= arch.len + 1;
		r = check_key(gguf, kv, name, err);
	}
	return r;
}
