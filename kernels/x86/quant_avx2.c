/* SPDX-License-Identifier: MIT */
/* Rotation and writing of codes with 8 lanes. */
#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

INLINE __m256 butterfly_8(__m256 x, int l);
INLINE __m256 flip_8(__m256 x, uint32_t bits);

INLINE vfloat butterfly(vfloat x, int l)
{
	return butterfly_8(x, l);
}

INLINE vfloat flip(vfloat x, const uint8_t *bits)
{
	return flip_8(x, bits[0]);
}

INLINE void range_of(vfloat lo, vfloat hi, __m128 *ret_low, __m128 *ret_high)
{
	const __m256 sign = _mm256_set1_ps(-0.0f);
	__m256 x;

	/* The negative of hi, so that one vector goes through the same steps as both. */
	hi = _mm256_xor_ps(hi, sign);
	x = _mm256_min_ps(_mm256_permute2f128_ps(lo, hi, 0x20),
			  _mm256_permute2f128_ps(lo, hi, 0x31));
	x = _mm256_min_ps(x, _mm256_permute_ps(x, 0x4e));
	x = _mm256_min_ps(x, _mm256_permute_ps(x, 0xb1));
	*ret_low = _mm256_castps256_ps128(x);
	*ret_high = _mm_xor_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(sign));
}

INLINE uint32_t nan_in(vfloat a, vfloat b)
{
	return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

/* There is no store of single bytes: the other ones are written back as they were. */
INLINE void store_every_4th(uint8_t *dst, vint c, uint32_t i, uint32_t n)
{
	const __m128i bits = _mm_cvtsi32_si128((int)i * 8);
	__m256i mask = _mm256_sll_epi32(_mm256_set1_epi32(0xff), bits);
	__m256i old = _mm256_loadu_si256((const void *)dst);

	c = _mm256_or_si256(_mm256_andnot_si256(mask, old), _mm256_sll_epi32(c, bits));
	_mm256_storeu_si256((void *)dst, c);
}

#include "kernels/x86/quant.h"

QUANT(avx2)
