/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations with VPMADDWD on 16-bit integers, exact in 32 bits. (VPMADDUBSW
 * saturates: 2 * 255 * 127 does not fit its 16 bits.) Also the float forms.
 *
 * A column's four codes of a quad (elements 0..3) are split into the even ones (0, 2) and the
 * odd ones (1, 3), each pair being the two 16-bit halves of the column's lane; activation
 * codes of a quad lie as 0, 2, 1, 3, so that each pair is broadcast as 32 bits.
 */
#include <math.h>
#include <string.h>

#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

enum { TILE_ROWS = 3, TILE_VECS = 2, FLOAT_ROWS = 3 };

/* Where codes come from: nibbles or bytes of the panel, or the unpacked pairs of scratch. */
enum source { FROM_NIBBLES, FROM_BYTES, FROM_PAIRS };

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

	if (!(top >= 1e-30f) || isinf(top)) {
		memset(codes, 0, (size_t)k * 2);
		memset(sum, 0, n_groups * sizeof(*sum));
		memset(half_sum, 0, n_groups * 2 * sizeof(*half_sum));
		act->scale[row] = top < 1e-30f ? 0 : NAN;
		return;
	}
	inv = _mm256_set1_ps(KV_ACT_MAX / top);
	act->scale[row] = top / KV_ACT_MAX;
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

INLINE __m256i pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return _mm256_set1_epi32(x);
}

/* Even and odd codes of quad q, columns 8 v .., of one group. */
INLINE void pairs_load(enum source src, const uint8_t *codes, int q, int v,
		       __m256i ret[2])
{
	const __m256i nib = _mm256_set1_epi16(15), byte = _mm256_set1_epi16(255);
	__m256i n;

	switch (src) {
	case FROM_PAIRS:
		ret[0] = _mm256_load_si256((const void *)(codes + q * 256 + v * 32));
		ret[1] =
			_mm256_load_si256((const void *)(codes + q * 256 + 128 + v * 32));
		break;
	case FROM_BYTES:
		n = _mm256_load_si256((const void *)(codes + q * 128 + v * 32));
		ret[0] = _mm256_and_si256(n, byte);
		ret[1] = _mm256_srli_epi16(n, 8);
		break;
	case FROM_NIBBLES:
		n = _mm256_load_si256((const void *)(codes + q / 2 * 128 + v * 32));
		if (q % 2)
			n = _mm256_srli_epi16(n, 4);
		ret[0] = _mm256_and_si256(n, nib);
		ret[1] = _mm256_and_si256(_mm256_srli_epi16(n, 8), nib);
		break;
	}
}

