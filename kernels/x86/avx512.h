/* SPDX-License-Identifier: MIT */
/*
 * Pieces that the AVX-512 kernels share; included only by files compiled for that bundle.
 */
#ifndef KVD_KERNELS_X86_AVX512_H
#define KVD_KERNELS_X86_AVX512_H

#include <immintrin.h>

#include "kernels/c/exp_c.h"
#include "kernels/cpu/ops.h"

#define INLINE static inline __attribute__((always_inline))

/* How a form's scales lie in a record. Constant at every call, so that the branches go. */
struct form {
	bool has_min, halves, wide; /* wide: float, else fp16 */
};

INLINE size_t form_scale_bytes(struct form f)
{
	return (size_t)KV_PANEL * (f.wide ? 4 : 2) *
	       ((f.halves ? 2 : 1) + (f.has_min ? 1 : 0));
}

/* Vector v (columns 16 v ..) of the i-th row of scales. */
INLINE __m512 scale_load(struct form f, const uint8_t *p, int i, int v)
{
	if (f.wide)
		return _mm512_load_ps(p + i * 128 + v * 64);
	return _mm512_cvtph_ps(_mm256_load_si256((const void *)(p + i * 64 + v * 32)));
}

/* Masks of the valid columns of the two vectors of a panel. */
INLINE __mmask16 col_mask(uint32_t n_cols, int v)
{
	uint32_t n = n_cols > 16u * v ? n_cols - 16 * v : 0;

	return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* f is the finished sum of row m, columns 16 v .. */
INLINE void row_store(const struct kv_gemm *g, uint32_t m, int v, __m512 f)
{
	__mmask16 mask = col_mask(g->n_cols, v);
	float *y = g->y + m * g->ldy + 16 * v;

	if (g->bias)
		f = _mm512_add_ps(f, _mm512_maskz_loadu_ps(mask, g->bias + 16 * v));
	_mm512_mask_storeu_ps(y, mask, f);
}

/* kv_exp_c() on 16 lanes. The operand order of max and min lets NaN pass. */
INLINE __m512 exp_16(__m512 x)
{
	const __m512 magic = _mm512_set1_ps(KV_EXP_MAGIC);
	__m512 t, n, r, p;

	x = _mm512_max_ps(_mm512_set1_ps(KV_EXP_LOW), x);
	x = _mm512_min_ps(_mm512_set1_ps(KV_EXP_HIGH), x);
	t = _mm512_fmadd_ps(x, _mm512_set1_ps(KV_EXP_LOG2E), magic);
	n = _mm512_sub_ps(t, magic);
	r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KV_EXP_LN2_HI), x);
	r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KV_EXP_LN2_LO), r);
	p = _mm512_fmadd_ps(r, _mm512_set1_ps(KV_EXP_C7), _mm512_set1_ps(KV_EXP_C6));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KV_EXP_C5));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KV_EXP_C4));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KV_EXP_C3));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
	return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_add_epi32(
					_mm512_slli_epi32(_mm512_castps_si512(t), 23),
					_mm512_set1_epi32(0x3f800000))));
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
