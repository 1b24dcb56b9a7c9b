/* SPDX-License-Identifier: MIT */
/* See model.h. */
#include "daemon/model/model.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA_MAX_CONTEXT (1u << 24)

/* Architectures by name; what makes the others differ gets its column when it is built. */
static const struct model_family {
	const char *name;
	enum kv_rope_mode rope;
} archs[] = {
	{"llama", KV_ROPE_NORMAL},
};

struct model_reader {
	const struct gguf *gguf;
	struct load_error *err;
	const char *arch;
};

static void arch_key(const struct model_reader *in, const char *key, char *buf,
		     size_t size)
{
	snprintf(buf, size, "%s.%s", in->arch, key);
}

/* A positive integer in 1..max. @fallback 0: the key must be there. */
static int read_u32(const struct model_reader *in, const char *key, uint32_t max,
		    uint32_t fallback, uint32_t *ret)
{
	uint32_t value = fallback;
	char name[96];
	int r;

	arch_key(in, key, name, sizeof(name));
	r = gguf_get_u32(in->gguf, name, &value, in->err);
	if (r < 0)
		return r;
	if (r > 0 && !fallback)
		return gguf_fail(in->err, in->gguf, -EINVAL, "metadata key %s is missing",
				 name);
	if (value < 1 || value > max)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "%s is %u; this build runs 1 to %u", name, value, max);
	*ret = value;
	return 0;
}

static int read_f32(const struct model_reader *in, const char *key, float fallback,
		    float *ret)
{
	float value = fallback;
	char name[96];
	int r;

	arch_key(in, key, name, sizeof(name));
	r = gguf_get_f32(in->gguf, name, &value, in->err);
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

static int read_rope(const struct model_reader *in, const struct model_family *arch,
		     struct model_params *p)
{
	struct gguf_str scaling;
	float factor = 1.0f;
	char name[96];
	int r;

	p->rope = (struct kv_rope_params){.mode = arch->rope, .freq_scale = 1.0f};
	r = read_u32(in, "rope.dimension_count", p->head_dim, p->head_dim,
		     &p->rope.rope_dims);
	if (!r)
		r = read_f32(in, "rope.freq_base", 10000.0f, &p->rope.freq_base);
	if (r)
		return r;
	if (p->rope.rope_dims % 2)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "rope.dimension_count %u is odd", p->rope.rope_dims);
	arch_key(in, "rope.scaling.type", name, sizeof(name));
	r = gguf_get_str(in->gguf, name, &scaling, in->err);
	if (r)
		return r < 0 ? r : 0;
	if (gguf_str_eq(scaling, "none"))
		return 0;
	if (!gguf_str_eq(scaling, "linear"))
		return gguf_fail(
			in->err, in->gguf, -ENOTSUP,
			"rope scaling \"%.*s\" is not supported; supported: none, "
			"linear",
			(int)(scaling.len < 32 ? scaling.len : 32), scaling.data);
	r = read_f32(in, "rope.scaling.factor", 1.0f, &factor);
	p->rope.freq_scale = 1.0f / factor;
	return r;
}

static int refuse_experts(const struct model_reader *in)
{
	uint32_t n = 0;
	char name[96];
	int r;

	arch_key(in, "expert_count", name, sizeof(name));
	r = gguf_get_u32(in->gguf, name, &n, in->err);
	if (r < 0)
		return r;
	if (n)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "a mixture of %u experts is not supported", n);
	return 0;
}

static const struct model_family *find_arch(const struct gguf *gguf,
					    struct load_error *err)
{
	struct gguf_str name = {0};
	int r = gguf_get_str(gguf, "general.architecture", &name, err);

	if (r > 0)
		gguf_fail(err, gguf, -EINVAL,
			  "metadata key general.architecture is missing");
	if (r)
		return NULL;
	for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
		if (gguf_str_eq(name, archs[i].name))
			return &archs[i];
	gguf_fail(err, gguf, -ENOTSUP,
		  "architecture \"%.*s\" is not supported; supported: llama",
		  (int)(name.len < 32 ? name.len : 32), name.data);
	return NULL;
}

int model_read_params(const struct gguf *gguf, struct model_params *ret,
		      struct load_error *err)
{
	const struct model_family *arch = find_arch(gguf, err);
	struct model_reader in = {gguf, err, arch ? arch->name : NULL};
	const struct gguf_tensor *embd;
	struct model_params p = {0};
	uint32_t value_dim = 0;
	int r;

