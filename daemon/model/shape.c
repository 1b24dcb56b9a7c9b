/* SPDX-License-Identifier: MIT */
/* See shape.h. */
#include "daemon/model/shape.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/model/keys.h"
#include "ipc/base.h"

#define MAX_CONTEXT (1u << 24)
#define MAX_HEADS   4096
#define MAX_ARCH    32 /* bytes of the prefix */

struct key_reader {
	const struct gguf *gguf;
	struct load_error *err;
	struct gguf_str arch;
};

/**
 * struct key_row - a number of the metadata
 * @fallback: its value when the key is missing; NULL: it must be there
 */
struct key_row {
	const char *key;
	uint32_t max;
	const uint32_t *fallback;
	uint32_t *ret;
};

typedef char key_name[MAX_ARCH + 64];

static const char *arch_key(const struct key_reader *in, const char *key, key_name buf)
{
	snprintf(buf, sizeof(key_name), "%.*s.%s", (int)in->arch.len, in->arch.data, key);
	return buf;
}

/* What counts heads is one number, or one for each layer; these must agree. */
static int read_number(const struct key_reader *in, const char *name, uint32_t *ret)
{
	const struct gguf_kv *kv = gguf_find(in->gguf, name);

	if (!kv || kv->type != GGUF_ARRAY)
		return gguf_get_u32(in->gguf, name, ret, in->err);
	if (kv->n == 0 || (kv->elem_type != GGUF_I32 && kv->elem_type != GGUF_U32))
		return gguf_fail(in->err, in->gguf, -EINVAL, "%s is no list of numbers",
				 name);
	for (uint64_t i = 0; i < kv->n; i++)
		if (gguf_array_i32(kv, i) != gguf_array_i32(kv, 0))
			return gguf_fail(in->err, in->gguf, -ENOTSUP,
					 "%s differs between layers", name);
	*ret = (uint32_t)gguf_array_i32(kv, 0);
	return 0;
}

/* A number in 1..max. */
static int read_row(const struct key_reader *in, const struct key_row *row)
{
	uint32_t value = 0;
	key_name name;
	int r;

	r = read_number(in, arch_key(in, row->key, name), &value);
	if (r < 0)
		return r;
	if (r > 0 && !row->fallback)
		return gguf_fail(in->err, in->gguf, -EINVAL, "metadata key %s is missing",
				 name);
	if (r > 0)
		value = *row->fallback;
	if (value < 1 || value > row->max)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "%s is %u; this build runs 1 to %u", name, value,
				 row->max);
	*row->ret = value;
	return 0;
}

static int read_rows(const struct key_reader *in, const struct key_row *rows, size_t n)
{
	int r = 0;

	for (size_t i = 0; !r && i < n; i++)
		r = read_row(in, &rows[i]);
	return r;
}

static int read_float(const struct key_reader *in, const char *key, float fallback,
		      float *ret)
{
	float value = fallback;
	key_name name;
	int r;

	r = gguf_get_f32(in->gguf, arch_key(in, key, name), &value, in->err);
	if (r < 0)
		return r;
	/* Wide enough for every model, and the reciprocal is finite. */
	if (!(value > 1e-20f && value < 1e12f))
		return gguf_fail(in->err, in->gguf, -EINVAL,
				 "%s is %g, not a number from 1e-20 to 1e12", name,
				 (double)value);
	*ret = value;
	return 0;
}

static int open_reader(struct key_reader *in, const struct gguf *gguf,
		       struct load_error *err)
{
	int r;

	*in = (struct key_reader){.gguf = gguf, .err = err};
	r = gguf_get_str(gguf, "general.architecture", &in->arch, err);
	if (r > 0 || (!r && in->arch.len > MAX_ARCH))
		return gguf_fail(err, gguf, -EINVAL,
				 "metadata key general.architecture is missing");
	return r;
}

/* Where the width does not divide by the heads, the file must say what a head has. */
static int read_head_dim(const struct key_reader *in, struct model_params *p)
{
	uint32_t even = p->d_model / p->n_heads;
	struct key_row row = {"attention.key_length", KV_HEAD_DIM_MAX,
			      p->d_model % p->n_heads ? NULL : &even, &p->head_dim};

	return read_row(in, &row);
}

static int read_shape(const struct key_reader *in, struct model_params *p)
{
	static const uint32_t unknown_context = 1;
	key_name name;
	struct key_row rows[] = {
		{"block_count", KV_MAX_LAYERS, NULL, &p->n_layers},
		{"embedding_length", KV_MAX_COLS, NULL, &p->d_model},
		{"attention.head_count", MAX_HEADS, NULL, &p->n_heads},
		{"attention.head_count_kv", KV_MAX_KV_HEADS, &p->n_heads, &p->n_kv_heads},
		{"context_length", MAX_CONTEXT, &unknown_context, &p->context_length},
	};
	int r;

	*p = (struct model_params){0};
	r = read_rows(in, rows, KVD_ARRAY_LEN(rows));
	if (!r)
		r = read_head_dim(in, p);
	if (!r && !gguf_find(in->gguf, arch_key(in, "context_length", name)))
		p->context_length = 0;
	return r;
}

