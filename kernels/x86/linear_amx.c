/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations with AMX tiles, for many rows.
 *
 * An activation code is split as a = hi + lo, hi a multiple of 128 up to 127 * 128 and lo in
 * -64..63; hi, lo and code - zero have eight significant bits at most, so each is a bf16.
 * TDPBF16PS adds products up from 0 as floats, then adds their sum to what the tile holds.
 * The sum of hi is a multiple of 128 up to 2^20 times that, that of lo is below 2^20, so both
 * are exact in any order. One instruction puts the sum of hi into the tile, the next adds
 * that of lo, which rounds the whole sum once, as converting the integer would.
 * Source: Intel SDM volume 2, TDPBF16PS.
 *
 * Integer tiles would not be faster, as a group fills half of their depth and a tile half
 * full takes as long as a full one; their sums would need a shift, an addition and a
 * conversion each, and vector instructions are what this code waits for.
 *
 * Work goes by blocks of 32 rows times the 32 columns of a panel: tiles add up a few groups,
 * then vectors scale these sums.
 */
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/x86/avx512.h"
#include "kernels/x86/x86.h"

enum {
	TILE_ROWS = KV_ACT_TILE_ROWS,
	TILE_BYTES = TILE_ROWS * 64,
	BLOCK_ROWS = 2 * TILE_ROWS,
	PLANE = BLOCK_ROWS * KV_PANEL, /* floats: sums of a step */
	N_PLANES = 6,
	PART_ROWS = 8, /* whose floats registers hold */
	/* of a group in the scratch: weights of columns 0 to 15, of the others, parameters */
	GROUP_BYTES = 2 * TILE_BYTES + 4 * 64,
};

/* --- activations -------------------------------------------------------------------- */

/* The upper halves of 32 floats that are bf16, in order. */
INLINE __m512i bf16_pack(__m512i a, __m512i b)
{
	const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43,
					     41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21,
					     19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

	a = _mm512_castps_si512(_mm512_cvtepi32_ps(a));
	b = _mm512_castps_si512(_mm512_cvtepi32_ps(b));
	return _mm512_permutex2var_epi16(a, odd, b);
}

void kv_act_many_amx(const float *x, const struct kv_act *act, uint32_t row)
{
	const __m512i low = _mm512_set1_epi32(127), round = _mm512_set1_epi32(64);
	uint32_t k = act->k, n_groups = k / KV_GROUP;
	size_t tile = (size_t)(row / TILE_ROWS) * n_groups;
	uint8_t *codes = act->codes + tile * 2 * TILE_BYTES + row % TILE_ROWS * 64;
	float *sum = act->sum + tile * TILE_ROWS + row % TILE_ROWS;
	float top = kv_float_from_bits(top_bits(x, k));
	__m512 inv;

	if (!(top >= 1e-30f) || isinf(top)) {
		for (uint32_t g = 0; g < n_groups; g++) {
			memset(codes + (size_t)g * 2 * TILE_BYTES, 0, 64);
			memset(codes + (size_t)g * 2 * TILE_BYTES + TILE_BYTES, 0, 64);
			sum[g * TILE_ROWS] = 0;
		}
		act->scale[row] = top < 1e-30f ? 0 : NAN;
		return;
	}
	inv = _mm512_set1_ps(KV_ACT_MAX / top);
	act->scale[row] = top / KV_ACT_MAX;
	for (uint32_t g = 0; g < n_groups; g++, codes += 2 * TILE_BYTES) {
		__m512 v0 = _mm512_loadu_ps(x + g * KV_GROUP);
		__m512 v1 = _mm512_loadu_ps(x + g * KV_GROUP + 16);
		__m512i a0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inv));
		__m512i a1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inv));
		__m512i hi0 = _mm512_andnot_si512(low, _mm512_add_epi32(a0, round));
		__m512i hi1 = _mm512_andnot_si512(low, _mm512_add_epi32(a1, round));

		_mm512_store_si512(codes, bf16_pack(hi0, hi1));
		_mm512_store_si512(
			codes + TILE_BYTES,
			bf16_pack(_mm512_sub_epi32(a0, hi0), _mm512_sub_epi32(a1, hi1)));
		sum[g * TILE_ROWS] =
			(float)_mm512_reduce_add_epi32(_mm512_add_epi32(a0, a1));
	}
}

/* --- weights ------------------------------------------------------------------------ */

/* In each lane, the first two codes of its four columns, then the other two. */
INLINE __m512i columns_pair(__m512i n)
{
	const __m128i order =
		_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);

	return _mm512_shuffle_epi8(n, _mm512_broadcast_i32x4(order));
}

