/* SPDX-License-Identifier: MIT */
/* Operations on single rows, 8 lanes at a time; a shorter tail is masked. */
#include <math.h>

#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

void kv_rms_norm_avx2(const float *x, const float *w, float eps, float *y, uint32_t d)
{
	__m256 ss[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, r;

	/* A masked lane adds the square of 0 to a sum that is not negative: no change. */
	for (uint32_t i = 0; i < d; i += 8) {
		__m256 v = _mm256_maskload_ps(x + i, lane_mask(d - i));

		ss[i / 8 % 2] = _mm256_fmadd_ps(v, v, ss[i / 8 % 2]);
	}
	r = _mm256_set1_ps(1.0f / sqrtf(tree_sum(ss[0], ss[1]) / (float)d + eps));
	for (uint32_t i = 0; i < d; i += 8) {
		__m256i m = lane_mask(d - i);
		__m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, m), r);

		_mm256_maskstore_ps(y + i, m,
				    _mm256_mul_ps(v, _mm256_maskload_ps(w + i, m)));
	}
}

void kv_silu_mul_avx2(const float *gate, const float *up, float *y, uint32_t d)
{
	const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);

	for (uint32_t i = 0; i < d; i += 8) {
		__m256i m = lane_mask(d - i);
		__m256 g = _mm256_maskload_ps(gate + i, m);
		__m256 e = exp_f(_mm256_xor_ps(g, sign));
		__m256 s = _mm256_div_ps(g, _mm256_add_ps(one, e));

		_mm256_maskstore_ps(y + i, m,
				    _mm256_mul_ps(s, _mm256_maskload_ps(up + i, m)));
	}
}

/* The first index that equals the maximum; none when nothing is above -infinity. */
static uint32_t find_first(const float *x, uint32_t n, float max)
{
	if (max == -INFINITY)
		return 0;
	for (uint32_t i = 0; i < n; i += 8) {
		__m256i m = lane_mask(n - i);
		__m256 v = _mm256_maskload_ps(x + i, m);
		int eq = _mm256_movemask_ps(
			_mm256_and_ps(_mm256_cmp_ps(v, _mm256_set1_ps(max), _CMP_EQ_OQ),
				      _mm256_castsi256_ps(m)));

		if (eq)
			return i + (uint32_t)__builtin_ctz((unsigned)eq);
	}
	return 0;
}

void kv_logits_avx2(const float *x, uint32_t n, struct kv_logits_stat *ret)
{
	const __m256 low = _mm256_set1_ps(-INFINITY);
	__m256 top = low, sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
	float max;

	for (uint32_t i = 0; i < n; i += 8) {
		__m256i m = lane_mask(n - i);
		__m256 v = _mm256_blendv_ps(low, _mm256_maskload_ps(x + i, m),
					    _mm256_castsi256_ps(m));

		top = _mm256_max_ps(v, top);
	}
	max = max_8(top);
	ret->argmax = find_first(x, n, max);
	if (max != -INFINITY)
		max = x[ret->argmax]; /* of 0 and -0 the first */
	top = _mm256_set1_ps(max);
	for (uint32_t i = 0; i < n; i += 8) {
		__m256i m = lane_mask(n - i);
		__m256 e = exp_f(_mm256_sub_ps(_mm256_maskload_ps(x + i, m), top));

		e = _mm256_and_ps(e, _mm256_castsi256_ps(m));
		sum[i / 8 % 2] = _mm256_add_ps(sum[i / 8 % 2], e);
	}
	ret->max = max;
	ret->lse = (float)((double)max + log((double)tree_sum(sum[0], sum[1])));
}

static void rope_neox(float *x, const float *cs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 8) {
		__m256i m = lane_mask(n - i);
		__m256 a = _mm256_maskload_ps(x + i, m),
		       b = _mm256_maskload_ps(x + n + i, m);
		__m256 c = _mm256_maskload_ps(cs + i, m),
		       s = _mm256_maskload_ps(cs + n + i, m);

		_mm256_maskstore_ps(
			x + i, m,
			_mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
		_mm256_maskstore_ps(
			x + n + i, m,
			_mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
	}
}

/* Four pairs a step: even lanes are a, odd ones b. */
static void rope_normal(float *x, const float *cs, uint32_t n)
{
	const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);

	for (uint32_t i = 0; i < n; i += 4) {
		uint32_t left = n - i > 4 ? 4 : n - i;
		__m256i m = lane_mask(2 * left), half = lane_mask(left);
		__m256 v = _mm256_maskload_ps(x + 2 * i, m);
		__m256 c =
			_mm256_permutevar8x32_ps(_mm256_maskload_ps(cs + i, half), twice);
		__m256 s = _mm256_permutevar8x32_ps(_mm256_maskload_ps(cs + n + i, half),
						    twice);

		v = _mm256_addsub_ps(_mm256_mul_ps(v, c),
				     _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), s));
		_mm256_maskstore_ps(x + 2 * i, m, v);
	}
}

void kv_rope_avx2(float *x, const float *cs, uint32_t rope_dims, enum kv_rope_mode mode)
{
	if (mode == KV_ROPE_NEOX)
		rope_neox(x, cs, rope_dims / 2);
	else
		rope_normal(x, cs, rope_dims / 2);
}

void kv_store_k_fp16_avx2(const float *x, const struct kv_plane *dst, uint32_t token)
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

void kv_store_v_fp16_avx2(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint16_t *v = (uint16_t *)dst->codes + token * dst->head_dim;

	for (uint32_t d = 0; d < dst->head_dim; d += 8)
		_mm_storeu_si128((__m128i *)(v + d),
				 _mm256_cvtps_ph(_mm256_loadu_ps(x + d),
						 _MM_FROUND_TO_NEAREST_INT));
}
