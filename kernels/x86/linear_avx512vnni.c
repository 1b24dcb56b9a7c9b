/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations with VPDPBUSD: unsigned weight codes times signed activation
 * bytes, four products added to a 32-bit lane, one lane per column.
 *
 * Activation codes of a group lie as 32 high bytes, then 32 low bytes, a = 128 hi + lo with
 * lo in -64..63. A tile adds the products with hi, shifts them up by 7 and adds those with
 * lo to the same lanes; all of it stays within 32 bits (32 * 255 * 127 * 128 < 2^27).
 *
 * With many rows, a panel of nibbles is unpacked once to bytes in the thread's scratch, which
 * then stays in the first-level cache for all rows. With few rows, nibbles are used as they
 * come from memory.
 */
#include "kernels/x86/avx512.h"
#include "kernels/x86/linear.h"
#include "kernels/x86/x86.h"

enum { TILE_ROWS = 6, NIB_TILE_ROWS = 4 };

void kv_act_avx512vnni(const float *x, const struct kv_act *act, uint32_t row)
{
	uint32_t k = act->k, n_groups = k / KV_GROUP;
	uint8_t *codes = act->codes + (size_t)row * k * 2;
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
			__m512i b = _mm512_add_epi32(a, _mm512_set1_epi32(64));
			__m512i lo = _mm512_sub_epi32(
				_mm512_and_si512(b, _mm512_set1_epi32(127)),
				_mm512_set1_epi32(64));
			int32_t s = _mm512_reduce_add_epi32(a);

			_mm_store_si128((__m128i *)(codes + g * 64 + h * 16),
					_mm512_cvtepi32_epi8(_mm512_srai_epi32(b, 7)));
			_mm_store_si128((__m128i *)(codes + g * 64 + 32 + h * 16),
					_mm512_cvtepi32_epi8(lo));
			half_sum[g * 2 + h] = s;
			total += s;
		}
		sum[g] = (float)total;
	}
}

INLINE __m512i four_codes(const uint8_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return _mm512_set1_epi32(x);
}

/* Add the sums of one group (or half), S, to the rows' floats. */
INLINE void add_scaled(__m512 f[2], const __m512i s[2], struct form form,
		       const uint8_t *scales, int half)
{
	for (int v = 0; v < 2; v++)
		f[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[v]),
				       scale_load(form, scales, half, v), f[v]);
}

INLINE int32_t zero_part(const struct kv_gemm *g, struct form form, uint32_t m,
			 uint32_t group, int half)
{
	const int32_t *h = g->act->half_sum + ((size_t)m * (g->k / KV_GROUP) + group) * 2;

	if (form.has_min)
		return 0;
	return (form.halves ? h[half] : h[0] + h[1]) * (1 << g->zero_shift);
}

INLINE void finish_rows(const struct kv_gemm *g, uint32_t m, int rows, __m512 f[][2])
{
#pragma GCC unroll 6
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (int v = 0; v < 2; v++)
			row_store(g, m + r, v,
				  _mm512_mul_ps(f[r][v],
						_mm512_set1_ps(g->act->scale[m + r])));
}

/* Add the products of one pass (high or low bytes of activations) over some quads. */
INLINE void byte_pass(__m512i s[][2], int rows, int quads, const uint8_t *w,
		      const uint8_t *a, size_t ld)
{
#pragma GCC unroll 8
	for (int q = 0; q < quads; q++) {
		__m512i w0 = _mm512_load_si512(w + q * 128);
		__m512i w1 = _mm512_load_si512(w + q * 128 + 64);

#pragma GCC unroll 6
		for (int r = 0; r < rows; r++) {
			__m512i b = four_codes(a + r * ld + q * 4);

			s[r][0] = _mm512_dpbusd_epi32(s[r][0], w0, b);
			s[r][1] = _mm512_dpbusd_epi32(s[r][1], w1, b);
		}
	}
}

