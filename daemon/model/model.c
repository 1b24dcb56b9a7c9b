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

#include "daemon/model/finite.h"

/*
 * Tensors, by name, with the shape [rows, columns] (the file lists columns first):
 *
 *   token_embd.weight            [n_vocab, d]
 *   blk.N.attn_norm.weight       [d]            blk.N.ffn_norm.weight  [d]
 *   blk.N.attn_q.weight          [heads, d]     blk.N.ffn_gate.weight  [ff, d]
 *   blk.N.attn_k.weight          [kv, d]        blk.N.ffn_up.weight    [ff, d]
 *   blk.N.attn_v.weight          [kv, d]        blk.N.ffn_down.weight  [d, ff]
 *   blk.N.attn_output.weight     [d, heads]
 *   output_norm.weight           [d]
 *   output.weight                [n_vocab, d]   absent: token_embd.weight
 *   rope_freqs.weight            [rope_dims/2]  optional divisors of the frequencies
 *
 *   heads = n_heads * head_dim, kv = n_kv_heads * head_dim
 *
 * Source: the architecture "llama" of ggml docs/gguf.md; q and k rows of such files are
 * permuted for rotation in pairs (2i, 2i+1).
 */
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

/* How a matrix is divided among ranks. */
enum split {
	SPLIT_NONE,
	SPLIT_ROWS, /* each computes some of the outputs */
	SPLIT_COLUMNS, /* each computes its part of all outputs, from its part of the inputs */
};

/* The rank's part of a whole matrix; sizes can be divided, see divide(). */
static void take_share(const struct model_shard *shard, enum split split,
		       struct kv_weight_part *part)
{
	int64_t row_bytes = kv_wtype_row_bytes(part->type, part->k);

	if (shard->n_ranks == 1 || row_bytes < 0)
		return;
	if (split == SPLIT_ROWS) {
		part->n /= shard->n_ranks;
		part->data = (const uint8_t *)part->data +
			     (size_t)shard->rank * part->n * (size_t)row_bytes;
	} else if (split == SPLIT_COLUMNS) {
		part->k /= shard->n_ranks;
		part->col0 = shard->rank * part->k;
		part->row_stride = (size_t)row_bytes;
	}
}

/* One packed matrix of the named tensors side by side, all with k columns; rows and columns are
 * those of the file. */
static int load_matrix(struct model_loader *in, const char *const *names,
		       const uint32_t *rows, uint32_t n, uint32_t k, enum split split,
		       struct kv_weight **ret)
{
	struct model *model = in->model;
	struct kv_weight_part parts[KV_MAX_PARTS];
	int r;

	for (uint32_t i = 0; i < n; i++) {
		r = find_part(in, names[i], rows[i], k, &parts[i]);
		if (r)
			return r;
		take_share(&model->shard, split, &parts[i]);
	}
	r = model->backend->weight_pack(model->dev, parts, n, ret);
	if (r == -EINVAL)
		return gguf_fail(in->err, in->gguf, r,
				 "tensor %s: %u columns do not fit its type%s", names[0],
				 parts[0].k,
				 parts[0].col0 + parts[0].k == k && !parts[0].col0
					 ? ""
					 : "; see [model] tensor_parallel_size");
	if (!r)
		model->weight_bytes += model->backend->weight_bytes(*ret);
	return r;
}

static int load_layer(struct model_loader *in, uint32_t i)
{
	const struct model_params *p = &in->model->params;
	struct model_layer *layer = &in->model->layers[i];
	uint32_t n_ranks = in->model->shard.n_ranks, ff = p->d_ff * n_ranks;
	uint32_t heads = p->n_heads * p->head_dim * n_ranks;
	uint32_t kv = p->n_kv_heads * p->head_dim * n_ranks;
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
				SPLIT_ROWS, &layer->qkv);
	if (!r)
		r = load_matrix(in, names + 5, (uint32_t[]){p->d_model}, 1, heads,
				SPLIT_COLUMNS, &layer->output);
	if (!r)
		r = load_matrix(in, names + 6, (uint32_t[]){ff, ff}, 2, p->d_model,
				SPLIT_ROWS, &layer->gate_up);
	if (!r)
		r = load_matrix(in, names + 8, (uint32_t[]){p->d_model}, 1, ff,
				SPLIT_COLUMNS, &layer->down);
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
 * struct hasher - passes over the whole file, in a thread of its own while the weights are
 * packed: its SHA-256, and whether its values are finite
 * @failed:     libcrypto had no memory
 * @not_finite: a tensor with such values, or NULL
 */
