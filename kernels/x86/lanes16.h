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

/* Lane 0 in all of them. */
INLINE vfloat first_f(__m128 x)
{
	return _mm512_broadcastss_ps(x);
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

/* The larger of top and |x|, by their bits; of all lanes. */
INLINE vint max_abs(vint top, vfloat x)
{
	const __m512i mask = _mm512_set1_epi32(0x7fffffff);

	return _mm512_max_epu32(top, _mm512_and_si512(_mm512_castps_si512(x), mask));
}

INLINE float lanes_top(vint top)
{
	return kv_float_from_bits(_mm512_reduce_max_epu32(top));
}

/* n is a multiple of 16. */
INLINE float top_of(const float *x, uint32_t n)
{
	return kv_float_from_bits(top_bits(x, n));
}

/* --- bytes and words, as attention_k4.h takes them --- */

enum { CODES = 64 };

INLINE vint load_i(const void *p)
{
	return _mm512_loadu_si512(p);
}

INLINE void store_i(void *p, vint x)
{
	_mm512_storeu_si512(p, x);
}

/* The first n bytes, then zeros. */
INLINE vint bytes_load(const uint8_t *p, uint32_t n)
{
	return n >= 64 ? _mm512_loadu_si512(p)
		       : _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
}

/* Vectors as rows of a matrix become its columns. */
INLINE void transpose(vint *v)
{
	vint a[16];

#pragma GCC unroll 8
	for (int i = 0; i < 16; i += 2) {
		a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
		a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
	}
#pragma GCC unroll 4
	for (int i = 0; i < 16; i += 4) {
		v[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
		v[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
		v[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
		v[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
	}
	/* 128 bits k of v[i + c] are four rows of column 4 k + c. */
#pragma GCC unroll 4
	for (int c = 0; c < 4; c++) {
		a[c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
		a[4 + c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
		a[8 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
		a[12 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
	}
#pragma GCC unroll 4
	for (int c = 0; c < 4; c++) {
		v[c] = _mm512_shuffle_i32x4(a[c], a[8 + c], 0x88);
		v[8 + c] = _mm512_shuffle_i32x4(a[c], a[8 + c], 0xdd);
		v[4 + c] = _mm512_shuffle_i32x4(a[4 + c], a[12 + c], 0x88);
		v[12 + c] = _mm512_shuffle_i32x4(a[4 + c], a[12 + c], 0xdd);
	}
}

INLINE vint bytes_low(vint v)
{
	return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

INLINE vint ones_b(void)
{
	return _mm512_set1_epi8(1);
}

/* Bytes as words of 128 times their value. */
INLINE vint words_low_128(vint v)
{
	return _mm512_srli_epi16(_mm512_unpacklo_epi8(_mm512_setzero_si512(), v), 1);
}

INLINE vint words_high_128(vint v)
{
	return _mm512_srli_epi16(_mm512_unpackhi_epi8(_mm512_setzero_si512(), v), 1);
}

INLINE vint pack_w(vint a, vint b)
{
	return _mm512_packs_epi16(a, b);
}

INLINE vint abs_w(vint x)
{
	return _mm512_abs_epi16(x);
}

INLINE vint max_w(vint a, vint b)
{
	return _mm512_max_epu16(a, b);
}

/* (a * b + 16384) >> 15 */
INLINE vint mul_w(vint a, vint b)
{
	return _mm512_mulhrs_epi16(a, b);
}

INLINE vint both_halves(vint x)
{
	return _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
}

/* Lanes 0 and 1 of each four twice; lanes 2 and 3. */
INLINE vint twice_low(vint x)
{
	return _mm512_unpacklo_epi32(x, x);
}

INLINE vint twice_high(vint x)
{
	return _mm512_unpackhi_epi32(x, x);
}

/* The largest of each four words, as lanes in the order of the bytes they were. */
INLINE vint tops_of(vint low, vint high)
{
	vfloat a = (vfloat)max_w(low, _mm512_srli_epi64(low, 32));
	vfloat b = (vfloat)max_w(high, _mm512_srli_epi64(high, 32));
	vint x = (vint)_mm512_shuffle_ps(a, b, 0x88);

	return _mm512_and_si512(max_w(x, _mm512_srli_epi32(x, 16)),
				_mm512_set1_epi32(0xffff));
}

INLINE vint words_4(const int16_t *x)
{
	long long four;

	memcpy(&four, x, 8);
	return _mm512_set1_epi64(four);
}

INLINE vint times_16(vint x)
{
	return _mm512_slli_epi32(x, 4);
}

INLINE vint times_120(vint x)
{
	return _mm512_sub_epi32(_mm512_slli_epi32(x, 7), _mm512_slli_epi32(x, 3));
}

INLINE vint trunc_i(vfloat x)
{
	return _mm512_cvttps_epi32(x);
}

/* The two halves of each lane as numbers. */
INLINE vfloat low_half(vint x)
{
	return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

INLINE vfloat high_half(vint x)
{
	return low_half(_mm512_srli_epi32(x, 16));
}

INLINE vfloat div_f(vfloat a, vfloat b)
{
	return _mm512_div_ps(a, b);
}

#endif
