/* SPDX-License-Identifier: MIT */
/* Operations on single rows with 16 lanes. */
#include "kernels/x86/avx512.h"
#include "kernels/x86/x86.h"

INLINE __m512 first_load(const float *p, uint32_t n)
{
	return _mm512_maskz_loadu_ps(first_mask(n), p);
}

INLINE void first_store(float *p, uint32_t n, __m512 x)
{
	_mm512_mask_storeu_ps(p, first_mask(n), x);
}

INLINE __m512 first_load_or(__m512 low, const float *p, uint32_t n)
{
	return _mm512_mask_loadu_ps(low, first_mask(n), p);
}

INLINE __m512 first_add(__m512 sum, __m512 x, uint32_t n)
{
	return _mm512_mask_add_ps(sum, first_mask(n), sum, x);
}

INLINE uint32_t first_equal(const float *p, uint32_t n, __m512 x)
{
	return _mm512_mask_cmp_ps_mask(first_mask(n), first_load(p, n), x, _CMP_EQ_OQ);
}

INLINE float max_lanes(__m512 x)
{
	return _mm512_reduce_max_ps(x);
}

INLINE float tree(const __m512 *sum)
{
	return tree_sum(sum[0]);
}

/* Eight pairs a step: even lanes are a, odd ones b. */
static void rope_normal(float *x, const float *cs, uint32_t n)
{
	const __m512i twice =
		_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);

	for (uint32_t i = 0; i < n; i += 8) {
		__mmask16 m = first_mask(2 * (n - i));
		__mmask8 half = n - i >= 8 ? 0xff : (__mmask8)((1u << (n - i)) - 1);
		__m512 v = _mm512_maskz_loadu_ps(m, x + 2 * i);
		__m512 c = _mm512_permutexvar_ps(
			twice,
			_mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, cs + i)));
		__m512 s = _mm512_permutexvar_ps(
			twice,
			_mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, cs + n + i)));
		__m512 vc = _mm512_mul_ps(v, c);
		__m512 us = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), s);

		v = _mm512_mask_sub_ps(_mm512_add_ps(vc, us), 0x5555, vc, us);
		_mm512_mask_storeu_ps(x + 2 * i, m, v);
	}
}

#include "kernels/x86/rows.h"

ROWS(avx512)