/* rows rows from m, columns 8 v0 .. 8 (v0 + TILE_VECS) - 1. */
INLINE void int_tile(const struct kv_gemm *g, struct form form, enum source src,
		     const uint8_t *codes, size_t codes_step, const uint8_t *scales,
		     size_t record, uint32_t m, int rows, int v0)
{
	uint32_t n_groups = g->k / KV_GROUP;
	const int16_t *act = (const int16_t *)(g->act->codes + (size_t)m * g->k * 2);
	const float *sum = g->act->sum + (size_t)m * n_groups;
	const int32_t *half_sum = g->act->half_sum + (size_t)m * n_groups * 2;
	int n_halves = form.halves ? 2 : 1, quads = 8 / n_halves;
	__m256 f[TILE_ROWS][TILE_VECS];

	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			f[r][v] = _mm256_setzero_ps();
	for (uint32_t i = 0; i < n_groups; i++) {
		for (int h = 0; h < n_halves; h++) {
			__m256i s[TILE_ROWS][TILE_VECS];

			for (int r = 0; r < rows; r++) {
				const int32_t *hs =
					half_sum + (size_t)r * n_groups * 2 + i * 2;
				int32_t z = form.halves ? hs[h] : hs[0] + hs[1];

				z = form.has_min ? 0 : -z * (1 << g->zero_shift);
				for (int v = 0; v < TILE_VECS; v++)
					s[r][v] = _mm256_set1_epi32(z);
			}
#pragma GCC unroll 8
			for (int q = h * quads; q < (h + 1) * quads; q++) {
				__m256i w[TILE_VECS][2];

				for (int v = 0; v < TILE_VECS; v++)
					pairs_load(src, codes, q, v0 + v, w[v]);
				for (int r = 0; r < rows; r++) {
					const int16_t *a = act + (size_t)r * g->k + q * 4;
					__m256i even = pair(a), odd = pair(a + 2);

					for (int v = 0; v < TILE_VECS; v++) {
						__m256i p = _mm256_add_epi32(
							_mm256_madd_epi16(w[v][0], even),
							_mm256_madd_epi16(w[v][1], odd));

						s[r][v] = _mm256_add_epi32(s[r][v], p);
					}
				}
			}
			for (int r = 0; r < rows; r++)
				for (int v = 0; v < TILE_VECS; v++)
					f[r][v] = _mm256_fmadd_ps(
						_mm256_cvtepi32_ps(s[r][v]),
						scale_load(form, scales, h, v0 + v),
						f[r][v]);
		}
		for (int r = 0; form.has_min && r < rows; r++)
			for (int v = 0; v < TILE_VECS; v++)
				f[r][v] = _mm256_fmadd_ps(
					_mm256_set1_ps(sum[(size_t)r * n_groups + i]),
					scale_load(form, scales, 1, v0 + v), f[r][v]);
		act += KV_GROUP;
		codes += codes_step;
		scales += record;
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			row_store(g, m + r, v0 + v,
				  _mm256_mul_ps(f[r][v],
						_mm256_set1_ps(g->act->scale[m + r])));
}

INLINE void int_gemm(const struct kv_gemm *g, struct form form, enum source src)
{
	size_t codes_bytes = src == FROM_NIBBLES ? 512 : 1024;
	size_t record = codes_bytes + form_scale_bytes(form);
	const uint8_t *scales = g->panel + codes_bytes;
	uint8_t *pairs = g->scratch;
	uint32_t m = g->m0;

	if (g->m1 - m == 1) {
		for (int v = 0; v < 4; v += TILE_VECS)
			int_tile(g, form, src, g->panel, record, scales, record, m, 1, v);
		return;
	}
	for (uint32_t i = 0; i < g->k / KV_GROUP; i++) {
		for (int q = 0; q < 8; q++) {
			for (int v = 0; v < 4; v++) {
				uint8_t *dst = pairs + i * 2048 + q * 256 + v * 32;
				__m256i w[2];

				pairs_load(src, g->panel + i * record, q, v, w);
				_mm256_store_si256((__m256i *)dst, w[0]);
				_mm256_store_si256((__m256i *)(dst + 128), w[1]);
			}
		}
	}
	for (; m + TILE_ROWS <= g->m1; m += TILE_ROWS)
		for (int v = 0; v < 4; v += TILE_VECS)
			int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m,
				 TILE_ROWS, v);
	for (; m < g->m1; m++)
		for (int v = 0; v < 4; v += TILE_VECS)
			int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m, 1,
				 v);
}

void kv_gemm_nib_sym_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){0}, FROM_NIBBLES);
}

void kv_gemm_nib_min_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true}, FROM_NIBBLES);
}

void kv_gemm_nib_min32_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true, .wide = true}, FROM_NIBBLES);
}

void kv_gemm_byte_sym_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){0}, FROM_BYTES);
}

void kv_gemm_byte_min_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true}, FROM_BYTES);
}

void kv_gemm_byte_min32_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.has_min = true, .wide = true}, FROM_BYTES);
}

void kv_gemm_byte_half_avx2(const struct kv_gemm *g)
{
	int_gemm(g, (struct form){.halves = true, .wide = true}, FROM_BYTES);
}

/* --- float forms -------------------------------------------------------------------- */

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

INLINE void float_gemm(const struct kv_gemm *g, enum kv_form form)
{
	uint32_t m = g->m0;

	for (; m + FLOAT_ROWS <= g->m1; m += FLOAT_ROWS)
		float_tile(g, form, m, FLOAT_ROWS);
	for (; m < g->m1; m++)
		float_tile(g, form, m, 1);
}

void kv_gemm_f32_avx2(const struct kv_gemm *g)
{
	float_gemm(g, KV_FORM_F32);
}

void kv_gemm_f16_avx2(const struct kv_gemm *g)
{
	float_gemm(g, KV_FORM_F16);
}

void kv_gemm_bf16_avx2(const struct kv_gemm *g)
{
	float_gemm(g, KV_FORM_BF16);
}
