/* SPDX-License-Identifier: MIT */
/*
 * Types and single instructions of 8 lanes, as attention_int.h and quant.h take them; included
 * only by files compiled for AVX2.
 */
#ifndef KVD_KERNELS_X86_LANES8_H
#define KVD_KERNELS_X86_LANES8_H

#include <string.h>

#include "kernels/x86/avx2.h"

enum { LANES = 8 };

typedef __m256i vint;
typedef int32_t vsum __attribute__((vector_size(32)));
typedef __m256 vfloat;

INLINE vint dword(const uint8_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return _mm256_set1_epi32(x);
}

INLINE vint zero_i(void)
{
	return _mm256_setzero_si256();
}

INLINE vint set_i(int32_t x)
{
	return _mm256_set1_epi32(x);
}

INLINE vint add_i(vint a, vint b)
{
	return _mm256_add_epi32(a, b);
}

INLINE vint sub_i(vint a, vint b)
{
	return _mm256_sub_epi32(a, b);
}

INLINE int32_t sum_i(vint x)
{
	__m128i s =
		_mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

	s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
	return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0x55)));
}

INLINE vint round_i(vfloat x)
{
	return _mm256_cvtps_epi32(x);
}

INLINE vfloat to_float(vint x)
{
	return _mm256_cvtepi32_ps(x);
}

INLINE vfloat set_f(float x)
{
	return _mm256_set1_ps(x);
}

/* Lane 0 in all of them. */
INLINE vfloat first_f(__m128 x)
{
	return _mm256_broadcastss_ps(x);
}

INLINE vfloat load_f(const float *p)
{
	return _mm256_loadu_ps(p);
}

INLINE void store_f(float *p, vfloat x)
{
	_mm256_storeu_ps(p, x);
}

/* head_dim is a multiple of 8: nothing is ever cut off. */
INLINE void mask_store_f(float *p, uint32_t n, vfloat x)
{
	_mm256_storeu_ps(p, x);
}

INLINE vfloat half_load(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

INLINE vfloat mul_f(vfloat a, vfloat b)
{
	return _mm256_mul_ps(a, b);
}

INLINE vfloat add_f(vfloat a, vfloat b)
{
	return _mm256_add_ps(a, b);
}

INLINE vfloat sub_f(vfloat a, vfloat b)
{
	return _mm256_sub_ps(a, b);
}

/* a * b + c and c - a * b, rounded once */
INLINE vfloat fma_f(vfloat a, vfloat b, vfloat c)
{
	return _mm256_fmadd_ps(a, b, c);
}

INLINE vfloat fnma_f(vfloat a, vfloat b, vfloat c)
{
	return _mm256_fnmadd_ps(a, b, c);
}

INLINE vfloat first_lanes(vfloat x, uint32_t n)
{
	return n >= 8 ? x : _mm256_and_ps(x, _mm256_castsi256_ps(lane_mask(n)));
}

INLINE float lanes_sum(const vfloat *z)
{
	return tree_sum(z[0], z[1]);
}

/* The larger of top and |x|, by their bits; of all lanes. */
INLINE vint max_abs(vint top, vfloat x)
{
	const __m256i mask = _mm256_set1_epi32(0x7fffffff);

	return _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(x), mask));
}

INLINE float lanes_top(vint top)
{
	__m128i x = _mm_max_epu32(_mm256_castsi256_si128(top),
				  _mm256_extracti128_si256(top, 1));

	x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
	x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
	return kv_float_from_bits((uint32_t)_mm_cvtsi128_si32(x));
}

INLINE float top_of(const float *x, uint32_t n)
{
	__m256i top = _mm256_setzero_si256();

	for (uint32_t i = 0; i < n; i += 8)
		top = max_abs(top, _mm256_loadu_ps(x + i));
	return lanes_top(top);
}

/* Of equal ones the second: so that a 0 stays what it was. */
INLINE vfloat min_f(vfloat a, vfloat b)
{
	return _mm256_min_ps(a, b);
}

INLINE vfloat max_f(vfloat a, vfloat b)
{
	return _mm256_max_ps(a, b);
}

INLINE float lanes_max(vfloat x)
{
	return max_8(x);
}

INLINE float lanes_min(vfloat x)
{
	__m128 b = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	b = _mm_min_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_min_ss(b, _mm_movehdup_ps(b)));
}

