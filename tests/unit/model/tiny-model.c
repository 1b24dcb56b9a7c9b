/* SPDX-License-Identifier: MIT */
#include "tests/unit/model/tiny-model.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "daemon/model/gguf.h"
#include "ipc/base.h"
#include "kernels/wtype.h"
#include "tests/unit/model/harness.h"

#define Q_WIDTH  (TINY_HEADS * TINY_HEAD_DIM)
#define KV_WIDTH (TINY_KV_HEADS * TINY_HEAD_DIM)
#define BASE     10000.0
#define EPS      1e-5

uint64_t tiny_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* A half of sign, power of two and random fraction. */
static void put_half(uint8_t *p, bool negative, int exponent, uint64_t random)
{
	uint16_t bits =
		(uint16_t)(negative << 15 | (15 + exponent) << 10 | (random & 0x3ff));

	memcpy(p, &bits, sizeof(bits));
}

/* One block of random codes with scales that make weights of a tenth or so. */
static void random_block(uint32_t type, uint8_t *p, uint32_t bytes, uint64_t *state)
{
	uint64_t r;

	for (uint32_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(tiny_random(state) >> 20);
	r = tiny_random(state) >> 8;
	switch (type) {
	case GGUF_TENSOR_F32: {
		float v = (float)((double)(r >> 20 & 0xffff) / 0x8000 - 1.0) * 0.1f;

		memcpy(p, &v, sizeof(v));
		break;
	}
	case GGUF_TENSOR_F16:
		put_half(p, r >> 30 & 1, -4 - (int)(r >> 32 & 3), r);
		break;
	case GGUF_TENSOR_BF16: {
		uint16_t bits = (uint16_t)((r >> 30 & 1) << 15 |
					   (123 - (r >> 32 & 3)) << 7 | (r & 0x7f));

		memcpy(p, &bits, sizeof(bits));
		break;
	}
	case GGUF_TENSOR_Q4_0:
		put_half(p, false, -7, r);
		break;
	case GGUF_TENSOR_Q4_1:
		put_half(p, false, -7, r);
		put_half(p + 2, true, -4, r >> 10);
		break;
	case GGUF_TENSOR_Q5_0:
		put_half(p, r >> 30 & 1, -8, r);
		break;
	case GGUF_TENSOR_Q5_1:
		put_half(p, false, -8, r);
		put_half(p + 2, true, -4, r >> 10);
		break;
	case GGUF_TENSOR_Q8_0:
		put_half(p, false, -11, r);
		break;
	case GGUF_TENSOR_Q4_K:
		put_half(p, false, -12, r);
		put_half(p + 2, false, -9, r >> 10);
		break;
	case GGUF_TENSOR_Q5_K:
		put_half(p, false, -13, r);
		put_half(p + 2, false, -9, r >> 10);
		break;
	case GGUF_TENSOR_Q6_K:
		put_half(p + 208, false, -14, r);
		break;
	default:
		die("no such type");
	}
}

struct tensor {
	char name[48];
	uint32_t k, n, type;
};

static uint32_t list_tensors(struct tensor *t, uint32_t type, int tied)
{
	static const struct {
		const char *name;
		uint32_t k, n;
	} layer[] = {
		{"attn_norm", TINY_EMBD, 1},      {"ffn_norm", TINY_EMBD, 1},
		{"attn_q", TINY_EMBD, Q_WIDTH},   {"attn_k", TINY_EMBD, KV_WIDTH},
		{"attn_v", TINY_EMBD, KV_WIDTH},  {"attn_output", Q_WIDTH, TINY_EMBD},
		{"ffn_gate", TINY_EMBD, TINY_FF}, {"ffn_up", TINY_EMBD, TINY_FF},
		{"ffn_down", TINY_FF, TINY_EMBD},
	};
	uint32_t n = 0;

	t[n++] = (struct tensor){"token_embd.weight", TINY_EMBD, TINY_VOCAB, type};
	t[n++] = (struct tensor){"output_norm.weight", TINY_EMBD, 1, GGUF_TENSOR_F32};
	if (!tied)
		t[n++] = (struct tensor){"output.weight", TINY_EMBD, TINY_VOCAB, type};
	for (int i = 0; i < TINY_LAYERS; i++) {
		for (size_t j = 0; j < KVD_ARRAY_LEN(layer); j++, n++) {
			t[n] = (struct tensor){"", layer[j].k, layer[j].n,
					       j < 2 ? GGUF_TENSOR_F32 : type};
			snprintf(t[n].name, sizeof(t[n].name), "blk.%d.%s.weight", i,
				 layer[j].name);
		}
	}
	return n;
}

struct image tiny_model(uint32_t type, int tied, uint64_t seed)
{
	const struct image none = {0};

	return tiny_model_with(type, tied, seed, &none, 0);
}

struct image tiny_model_with(uint32_t type, int tied, uint64_t seed,
			     const struct image *keys, uint32_t n_keys)
{
	struct image im = {0}, data = {0};
	struct tensor tensors[64];
	uint32_t n = list_tensors(tensors, type, tied);
	uint64_t state = seed * 2 + 1;
	float eps = (float)EPS;

	image_header(&im, 3, n, 9 + n_keys);
	image_kv_str(&im, "general.architecture", "llama");
	image_kv_str(&im, "tokenizer.ggml.model", "none");
	image_kv_u32(&im, "llama.block_count", TINY_LAYERS);
	image_kv_u32(&im, "llama.context_length", TINY_CONTEXT);
	image_kv_u32(&im, "llama.embedding_length", TINY_EMBD);
	image_kv_u32(&im, "llama.feed_forward_length", TINY_FF);
	image_kv_u32(&im, "llama.attention.head_count", TINY_HEADS);
	image_kv_u32(&im, "llama.attention.head_count_kv", TINY_KV_HEADS);
	image_str(&im, "llama.attention.layer_norm_rms_epsilon");
	image_u32(&im, GGUF_F32);
	image_put(&im, &eps, sizeof(eps));
	if (keys->len)
		image_put(&im, keys->data, keys->len);
	for (uint32_t i = 0; i < n; i++) {
		const struct tensor *t = &tensors[i];
		uint32_t elems, bytes;

		gguf_tensor_type_block(t->type, &elems, &bytes);
		image_tensor(&im, t->name, t->k, t->n, t->type, data.len);
		for (uint64_t b = 0; b < (uint64_t)t->k * t->n / elems; b++) {
			uint8_t block[256];
			float norm = 1.0f + 0.25f * (float)(tiny_random(&state) % 3);

			random_block(t->type, block, bytes, &state);
			if (strstr(t->name, "norm"))
				memcpy(block, &norm, sizeof(norm));
			image_put(&data, block, bytes);
		}
		image_pad(&data, 32);
	}
	image_pad(&im, 32);
	image_put(&im, data.data, data.len);
	image_free(&data);
	return im;
}

/* ---- the reference ---- */

static int wtype_of(uint32_t type)
{
	for (int i = 0; i < KV_WTYPE_N; i++) {
		if (!strcmp(kv_wtype_name(i), gguf_tensor_type_name(type)))
			return i;
	}
	die("no such type");
}

/* y[n] = W x */
static void matvec(const struct gguf *gguf, const char *name, const double *x, double *y)
{
	const struct gguf_tensor *t = gguf_find_tensor(gguf, name);
	static float row[TINY_FF];
	int type;

	if (!t)
		die("no tensor %s", name);
	type = wtype_of(t->type);
	for (uint64_t i = 0; i < t->dims[1]; i++) {
		int64_t bytes = kv_wtype_row_bytes(type, t->dims[0]);

		kv_row_dequantize(type, t->dims[0], t->data + i * (uint64_t)bytes, row);
		y[i] = 0;
		for (uint64_t j = 0; j < t->dims[0]; j++)
			y[i] += row[j] * x[j];
	}
}

static void norm(const struct gguf *gguf, const char *name, const double *x, double *y)
{
	const struct gguf_tensor *t = gguf_find_tensor(gguf, name);
	double sum = 0;
	float w;

	for (int i = 0; i < TINY_EMBD; i++)
		sum += x[i] * x[i];
	for (int i = 0; i < TINY_EMBD; i++) {
		memcpy(&w, t->data + 4 * i, 4);
		y[i] = x[i] / sqrt(sum / TINY_EMBD + EPS) * w;
	}
}

static void rotate(double *x, int n_heads, double pos)
{
	for (int h = 0; h < n_heads; h++) {
		for (int i = 0; i < TINY_HEAD_DIM; i += 2) {
			double *p = x + h * TINY_HEAD_DIM + i;
			double angle = pos * pow(BASE, -(double)i / TINY_HEAD_DIM);
			double a = p[0], b = p[1];

			p[0] = a * cos(angle) - b * sin(angle);
			p[1] = a * sin(angle) + b * cos(angle);
		}
	}
}

typedef double kv_row[KV_WIDTH];

static void attend(const double *q, kv_row *k, kv_row *v, uint32_t pos, double *out)
{
	static double p[TINY_CONTEXT];

	for (int h = 0; h < TINY_HEADS; h++) {
		int off = h / (TINY_HEADS / TINY_KV_HEADS) * TINY_HEAD_DIM;
		double max = -INFINITY, sum = 0;

		for (uint32_t t = 0; t <= pos; t++) {
			p[t] = 0;
			for (int i = 0; i < TINY_HEAD_DIM; i++)
				p[t] += q[h * TINY_HEAD_DIM + i] * k[t][off + i];
			p[t] /= sqrt(TINY_HEAD_DIM);
			max = fmax(max, p[t]);
		}
		for (uint32_t t = 0; t <= pos; t++)
			sum += p[t] = exp(p[t] - max);
		for (int i = 0; i < TINY_HEAD_DIM; i++) {
			double *o = &out[h * TINY_HEAD_DIM + i];

			*o = 0;
			for (uint32_t t = 0; t <= pos; t++)
				*o += p[t] / sum * v[t][off + i];
		}
	}
}

static const char *layer_name(char *buf, int layer, const char *name)
{
	snprintf(buf, 48, "blk.%d.%s.weight", layer, name);
	return buf;
}

static void run_layer(const struct gguf *gguf, int l, double *x, kv_row *k, kv_row *v,
		      uint32_t pos, double rope_factor)
{
	double h[TINY_EMBD], q[Q_WIDTH], att[Q_WIDTH], y[TINY_EMBD];
	static double gate[TINY_FF], up[TINY_FF];
	char name[48];

	norm(gguf, layer_name(name, l, "attn_norm"), x, h);
	matvec(gguf, layer_name(name, l, "attn_q"), h, q);
	matvec(gguf, layer_name(name, l, "attn_k"), h, k[pos]);
	matvec(gguf, layer_name(name, l, "attn_v"), h, v[pos]);
	rotate(q, TINY_HEADS, pos / rope_factor);
	rotate(k[pos], TINY_KV_HEADS, pos / rope_factor);
	attend(q, k, v, pos, att);
	matvec(gguf, layer_name(name, l, "attn_output"), att, y);
	for (int i = 0; i < TINY_EMBD; i++)
		x[i] += y[i];
	norm(gguf, layer_name(name, l, "ffn_norm"), x, h);
	matvec(gguf, layer_name(name, l, "ffn_gate"), h, gate);
	matvec(gguf, layer_name(name, l, "ffn_up"), h, up);
	for (int i = 0; i < TINY_FF; i++)
		gate[i] *= up[i] / (1.0 + exp(-gate[i]));
	matvec(gguf, layer_name(name, l, "ffn_down"), gate, y);
	for (int i = 0; i < TINY_EMBD; i++)
		x[i] += y[i];
}

static void embed(const struct gguf *gguf, int32_t token, double *x)
{
	const struct gguf_tensor *t = gguf_find_tensor(gguf, "token_embd.weight");
	int type = wtype_of(t->type);
	float row[TINY_EMBD];

	kv_row_dequantize(type, TINY_EMBD,
			  t->data + token * kv_wtype_row_bytes(type, TINY_EMBD), row);
	for (int i = 0; i < TINY_EMBD; i++)
		x[i] = row[i];
}

void tiny_reference(const struct image *model, const int32_t *tokens, uint32_t n,
		    double *logprobs)
{
	tiny_reference_scaled(model, tokens, n, 1, logprobs);
}

void tiny_reference_scaled(const struct image *model, const int32_t *tokens, uint32_t n,
			   double rope_factor, double *logprobs)
{
	static kv_row k[TINY_LAYERS][TINY_CONTEXT], v[TINY_LAYERS][TINY_CONTEXT];
	double x[TINY_EMBD], h[TINY_EMBD], logits[TINY_VOCAB], sum;
	struct load_error err;
	struct gguf *gguf;
	const char *out = "output.weight";

	if (gguf_open_memory(&gguf, "tiny", model->data, model->len, &err))
		die("%s", err.text);
	if (!gguf_find_tensor(gguf, out))
		out = "token_embd.weight";
	logprobs[0] = 0;
	for (uint32_t pos = 0; pos + 1 < n; pos++) {
		embed(gguf, tokens[pos], x);
		for (int l = 0; l < TINY_LAYERS; l++)
			run_layer(gguf, l, x, k[l], v[l], pos, rope_factor);
		norm(gguf, "output_norm.weight", x, h);
		matvec(gguf, out, h, logits);
		sum = 0;
		for (int i = 0; i < TINY_VOCAB; i++)
			sum += exp(logits[i]);
		logprobs[pos + 1] = logits[tokens[pos + 1]] - log(sum);
	}
	gguf_free(gguf);
}
