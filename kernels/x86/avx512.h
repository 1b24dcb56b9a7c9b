/* SPDX-License-Identifier: MIT */
/*
 * Pieces that the AVX-512 kernels share; included only by files compiled for that bundle.
 */
#ifndef KVD_KERNELS_X86_AVX512_H
#define KVD_KERNELS_X86_AVX512_H

#include <immintrin.h>

#include "kernels/c/exp_c.h"
#include "kernels/cpu/ops.h"

enum { LANES = 16 };

typedef __m512i vint;
typedef int32_t vsum __attribute__((vector_size(64)));
typedef __m512 vfloat;

#define V(op)       _mm512_##op
#define V_BITS(op)  _mm512_##op##_si512
#define V_SET_64    _mm512_set1_epi64
#define V_INT_FLOAT _mm512_castsi512_ps
#define V_FLOAT_INT _mm512_castps_si512

#include "kernels/x86/vector.h"

/* Vector v (columns 16 v ..) of the i-th row of scales. */
INLINE __m512 scale_load(struct form f, const uint8_t *p, int i, int v)
{
	if (f.wide)
		return _mm512_load_ps(p + i * 128 + v * 64);
	return _mm512_cvtph_ps(_mm256_load_si256((const void *)(p + i * 64 + v * 32)));
}

INLINE __mmask16 first_mask(uint32_t n)
{
	return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* f is the finished sum of row m, columns 16 v .. */
INLINE void row_store(const struct kv_gemm *g, uint32_t m, int v, __m512 f)
{
	uint32_t n = g->n_cols > 16u * v ? g->n_cols - 16 * v : 0;
	__mmask16 mask = first_mask(n);
	float *y = g->y + m * g->ldy + 16 * v;

	if (g->bias)
		f = _mm512_add_ps(f, _mm512_maskz_loadu_ps(mask, g->bias + 16 * v));
	_mm512_mask_storeu_ps(y, mask, f);
}

/* Lanes added 8 apart, then 4, 2, 1. */
INLINE float tree_sum(__m512 x)
{
	__m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
	__m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	b = _mm_add_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Highest |x| as bits, so that NaN counts as higher than infinity. */
INLINE uint32_t top_bits(const float *x, uint32_t k)
{
	const __m512i mask = _mm512_set1_epi32(0x7fffffff);
	__m512i top = _mm512_setzero_si512();

	for (uint32_t i = 0; i < k; i += 16)
		top = _mm512_max_epu32(top,
				       _mm512_and_si512(_mm512_loadu_si512(x + i), mask));
	return _mm512_reduce_max_epu32(top);
}

#endif