INLINE void unpack_nibbles(const uint8_t *rec, uint8_t *dst, __m512i low_bytes,
			   __m512i high_bytes)
{
	const __m512i low = _mm512_set1_epi8(15);

	for (int v = 0; v < 2; v++) {
		for (int p = 0; p < 4; p++) {
			__m512i n =
				columns_pair(_mm512_load_si512(rec + p * 128 + v * 64));
			__m512i even = _mm512_and_si512(n, low);
			__m512i odd = _mm512_and_si512(_mm512_srli_epi16(n, 4), low);
			__m512i l0 = _mm512_shuffle_epi8(low_bytes, even);
			__m512i h0 = _mm512_shuffle_epi8(high_bytes, even);
			__m512i l1 = _mm512_shuffle_epi8(low_bytes, odd);
			__m512i h1 = _mm512_shuffle_epi8(high_bytes, odd);
			uint8_t *to = dst + v * TILE_BYTES + p * 256;

			_mm512_store_si512(to, _mm512_unpacklo_epi8(l0, h0));
			_mm512_store_si512(to + 64, _mm512_unpackhi_epi8(l0, h0));
			_mm512_store_si512(to + 128, _mm512_unpacklo_epi8(l1, h1));
			_mm512_store_si512(to + 192, _mm512_unpackhi_epi8(l1, h1));
		}
	}
}

INLINE __m512i bf16_pair(__m512i first, __m512i second, __m512i zero)
{
	__m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(first, zero));
	__m512 b = _mm512_cvtepi32_ps(_mm512_sub_epi32(second, zero));

	return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16),
			       _mm512_castps_si512(b));
}

INLINE void unpack_bytes(const uint8_t *rec, uint8_t *dst, __m512i zero)
{
	const __m512i byte = _mm512_set1_epi32(255);

	for (int v = 0; v < 2; v++) {
		for (int q = 0; q < 8; q++) {
			__m512i n = _mm512_load_si512(rec + q * 128 + v * 64);
			uint8_t *to = dst + v * TILE_BYTES + q * 128;
			__m512i c0 = _mm512_and_si512(n, byte);
			__m512i c1 = _mm512_and_si512(_mm512_srli_epi32(n, 8), byte);
			__m512i c2 = _mm512_and_si512(_mm512_srli_epi32(n, 16), byte);
			__m512i c3 = _mm512_srli_epi32(n, 24);

			_mm512_store_si512(to, bf16_pair(c0, c1, zero));
			_mm512_store_si512(to + 64, bf16_pair(c2, c3, zero));
		}
	}
}

/* Put the weights of the panel into the scratch as tiles: a row of a tile is two elements of
 * 16 columns. Behind those of each group, its parameters as floats. */
INLINE void panel_unpack(const struct kv_gemm *g, struct form form, bool nibbles)
{
	size_t codes = nibbles ? 512 : 1024;
	int zero = form.has_min ? 0 : 1 << g->zero_shift;
	int n_params = form.halves || form.has_min ? 2 : 1;
	const uint8_t *rec = g->panel;
	uint8_t *dst = g->scratch;
	__m512i low_bytes = _mm512_setzero_si512(), high_bytes = low_bytes;

	if (nibbles) {
		__m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
					      13, 14, 15);
		__m512i f = _mm512_castps_si512(
			_mm512_cvtepi32_ps(_mm512_sub_epi32(i, _mm512_set1_epi32(zero))));

		/* code - zero as bf16, by code */
		low_bytes = _mm512_broadcast_i32x4(
			_mm512_cvtepi32_epi8(_mm512_srli_epi32(f, 16)));
		high_bytes = _mm512_broadcast_i32x4(
			_mm512_cvtepi32_epi8(_mm512_srli_epi32(f, 24)));
	}
	for (uint32_t i = 0; i < g->k / KV_GROUP; i++, dst += GROUP_BYTES) {
		if (nibbles)
			unpack_nibbles(rec, dst, low_bytes, high_bytes);
		else
			unpack_bytes(rec, dst, _mm512_set1_epi32(zero));
		for (int p = 0; p < n_params; p++)
			for (int v = 0; v < 2; v++)
				_mm512_store_ps(dst + 2 * TILE_BYTES + p * 128 + v * 64,
						scale_load(form, rec + codes, p, v));
		rec += codes + form_scale_bytes(form);
	}
	/* The compiler is not told what loads of tiles read. */
	__asm__ volatile("" ::: "memory");
}

