/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations without byte dot products: VPMADDWD on 16-bit integers, exact in
 * 32 bits (2 * 255 * 16256 < 2^23, 16 such per group). Also the float forms.
 *
 * A column's four codes of a quad (elements 0..3) are split into the even ones (0, 2) and the
 * odd ones (1, 3), each pair being the two 16-bit halves of the column's lane; activation
 * codes of a quad lie as 0, 2, 1, 3, so that each pair is broadcast as 32 bits.
 */
#include <math.h>
#include <string.h>

#include "kernels/x86/avx512.h"
#include "kernels/x86/x86.h"

enum { TILE_ROWS = 4, FLOAT_ROWS = 8 };

/* Where codes come from: nibbles or bytes of the panel, or the unpacked pairs of scratch. */
enum source { FROM_NIBBLES, FROM_BYTES, FROM_PAIRS };

void kv_act_avx512(const float *x, const struct kv_act *act, uint32_t row)
{
	uint32_t k = act->k, n_groups = k / KV_GROUP;
	int16_t *codes = (int16_t *)(act->codes + (size_t)row * k * 2);
	float *sum = act->sum + (size_t)row * n_groups;
	int32_t *half_sum = act->half_sum + (size_t)row * n_groups * 2;
	float top = kv_float_from_bits(top_bits(x, k));
	__m512 inv;

	if (!(top >= 1e-30f) || isinf(top)) {
		memset(codes, 0, (size_t)k * 2);
		memset(sum, 0, n_groups * sizeof(*sum));
		memset(half_sum, 0, n_groups * 2 * sizeof(*half_sum));
		act->scale[row] = top < 1e-30f ? 0 : NAN;
		return;
	}
	inv = _mm512_set1_ps(KV_ACT_MAX / top);
	act->scale[row] = top / KV_ACT_MAX;
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

INLINE __m512i pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return _mm512_set1_epi32(x);
}

/* Even and odd codes of quad q, columns 16 v .., of one group. */
INLINE void pairs_load(enum source src, const uint8_t *codes, int q, int v,
		       __m512i ret[2])
{
	const __m512i nib = _mm512_set1_epi16(15), byte = _mm512_set1_epi16(255);
	__m512i n;

	switch (src) {
	case FROM_PAIRS:
		ret[0] = _mm512_load_si512(codes + q * 256 + v * 64);
		ret[1] = _mm512_load_si512(codes + q * 256 + 128 + v * 64);
		break;
	case FROM_BYTES:
		n = _mm512_load_si512(codes + q * 128 + v * 64);
		ret[0] = _mm512_and_si512(n, byte);
		ret[1] = _mm512_srli_epi16(n, 8);
		break;
	case FROM_NIBBLES:
		n = _mm512_load_si512(codes + q / 2 * 128 + v * 64);
		if (q % 2)
			n = _mm512_srli_epi16(n, 4);
		ret[0] = _mm512_and_si512(n, nib);
		ret[1] = _mm512_and_si512(_mm512_srli_epi16(n, 8), nib);
		break;
	}
}

