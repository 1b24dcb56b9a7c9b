/* SPDX-License-Identifier: MIT */
/*
 * Pieces that the AVX2 kernels share; included only by files compiled for that bundle.
 */
#ifndef KVD_KERNELS_X86_AVX2_H
#define KVD_KERNELS_X86_AVX2_H

#include <immintrin.h>

#include "kernels/c/exp_c.h"
#include "kernels/cpu/ops.h"

enum { LANES = 8 };

typedef __m256i vint;
typedef int32_t vsum __attribute__((vector_size(32)));
typedef __m256 vfloat;

#define V(op)       _mm256_##op
#define V_BITS(op)  _mm256_##op##_si256
#define V_SET_64    _mm256_set1_epi64x
#define V_INT_FLOAT _mm256_castsi256_ps
#define V_FLOAT_INT _mm256_castps_si256

#include "kernels/x86/vector.h"

/* Columns 8 v .. of the i-th row of scales. */
INLINE __m256 scale_load(struct form f, const uint8_t *p, int i, int v)
{
	if (f.wide)
		return _mm256_load_ps((const float *)(p + i * 128 + v * 32));
	return _mm256_cvtph_ps(_mm_load_si128((const void *)(p + i * 64 + v * 16)));
}

/* Lanes below left, for masked loads and stores. */
INLINE __m256i lane_mask(uint32_t left)
{
	const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

	return _mm256_cmpgt_epi32(_mm256_set1_epi32(left > 8 ? 8 : (int)left), index);
}

/* f is the finished sum of row m, columns 8 v .. */
INLINE void row_store(const struct kv_gemm *g, uint32_t m, int v, __m256 f)
{
	uint32_t left = g->n_cols > 8u * v ? g->n_cols - 8 * v : 0;
	float *y = g->y + m * g->ldy + 8 * v;
	__m256i mask = lane_mask(left);

	if (left == 0)
		return;
	if (g->bias)
		f = _mm256_add_ps(f, _mm256_maskload_ps(g->bias + 8 * v, mask));
	_mm256_maskstore_ps(y, mask, f);
}

/* The 16 lanes low, high added 8 apart, then 4, 2, 1. */
INLINE float tree_sum(__m256 low, __m256 high)
{
	__m256 a = _mm256_add_ps(low, high);
	__m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	b = _mm_add_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE float max_8(__m256 x)
{
	__m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	b = _mm_max_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#endif
