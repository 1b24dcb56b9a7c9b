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

INLINE vfloat flip(vfloat x, const uint8_t *bits)
{
	__mmask16 mask = (__mmask16)(bits[0] | bits[1] << 8);
	__m512i v = _mm512_castps_si512(x);

	return _mm512_castsi512_ps(
		_mm512_mask_xor_epi32(v, mask, v, _mm512_set1_epi32(INT32_MIN)));
}

INLINE uint32_t not_finite(vfloat x)
{
	/* Quiet NaN, both infinities, signalling NaN. */
	return _mm512_fpclass_ps_mask(x, 0x01 | 0x08 | 0x10 | 0x80);
}

enum { STORE_CODES = 16 };

INLINE void store_every_4th(uint8_t *dst, const uint8_t *c, uint32_t i, uint32_t n)
{
	__m512i v = _mm512_cvtepu8_epi32(_mm_load_si128((const void *)c));
	uint64_t mask = n < 16 ? 0x11111111 : 0x1111111111111111;

	v = _mm512_sll_epi32(v, _mm_cvtsi32_si128((int)i * 8));
	_mm512_mask_storeu_epi8(dst, mask << i, v);
}

#include "kernels/x86/quant.h"

QUANT(avx512)