struct hasher {
	pthread_t thread;
	bool started;
	struct model *model;
	const struct gguf *gguf;
	bool failed;
	const struct gguf_tensor *not_finite;
};

static void *hash_image(void *arg)
{
	struct hasher *h = arg;
	const struct gguf_tensor *tensor;
	const uint8_t *image;
	size_t len;

	image = gguf_image(h->gguf, &len);
	/* What follows crashes where libcrypto had no memory to begin with. */
	h->failed =
		!OSSL_LIB_CTX_get0_global_default() ||
		!EVP_Digest(image, len, h->model->fingerprint, NULL, EVP_sha256(), NULL);
	for (uint64_t i = 0; (tensor = gguf_tensor_at(h->gguf, i)); i++)
		if (!h->not_finite && !tensor_is_finite(tensor))
			h->not_finite = tensor;
	return NULL;
}

static void hasher_start(struct hasher *h, struct model *model, const struct gguf *gguf)
{
	*h = (struct hasher){.model = model, .gguf = gguf};
	h->started = !pthread_create(&h->thread, NULL, hash_image, h);
	if (!h->started)
		hash_image(h);
}

/* Return: 0; -ENOMEM; -EINVAL with the tensor in @err. */
static int hasher_end(struct hasher *h, struct load_error *err)
{
	if (h->started)
		pthread_join(h->thread, NULL);
	if (h->not_finite)
		return gguf_fail(err, h->gguf, -EINVAL,
				 "tensor %.*s holds values that are not finite",
				 (int)h->not_finite->name.len, h->not_finite->name.data);
	return h->failed ? -ENOMEM : 0;
}

/* The head, which only the first rank has; the tensor is there for all. */
static int load_head(struct model_loader *in)
{
	struct model *model = in->model;
	const struct model_params *p = &model->params;
	const char *name = gguf_find_tensor(in->gguf, "output.weight")
				   ? "output.weight"
				   : "token_embd.weight";
	struct kv_weight_part part;

	if (model->shard.rank > 0)
		return find_part(in, name, p->n_vocab, p->d_model, &part);
	return load_matrix(in, &name, &p->n_vocab, 1, p->d_model, SPLIT_NONE,
			   &model->head);
}

/* From the shape of the model to that of the rank's part. */
static int divide(struct model_loader *in)
{
	struct model_params *p = &in->model->params;
	uint32_t n = in->model->shard.n_ranks;

	/* as many heads belong to each KV head, so these can be divided as well */
	if (p->n_kv_heads % n || p->d_ff % n)
		return gguf_fail(
			in->err, in->gguf, -ENOTSUP,
			"%u %s cannot be divided by [model] tensor_parallel_size, "
			"which is %u",
			p->n_kv_heads % n ? p->n_kv_heads : p->d_ff,
			p->n_kv_heads % n ? "KV heads" : "feed-forward columns", n);
	p->n_heads /= n;
	p->n_kv_heads /= n;
	p->d_ff /= n;
	return 0;
}

int model_load(struct model *ret, const struct gguf *gguf,
	       const struct kv_backend *backend, struct kv_device *dev,
	       const struct model_shard *shard, const uint8_t *fingerprint,
	       struct load_error *err)
{
	struct model_loader in = {ret, gguf, err, NULL};
	struct hasher hasher = {0};
	int r, h;

	*ret = (struct model){.backend = backend, .dev = dev, .shard = {0, 1}};
	if (shard)
		ret->shard = *shard;
	r = model_family_find(gguf, &ret->family, err);
	if (!r)
		r = model_params_read(gguf, ret->family, &ret->params, err);
	if (!r)
		r = divide(&in);
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
	if (!r)
		r = load_head(&in);
	if (!r)
		r = check_all_used(&in);
	h = hasher_end(&hasher, r ? NULL : err);
	r = gguf_check_read(gguf, r ? r : h, err);
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
