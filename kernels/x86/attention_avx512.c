/* SPDX-License-Identifier: MIT */
/*
 * One span of attention: scores with a token per lane, sums with a dim per lane. Queries are
 * taken a few at a time, so that each K and V element is converted once for all of them.
 */
#include <math.h>
#include <string.h>

#include "kernels/x86/avx512.h"
#include "kernels/x86/x86.h"

/* Scores of queries q0 .. q0 + nq - 1 for nv vectors of 16 tokens from vector iv on. */
INLINE void scores_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t iv,
			int nv)
{
	uint32_t bt = sp->block_tokens;
	const float *qd = sp->q + q0;
	const uint16_t *k[8];
	__m512 acc[12][8];

#pragma GCC unroll 8
	for (int v = 0; v < nv; v++) {
		uint32_t t = (iv + v) * 16;

		k[v] = (const uint16_t *)sp->k[t / bt] + t % bt;
#pragma GCC unroll 12
		for (int q = 0; q < nq; q++)
			acc[q][v] = _mm512_setzero_ps();
	}
	for (uint32_t d = 0; d < sp->head_dim; d++, qd += KV_SPAN_QUERIES) {
		__m512 kv[8];

#pragma GCC unroll 8
		for (int v = 0; v < nv; v++)
			kv[v] = _mm512_cvtph_ps(
				_mm256_load_si256((const void *)(k[v] + (size_t)d * bt)));
#pragma GCC unroll 12
		for (int q = 0; q < nq; q++) {
			__m512 b = _mm512_set1_ps(qd[q]);

#pragma GCC unroll 8
			for (int v = 0; v < nv; v++)
				acc[q][v] = _mm512_fmadd_ps(b, kv[v], acc[q][v]);
		}
	}
#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++)
			_mm512_store_ps(sp->s + (q0 + q) * KV_SPAN + (iv + v) * 16,
					acc[q][v]);
}

INLINE void scores(const struct kv_span *sp, uint32_t q0, int nq, int nv)
{
	uint32_t iv = 0, n = (sp->n_code[q0 + nq - 1] + 15) / 16;

	for (; iv + nv <= n; iv += nv)
		scores_tile(sp, q0, nq, iv, nv);
	for (; iv < n; iv++)
		scores_tile(sp, q0, nq, iv, 1);
}

/* A NaN never becomes the largest: what is not greater leaves the second operand. */
INLINE float span_max(const float *s, uint32_t n)
{
	uint32_t t = 0, full = n / 16 * 16;
	__mmask16 tail = (__mmask16)((1u << n % 16) - 1);
	__m512 top[4];

	for (int i = 0; i < 4; i++)
		top[i] = _mm512_set1_ps(-INFINITY);
	for (; t + 64 <= full; t += 64)
#pragma GCC unroll 4
		for (int i = 0; i < 4; i++)
			top[i] = _mm512_max_ps(_mm512_load_ps(s + t + i * 16), top[i]);
	for (; t < full; t += 16)
		top[0] = _mm512_max_ps(_mm512_load_ps(s + t), top[0]);
	if (tail)
		top[0] = _mm512_mask_max_ps(top[0], tail, _mm512_load_ps(s + full),
					    top[0]);
	top[0] = _mm512_max_ps(_mm512_max_ps(top[0], top[1]),
			       _mm512_max_ps(top[2], top[3]));
	return _mm512_reduce_max_ps(top[0]);
}

/* Scores of one query become exp(score - max); sum is set. */
INLINE void softmax(const struct kv_span *sp, uint32_t q)
{
	float *s = sp->s + q * KV_SPAN;
	uint32_t n = sp->n_tok[q], full = n / 16 * 16;
	__mmask16 tail = (__mmask16)((1u << n % 16) - 1);
	__m512 top = _mm512_set1_ps(sp->max[q]), sum = _mm512_setzero_ps(), e;

	for (uint32_t t = 0; t < full; t += 16) {
		e = exp_f(_mm512_sub_ps(_mm512_load_ps(s + t), top));
		sum = _mm512_add_ps(sum, e);
		_mm512_store_ps(s + t, e);
	}
	if (tail) {
		e = exp_f(_mm512_sub_ps(_mm512_load_ps(s + full), top));
		sum = _mm512_mask_add_ps(sum, tail, sum, e);
		_mm512_store_ps(s + full, e);
	}
	sp->sum[q] = tree_sum(sum);
}

