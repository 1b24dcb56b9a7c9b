/* SPDX-License-Identifier: MIT */
/* Weight times activations with 8 lanes, as linear_words.h does it. */
#include "kernels/x86/avx2.h"
#include "kernels/x86/linear.h"
#include "kernels/x86/x86.h"

enum { TILE_ROWS = 3, MID_ROWS = 1, TILE_VECS = 2, FLOAT_ROWS = 3 };

static uint32_t top_bits(const float *x, uint32_t k)
{
	const __m256i mask = _mm256_set1_epi32(0x7fffffff);
	__m256i top = _mm256_setzero_si256();
	uint32_t lanes[8], ret = 0;

	for (uint32_t i = 0; i < k; i += 8) {
		__m256i v = _mm256_loadu_si256((const __m256i *)(x + i));

		top = _mm256_max_epu32(top, _mm256_and_si256(v, mask));
	}
	_mm256_storeu_si256((__m256i *)lanes, top);
	for (int i = 0; i < 8; i++)
		ret = lanes[i] > ret ? lanes[i] : ret;
	return ret;
}

static int32_t sum_8(__m256i x)
{
	__m128i s =
		_mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	return _mm_cvtsi128_si32(s);
}

void kv_act_avx2(const float *x, const struct kv_act *act, uint32_t row)
{
	uint32_t k = act->k, n_groups = k / KV_GROUP;
	int16_t *codes = (int16_t *)(act->codes + (size_t)row * k * 2);
	float *sum = act->sum + (size_t)row * n_groups;
	int32_t *half_sum = act->half_sum + (size_t)row * n_groups * 2;
	float top = kv_float_from_bits(top_bits(x, k));
	__m256 inv;

	if (!act_open(act, row, top))
		return;
	inv = _mm256_set1_ps(KV_ACT_MAX / top);
	for (uint32_t h = 0; h < n_groups * 2; h++) {
		__m256 v0 = _mm256_loadu_ps(x + h * 16),
		       v1 = _mm256_loadu_ps(x + h * 16 + 8);
		__m256i a0 = _mm256_cvtps_epi32(_mm256_mul_ps(v0, inv));
		__m256i a1 = _mm256_cvtps_epi32(_mm256_mul_ps(v1, inv));

		half_sum[h] = sum_8(_mm256_add_epi32(a0, a1));
		/* 0 1 2 3 of each quad to 0 2 1 3; packs works inside 128-bit halves. */
		a0 = _mm256_packs_epi32(_mm256_shuffle_epi32(a0, 0xd8),
					_mm256_shuffle_epi32(a1, 0xd8));
		_mm256_store_si256((__m256i *)(codes + h * 16),
				   _mm256_permute4x64_epi64(a0, 0xd8));
	}
	for (uint32_t g = 0; g < n_groups; g++)
		sum[g] = (float)(half_sum[2 * g] + half_sum[2 * g + 1]);
}

INLINE __m256i add_products(__m256i s, const __m256i w[2], __m256i even, __m256i odd)
{
	return _mm256_add_epi32(s, _mm256_add_epi32(_mm256_madd_epi16(w[0], even),
						    _mm256_madd_epi16(w[1], odd)));
}

INLINE __m256 weight_load(enum kv_form form, const uint8_t *p, int v)
{
	__m128i h;

	if (form == KV_FORM_F32)
		return _mm256_load_ps((const float *)(p + v * 32));
	h = _mm_load_si128((const __m128i *)(p + v * 16));
	if (form == KV_FORM_F16)
		return _mm256_cvtph_ps(h);
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE void float_tile(const struct kv_gemm *g, enum kv_form form, uint32_t m, int rows)
{
	size_t step = form == KV_FORM_F32 ? 128 : 64;
	const float *x = g->x + (size_t)m * g->ldx;
	const uint8_t *w = g->panel;
	__m256 f[FLOAT_ROWS][4];

	for (int r = 0; r < rows; r++)
		for (int v = 0; v < 4; v++)
			f[r][v] = _mm256_setzero_ps();
	for (uint32_t i = 0; i < g->k; i++, w += step) {
		__m256 b[FLOAT_ROWS];

		for (int r = 0; r < rows; r++)
			b[r] = _mm256_set1_ps(x[r * g->ldx + i]);
		for (int v = 0; v < 4; v++) {
			__m256 wv = weight_load(form, w, v);

			for (int r = 0; r < rows; r++)
				f[r][v] = _mm256_fmadd_ps(b[r], wv, f[r][v]);
		}
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < 4; v++)
			row_store(g, m + r, v, f[r][v]);
}

#include "kernels/x86/linear_words.h"

GEMM_WORDS(avx2)