int model_shape_read(const struct gguf *gguf, struct model_params *ret,
		     struct load_error *err)
{
	struct key_reader in;
	int r = open_reader(&in, gguf, err);

	return r ? r : read_shape(&in, ret);
}

/* Positions are divided by a factor, under one of two names, unless the type says that they
 * are not; where there is no type, linear is meant. */
static int read_rope_scaling(const struct key_reader *in, float *ret)
{
	struct gguf_str type = {"linear", 6};
	float factor = 1.0f;
	key_name name;
	int r;

	r = gguf_get_str(in->gguf, arch_key(in, "rope.scaling.type", name), &type,
			 in->err);
	if (r < 0 || gguf_str_eq(type, "none"))
		return r < 0 ? r : 0;
	if (!gguf_str_eq(type, "linear"))
		return gguf_fail(
			in->err, in->gguf, -ENOTSUP,
			"rope scaling \"%.*s\" is not supported; supported: none, "
			"linear",
			(int)(type.len < 32 ? type.len : 32), type.data);
	r = read_float(in, "rope.scale_linear", 1.0f, &factor);
	if (!r)
		r = read_float(in, "rope.scaling.factor", factor, &factor);
	if (!r)
		*ret = 1.0f / factor;
	return r;
}

static int read_rope(const struct key_reader *in, const struct model_family *family,
		     struct model_params *p)
{
	struct key_row dims = {"rope.dimension_count", p->head_dim, &p->head_dim,
			       &p->rope.rope_dims};
	int r;

	p->rope = (struct kv_rope_params){.mode = family->rope, .freq_scale = 1.0f};
	r = read_row(in, &dims);
	if (!r)
		r = read_float(in, "rope.freq_base", 10000.0f, &p->rope.freq_base);
	if (r)
		return r;
	if (p->rope.rope_dims % 2)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "rope.dimension_count %u is odd", p->rope.rope_dims);
	return read_rope_scaling(in, &p->rope.freq_scale);
}

static int check_params(const struct key_reader *in, const struct model_params *p,
			uint32_t value_dim)
{
	if (value_dim != p->head_dim)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "key heads of %u and value heads of %u; this build runs "
				 "equal ones",
				 p->head_dim, value_dim);
	if (p->head_dim % 8)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "head_dim %u is no multiple of 8", p->head_dim);
	if (p->n_heads % p->n_kv_heads)
		return gguf_fail(in->err, in->gguf, -EINVAL,
				 "head_count %u is no multiple of head_count_kv %u",
				 p->n_heads, p->n_kv_heads);
	if (!p->context_length)
		return gguf_fail(in->err, in->gguf, -EINVAL,
				 "metadata key %.*s.context_length is missing",
				 (int)in->arch.len, in->arch.data);
	return 0;
}

static int read_vocab(const struct key_reader *in, struct model_params *p)
{
	const struct gguf_tensor *embd = gguf_find_tensor(in->gguf, "token_embd.weight");

	if (!embd)
		return gguf_fail(in->err, in->gguf, -EINVAL,
				 "tensor token_embd.weight is missing");
	if (embd->n_dims != 2 || embd->dims[1] < 1 || embd->dims[1] > KV_MAX_ROWS)
		return gguf_fail(in->err, in->gguf, -EINVAL,
				 "tensor token_embd.weight is no matrix");
	p->n_vocab = (uint32_t)embd->dims[1];
	return 0;
}

int model_params_read(const struct gguf *gguf, const struct model_family *family,
		      struct model_params *ret, struct load_error *err)
{
	struct model_params p;
	uint32_t value_dim = 0;
	struct key_row rows[] = {
		{"feed_forward_length", KV_MAX_COLS, NULL, &p.d_ff},
		{"attention.value_length", KV_HEAD_DIM_MAX, &p.head_dim, &value_dim},
	};
	struct key_reader in;
	int r;

	r = open_reader(&in, gguf, err);
	if (r)
		return r;
	r = read_shape(&in, &p);
	if (r)
		return r;
	r = read_rows(&in, rows, KVD_ARRAY_LEN(rows));
	if (!r)
		r = read_float(&in, "attention.layer_norm_rms_epsilon", 1e-5f, &p.eps);
	if (!r)
		r = check_params(&in, &p, value_dim);
	if (!r)
		r = read_rope(&in, family, &p);
	if (!r)
		r = read_vocab(&in, &p);
	if (!r)
		r = model_keys_check(gguf, in.arch, err);
	if (!r)
		*ret = p;
	return r;
}
