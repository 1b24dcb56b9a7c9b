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

INLINE uint32_t not_finite(vfloat x)
{
	__m256 diff = _mm256_sub_ps(x, x);

	return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(diff, diff, _CMP_UNORD_Q));
}

enum { STORE_CODES = 8 };

INLINE void store_every_4th(uint8_t *dst, const uint8_t *c, uint32_t i, uint32_t n)
{
	for (uint32_t d = 0; d < 8; d++)
		dst[d * 4 + i] = c[d];
}

#include "kernels/x86/quant.h"

QUANT(avx2)
