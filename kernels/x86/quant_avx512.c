/* SPDX-License-Identifier: MIT */
/* Rotation and writing of codes with 16 lanes. */
#include "kernels/x86/lanes16.h"
#include "kernels/x86/x86.h"

INLINE vfloat butterfly(vfloat x, int l)
{
	__m512 p = l == 1   ? _mm512_permute_ps(x, 0xb1)
		   : l == 2 ? _mm512_permute_ps(x, 0x4e)
		   : l == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
			    : _mm512_shuffle_f32x4(x, x, 0x4e);
	__mmask16 upper = l == 1 ? 0xaaaa : l == 2 ? 0xcccc : l == 4 ? 0xf0f0 : 0xff00;

	return _mm512_mask_sub_ps(_mm512_add_ps(x, p), upper, p, x);
}

#include "kernels/x86/quant.h"

QUANT(avx512)
