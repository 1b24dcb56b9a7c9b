/* SPDX-License-Identifier: MIT */
/* Attention over fp16 and fp8, and over partial blocks, with 16 lanes. */
#include <math.h>

#include "kernels/x86/lanes16.h"
#include "kernels/x86/x86.h"

INLINE vfloat load_f_n(const float *p, uint32_t n)
{
	return _mm512_maskz_loadu_ps(first_mask(n), p);
}

INLINE vfloat half_load_n(const uint16_t *p, uint32_t n)
{
	return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_mask(n), p));
}

/* Sign extension puts the sign where shifting leaves it; the bit below it is cleared. */
INLINE vfloat fp8_load_n(const uint8_t *p, uint32_t n)
{
	__m256i h = _mm256_cvtepi8_epi16(_mm_maskz_loadu_epi8(first_mask(n), p));

	h = _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16((short)0xbfff));
	return _mm512_cvtph_ps(h);
}

enum { ONE_QUERY_DIMS = 4 };

#include "kernels/x86/attention_float.h"
#include "kernels/x86/attention_own.h"

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

/* Size of the first tile for each number of queries left. */
static const uint8_t tiles[KV_SPAN_QUERIES + 1] = {0, 1, 2, 3, 4, 3, 6,
						   4, 4, 6, 6, 6, 12};

INLINE void scores_all(const struct kv_span *sp, bool fp8)
{
	for (uint32_t q = 0; q < sp->n_q;) {
		int n = tiles[sp->n_q - q];

		switch (n) {
		case 1:
			scores(sp, q, 1, 8, fp8);
			break;
		case 2:
			scores(sp, q, 2, 6, fp8);
			break;
		case 3:
			scores(sp, q, 3, 4, fp8);
			break;
		case 4:
			scores(sp, q, 4, 4, fp8);
			break;
		case 6:
			scores(sp, q, 6, 2, fp8);
			break;
		default:
			scores(sp, q, 12, 1, fp8);
			break;
		}
		q += (uint32_t)n;
	}
}

INLINE void sums_all(const struct kv_span *sp, const float *w, bool fp8)
{
	for (uint32_t q = 0; q < sp->n_q;) {
		int n = tiles[sp->n_q - q];

		switch (n) {
		case 1:
			sums(sp, w, q, 1, 4, fp8);
			break;
		case 2:
			sums(sp, w, q, 2, 4, fp8);
			break;
		case 3:
			sums(sp, w, q, 3, 4, fp8);
			break;
		case 4:
			sums(sp, w, q, 4, 4, fp8);
			break;
		case 6:
			sums(sp, w, q, 6, 4, fp8);
			break;
		default:
			sums(sp, w, q, 12, 2, fp8);
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

FLOAT_SPANS(avx512)
ATTENTION_OWN(avx512)
