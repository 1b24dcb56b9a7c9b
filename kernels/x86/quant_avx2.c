/* SPDX-License-Identifier: MIT */
/* Rotation and writing of codes with 8 lanes. */
#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

INLINE __m256 butterfly_8(__m256 x, int l);

INLINE vfloat butterfly(vfloat x, int l)
{
	return butterfly_8(x, l);
}

#include "kernels/x86/quant.h"

QUANT(avx2)