	if (!arch)
		return -ENOTSUP;
	r = read_u32(&in, "block_count", KV_MAX_LAYERS, 0, &p.n_layers);
	if (!r)
		r = read_u32(&in, "embedding_length", KV_MAX_COLS, 0, &p.d_model);
	if (!r)
		r = read_u32(&in, "feed_forward_length", KV_MAX_COLS, 0, &p.d_ff);
	if (!r)
		r = read_u32(&in, "attention.head_count", 4096, 0, &p.n_heads);
	if (!r)
		r = read_u32(&in, "attention.head_count_kv", KV_MAX_KV_HEADS,
			     p.n_heads <= KV_MAX_KV_HEADS ? p.n_heads : 0, &p.n_kv_heads);
	if (!r)
		r = read_u32(&in, "context_length", LLAMA_MAX_CONTEXT, 0,
			     &p.context_length);
	if (!r)
		r = read_f32(&in, "attention.layer_norm_rms_epsilon", 1e-5f, &p.eps);
	if (!r && p.d_model % p.n_heads && !gguf_find(gguf, "llama.attention.key_length"))
		r = gguf_fail(err, gguf, -EINVAL,
			      "embedding_length %u is no multiple of head_count %u",
			      p.d_model, p.n_heads);
	if (!r)
		r = read_u32(&in, "attention.key_length", KV_HEAD_DIM_MAX,
			     p.d_model / p.n_heads, &p.head_dim);
	if (!r)
		r = read_u32(&in, "attention.value_length", KV_HEAD_DIM_MAX, p.head_dim,
			     &value_dim);
	if (!r)
		r = refuse_experts(&in);
	if (r)
		return r;
	if (value_dim != p.head_dim)
		return gguf_fail(err, gguf, -ENOTSUP,
				 "key heads of %u and value heads of %u; this build runs "
				 "equal ones",
				 p.head_dim, value_dim);
	if (p.head_dim % 8)
		return gguf_fail(err, gguf, -ENOTSUP, "head_dim %u is no multiple of 8",
				 p.head_dim);
	if (p.n_heads % p.n_kv_heads)
		return gguf_fail(err, gguf, -EINVAL,
				 "head_count %u is no multiple of head_count_kv %u",
				 p.n_heads, p.n_kv_heads);
	r = read_rope(&in, arch, &p);
	if (r)
		return r;
	embd = gguf_find_tensor(gguf, "token_embd.weight");
	if (!embd)
		return gguf_fail(err, gguf, -EINVAL,
				 "tensor token_embd.weight is missing");
	if (embd->n_dims != 2 || embd->dims[1] < 1 || embd->dims[1] > KV_MAX_ROWS)
		return gguf_fail(err, gguf, -EINVAL,
				 "tensor token_embd.weight is no matrix");
	p.n_vocab = (uint32_t)embd->dims[1];
	*ret = p;
	return 0;
}

struct model_loader {
	struct model *model;
	const struct gguf *gguf;
	struct load_error *err;
	bool *used; /* [n_tensors] */
};

static int wtype_of(uint32_t gguf_type)
{
	const char *name = gguf_tensor_type_name(gguf_type);

	for (int t = 0; t < KV_WTYPE_N; t++)
		if (strcmp(kv_wtype_name((enum kv_wtype)t), name) == 0)
			return t;
	return -ENOTSUP;
}

/* A tensor of shape [n, k] (vectors: n = 1). */
static int find_part(struct model_loader *in, const char *name, uint64_t n, uint64_t k,
		     struct kv_weight_part *ret)
{
	const struct gguf_tensor *t = gguf_find_tensor(in->gguf, name);
	int type;

	if (!t)
		return gguf_fail(in->err, in->gguf, -EINVAL, "tensor %s is missing",
				 name);
	if (t->n_dims > 2 || t->dims[0] != k || t->dims[1] != n)
		return gguf_fail(in->err, in->gguf, -EINVAL,
				 "tensor %s has shape [%llu, %llu], want [%llu, %llu]",
				 name, (unsigned long long)t->dims[0],
				 (unsigned long long)t->dims[1], (unsigned long long)k,
				 (unsigned long long)n);
	type = wtype_of(t->type);
	if (type < 0)
		return gguf_fail(in->err, in->gguf, -ENOTSUP,
				 "tensor %s: type %s (%u) is not supported", name,
				 gguf_tensor_type_name(t->type), t->type);
	in->used[t - gguf_tensor_at(in->gguf, 0)] = true;
	*ret = (struct kv_weight_part){.type = (enum kv_wtype)type,
				       .n = (uint32_t)n,
				       .k = (uint32_t)k,
				       .data = t->data};
	return 0;
}

