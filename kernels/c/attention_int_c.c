/* SPDX-License-Identifier: MIT */
/*
 * Attention over int8 and int4 planes, the reference. qi is the query's codes; sums are exact in
 * int32, and a shift to the right is arithmetic.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/c/c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"

/*
 * 15-bit codes c of x[n]. Return: their scale.
 *   top = the largest |x|, compared by its bits, so that a NaN is the largest; 0 if n = 0;
 *   top < 1e-30: scale = 0, c = 0; top not finite: scale = NaN, c = 0;
 *   else scale = top / KV_CODE_TOP, c = round_to_even(x * (KV_CODE_TOP / top)).
 */
static float codes_of(const float *x, uint32_t n, int16_t *codes)
{
	uint32_t bits = 0;
	float top, r;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t u = kv_float_bits(x[i]) & 0x7fffffff;

		bits = u > bits ? u : bits;
	}
	top = kv_float_from_bits(bits);
	memset(codes, 0, n * sizeof(*codes));
	if (top < 1e-30f)
		return 0;
	if (!isfinite(top))
		return NAN;
	r = KV_CODE_TOP / top;
	for (uint32_t i = 0; i < n; i++)
		codes[i] = (int16_t)rintf(x[i] * r);
	return top / KV_CODE_TOP;
}

void kv_query_c(const float *q, uint8_t *codes, float *ret_scale, int32_t *ret_sum,
		uint32_t head_dim)
{
	int16_t *c = (int16_t *)codes;
	int32_t sum = 0;

	*ret_scale = codes_of(q, head_dim, c);
	for (uint32_t d = 0; d < head_dim; d++)
		sum += c[d];
	*ret_sum = sum;
}

/* How many tokens of the block at position t0 of the span some query needs. */
static uint32_t block_needs(const struct kv_span *sp, uint32_t t0)
{
	uint32_t n = sp->n_code[sp->n_q - 1] - t0;

	return n < sp->block_tokens ? n : sp->block_tokens;
}

/*
 * S = sum over d of qi[d] * c[d][t]
 * s[t] = fma(-zero_t, (float)q_sum, (float)S) * (scale_t * q_scale)
 */
void kv_scores_int8_c(const struct kv_span *sp)
{
	uint32_t bt = sp->block_tokens, n_code = sp->n_code[sp->n_q - 1];

	for (uint32_t t0 = 0; t0 < n_code; t0 += bt) {
		const uint8_t *k = sp->k[t0 / bt];
		const uint16_t *params = sp->k_params[t0 / bt];
		uint32_t n = block_needs(sp, t0);

		for (uint32_t i = 0; i < sp->n_q; i++) {
			const int16_t *q = (const int16_t *)sp->q_codes[i];
			int32_t sum[KV_BLOCK_TOKENS_MAX] = {0};

			for (uint32_t d = 0; d < sp->head_dim; d++)
				for (uint32_t t = 0; t < n; t++)
					sum[t] += q[d] * k[(d / 4 * bt + t) * 4 + d % 4];
			for (uint32_t t = 0; t < n; t++) {
				float scale = kv_half_to_float(params[t]);
				float zero = kv_half_to_float(params[bt + t]);

				sp->s[i * KV_SPAN + t0 + t] =
					kv_fma_c(-zero, (float)sp->q_sum[i],
						 (float)sum[t]) *
					(scale * sp->q_scale[i]);
			}
		}
	}
}

/* Code of (token, dim) in an int4 K plane. */
static int32_t k4_code(const uint8_t *k, uint32_t bt, uint32_t t, uint32_t d)
{
	return k[(d / 8 * bt + t) * 4 + d % 4] >> (d / 4 % 2 * 4) & 15;
}

/*
 * The query in the units of a block, as 8-bit codes u[n]. Return: r.
 *   p[d] = (qi[d] * a[d] + 128) >> 8
 *   r = trunc(min(4161536 / largest |p[d]|, 32767))     in float; 4161536 is 127 << 15
 *   u[d] = (p[d] * r + 16384) >> 15
 */
static int32_t block_codes(const int16_t *q, const uint8_t *a, uint32_t n, int32_t *u)
{
	int32_t top = 0, r;

	for (uint32_t d = 0; d < n; d++) {
		u[d] = (q[d] * a[d] + 128) >> 8;
		top = abs(u[d]) > top ? abs(u[d]) : top;
	}
	r = (int32_t)fminf((float)(127 << 15) / (float)top, 32767);
	for (uint32_t d = 0; d < n; d++)
		u[d] = (u[d] * r + 16384) >> 15;
	return r;
}

