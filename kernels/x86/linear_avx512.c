/* SPDX-License-Identifier: MIT */
/* Weight times activations with 16 lanes, as linear_words.h does it. */
#include "kernels/x86/avx512.h"
#include "kernels/x86/linear.h"
#include "kernels/x86/x86.h"

enum { TILE_ROWS = 4, MID_ROWS = 2, TILE_VECS = 2, FLOAT_ROWS = 8 };

void kv_act_avx512(const float *x, const struct kv_act *act, uint32_t row)
{
	uint32_t k = act->k, n_groups = k / KV_GROUP;
	int16_t *codes = (int16_t *)(act->codes + (size_t)row * k * 2);
	float *sum = act->sum + (size_t)row * n_groups;
	int32_t *half_sum = act->half_sum + (size_t)row * n_groups * 2;
	float top = kv_float_from_bits(top_bits(x, k));
	__m512 inv;

	if (!act_open(act, row, top))
		return;
	inv = _mm512_set1_ps(KV_ACT_MAX / top);
	for (uint32_t g = 0; g < n_groups; g++) {
		int32_t total = 0;

		for (int h = 0; h < 2; h++) {
			__m512 v = _mm512_loadu_ps(x + g * 32 + h * 16);
			__m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(v, inv));
			int32_t s = _mm512_reduce_add_epi32(a);

			/* 0 1 2 3 of each quad to 0 2 1 3 */
			a = _mm512_shuffle_epi32(a, _MM_PERM_DBCA);
			_mm256_store_si256((__m256i *)(codes + g * 32 + h * 16),
					   _mm512_cvtepi32_epi16(a));
			half_sum[g * 2 + h] = s;
			total += s;
		}
		sum[g] = (float)total;
	}
}

INLINE __m512i add_products(__m512i s, const __m512i w[2], __m512i even, __m512i odd)
{
	s = _mm512_add_epi32(s, _mm512_madd_epi16(w[0], even));
	return _mm512_add_epi32(s, _mm512_madd_epi16(w[1], odd));
}

INLINE __m512 weight_load(enum kv_form form, const uint8_t *p, int v)
{
	__m256i h;

	if (form == KV_FORM_F32)
		return _mm512_load_ps(p + v * 64);
	h = _mm256_load_si256((const __m256i *)(p + v * 32));
	if (form == KV_FORM_F16)
		return _mm512_cvtph_ps(h);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void float_tile(const struct kv_gemm *g, enum kv_form form, uint32_t m, int rows)
{
	size_t step = form == KV_FORM_F32 ? 128 : 64;
	const float *x = g->x + (size_t)m * g->ldx;
	const uint8_t *w = g->panel;
	__m512 f[FLOAT_ROWS][2];

	for (int r = 0; r < rows; r++)
		f[r][0] = f[r][1] = _mm512_setzero_ps();
	for (uint32_t i = 0; i < g->k; i++, w += step) {
		__m512 w0 = weight_load(form, w, 0), w1 = weight_load(form, w, 1);

		for (int r = 0; r < rows; r++) {
			__m512 b = _mm512_set1_ps(x[r * g->ldx + i]);

			f[r][0] = _mm512_fmadd_ps(b, w0, f[r][0]);
			f[r][1] = _mm512_fmadd_ps(b, w1, f[r][1]);
		}
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < 2; v++)
			row_store(g, m + r, v, f[r][v]);
}

#include "kernels/x86/linear_words.h"

GEMM_WORDS(avx512)
