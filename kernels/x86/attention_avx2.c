/* SPDX-License-Identifier: MIT */
/*
 * One span of attention: scores with a token per lane, sums with a dim per lane. Queries are
 * taken a few at a time, so that each K and V element is converted once for all of them.
 */
#include <math.h>
#include <string.h>

#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

/* Scores of queries q0 .. q0 + nq - 1 for nv vectors of 8 tokens from vector iv on. */
INLINE void scores_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t iv,
			int nv)
{
	uint32_t bt = sp->block_tokens;
	const float *qd = sp->q + q0;
	const uint16_t *k[4];
	__m256 acc[4][4];

#pragma GCC unroll 8
	for (int v = 0; v < nv; v++) {
		uint32_t t = (iv + v) * 8;

		k[v] = (const uint16_t *)sp->k[t / bt] + t % bt;
#pragma GCC unroll 12
		for (int q = 0; q < nq; q++)
			acc[q][v] = _mm256_setzero_ps();
	}
	for (uint32_t d = 0; d < sp->head_dim; d++, qd += KV_SPAN_QUERIES) {
		__m256 b[4];

#pragma GCC unroll 12
		for (int q = 0; q < nq; q++)
			b[q] = _mm256_set1_ps(qd[q]);
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			__m256 kv = _mm256_cvtph_ps(
				_mm_load_si128((const void *)(k[v] + (size_t)d * bt)));

#pragma GCC unroll 12
			for (int q = 0; q < nq; q++)
				acc[q][v] = _mm256_fmadd_ps(b[q], kv, acc[q][v]);
		}
	}
#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++)
			_mm256_store_ps(sp->s + (q0 + q) * KV_SPAN + (iv + v) * 8,
					acc[q][v]);
}

INLINE void scores(const struct kv_span *sp, uint32_t q0, int nq, int nv)
{
	uint32_t iv = 0, n = (sp->n_code[q0 + nq - 1] + 7) / 8;

	for (; iv + nv <= n; iv += nv)
		scores_tile(sp, q0, nq, iv, nv);
	for (; iv < n; iv++)
		scores_tile(sp, q0, nq, iv, 1);
}

/* Scores of one query become exp(score - max); max and sum are set. What is visible no more
 * is made -infinity first, and its exp is not added up. */
static void softmax(const struct kv_span *sp, uint32_t q)
{
	float *s = sp->s + q * KV_SPAN, max;
	uint32_t n = sp->n_tok[q], round = (n + 15) / 16 * 16;
	__m256 top = _mm256_set1_ps(-INFINITY), sum[2];

	for (uint32_t t = n; t < round; t++)
		s[t] = -INFINITY;
	for (uint32_t t = 0; t < round; t += 8)
		top = _mm256_max_ps(_mm256_load_ps(s + t), top);
	max = max_8(top);
	top = _mm256_set1_ps(max);
	sum[0] = sum[1] = _mm256_setzero_ps();
	for (uint32_t t = 0; t < round; t += 8) {
		__m256 e = exp_f(_mm256_sub_ps(_mm256_load_ps(s + t), top));
		uint32_t left = n > t ? n - t : 0;

		if (left < 8)
			e = _mm256_and_ps(e, _mm256_castsi256_ps(lane_mask(left)));
		sum[t / 8 % 2] = _mm256_add_ps(sum[t / 8 % 2], e);
		_mm256_store_ps(s + t, e);
	}
	sp->max[q] = max;
	sp->sum[q] = tree_sum(sum[0], sum[1]);
}

