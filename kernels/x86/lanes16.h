/* SPDX-License-Identifier: MIT */
/*
 * Types and single instructions of 16 lanes, as attention_int.h and quant.h take them;
 * included only by files compiled for AVX-512.
 */
#ifndef KVD_KERNELS_X86_LANES16_H
#define KVD_KERNELS_X86_LANES16_H

#include <string.h>

#include "kernels/x86/avx512.h"

enum { LANES = 16 };

typedef __m512i vint;
typedef int32_t vsum __attribute__((vector_size(64)));
typedef __m512 vfloat;

INLINE __mmask16 first_mask(uint32_t n)
{
	return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

INLINE vint dword(const uint8_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return _mm512_set1_epi32(x);
}

INLINE vint zero_i(void)
{
	return _mm512_setzero_si512();
}

INLINE vint set_i(int32_t x)
{
	return _mm512_set1_epi32(x);
}

INLINE vint add_i(vint a, vint b)
{
	return _mm512_add_epi32(a, b);
}

INLINE vint sub_i(vint a, vint b)
{
	return _mm512_sub_epi32(a, b);
}

INLINE int32_t sum_i(vint x)
{
	return _mm512_reduce_add_epi32(x);
}

INLINE vint round_i(vfloat x)
{
	return _mm512_cvtps_epi32(x);
}

INLINE vfloat to_float(vint x)
{
	return _mm512_cvtepi32_ps(x);
}

INLINE vfloat set_f(float x)
{
	return _mm512_set1_ps(x);
}

INLINE vfloat load_f(const float *p)
{
	return _mm512_loadu_ps(p);
}

INLINE void store_f(float *p, vfloat x)
{
	_mm512_storeu_ps(p, x);
}

INLINE void mask_store_f(float *p, uint32_t n, vfloat x)
{
	_mm512_mask_storeu_ps(p, first_mask(n), x);
}

INLINE vfloat half_load(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE vfloat mul_f(vfloat a, vfloat b)
{
	return _mm512_mul_ps(a, b);
}

INLINE vfloat add_f(vfloat a, vfloat b)
{
	return _mm512_add_ps(a, b);
}

INLINE vfloat sub_f(vfloat a, vfloat b)
{
	return _mm512_sub_ps(a, b);
}

/* a * b + c and c - a * b, rounded once */
INLINE vfloat fma_f(vfloat a, vfloat b, vfloat c)
{
	return _mm512_fmadd_ps(a, b, c);
}

INLINE vfloat fnma_f(vfloat a, vfloat b, vfloat c)
{
	return _mm512_fnmadd_ps(a, b, c);
}

/* Of equal ones the second: so that a 0 stays what it was. */
INLINE vfloat min_f(vfloat a, vfloat b)
{
	return _mm512_min_ps(a, b);
}

INLINE vfloat max_f(vfloat a, vfloat b)
{
	return _mm512_max_ps(a, b);
}

INLINE float lanes_max(vfloat x)
{
	return _mm512_reduce_max_ps(x);
}

INLINE float lanes_min(vfloat x)
{
	return _mm512_reduce_min_ps(x);
}

/* Lanes 0 .. 255 as bytes. */
INLINE void store_bytes(uint8_t *p, vint x)
{
	_mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(x));
}

/* The first n lanes of x, the others 0. */
INLINE vfloat first_lanes(vfloat x, uint32_t n)
{
	return _mm512_maskz_mov_ps(first_mask(n), x);
}

INLINE float lanes_sum(const vfloat *z)
{
	return tree_sum(z[0]);
}

/* n is a multiple of 16. */
INLINE float top_of(const float *x, uint32_t n)
{
	return kv_float_from_bits(top_bits(x, n));
}

#endif
