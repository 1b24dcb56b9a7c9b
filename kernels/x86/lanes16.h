/* SPDX-License-Identifier: MIT */
/*
 * What lanes.h leaves to a bundle of 16 lanes; included only by files compiled for AVX-512.
 */
#ifndef KVD_KERNELS_X86_LANES16_H
#define KVD_KERNELS_X86_LANES16_H

#include "kernels/x86/avx512.h"
#include "kernels/x86/lanes.h"

INLINE int32_t sum_i(vint x)
{
	return _mm512_reduce_add_epi32(x);
}

INLINE void mask_store_f(float *p, uint32_t n, vfloat x)
{
	_mm512_mask_storeu_ps(p, first_mask(n), x);
}

INLINE vfloat half_load(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
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

/* The two halves of each lane as numbers. */
INLINE vfloat low_half(vint x)
{
	return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

#endif