/* One group, or one half of it, of all rows. */
INLINE void byte_group(const struct kv_gemm *g, struct form form, __m512 f[][2], int rows,
		       const uint8_t *codes, const uint8_t *scales, const uint8_t *act,
		       uint32_t m, uint32_t group, int half)
{
	int quads = form.halves ? 4 : 8;
	size_t ld = (size_t)g->k * 2;
	__m512i s[TILE_ROWS][2];

#pragma GCC unroll 6
	for (int r = 0; r < rows; r++)
		s[r][0] = s[r][1] = _mm512_setzero_si512();
	byte_pass(s, rows, quads, codes + half * 512, act + half * 16, ld);
#pragma GCC unroll 6
	for (int r = 0; r < rows; r++) {
		s[r][0] = _mm512_slli_epi32(s[r][0], 7);
		s[r][1] = _mm512_slli_epi32(s[r][1], 7);
		if (!form.has_min) {
			__m512i z =
				_mm512_set1_epi32(zero_part(g, form, m + r, group, half));

			s[r][0] = _mm512_sub_epi32(s[r][0], z);
			s[r][1] = _mm512_sub_epi32(s[r][1], z);
		}
	}
	byte_pass(s, rows, quads, codes + half * 512, act + 32 + half * 16, ld);
#pragma GCC unroll 2
	for (int v = 0; v < 2; v++) {
		__m512 d = scale_load(form, scales, half, v);

#pragma GCC unroll 6
		for (int r = 0; r < rows; r++)
			f[r][v] =
				_mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r][v]), d, f[r][v]);
	}
}

/* With one row the weights come from memory once; the CPU's own prefetchers stop at pages
 * and start again at each. Reading past the end of a weight is harmless. */
INLINE void read_ahead(const uint8_t *rec, size_t record)
{
	for (size_t at = 0; at < record; at += 64)
		_mm_prefetch((const char *)rec + 4096 + at, _MM_HINT_T0);
}

/* rows rows from m against byte codes; record: bytes from one group's scales to the next. */
INLINE void byte_tile(const struct kv_gemm *g, struct form form, const uint8_t *codes,
		      size_t codes_step, const uint8_t *scales, size_t record, uint32_t m,
		      int rows)
{
	const uint8_t *act = g->act->codes + (size_t)m * g->k * 2;
	const float *sum = g->act->sum + (size_t)m * (g->k / KV_GROUP);
	uint32_t n_groups = g->k / KV_GROUP;
	__m512 f[TILE_ROWS][2];

#pragma GCC unroll 6
	for (int r = 0; r < rows; r++)
		f[r][0] = f[r][1] = _mm512_setzero_ps();
	for (uint32_t i = 0; i < n_groups; i++) {
		if (rows == 1)
			read_ahead(codes, codes_step);
		byte_group(g, form, f, rows, codes, scales, act, m, i, 0);
		if (form.halves)
			byte_group(g, form, f, rows, codes, scales, act, m, i, 1);
		if (form.has_min) {
			__m512 m0 = scale_load(form, scales, 1, 0);
			__m512 m1 = scale_load(form, scales, 1, 1);

#pragma GCC unroll 6
			for (int r = 0; r < rows; r++) {
				__m512 t = _mm512_set1_ps(sum[(size_t)r * n_groups + i]);

				f[r][0] = _mm512_fmadd_ps(t, m0, f[r][0]);
				f[r][1] = _mm512_fmadd_ps(t, m1, f[r][1]);
			}
		}
		act += 64;
		codes += codes_step;
		scales += record;
	}
	finish_rows(g, m, rows, f);
}

