/* SPDX-License-Identifier: MIT */
/*
 * Attention over fp8 planes, the reference. h is a code's fp16 reading,
 * (code & 0x80) << 8 | (code & 0x7f) << 7, which is its value / 256.
 */
#include "kernels/c/c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"

/* A plane's codes as 1/256 of their values, once for all queries. */
static void plane_to_float(const uint8_t *src, float *dst, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		dst[i] = kv_half_to_float(kv_half_from_e4m3(src[i]));
}

/* What a token's values are multiplied by. */
static float token_scale(const void *params, uint32_t t)
{
	return kv_half_to_float(((const uint16_t *)params)[t]) * 256;
}

/* How many of the block's tokens, from position t0 of the span on, query i sees there. */
static uint32_t visible(const struct kv_span *sp, uint32_t i, uint32_t t0)
{
	uint32_t n = sp->n_code[i] > t0 ? sp->n_code[i] - t0 : 0;

	return n < sp->block_tokens ? n : sp->block_tokens;
}

/* f = fma over d = 0 .. head_dim - 1 of q[d] * h[d][t], from 0; s[t] = f * (scale_t * 256). */
void kv_scores_fp8_c(const struct kv_span *sp)
{
	float k[KV_HEAD_DIM_MAX * KV_BLOCK_TOKENS_MAX];
	uint32_t bt = sp->block_tokens, hd = sp->head_dim,
		 n_code = sp->n_code[sp->n_q - 1];

	for (uint32_t t0 = 0; t0 < n_code; t0 += bt) {
		plane_to_float(sp->k[t0 / bt], k, hd * bt);
		for (uint32_t i = 0; i < sp->n_q; i++) {
			float *s = sp->s + i * KV_SPAN + t0;
			uint32_t n = visible(sp, i, t0);

			for (uint32_t t = 0; t < n; t++)
				s[t] = 0;
			for (uint32_t d = 0; d < hd; d++) {
				float q = sp->q[d * KV_SPAN_QUERIES + i];

				for (uint32_t t = 0; t < n; t++)
					s[t] = kv_fma_c(q, k[d * bt + t], s[t]);
			}
			for (uint32_t t = 0; t < n; t++)
				s[t] *= token_scale(sp->k_params[t0 / bt], t);
		}
	}
}

/* o[d] = fma(e[t] * (scale_t * 256), h[t][d], o[d]) over t = 0 .. n_code - 1, from 0. */
void kv_sums_fp8_c(const struct kv_span *sp)
{
	float v[KV_HEAD_DIM_MAX * KV_BLOCK_TOKENS_MAX];
	uint32_t bt = sp->block_tokens, hd = sp->head_dim,
		 n_code = sp->n_code[sp->n_q - 1];

	for (uint32_t i = 0; i < sp->n_q * hd; i++)
		sp->o[i] = 0;
	for (uint32_t t0 = 0; t0 < n_code; t0 += bt) {
		plane_to_float(sp->v[t0 / bt], v, hd * bt);
		for (uint32_t i = 0; i < sp->n_q; i++) {
			uint32_t n = visible(sp, i, t0);
			float *o = sp->o + i * hd;

			for (uint32_t t = 0; t < n; t++) {
				float w = sp->s[i * KV_SPAN + t0 + t] *
					  token_scale(sp->v_params[t0 / bt], t);

				for (uint32_t d = 0; d < hd; d++)
					o[d] = kv_fma_c(w, v[t * hd + d], o[d]);
			}
		}
	}
}