/* Add tokens t0 .. t1 - 1 to dims d0 .. d0 + 16 nd - 1 (cut at head_dim) of o. */
INLINE void sums_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t d0, int nd,
		      uint32_t t0, uint32_t t1)
{
	uint32_t bt = sp->block_tokens, hd = sp->head_dim;
	uint32_t left = hd - d0 - 16 * ((uint32_t)nd - 1);
	__mmask16 last = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
	float *o = sp->o + q0 * hd + d0;
	const float *s = sp->s + q0 * KV_SPAN;
	__m512 acc[12][4];

#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int d = 0; d < nd; d++)
			acc[q][d] = _mm512_maskz_loadu_ps(d == nd - 1 ? last : 0xffff,
							  o + q * hd + d * 16);
	while (t0 < t1) {
		uint32_t end = (t0 / bt + 1) * bt;
		const uint16_t *v = (const uint16_t *)sp->v[t0 / bt] + t0 % bt * hd + d0;

		end = end < t1 ? end : t1;
		for (const float *e0 = s + t0; t0 < end; t0++, e0++, v += hd) {
			__m512 x[4];

#pragma GCC unroll 8
			for (int d = 0; d < nd; d++)
				x[d] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(
					d == nd - 1 ? last : 0xffff, v + d * 16));
#pragma GCC unroll 12
			for (int q = 0; q < nq; q++) {
				__m512 e = _mm512_set1_ps(e0[q * KV_SPAN]);

#pragma GCC unroll 8
				for (int d = 0; d < nd; d++)
					acc[q][d] = _mm512_fmadd_ps(e, x[d], acc[q][d]);
			}
		}
	}
#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int d = 0; d < nd; d++)
			_mm512_mask_storeu_ps(o + q * hd + d * 16,
					      d == nd - 1 ? last : 0xffff, acc[q][d]);
}

INLINE void sums_range(const struct kv_span *sp, uint32_t q0, int nq, int nd, uint32_t t0,
		       uint32_t t1)
{
	uint32_t d = 0, hd = sp->head_dim;

	for (; d + 16 * (uint32_t)nd <= hd; d += 16 * (uint32_t)nd)
		sums_tile(sp, q0, nq, d, nd, t0, t1);
	for (; d < hd; d += 16)
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
			sums_range(sp, q0 + q, 1, 4, common, sp->n_code[q0 + q]);
}

/* Size of the first tile for each number of queries left. */
static const uint8_t tiles[KV_SPAN_QUERIES + 1] = {0, 1, 2, 3, 4, 3, 6,
						   4, 4, 6, 6, 6, 12};

void kv_scores_fp16_avx512(const struct kv_span *sp)
{
	for (uint32_t q = 0; q < sp->n_q;) {
		int n = tiles[sp->n_q - q];

		switch (n) {
		case 1:
			scores(sp, q, 1, 8);
			break;
		case 2:
			scores(sp, q, 2, 6);
			break;
		case 3:
			scores(sp, q, 3, 4);
			break;
		case 4:
			scores(sp, q, 4, 4);
			break;
		case 6:
			scores(sp, q, 6, 2);
			break;
		default:
			scores(sp, q, 12, 1);
			break;
		}
		q += (uint32_t)n;
	}
}

void kv_softmax_avx512(const struct kv_span *sp)
{
	for (uint32_t q = 0; q < sp->n_q; q++)
		sp->max[q] = span_max(sp->s + q * KV_SPAN, sp->n_tok[q]);
	for (uint32_t q = 0; q < sp->n_q; q++)
		softmax(sp, q);
}

void kv_sums_add_fp16_avx512(const struct kv_span *sp)
{
	for (uint32_t q = 0; q < sp->n_q;) {
		int n = tiles[sp->n_q - q];

		switch (n) {
		case 1:
			sums(sp, q, 1, 4);
			break;
		case 2:
			sums(sp, q, 2, 4);
			break;
		case 3:
			sums(sp, q, 3, 4);
			break;
		case 4:
			sums(sp, q, 4, 4);
			break;
		case 6:
			sums(sp, q, 6, 4);
			break;
		default:
			sums(sp, q, 12, 2);
			break;
		}
		q += (uint32_t)n;
	}
}

void kv_sums_fp16_avx512(const struct kv_span *sp)
{
	memset(sp->o, 0, (size_t)sp->n_q * sp->head_dim * sizeof(float));
	kv_sums_add_fp16_avx512(sp);
}

void kv_merge_avx512(float *max, float *sum, float *o, float m, float s, const float *p,
		     uint32_t head_dim)
{
	float top = *max > m ? *max : m;
	float a = kv_exp_c(*max - top), b = kv_exp_c(m - top);
	__m512 va = _mm512_set1_ps(a), vb = _mm512_set1_ps(b);

	*max = top;
	*sum = fmaf(s, b, *sum * a);
	for (uint32_t d = 0; d < head_dim; d += 16) {
		uint32_t left = head_dim - d;
		__mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
		__m512 x = _mm512_maskz_loadu_ps(mask, o + d);

		x = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, p + d), vb,
				    _mm512_mul_ps(x, va));
		_mm512_mask_storeu_ps(o + d, mask, x);
	}
}
