/* SPDX-License-Identifier: MIT */
/* Attention over fp16 planes, partial blocks, merging of spans, the reference. */
#include <math.h>

#include "kernels/c/c.h"
#include "kernels/c/exp_c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"

/* A plane's halves as floats, once for all queries. */
static void plane_to_float(const uint16_t *src, float *dst, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		dst[i] = kv_half_to_float(src[i]);
}

/* How many of the block's tokens, from position t0 of the span on, query i sees there. */
static uint32_t visible(const struct kv_span *sp, uint32_t i, uint32_t t0)
{
	uint32_t n = sp->n_code[i] > t0 ? sp->n_code[i] - t0 : 0;

	return n < sp->block_tokens ? n : sp->block_tokens;
}

static void block_scores(const struct kv_span *sp, uint32_t t0, const float *k)
{
	uint32_t bt = sp->block_tokens;

	for (uint32_t i = 0; i < sp->n_q; i++) {
		float *s = sp->s + i * KV_SPAN + t0;
		uint32_t n = visible(sp, i, t0);

		for (uint32_t t = 0; t < n; t++)
			s[t] = 0;
		for (uint32_t d = 0; d < sp->head_dim; d++) {
			float q = sp->q[d * KV_SPAN_QUERIES + i];

			for (uint32_t t = 0; t < n; t++)
				s[t] = kv_fma_c(q, k[d * bt + t], s[t]);
		}
	}
}

static void block_sums(const struct kv_span *sp, uint32_t t0, const float *v)
{
	uint32_t hd = sp->head_dim;

	for (uint32_t i = 0; i < sp->n_q; i++) {
		const float *s = sp->s + i * KV_SPAN + t0;
		float *o = sp->o + i * hd;
		uint32_t n = visible(sp, i, t0);

		for (uint32_t t = 0; t < n; t++)
			for (uint32_t d = 0; d < hd; d++)
				o[d] = kv_fma_c(s[t], v[t * hd + d], o[d]);
	}
}

/* s[t] = fma over d = 0 .. head_dim - 1 of q[d] * k[d][t], from 0. */
void kv_scores_fp16_c(const struct kv_span *sp)
{
	float plane[KV_HEAD_DIM_MAX * KV_BLOCK_TOKENS_MAX];
	uint32_t bt = sp->block_tokens, hd = sp->head_dim, n = sp->n_code[sp->n_q - 1];

	for (uint32_t t0 = 0; t0 < n; t0 += bt) {
		plane_to_float(sp->k[t0 / bt], plane, hd * bt);
		block_scores(sp, t0, plane);
	}
}

/* o[d] = fma(e[t], v[t][d], o[d]) over t = 0 .. n_code - 1, from 0. */
void kv_sums_fp16_c(const struct kv_span *sp)
{
	float plane[KV_HEAD_DIM_MAX * KV_BLOCK_TOKENS_MAX];
	uint32_t bt = sp->block_tokens, hd = sp->head_dim, n = sp->n_code[sp->n_q - 1];

	for (uint32_t i = 0; i < sp->n_q * hd; i++)
		sp->o[i] = 0;
	for (uint32_t t0 = 0; t0 < n; t0 += bt) {
		plane_to_float(sp->v[t0 / bt], plane, hd * bt);
		block_sums(sp, t0, plane);
	}
}

/*
 * max  = the largest s[t], t < n_tok, never a NaN
 * e[t] = exp(s[t] - max), by kv_exp_c()
 * sum  = of e[t], in 16 lanes
 */
void kv_softmax_c(const struct kv_span *sp)
{
	for (uint32_t i = 0; i < sp->n_q; i++) {
		float *s = sp->s + i * KV_SPAN, lanes[16] = {0}, max = -INFINITY;

		for (uint32_t t = 0; t < sp->n_tok[i]; t++)
			max = s[t] > max ? s[t] : max;
		for (uint32_t t = 0; t < sp->n_tok[i]; t++) {
			s[t] = kv_exp_c(s[t] - max);
			lanes[t % 16] += s[t];
		}
		sp->max[i] = max;
		sp->sum[i] = kv_tree_sum_c(lanes);
	}
}

/* s[t] = fma over d = 0 .. of q_row[d] * own_k[d][t - n_code], from 0. */
void kv_scores_own_c(const struct kv_span *sp)
{
	for (uint32_t i = 0; i < sp->n_q; i++) {
		for (uint32_t t = sp->n_code[i]; t < sp->n_tok[i]; t++) {
			const uint16_t *k = sp->own_k[i] + (t - sp->n_code[i]);
			float s = 0;

			for (uint32_t d = 0; d < sp->head_dim; d++)
				s = kv_fma_c(sp->q_row[i][d],
					     kv_half_to_float(k[d * sp->block_tokens]),
					     s);
			sp->s[i * KV_SPAN + t] = s;
		}
	}
}

/* o[d] = fma(e[t], own_v[t - n_code][d], o[d]), t = n_code .. n_tok - 1 in order. */
void kv_sums_own_c(const struct kv_span *sp)
{
	uint32_t hd = sp->head_dim;

	for (uint32_t i = 0; i < sp->n_q; i++) {
		float *o = sp->o + i * hd;

		for (uint32_t t = sp->n_code[i]; t < sp->n_tok[i]; t++) {
			const uint16_t *v = sp->own_v[i] + (t - sp->n_code[i]) * hd;
			float e = sp->s[i * KV_SPAN + t];

			for (uint32_t d = 0; d < hd; d++)
				o[d] = kv_fma_c(e, kv_half_to_float(v[d]), o[d]);
		}
	}
}

/*
 * M = max(max, m); a = exp(max - M); b = exp(m - M);
 * sum = fma(s, b, sum * a); o[d] = fma(p[d], b, o[d] * a); max = M
 */
void kv_merge_c(float *max, float *sum, float *o, float m, float s, const float *p,
		uint32_t head_dim)
{
	float top = *max > m ? *max : m;
	float a = kv_exp_c(*max - top), b = kv_exp_c(m - top);

	*max = top;
	*sum = kv_fma_c(s, b, *sum * a);
	for (uint32_t d = 0; d < head_dim; d++)
		o[d] = kv_fma_c(p[d], b, o[d] * a);
}