INLINE void int_tile(const struct kv_gemm *g, struct form form, enum source src,
		     const uint8_t *codes, size_t codes_step, const uint8_t *scales,
		     size_t record, uint32_t m, int rows)
{
	uint32_t n_groups = g->k / KV_GROUP;
	const int16_t *act = (const int16_t *)(g->act->codes + (size_t)m * g->k * 2);
	const float *sum = g->act->sum + (size_t)m * n_groups;
	const int32_t *half_sum = g->act->half_sum + (size_t)m * n_groups * 2;
	int n_halves = form.halves ? 2 : 1, quads = 8 / n_halves;
	__m512 f[TILE_ROWS][2];

	for (int r = 0; r < rows; r++)
		f[r][0] = f[r][1] = _mm512_setzero_ps();
	for (uint32_t i = 0; i < n_groups; i++) {
		for (int h = 0; h < n_halves; h++) {
			__m512i s[TILE_ROWS][2];

			for (int r = 0; r < rows; r++) {
				const int32_t *hs =
					half_sum + (size_t)r * n_groups * 2 + i * 2;
				int32_t z = form.halves ? hs[h] : hs[0] + hs[1];

				z = form.has_min ? 0 : -z * (1 << g->zero_shift);
				s[r][0] = s[r][1] = _mm512_set1_epi32(z);
			}
#pragma GCC unroll 8
			for (int q = h * quads; q < (h + 1) * quads; q++) {
				__m512i w[2][2];

				for (int v = 0; v < 2; v++)
					pairs_load(src, codes, q, v, w[v]);
				for (int r = 0; r < rows; r++) {
					const int16_t *a = act + (size_t)r * g->k + q * 4;

					for (int v = 0; v < 2; v++) {
						s[r][v] = _mm512_add_epi32(
							s[r][v],
							_mm512_madd_epi16(w[v][0],
									  pair(a)));
						s[r][v] = _mm512_add_epi32(
							s[r][v],
							_mm512_madd_epi16(w[v][1],
									  pair(a + 2)));
					}
				}
			}
			for (int r = 0; r < rows; r++)
				for (int v = 0; v < 2; v++)
					f[r][v] = _mm512_fmadd_ps(
						_mm512_cvtepi32_ps(s[r][v]),
						scale_load(form, scales, h, v), f[r][v]);
		}
		for (int r = 0; form.has_min && r < rows; r++)
			for (int v = 0; v < 2; v++)
				f[r][v] = _mm512_fmadd_ps(
					_mm512_set1_ps(sum[(size_t)r * n_groups + i]),
					scale_load(form, scales, 1, v), f[r][v]);
		act += KV_GROUP;
		codes += codes_step;
		scales += record;
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < 2; v++)
			row_store(g, m + r, v,
				  _mm512_mul_ps(f[r][v],
						_mm512_set1_ps(g->act->scale[m + r])));
}

INLINE void int_gemm(const struct kv_gemm *g, struct form form, enum source src)
{
	size_t codes_bytes = src == FROM_NIBBLES ? 512 : 1024;
	size_t record = codes_bytes + form_scale_bytes(form);
	const uint8_t *scales = g->panel + codes_bytes;
	uint8_t *pairs = g->scratch;
	uint32_t m = g->m0;

	if (g->m1 - m == 1) {
		int_tile(g, form, src, g->panel, record, scales, record, m, 1);
		return;
	}
	for (uint32_t i = 0; i < g->k / KV_GROUP; i++) {
		for (int q = 0; q < 8; q++) {
			for (int v = 0; v < 2; v++) {
				uint8_t *dst = pairs + i * 2048 + q * 256 + v * 64;
				__m512i w[2];

				pairs_load(src, g->panel + i * record, q, v, w);
				_mm512_store_si512(dst, w[0]);
				_mm512_store_si512(dst + 128, w[1]);
			}
		}
	}
	for (; m + TILE_ROWS <= g->m1; m += TILE_ROWS)
		int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m, TILE_ROWS);
	for (; m + 2 <= g->m1; m += 2)
		int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m, 2);
	for (; m < g->m1; m++)
		int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m, 1);
}

void kv_gemm_nib_sym_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){0}, FROM_NIBBLES);
}

void kv_gemm_nib_min_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true}, FROM_NIBBLES);
}

void kv_gemm_nib_min32_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true, .wide = true}, FROM_NIBBLES);
}

void kv_gemm_byte_sym_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){0}, FROM_BYTES);
}

void kv_gemm_byte_min_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true}, FROM_BYTES);
}

void kv_gemm_byte_min32_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true, .wide = true}, FROM_BYTES);
}

void kv_gemm_byte_half_avx512(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.halves = true, .wide = true}, FROM_BYTES);
}

/* --- float forms -------------------------------------------------------------------- */

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

INLINE void float_gemm(const struct kv_gemm *g, enum kv_form form)
{
	uint32_t m = g->m0;

	for (; m + FLOAT_ROWS <= g->m1; m += FLOAT_ROWS)
		float_tile(g, form, m, FLOAT_ROWS);
	for (; m + 3 <= g->m1; m += 3)
		float_tile(g, form, m, 3);
	for (; m < g->m1; m++)
		float_tile(g, form, m, 1);
}

void kv_gemm_f32_avx512(const struct kv_gemm *g)
{
	float_gemm(g, KV_FORM_F32);
}

void kv_gemm_f16_avx512(const struct kv_gemm *g)
{
	float_gemm(g, KV_FORM_F16);
}

void kv_gemm_bf16_avx512(const struct kv_gemm *g)
{
	float_gemm(g, KV_FORM_BF16);
}
