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

INLINE void range_of(vfloat lo, vfloat hi, __m128 *ret_low, __m128 *ret_high)
{
	const __m512 sign = _mm512_set1_ps(-0.0f);
	__m512 x;

	/* The negative of hi, so that one vector goes through the same steps as both. */
	hi = _mm512_xor_ps(hi, sign);
	x = _mm512_min_ps(_mm512_shuffle_f32x4(lo, hi, 0x44),
			  _mm512_shuffle_f32x4(lo, hi, 0xee));
	x = _mm512_min_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
	x = _mm512_min_ps(x, _mm512_permute_ps(x, 0x4e));
	x = _mm512_min_ps(x, _mm512_permute_ps(x, 0xb1));
	*ret_low = _mm512_castps512_ps128(x);
	*ret_high =
		_mm_xor_ps(_mm512_extractf32x4_ps(x, 2), _mm512_castps512_ps128(sign));
}

INLINE uint32_t nan_in(vfloat a, vfloat b)
{
	return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}

INLINE void store_every_4th(uint8_t *dst, vint c, uint32_t i, uint32_t n)
{
	static const int32_t bits[4] = {0, 8, 16, 24};
	static const uint64_t masks[4] = {0x1111111111111111, 0x2222222222222222,
					  0x4444444444444444, 0x8888888888888888};
	uint64_t mask = n < 16 ? masks[i] & 0xffffffff : masks[i];

	c = _mm512_sllv_epi32(c, _mm512_set1_epi32(bits[i]));
	_mm512_mask_storeu_epi8(dst, mask, c);
}

#include "kernels/x86/quant.h"

QUANT(avx512)
