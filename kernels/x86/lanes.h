/* SPDX-License-Identifier: MIT */
/*
 * Wrappers of single instructions that every vector bundle has, over the types and the prefix
 * that avx2.h or avx512.h defines; included by lanes8.h and lanes16.h, which add those that
 * differ. attention_float.h, attention_int.h, attention_k4.h, attention_own.h and quant.h
 * are written in them.
 */
#ifndef KVD_KERNELS_X86_LANES_H
#define KVD_KERNELS_X86_LANES_H

#include <string.h>

INLINE vint dword(const uint8_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return V(set1_epi32)(x);
}

INLINE vint zero_i(void)
{
	return V_BITS(setzero)();
}

INLINE vint set_i(int32_t x)
{
	return V(set1_epi32)(x);
}

INLINE vint add_i(vint a, vint b)
{
	return V(add_epi32)(a, b);
}

INLINE vint sub_i(vint a, vint b)
{
	return V(sub_epi32)(a, b);
}

INLINE vint round_i(vfloat x)
{
	return V(cvtps_epi32)(x);
}

INLINE vfloat to_float(vint x)
{
	return V(cvtepi32_ps)(x);
}

INLINE vfloat set_f(float x)
{
	return V(set1_ps)(x);
}

/* Lane 0 in all of them. */
INLINE vfloat first_f(__m128 x)
{
	return V(broadcastss_ps)(x);
}

INLINE vfloat load_f(const float *p)
{
	return V(loadu_ps)(p);
}

INLINE void store_f(float *p, vfloat x)
{
	V(storeu_ps)(p, x);
}

INLINE vfloat mul_f(vfloat a, vfloat b)
{
	return V(mul_ps)(a, b);
}

INLINE vfloat add_f(vfloat a, vfloat b)
{
	return V(add_ps)(a, b);
}

INLINE vfloat sub_f(vfloat a, vfloat b)
{
	return V(sub_ps)(a, b);
}

/* a * b + c and c - a * b, rounded once */
INLINE vfloat fma_f(vfloat a, vfloat b, vfloat c)
{
	return V(fmadd_ps)(a, b, c);
}

INLINE vfloat fnma_f(vfloat a, vfloat b, vfloat c)
{
	return V(fnmadd_ps)(a, b, c);
}

/* The larger of top and |x|, by their bits. */
INLINE vint max_abs(vint top, vfloat x)
{
	const vint mask = V(set1_epi32)(0x7fffffff);

	return V(max_epu32)(top, V_BITS(and)(V_BITS(castps)(x), mask));
}

/* Of equal ones the second: so that a 0 stays what it was. */
INLINE vfloat min_f(vfloat a, vfloat b)
{
	return V(min_ps)(a, b);
}

INLINE vfloat max_f(vfloat a, vfloat b)
{
	return V(max_ps)(a, b);
}

/* --- bytes and words, as attention_k4.h takes them --- */

INLINE vint load_i(const void *p)
{
	return V_BITS(loadu)(p);
}

INLINE void store_i(void *p, vint x)
{
	V_BITS(storeu)(p, x);
}

INLINE vint bytes_low(vint v)
{
	return V_BITS(and)(v, V(set1_epi8)(15));
}

INLINE vint ones_b(void)
{
	return V(set1_epi8)(1);
}

/* Bytes as words of 128 times their value. */
INLINE vint words_low_128(vint v)
{
	return V(srli_epi16)(V(unpacklo_epi8)(V_BITS(setzero)(), v), 1);
}

INLINE vint words_high_128(vint v)
{
	return V(srli_epi16)(V(unpackhi_epi8)(V_BITS(setzero)(), v), 1);
}

INLINE vint pack_w(vint a, vint b)
{
	return V(packs_epi16)(a, b);
}

INLINE vint abs_w(vint x)
{
	return V(abs_epi16)(x);
}

INLINE vint max_w(vint a, vint b)
{
	return V(max_epu16)(a, b);
}

/* (a * b + 16384) >> 15 */
INLINE vint mul_w(vint a, vint b)
{
	return V(mulhrs_epi16)(a, b);
}

INLINE vint both_halves(vint x)
{
	return V_BITS(or)(x, V(slli_epi32)(x, 16));
}

/* Lanes 0 and 1 of each four twice; lanes 2 and 3. */
INLINE vint twice_low(vint x)
{
	return V(unpacklo_epi32)(x, x);
}

INLINE vint twice_high(vint x)
{
	return V(unpackhi_epi32)(x, x);
}

/* The largest of each four words, as lanes in the order of the bytes they were. */
INLINE vint tops_of(vint low, vint high)
{
	vfloat a = (vfloat)max_w(low, V(srli_epi64)(low, 32));
	vfloat b = (vfloat)max_w(high, V(srli_epi64)(high, 32));
	vint x = (vint)V(shuffle_ps)(a, b, 0x88);

	return V_BITS(and)(max_w(x, V(srli_epi32)(x, 16)), V(set1_epi32)(0xffff));
}

INLINE vint words_4(const int16_t *x)
{
	long long four;

	memcpy(&four, x, 8);
	return V_SET_64(four);
}

INLINE vint times_16(vint x)
{
	return V(slli_epi32)(x, 4);
}

INLINE vint times_120(vint x)
{
	return V(sub_epi32)(V(slli_epi32)(x, 7), V(slli_epi32)(x, 3));
}

INLINE vint trunc_i(vfloat x)
{
	return V(cvttps_epi32)(x);
}

/* The halves of each lane as numbers; the lower ones are the bundle's own. */
INLINE vfloat low_half(vint x);

INLINE vfloat high_half(vint x)
{
	return low_half(V(srli_epi32)(x, 16));
}

INLINE vfloat div_f(vfloat a, vfloat b)
{
	return V(div_ps)(a, b);
}

#endif
