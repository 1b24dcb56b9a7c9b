/* SPDX-License-Identifier: MIT */
/* Attention over fp16 and fp8, and over partial blocks, with 8 lanes. */
#include <math.h>

#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

/* head_dim is a multiple of 8: nothing is ever cut off. */
INLINE vfloat load_f_n(const float *p, uint32_t n)
{
	return load_f(p);
}

INLINE vfloat half_load_n(const uint16_t *p, uint32_t n)
{
	return half_load(p);
}

/* Sign extension puts the sign where shifting leaves it; the bit below it is cleared. */
INLINE vfloat fp8_load_n(const uint8_t *p, uint32_t n)
{
	__m128i h = _mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)p));

	h = _mm_and_si128(_mm_slli_epi16(h, 7), _mm_set1_epi16((short)0xbfff));
	return _mm256_cvtph_ps(h);
}

enum { ONE_QUERY_DIMS = 8 };

#include "kernels/x86/attention_float.h"
#include "kernels/x86/attention_own.h"

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

INLINE void scores_all(const struct kv_span *sp, bool fp8)
{
	uint32_t q = 0;

	for (; q + 3 <= sp->n_q; q += 3)
		scores(sp, q, 3, 3, fp8);
	if (sp->n_q - q == 2)
		scores(sp, q, 2, 4, fp8);
	else if (sp->n_q - q == 1)
		scores(sp, q, 1, 4, fp8);
}

INLINE void sums_all(const struct kv_span *sp, const float *w, bool fp8)
{
	uint32_t q = 0;

	for (; q + 3 <= sp->n_q; q += 3)
		sums(sp, w, q, 3, 4, fp8);
	if (sp->n_q - q == 2)
		sums(sp, w, q, 2, 4, fp8);
	else if (sp->n_q - q == 1)
		sums(sp, w, q, 1, 8, fp8);
}

void kv_softmax_avx2(const struct kv_span *sp)
{
	for (uint32_t q = 0; q < sp->n_q; q++)
		softmax(sp, q);
}

FLOAT_SPANS(avx2)
ATTENTION_OWN(avx2)