/*
 * In each block, with u and r of block_codes():
 *   S = sum of u[d] * c[d][t],  U = sum of u[d],  M = sum of qi[d] * (m[d] - 128)
 *   s[t] = fma((float)(16 S - 120 U), (q_scale * A) * (524288 / r), (float)M * (q_scale * B))
 * where 524288 is 1 << 19.
 */
void kv_scores_int4_c(const struct kv_span *sp)
{
	uint32_t bt = sp->block_tokens, n_code = sp->n_code[sp->n_q - 1];

	for (uint32_t t0 = 0; t0 < n_code; t0 += bt) {
		const uint8_t *k = sp->k[t0 / bt], *a = sp->k_params[t0 / bt];
		const uint8_t *m = a + sp->head_dim;
		float fa = kv_half_to_float(sp->k_pair[t0 / bt][0]);
		float fb = kv_half_to_float(sp->k_pair[t0 / bt][1]);
		uint32_t n = block_needs(sp, t0);

		for (uint32_t i = 0; i < sp->n_q; i++) {
			const int16_t *q = (const int16_t *)sp->q_codes[i];
			int32_t sum[KV_BLOCK_TOKENS_MAX] = {0}, u_sum = 0, m_sum = 0;
			int32_t u[KV_HEAD_DIM_MAX];
			int32_t r = block_codes(q, a, sp->head_dim, u);
			float scale = sp->q_scale[i] * fa * ((float)(1 << 19) / (float)r);
			float shift;

			for (uint32_t d = 0; d < sp->head_dim; d++) {
				u_sum += u[d];
				m_sum += q[d] * (m[d] - 128);
				for (uint32_t t = 0; t < n; t++)
					sum[t] += u[d] * k4_code(k, bt, t, d);
			}
			shift = (float)m_sum * (sp->q_scale[i] * fb);
			for (uint32_t t = 0; t < n; t++)
				sp->s[i * KV_SPAN + t0 + t] = kv_fma_c(
					(float)(16 * sum[t] - 120 * u_sum), scale, shift);
		}
	}
}

/*
 * Codes wi of w[t] = e[t] * scale_t, t < n_code, and in 16 lanes what their zeros add up to:
 * z = fma((float)wi[t], zero_t, .). Return: their scale.
 */
static float weight_codes(const struct kv_span *sp, uint32_t i, int16_t *codes,
			  float *ret_zero)
{
	uint32_t bt = sp->block_tokens, n = sp->n_code[i];
	float w[KV_SPAN], lanes[16] = {0}, scale;

	for (uint32_t t = 0; t < n; t++) {
		const uint16_t *params = sp->v_params[t / bt];

		w[t] = sp->s[i * KV_SPAN + t] * kv_half_to_float(params[t % bt]);
	}
	scale = codes_of(w, n, codes);
	for (uint32_t t = 0; t < n; t++) {
		const uint16_t *params = sp->v_params[t / bt];
		float zero = kv_half_to_float(params[bt + t % bt]);

		lanes[t % 16] = kv_fma_c((float)codes[t], zero, lanes[t % 16]);
	}
	*ret_zero = kv_tree_sum_c(lanes);
	return scale;
}

static uint32_t v8_code(const uint8_t *v, uint32_t hd, uint32_t t, uint32_t d)
{
	return v[(t / 4 * hd + d) * 4 + t % 4];
}

static uint32_t v4_code(const uint8_t *v, uint32_t hd, uint32_t t, uint32_t d)
{
	return v[(t / 8 * hd + d) * 4 + t % 4] >> (t / 4 % 2 * 4) & 15;
}

/* o[d] = ((float)A[d] - z) * scale, A[d] = sum over t of wi[t] * c[t][d]. */
static inline void sums(const struct kv_span *sp,
			uint32_t (*code)(const uint8_t *, uint32_t, uint32_t, uint32_t))
{
	uint32_t bt = sp->block_tokens, hd = sp->head_dim;

	for (uint32_t i = 0; i < sp->n_q; i++) {
		int32_t sum[KV_HEAD_DIM_MAX] = {0};
		int16_t w[KV_SPAN];
		float zero, scale = weight_codes(sp, i, w, &zero);

		for (uint32_t t = 0; t < sp->n_code[i]; t++)
			for (uint32_t d = 0; d < hd; d++)
				sum[d] += w[t] *
					  (int32_t)code(sp->v[t / bt], hd, t % bt, d);
		for (uint32_t d = 0; d < hd; d++)
			sp->o[i * hd + d] = ((float)sum[d] - zero) * scale;
	}
}

void kv_sums_int8_c(const struct kv_span *sp)
{
	sums(sp, v8_code);
}

void kv_sums_int4_c(const struct kv_span *sp)
{
	sums(sp, v4_code);
}