static int load_vector(struct model_loader *in, const char *name, uint32_t k,
		       float **ret KV_DEV)
{
	struct model *model = in->model;
	struct kv_weight_part part;
	struct kv_stream *st = NULL;
	float *values;
	void *mem = NULL;
	int r;

	r = find_part(in, name, 1, k, &part);
	if (r)
		return r;
	values = malloc(k * sizeof(*values));
	if (!values)
		return -ENOMEM;
	r = kv_row_dequantize(part.type, k, part.data, values);
	if (!r)
		r = model->backend->mem_alloc(model->dev, k * sizeof(*values), &mem);
	*ret = mem;
	if (!r)
		r = model->backend->stream_open(model->dev, &st);
	if (!r) {
		r = model->backend->upload(st, mem, values, k * sizeof(*values));
		if (!r)
			r = model->backend->stream_sync(st);
		model->backend->stream_close(st);
	}
	free(values);
	return r;
}

/* One packed matrix of the named tensors side by side, all with k columns. */
static int load_matrix(struct model_loader *in, const char *const *names,
		       const uint32_t *rows, uint32_t n, uint32_t k,
		       struct kv_weight **ret)
{
	struct model *model = in->model;
	struct kv_weight_part parts[KV_MAX_PARTS];
	int r;

	for (uint32_t i = 0; i < n; i++) {
		r = find_part(in, names[i], rows[i], k, &parts[i]);
		if (r)
			return r;
	}
	r = model->backend->weight_pack(model->dev, parts, n, ret);
	if (r == -EINVAL)
		return gguf_fail(in->err, in->gguf, r,
				 "tensor %s: %u columns do not fit its type", names[0],
				 k);
	if (!r)
		model->weight_bytes += model->backend->weight_bytes(*ret);
	return r;
}

static int load_layer(struct model_loader *in, uint32_t i)
{
	const struct model_params *p = &in->model->params;
	struct model_layer *layer = &in->model->layers[i];
	uint32_t heads = p->n_heads * p->head_dim, kv = p->n_kv_heads * p->head_dim;
	char name[9][48];
	static const char *const suffix[9] = {
		"attn_norm",   "ffn_norm", "attn_q", "attn_k",   "attn_v",
		"attn_output", "ffn_gate", "ffn_up", "ffn_down",
	};
	const char *names[9];
	int r;

	for (int j = 0; j < 9; j++) {
		snprintf(name[j], sizeof(name[j]), "blk.%u.%s.weight", i, suffix[j]);
		names[j] = name[j];
	}
	r = load_vector(in, names[0], p->d_model, &layer->attn_norm);
	if (!r)
		r = load_vector(in, names[1], p->d_model, &layer->ffn_norm);
	if (!r)
		r = load_matrix(in, names + 2, (uint32_t[]){heads, kv, kv}, 3, p->d_model,
				&layer->qkv);
	if (!r)
		r = load_matrix(in, names + 5, (uint32_t[]){p->d_model}, 1, heads,
				&layer->output);
	if (!r)
		r = load_matrix(in, names + 6, (uint32_t[]){p->d_ff, p->d_ff}, 2,
				p->d_model, &layer->gate_up);
	if (!r)
		r = load_matrix(in, names + 8, (uint32_t[]){p->d_model}, 1, p->d_ff,
				&layer->down);
	return r;
}

static int load_embedding(struct model_loader *in)
{
	struct model *model = in->model;
	const struct model_params *p = &model->params;
	struct kv_weight_part part;
	int64_t row_bytes;
	int r;

	r = find_part(in, "token_embd.weight", p->n_vocab, p->d_model, &part);
	if (r)
		return r;
	row_bytes = kv_wtype_row_bytes(part.type, part.k);
	if (row_bytes < 0)
		return gguf_fail(
			in->err, in->gguf, -EINVAL,
			"tensor token_embd.weight: %u columns do not fit its type",
			part.k);
	model->weight_bytes += (size_t)row_bytes * part.n;
	return model->backend->table_new(model->dev, &part, &model->embedding);
}

static int load_rope(struct model_loader *in)
{
	struct model *model = in->model;
	struct kv_rope_params rope = model->params.rope;
	struct kv_weight_part part;
	float *factors = NULL;
	int r = 0;

	if (gguf_find_tensor(in->gguf, "rope_freqs.weight")) {
		r = find_part(in, "rope_freqs.weight", 1, rope.rope_dims / 2, &part);
		if (r)
			return r;
		factors = malloc(part.k * sizeof(*factors));
		if (!factors)
			return -ENOMEM;
		r = kv_row_dequantize(part.type, part.k, part.data, factors);
		rope.freq_factors = factors;
		for (uint32_t i = 0; !r && i < part.k; i++)
			if (!(factors[i] > 0.0f && factors[i] < 1e12f))
				r = gguf_fail(in->err, in->gguf, -EINVAL,
					      "tensor rope_freqs.weight: element %u is "
					      "no positive number",
					      i);
	}
	if (!r)
		r = model->backend->rope_new(model->dev, &rope, &model->rope);
	free(factors);
	return r;
}

