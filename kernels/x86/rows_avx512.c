/* SPDX-License-Identifier: MIT */
/* Operations on single rows, 16 lanes at a time; a shorter tail is masked. */
#include <math.h>

#include "kernels/x86/avx512.h"
#include "kernels/x86/x86.h"

INLINE __mmask16 lanes(uint32_t left)
{
	return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

void kv_rms_norm_avx512(const float *x, const float *w, float eps, float *y, uint32_t d)
{
	__m512 ss = _mm512_setzero_ps(), r;

	for (uint32_t i = 0; i < d; i += 16) {
		__mmask16 m = lanes(d - i);
		__m512 v = _mm512_maskz_loadu_ps(m, x + i);

		ss = _mm512_mask3_fmadd_ps(v, v, ss, m);
	}
	r = _mm512_set1_ps(1.0f / sqrtf(tree_sum(ss) / (float)d + eps));
	for (uint32_t i = 0; i < d; i += 16) {
		__mmask16 m = lanes(d - i);
		__m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r);

		_mm512_mask_storeu_ps(y + i, m,
				      _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
	}
}

void kv_silu_mul_avx512(const float *gate, const float *up, float *y, uint32_t d)
{
	const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);

	for (uint32_t i = 0; i < d; i += 16) {
		__mmask16 m = lanes(d - i);
		__m512 g = _mm512_maskz_loadu_ps(m, gate + i);
		__m512 e = exp_f(_mm512_xor_ps(g, sign));
		__m512 s = _mm512_div_ps(g, _mm512_add_ps(one, e));

		_mm512_mask_storeu_ps(y + i, m,
				      _mm512_mul_ps(s, _mm512_maskz_loadu_ps(m, up + i)));
	}
}

/* The first index that equals the maximum; none when nothing is above -infinity. */
static uint32_t find_first(const float *x, uint32_t n, float max)
{
	const __m512 v = _mm512_set1_ps(max);

	if (max == -INFINITY)
		return 0;
	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 m = lanes(n - i);
		__mmask16 eq = _mm512_mask_cmp_ps_mask(m, _mm512_maskz_loadu_ps(m, x + i),
						       v, _CMP_EQ_OQ);

		if (eq)
			return i + (uint32_t)__builtin_ctz(eq);
	}
	return 0;
}

void kv_logits_avx512(const float *x, uint32_t n, struct kv_logits_stat *ret)
{
	const __m512 low = _mm512_set1_ps(-INFINITY);
	__m512 top = low, sum = _mm512_setzero_ps();
	float max;

	for (uint32_t i = 0; i < n; i += 16)
		top = _mm512_max_ps(_mm512_mask_loadu_ps(low, lanes(n - i), x + i), top);
	max = _mm512_reduce_max_ps(top);
	ret->argmax = find_first(x, n, max);
	if (max != -INFINITY)
		max = x[ret->argmax]; /* of 0 and -0 the first */
	top = _mm512_set1_ps(max);
	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 m = lanes(n - i);
		__m512 e = exp_f(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), top));

		sum = _mm512_mask_add_ps(sum, m, sum, e);
	}
	ret->max = max;
	ret->lse = (float)((double)max + log((double)tree_sum(sum)));
}

static void rope_neox(float *x, const float *cs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 m = lanes(n - i);
		__m512 a = _mm512_maskz_loadu_ps(m, x + i);
		__m512 b = _mm512_maskz_loadu_ps(m, x + n + i);
		__m512 c = _mm512_maskz_loadu_ps(m, cs + i);
		__m512 s = _mm512_maskz_loadu_ps(m, cs + n + i);

		_mm512_mask_storeu_ps(
			x + i, m,
			_mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
		_mm512_mask_storeu_ps(
			x + n + i, m,
			_mm512_add_ps(_mm512_mul_ps(a, s), _mm512_mul_ps(b, c)));
	}
}

/* Eight pairs a step: even lanes are a, odd ones b. */
static void rope_normal(float *x, const float *cs, uint32_t n)
{
	const __m512i twice =
		_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);

	for (uint32_t i = 0; i < n; i += 8) {
		__mmask16 m = lanes(2 * (n - i));
		__mmask8 half = n - i >= 8 ? 0xff : (__mmask8)((1u << (n - i)) - 1);
		__m512 v = _mm512_maskz_loadu_ps(m, x + 2 * i);
		__m512 c = _mm512_permutexvar_ps(
			twice,
			_mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, cs + i)));
		__m512 s = _mm512_permutexvar_ps(
			twice,
			_mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, cs + n + i)));
		__m512 vc = _mm512_mul_ps(v, c);
		__m512 us = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), s);

		v = _mm512_mask_sub_ps(_mm512_add_ps(vc, us), 0x5555, vc, us);
		_mm512_mask_storeu_ps(x + 2 * i, m, v);
	}
}

void kv_rope_avx512(float *x, const float *cs, uint32_t rope_dims, enum kv_rope_mode mode)
{
	if (mode == KV_ROPE_NEOX)
		rope_neox(x, cs, rope_dims / 2);
	else
		rope_normal(x, cs, rope_dims / 2);
}

void kv_store_k_fp16_avx512(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint32_t bt = dst->block_tokens;
	uint16_t *k = (uint16_t *)dst->codes + token;

	for (uint32_t d = 0; d < dst->head_dim; d += 8) {
		_Alignas(16) uint16_t h[8];

		_mm_store_si128((__m128i *)h, _mm256_cvtps_ph(_mm256_loadu_ps(x + d),
							      _MM_FROUND_TO_NEAREST_INT));
		for (uint32_t i = 0; i < 8; i++)
			k[(d + i) * bt] = h[i];
	}
}

void kv_store_v_fp16_avx512(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint16_t *v = (uint16_t *)dst->codes + token * dst->head_dim;

	for (uint32_t d = 0; d < dst->head_dim; d += 8)
		_mm_storeu_si128((__m128i *)(v + d),
				 _mm256_cvtps_ph(_mm256_loadu_ps(x + d),
						 _MM_FROUND_TO_NEAREST_INT));
}