/* Add tokens t0 .. t1 - 1 to dims d0 .. d0 + 8 nd - 1 of o. */
INLINE void sums_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t d0, int nd,
		      uint32_t t0, uint32_t t1)
{
	uint32_t bt = sp->block_tokens, hd = sp->head_dim;
	float *o = sp->o + q0 * hd + d0;
	const float *s = sp->s + q0 * KV_SPAN;
	__m256 acc[4][8];

#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int d = 0; d < nd; d++)
			acc[q][d] = _mm256_loadu_ps(o + q * hd + d * 8);
	while (t0 < t1) {
		uint32_t end = (t0 / bt + 1) * bt;
		const uint16_t *v = (const uint16_t *)sp->v[t0 / bt] + t0 % bt * hd + d0;

		end = end < t1 ? end : t1;
		for (const float *e0 = s + t0; t0 < end; t0++, e0++, v += hd) {
			__m256 e[4];

#pragma GCC unroll 12
			for (int q = 0; q < nq; q++)
				e[q] = _mm256_set1_ps(e0[q * KV_SPAN]);
#pragma GCC unroll 8
			for (int d = 0; d < nd; d++) {
				__m256 x = _mm256_cvtph_ps(
					_mm_loadu_si128((const void *)(v + d * 8)));

#pragma GCC unroll 12
				for (int q = 0; q < nq; q++)
					acc[q][d] = _mm256_fmadd_ps(e[q], x, acc[q][d]);
			}
		}
	}
#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int d = 0; d < nd; d++)
			_mm256_storeu_ps(o + q * hd + d * 8, acc[q][d]);
}

INLINE void sums_range(const struct kv_span *sp, uint32_t q0, int nq, int nd, uint32_t t0,
		       uint32_t t1)
{
	uint32_t d = 0, hd = sp->head_dim;

	for (; d + 8 * (uint32_t)nd <= hd; d += 8 * (uint32_t)nd)
		sums_tile(sp, q0, nq, d, nd, t0, t1);
	for (; d < hd; d += 8)
		sums_tile(sp, q0, nq, d, 1, t0, t1);
}

/* What the queries of a tile do not all see is added for each one alone: a product with zero
 * would let another row's V reach this one's bits. */
INLINE void sums(const struct kv_span *sp, uint32_t q0, int nq, int nd)
{
	uint32_t common = sp->n_code[q0];

	sums_range(sp, q0, nq, nd, 0, common);
	for (int q = 1; q < nq; q++)
		if (sp->n_code[q0 + q] > common)
			sums_range(sp, q0 + q, 1, 8, common, sp->n_code[q0 + q]);
}

void kv_scores_fp16_avx2(const struct kv_span *sp)
{
	uint32_t q = 0;

	for (; q + 3 <= sp->n_q; q += 3)
		scores(sp, q, 3, 3);
	if (sp->n_q - q == 2)
		scores(sp, q, 2, 4);
	else if (sp->n_q - q == 1)
		scores(sp, q, 1, 4);
}

void kv_softmax_avx2(const struct kv_span *sp)
{
	for (uint32_t q = 0; q < sp->n_q; q++)
		softmax(sp, q);
}

void kv_sums_add_fp16_avx2(const struct kv_span *sp)
{
	uint32_t q = 0;

	for (; q + 3 <= sp->n_q; q += 3)
		sums(sp, q, 3, 4);
	if (sp->n_q - q == 2)
		sums(sp, q, 2, 4);
	else if (sp->n_q - q == 1)
		sums(sp, q, 1, 8);
}

void kv_sums_fp16_avx2(const struct kv_span *sp)
{
	memset(sp->o, 0, (size_t)sp->n_q * sp->head_dim * sizeof(float));
	kv_sums_add_fp16_avx2(sp);
}

void kv_merge_avx2(float *max, float *sum, float *o, float m, float s, const float *p,
		   uint32_t head_dim)
{
	float top = *max > m ? *max : m;
	float a = kv_exp_c(*max - top), b = kv_exp_c(m - top);
	__m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);

	*max = top;
	*sum = fmaf(s, b, *sum * a);
	for (uint32_t d = 0; d < head_dim; d += 8) {
		__m256 x = _mm256_mul_ps(_mm256_loadu_ps(o + d), va);

		_mm256_storeu_ps(o + d, _mm256_fmadd_ps(_mm256_loadu_ps(p + d), vb, x));
	}
}