/* --- sums --------------------------------------------------------------------------- */

/*
 * Tiles 0 and 1 hold sums of the first 16 rows, 2 and 3 of the others; 4 hi and 5 lo of
 * activations; 6 and 7 weights. Each thread takes them for the length of a call: state that
 * is not in use is not saved when the thread leaves the CPU.
 */
INLINE void tiles_config(struct form form)
{
	struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config __attribute__((aligned(64))) = {.palette = 1};

	for (int i = 0; i < 8; i++) {
		config.row_bytes[i] = form.halves && (i == 4 || i == 5) ? 32 : 64;
		config.rows[i] = form.halves && i >= 6 ? 8 : 16;
	}
	/* Likewise with what the instruction reads. */
	__asm__ volatile("" ::"r"(&config) : "memory");
	_tile_loadconfig(&config);
}

/* Where tiles find the operands of one step. */
struct step {
	const uint8_t *w; /* weights of columns 0..15; TILE_BYTES on, the others     */
	const uint8_t *a; /* hi of rows 0..15; TILE_BYTES on, lo                     */
	size_t a_next;    /* bytes from a to the same of rows 16..31                 */
	bool both;        /* are there rows 16..31?                                  */
};

INLINE void sums_store(float *to)
{
	_tile_stored(0, to, KV_PANEL * 4);
	_tile_stored(1, to + 16, KV_PANEL * 4);
}

INLINE void sums_store_next(float *to)
{
	_tile_stored(2, to + TILE_ROWS * KV_PANEL, KV_PANEL * 4);
	_tile_stored(3, to + TILE_ROWS * KV_PANEL + 16, KV_PANEL * 4);
}

/*
 * Put the sums of a step into the tiles, and before that those of the step before it into
 * memory at last, where there is one: a store waits for its sums, which take long, and loads
 * behind it wait with it. What is read goes past the first-level cache, as it comes again
 * only for the next block, and would drive out the sums.
 */
INLINE void step_run(const struct step *s, float *last)
{
	_tile_stream_loadd(6, s->w, 64);
	_tile_stream_loadd(7, s->w + TILE_BYTES, 64);
	_tile_stream_loadd(4, s->a, 64);
	_tile_stream_loadd(5, s->a + TILE_BYTES, 64);
	if (last)
		sums_store(last);
	_tile_zero(0);
	_tile_zero(1);
	_tile_dpbf16ps(0, 4, 6);
	_tile_dpbf16ps(1, 4, 7);
	_tile_dpbf16ps(0, 5, 6);
	_tile_dpbf16ps(1, 5, 7);
	if (!s->both)
		return;
	_tile_stream_loadd(4, s->a + s->a_next, 64);
	_tile_stream_loadd(5, s->a + s->a_next + TILE_BYTES, 64);
	if (last)
		sums_store_next(last);
	_tile_zero(2);
	_tile_zero(3);
	_tile_dpbf16ps(2, 4, 6);
	_tile_dpbf16ps(3, 4, 7);
	_tile_dpbf16ps(2, 5, 6);
	_tile_dpbf16ps(3, 5, 7);
}

/* Groups whose sums lie in memory, of one block of rows. */
struct batch {
	uint32_t m, rows;         /* of the block                                     */
	uint32_t group, n_groups; /* the first, how many                              */
};