/* A tensor that the graph has no place for (a bias, a second norm) would be left out in
 * silence, and the model would answer almost right. */
static int check_all_used(struct model_loader *in)
{
	for (uint64_t i = 0; i < gguf_n_tensors(in->gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(in->gguf, i);

		if (!in->used[i])
			return gguf_fail(in->err, in->gguf, -ENOTSUP,
					 "tensor %.*s has no place in the graph that "
					 "this build runs for its architecture",
					 (int)t->name.len, t->name.data);
	}
	return 0;
}

/**
 * struct hasher - the file's SHA-256, in a thread of its own while the weights are packed
 * @failed: libcrypto had no memory
 */
struct hasher {
	pthread_t thread;
	bool started;
	struct model *model;
	const uint8_t *image;
	size_t len;
	bool failed;
};

static void *hash_image(void *arg)
{
	struct hasher *h = arg;

	/* What follows crashes where libcrypto had no memory to begin with. */
	h->failed = !OSSL_LIB_CTX_get0_global_default() ||
		    !EVP_Digest(h->image, h->len, h->model->fingerprint, NULL,
				EVP_sha256(), NULL);
	return NULL;
}

static void hasher_start(struct hasher *h, struct model *model, const struct gguf *gguf)
{
	*h = (struct hasher){.model = model};
	h->image = gguf_image(gguf, &h->len);
	h->started = !pthread_create(&h->thread, NULL, hash_image, h);
	if (!h->started)
		hash_image(h);
}

/* Return: 0 or -ENOMEM. */
static int hasher_end(struct hasher *h)
{
	if (h->started)
		pthread_join(h->thread, NULL);
	return h->failed ? -ENOMEM : 0;
}

int model_load(struct model *ret, const struct gguf *gguf,
	       const struct kv_backend *backend, struct kv_device *dev,
	       const uint8_t *fingerprint, struct load_error *err)
{
	struct model_loader in = {ret, gguf, err, NULL};
	const char *head = "token_embd.weight";
	struct hasher hasher = {0};
	int r, h;

	*ret = (struct model){.backend = backend, .dev = dev};
	r = model_read_params(gguf, &ret->params, err);
	if (r)
		return r;
	ret->layers = calloc(ret->params.n_layers, sizeof(*ret->layers));
	in.used = calloc(gguf_n_tensors(gguf) + 1, sizeof(*in.used));
	r = ret->layers && in.used ? 0 : -ENOMEM;
	if (fingerprint)
		memcpy(ret->fingerprint, fingerprint, sizeof(ret->fingerprint));
	else
		hasher_start(&hasher, ret, gguf);
	if (!r)
		r = load_embedding(&in);
	if (!r)
		r = load_rope(&in);
	for (uint32_t i = 0; !r && i < ret->params.n_layers; i++)
		r = load_layer(&in, i);
	if (!r)
		r = load_vector(&in, "output_norm.weight", ret->params.d_model,
				&ret->output_norm);
	if (gguf_find_tensor(gguf, "output.weight"))
		head = "output.weight";
	if (!r)
		r = load_matrix(&in, &head, &ret->params.n_vocab, 1, ret->params.d_model,
				&ret->head);
	if (!r)
		r = check_all_used(&in);
	h = hasher_end(&hasher);
	if (!r)
		r = h;
	free(in.used);
	if (r)
		model_unload(ret);
	return r;
}

void model_unload(struct model *model)
{
	const struct kv_backend *backend = model->backend;
	size_t vector = model->params.d_model * sizeof(float);

	if (!backend)
		return;
	for (uint32_t i = 0; model->layers && i < model->params.n_layers; i++) {
		struct model_layer *layer = &model->layers[i];

		backend->mem_free(model->dev, layer->attn_norm, vector);
		backend->mem_free(model->dev, layer->ffn_norm, vector);
		backend->weight_free(layer->qkv);
		backend->weight_free(layer->output);
		backend->weight_free(layer->gate_up);
		backend->weight_free(layer->down);
	}
	free(model->layers);
	backend->mem_free(model->dev, model->output_norm, vector);
	backend->weight_free(model->head);
	backend->rope_free(model->rope);
	backend->table_free(model->embedding);
	*model = (struct model){0};
}
