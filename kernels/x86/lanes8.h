/* SPDX-License-Identifier: MIT */
/*
 * What lanes.h leaves to a bundle of 8 lanes; included only by files compiled for AVX2.
 */
#ifndef KVD_KERNELS_X86_LANES8_H
#define KVD_KERNELS_X86_LANES8_H

#include "kernels/x86/avx2.h"
#include "kernels/x86/lanes.h"

INLINE int32_t sum_i(vint x)
{
	__m128i s =
		_mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

	s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
	return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0x55)));
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

INLINE vfloat first_lanes(vfloat x, uint32_t n)
{
	return n >= 8 ? x : _mm256_and_ps(x, _mm256_castsi256_ps(lane_mask(n)));
}

INLINE float lanes_sum(const vfloat *z)
{
	return tree_sum(z[0], z[1]);
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

/* The two halves of each lane as numbers. */
INLINE vfloat low_half(vint x)
{
	x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
	return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x),
						_mm256_extracti128_si256(x, 1)));
}

#endif
