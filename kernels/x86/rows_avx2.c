/* SPDX-License-Identifier: MIT */
/* Operations on single rows with 8 lanes. */
#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

INLINE __m256 first_load(const float *p, uint32_t n)
{
	return _mm256_maskload_ps(p, lane_mask(n));
}

INLINE void first_store(float *p, uint32_t n, __m256 x)
{
	_mm256_maskstore_ps(p, lane_mask(n), x);
}

INLINE __m256 first_load_or(__m256 low, const float *p, uint32_t n)
{
	return _mm256_blendv_ps(low, first_load(p, n), _mm256_castsi256_ps(lane_mask(n)));
}

INLINE __m256 first_add(__m256 sum, __m256 x, uint32_t n)
{
	return _mm256_add_ps(sum, _mm256_and_ps(x, _mm256_castsi256_ps(lane_mask(n))));
}

INLINE uint32_t first_equal(const float *p, uint32_t n, __m256 x)
{
	__m256 equal = _mm256_cmp_ps(first_load(p, n), x, _CMP_EQ_OQ);

	return (uint32_t)_mm256_movemask_ps(
		_mm256_and_ps(equal, _mm256_castsi256_ps(lane_mask(n))));
}

INLINE float max_lanes(__m256 x)
{
	return max_8(x);
}

INLINE float tree(const __m256 *sum)
{
	return tree_sum(sum[0], sum[1]);
}

/* Four pairs a step: even lanes are a, odd ones b. */
static void rope_normal(float *x, const float *cs, uint32_t n)
{
	const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);

	for (uint32_t i = 0; i < n; i += 4) {
		uint32_t left = n - i > 4 ? 4 : n - i;
		__m256i m = lane_mask(2 * left), half = lane_mask(left);
		__m256 v = _mm256_maskload_ps(x + 2 * i, m);
		__m256 c =
			_mm256_permutevar8x32_ps(_mm256_maskload_ps(cs + i, half), twice);
		__m256 s = _mm256_permutevar8x32_ps(_mm256_maskload_ps(cs + n + i, half),
						    twice);

		v = _mm256_addsub_ps(_mm256_mul_ps(v, c),
				     _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), s));
		_mm256_maskstore_ps(x + 2 * i, m, v);
	}
}

#include "kernels/x86/rows.h"

ROWS(avx2)