/* rows rows from m against nibbles as they lie in the panel. */
INLINE void nib_tile(const struct kv_gemm *g, struct form form, size_t record, uint32_t m,
		     int rows)
{
	const __m512i low = _mm512_set1_epi8(15);
	const uint8_t *act = g->act->codes + (size_t)m * g->k * 2, *rec = g->panel;
	const float *sum = g->act->sum + (size_t)m * (g->k / KV_GROUP);
	uint32_t n_groups = g->k / KV_GROUP;
	size_t ld = (size_t)g->k * 2;
	__m512 f[NIB_TILE_ROWS][2];

	for (int r = 0; r < rows; r++)
		f[r][0] = f[r][1] = _mm512_setzero_ps();
	for (uint32_t i = 0; i < n_groups; i++) {
		__m512i hi[NIB_TILE_ROWS][2], lo[NIB_TILE_ROWS][2];

		read_ahead(rec, record);

		for (int r = 0; r < rows; r++) {
			__m512i z = _mm512_setzero_si512();

			hi[r][0] = hi[r][1] = z;
			if (!form.has_min)
				z = _mm512_set1_epi32(-zero_part(g, form, m + r, i, 0));
			lo[r][0] = lo[r][1] = z;
		}
#pragma GCC unroll 4
		for (int p = 0; p < 4; p++) {
			for (int v = 0; v < 2; v++) {
				__m512i n = _mm512_load_si512(rec + p * 128 + v * 64);
				__m512i w0 = _mm512_and_si512(n, low);
				__m512i w1 =
					_mm512_and_si512(_mm512_srli_epi16(n, 4), low);

				for (int r = 0; r < rows; r++) {
					const uint8_t *a = act + r * ld + p * 8;

					hi[r][v] = _mm512_dpbusd_epi32(hi[r][v], w0,
								       four_codes(a));
					lo[r][v] = _mm512_dpbusd_epi32(
						lo[r][v], w0, four_codes(a + 32));
					hi[r][v] = _mm512_dpbusd_epi32(hi[r][v], w1,
								       four_codes(a + 4));
					lo[r][v] = _mm512_dpbusd_epi32(
						lo[r][v], w1, four_codes(a + 36));
				}
			}
		}
		for (int r = 0; r < rows; r++) {
			for (int v = 0; v < 2; v++)
				hi[r][v] = _mm512_add_epi32(
					_mm512_slli_epi32(hi[r][v], 7), lo[r][v]);
			add_scaled(f[r], hi[r], form, rec + 512, 0);
			if (!form.has_min)
				continue;
			__m512 t = _mm512_set1_ps(sum[(size_t)r * n_groups + i]);
			for (int v = 0; v < 2; v++)
				f[r][v] = _mm512_fmadd_ps(
					t, scale_load(form, rec + 512, 1, v), f[r][v]);
		}
		act += 64;
		rec += record;
	}
	finish_rows(g, m, rows, f);
}

INLINE void byte_rows(const struct kv_gemm *g, struct form form, const uint8_t *codes,
		      size_t codes_step, const uint8_t *scales, size_t record)
{
	uint32_t m = g->m0;

	for (; m + TILE_ROWS <= g->m1; m += TILE_ROWS)
		byte_tile(g, form, codes, codes_step, scales, record, m, TILE_ROWS);
	switch (g->m1 - m) {
	case 5:
		byte_tile(g, form, codes, codes_step, scales, record, m, 5);
		break;
	case 4:
		byte_tile(g, form, codes, codes_step, scales, record, m, 4);
		break;
	case 3:
		byte_tile(g, form, codes, codes_step, scales, record, m, 3);
		break;
	case 2:
		byte_tile(g, form, codes, codes_step, scales, record, m, 2);
		break;
	case 1:
		byte_tile(g, form, codes, codes_step, scales, record, m, 1);
		break;
	default:
		break;
	}
}

INLINE void nib_unpack(const struct kv_gemm *g, size_t record)
{
	const __m512i low = _mm512_set1_epi8(15);
	const uint8_t *rec = g->panel;
	uint8_t *dst = g->scratch;

	for (uint32_t i = 0; i < g->k / KV_GROUP; i++, rec += record, dst += 1024) {
		for (int p = 0; p < 4; p++) {
			for (int v = 0; v < 2; v++) {
				__m512i n = _mm512_load_si512(rec + p * 128 + v * 64);

				_mm512_store_si512(dst + p * 256 + v * 64,
						   _mm512_and_si512(n, low));
				_mm512_store_si512(
					dst + p * 256 + 128 + v * 64,
					_mm512_and_si512(_mm512_srli_epi16(n, 4), low));
			}
		}
	}
}

INLINE void nib_gemm(const struct kv_gemm *g, struct form form)
{
	size_t record = 512 + form_scale_bytes(form);

	switch (g->m1 - g->m0) {
	case 0:
		return;
	case 1:
		nib_tile(g, form, record, g->m0, 1);
		return;
	case 2:
		nib_tile(g, form, record, g->m0, 2);
		return;
	case 3:
		nib_tile(g, form, record, g->m0, 3);
		return;
	case 4:
		nib_tile(g, form, record, g->m0, 4);
		return;
	default:
		nib_unpack(g, record);
		byte_rows(g, form, g->scratch, 1024, g->panel + 512, record);
		return;
	}
}

INLINE void byte_gemm(const struct kv_gemm *g, struct form form)
{
	size_t record = 1024 + form_scale_bytes(form);

	byte_rows(g, form, g->panel, record, g->panel + 1024, record);
}

GEMM_INT(avx512vnni)