/* Add the sums of a batch to the floats of PART_ROWS rows, from row r of the block. */
INLINE void part_add(const struct kv_gemm *g, struct form form, const struct batch *b,
		     const float *planes, float *floats, uint32_t r)
{
	uint32_t n_groups = g->k / KV_GROUP, m = b->m + r;
	const float *param = (const float *)(g->scratch + (size_t)b->group * GROUP_BYTES +
					     2 * TILE_BYTES);
	const float *sum = g->act->sum +
			   ((size_t)(m / TILE_ROWS) * n_groups + b->group) * TILE_ROWS +
			   m % TILE_ROWS;
	const float *s = planes + r * KV_PANEL;
	__m512 f[PART_ROWS][2];

	floats += r * KV_PANEL;
#pragma GCC unroll 8
	for (int i = 0; i < PART_ROWS; i++)
#pragma GCC unroll 2
		for (int v = 0; v < 2; v++)
			f[i][v] =
				b->group == 0
					? _mm512_setzero_ps()
					: _mm512_load_ps(floats + i * KV_PANEL + v * 16);
	for (uint32_t n = 0; n < b->n_groups; n++) {
		__m512 d[2] = {_mm512_load_ps(param), _mm512_load_ps(param + 16)};
		__m512 e[2] = {_mm512_load_ps(param + 32), _mm512_load_ps(param + 48)};

#pragma GCC unroll 8
		for (int i = 0; i < PART_ROWS; i++) {
			__m512 t = _mm512_set1_ps(sum[i]);

#pragma GCC unroll 2
			for (int v = 0; v < 2; v++) {
				const float *p = s + i * KV_PANEL + v * 16;
				__m512 x = _mm512_load_ps(p);

				f[i][v] = _mm512_fmadd_ps(x, d[v], f[i][v]);
				if (form.halves)
					f[i][v] = _mm512_fmadd_ps(
						_mm512_load_ps(p + PLANE), e[v], f[i][v]);
				if (form.has_min)
					f[i][v] = _mm512_fmadd_ps(t, e[v], f[i][v]);
			}
		}
		param += GROUP_BYTES / sizeof(float);
		sum += TILE_ROWS;
		s += form.halves ? 2 * PLANE : PLANE;
	}
	if (b->group + b->n_groups < n_groups) {
#pragma GCC unroll 8
		for (int i = 0; i < PART_ROWS; i++)
#pragma GCC unroll 2
			for (int v = 0; v < 2; v++)
				_mm512_store_ps(floats + i * KV_PANEL + v * 16, f[i][v]);
		return;
	}
#pragma GCC unroll 8
	for (uint32_t i = 0; i < PART_ROWS; i++) {
		if (r + i >= b->rows)
			return;
#pragma GCC unroll 2
		for (int v = 0; v < 2; v++)
			row_store(g, m + i, v,
				  _mm512_mul_ps(f[i][v],
						_mm512_set1_ps(g->act->scale[m + i])));
	}
}

/* BLOCK_ROWS rows from m, or as many as there are, through all groups. */
INLINE void block_run(const struct kv_gemm *g, struct form form, uint32_t m,
		      float *planes, float *floats)
{
	uint32_t n_groups = g->k / KV_GROUP, most = form.halves ? N_PLANES / 2 : N_PLANES;
	uint32_t left = g->m1 - m;
	struct batch b = {.m = m, .rows = left < BLOCK_ROWS ? left : BLOCK_ROWS};
	size_t tile = (size_t)(m / TILE_ROWS) * n_groups;
	struct step s = {
		.w = g->scratch,
		.a = g->act->codes + tile * 2 * TILE_BYTES,
		.a_next = (size_t)n_groups * 2 * TILE_BYTES,
		.both = b.rows > TILE_ROWS,
	};

	for (; b.group < n_groups; b.group += b.n_groups) {
		float *to = planes, *last = NULL;

		b.n_groups = n_groups - b.group < most ? n_groups - b.group : most;
		for (uint32_t i = 0; i < b.n_groups; i++) {
			step_run(&s, last);
			last = to;
			to += PLANE;
			if (form.halves) {
				struct step second = s;

				second.w += TILE_BYTES / 2;
				second.a += 32;
				step_run(&second, last);
				last = to;
				to += PLANE;
			}
			s.w += GROUP_BYTES;
			s.a += (size_t)2 * TILE_BYTES;
		}
		sums_store(last);
		if (s.both)
			sums_store_next(last);
		for (uint32_t r = 0; r < b.rows; r += PART_ROWS)
			part_add(g, form, &b, planes, floats, r);
	}
}

INLINE void tiles_gemm(const struct kv_gemm *g, struct form form, bool nibbles)
{
	size_t weights = (size_t)(g->k / KV_GROUP) * GROUP_BYTES;
	float *planes = (float *)(g->scratch + weights);
	float *floats = planes + N_PLANES * PLANE;

	panel_unpack(g, form, nibbles);
	tiles_config(form);
	for (uint32_t m = g->m0; m < g->m1; m += BLOCK_ROWS)
		block_run(g, form, m, planes, floats);
	_tile_release();
}

void kv_gemm_many_nib_sym_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){0}, true);
}

void kv_gemm_many_nib_min_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){.has_min = true}, true);
}

void kv_gemm_many_nib_min32_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){.has_min = true, .wide = true}, true);
}

void kv_gemm_many_byte_sym_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){0}, false);
}

void kv_gemm_many_byte_min_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){.has_min = true}, false);
}

void kv_gemm_many_byte_min32_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){.has_min = true, .wide = true}, false);
}

void kv_gemm_many_byte_half_amx(const struct kv_gemm *g)
{
	tiles_gemm(g, (struct form){.halves = true, .wide = true}, false);
}