/* Lanes 0 .. 255 as bytes. */
INLINE void store_bytes(uint8_t *p, vint x)
{
	__m128i w = _mm_packus_epi32(_mm256_castsi256_si128(x),
				     _mm256_extracti128_si256(x, 1));

	_mm_storel_epi64((void *)p, _mm_packus_epi16(w, w));
}

/* --- bytes and words, as attention_k4.h takes them --- */

enum { CODES = 32 };

INLINE vint load_i(const void *p)
{
	return _mm256_loadu_si256(p);
}

INLINE void store_i(void *p, vint x)
{
	_mm256_storeu_si256(p, x);
}

/* The first n bytes, then zeros. */
INLINE vint bytes_load(const uint8_t *p, uint32_t n)
{
	_Alignas(32) uint8_t padded[32] = {0};

	if (n >= 32)
		return _mm256_loadu_si256((const void *)p);
	memcpy(padded, p, n);
	return _mm256_load_si256((const void *)padded);
}

/* Vectors as rows of a matrix become its columns. */
INLINE void transpose(vint *v)
{
	vint a[8], b[8];

#pragma GCC unroll 4
	for (int i = 0; i < 8; i += 2) {
		a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
		a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
	}
#pragma GCC unroll 2
	for (int i = 0; i < 8; i += 4) {
		b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
		b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
		b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
		b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
	}
	/* 128 bits k of b[i + c] are four rows of column 4 k + c. */
#pragma GCC unroll 4
	for (int c = 0; c < 4; c++) {
		v[c] = _mm256_permute2x128_si256(b[c], b[4 + c], 0x20);
		v[4 + c] = _mm256_permute2x128_si256(b[c], b[4 + c], 0x31);
	}
}

INLINE vint bytes_low(vint v)
{
	return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

INLINE vint ones_b(void)
{
	return _mm256_set1_epi8(1);
}

/* Bytes as words of 128 times their value. */
INLINE vint words_low_128(vint v)
{
	return _mm256_srli_epi16(_mm256_unpacklo_epi8(_mm256_setzero_si256(), v), 1);
}

INLINE vint words_high_128(vint v)
{
	return _mm256_srli_epi16(_mm256_unpackhi_epi8(_mm256_setzero_si256(), v), 1);
}

INLINE vint pack_w(vint a, vint b)
{
	return _mm256_packs_epi16(a, b);
}

INLINE vint abs_w(vint x)
{
	return _mm256_abs_epi16(x);
}

INLINE vint max_w(vint a, vint b)
{
	return _mm256_max_epu16(a, b);
}

/* (a * b + 16384) >> 15 */
INLINE vint mul_w(vint a, vint b)
{
	return _mm256_mulhrs_epi16(a, b);
}

INLINE vint both_halves(vint x)
{
	return _mm256_or_si256(x, _mm256_slli_epi32(x, 16));
}

/* Lanes 0 and 1 of each four twice; lanes 2 and 3. */
INLINE vint twice_low(vint x)
{
	return _mm256_unpacklo_epi32(x, x);
}

INLINE vint twice_high(vint x)
{
	return _mm256_unpackhi_epi32(x, x);
}

/* The largest of each four words, as lanes in the order of the bytes they were. */
INLINE vint tops_of(vint low, vint high)
{
	vfloat a = (vfloat)max_w(low, _mm256_srli_epi64(low, 32));
	vfloat b = (vfloat)max_w(high, _mm256_srli_epi64(high, 32));
	vint x = (vint)_mm256_shuffle_ps(a, b, 0x88);

	return _mm256_and_si256(max_w(x, _mm256_srli_epi32(x, 16)),
				_mm256_set1_epi32(0xffff));
}

INLINE vint words_4(const int16_t *x)
{
	long long four;

	memcpy(&four, x, 8);
	return _mm256_set1_epi64x(four);
}

INLINE vint times_16(vint x)
{
	return _mm256_slli_epi32(x, 4);
}

INLINE vint times_120(vint x)
{
	return _mm256_sub_epi32(_mm256_slli_epi32(x, 7), _mm256_slli_epi32(x, 3));
}

INLINE vint trunc_i(vfloat x)
{
	return _mm256_cvttps_epi32(x);
}

/* The two halves of each lane as numbers. */
INLINE vfloat low_half(vint x)
{
	x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
	return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x),
						_mm256_extracti128_si256(x, 1)));
}

INLINE vfloat high_half(vint x)
{
	return low_half(_mm256_srli_epi32(x, 16));
}

INLINE vfloat div_f(vfloat a, vfloat b)
{
	return _mm256_div_ps(a, b);
}

#endif
