/* SPDX-License-Identifier: MIT */
/*
 * Attention over int8 and int4 planes but for the scores of int4, which are in
 * attention_k4.h, written once for all bundles. A file of one bundle
 * defines the types and primitives named here, then includes this; the sums are exact
 * integers, and the float operations are those of kernels/c/, lane by lane.
 *
 * The signed side, 15-bit codes of queries or weights, lies in two planes of a byte per code.
 * Dword i of the planes belongs to codes 4 i .. 4 i + 3 and is what one multiplication of
 * the bundle takes: with VNNI four high bytes and four low ones, c = 128 high + low; else
 * two 16-bit codes, of which the first plane has 0 and 2, the second one 1 and 3.
 *
 * The includer defines:
 *   LANES              of 32 bits in a vector: 8 or 16
 *   vint, vfloat       such vectors
 *   vsum               the same as vectors of int, as which the compiler keeps running sums
 *                      in their registers
 *   struct codes       unsigned codes, four to a lane
 *   code_load(p, n)    n >= LANES: LANES dwords at p, else the first n, the others 0
 *   code_low, code_high(c)      its low and high nibbles as codes
 *   code_bytes(c)      the bytes as codes
 *   dot_p(a, c, p), dot_q(b, c, q)      a plus c times the dword at p of the first plane,
 *                      b plus c times that at q of the second one
 *   ONE_SUM            whether a and b may be the same, as registers are few; else
 *   dot_sum(a, b)      is what the two amount to
 *   split(c, p, q)     writes LANES codes to the two planes
 *   split_64(c, p, q)  the same for 64 of them
 *   max_abs(top, x), lanes_top(top)   the largest |x| by its bits, in each lane, of all lanes
 *   NV1 .. NV6, ND1 .. ND6      vectors of tokens, of dims, of a tile of 1 .. 6 queries
 *   and the wrappers of single instructions that are used here
 */
#ifndef KVD_KERNELS_X86_ATTENTION_INT_H
#define KVD_KERNELS_X86_ATTENTION_INT_H

#include <math.h>
#include <string.h>

enum { INT_QUERIES = 6 }; /* at most, of one tile */

/* All of a tile in one loop, which is unrolled before the compiler decides what stays in
 * registers; of two nested ones the outer is unrolled too late. */
#define FOR_TILE(x, n) _Pragma("GCC unroll 32") for (int x = 0; x < (n); x++)

/* A macro, since arrays whose elements' addresses are taken do not stay in registers. */
#define DOT(a, b, c, p, q)                                                               \
	do {                                                                             \
		a = dot_p(a, c, p);                                                      \
		if (ONE_SUM)                                                             \
			a = dot_q(a, c, q);                                              \
		else                                                                     \
			b = dot_q(b, c, q);                                              \
	} while (0)

struct weights {
	_Alignas(64) uint8_t p[INT_QUERIES][KV_SPAN], q[INT_QUERIES][KV_SPAN];
	float r[INT_QUERIES], zero[INT_QUERIES];
};

/* Lines that are needed soon: prefetching by hand, since blocks are short and lie apart. */
INLINE void fetch(const void *p)
{
	_mm_prefetch(p, _MM_HINT_T0);
}

INLINE void fetch_bytes(const void *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 64)
		fetch((const uint8_t *)p + i);
}

INLINE void fetch_next(const struct kv_span *sp, uint32_t block)
{
	if (block >= sp->n_next)
		return;
	fetch_bytes(sp->next_k[block], sp->next_k_bytes);
	fetch_bytes(sp->next_params[block], sp->next_params_bytes);
}

/* --- int8 scores -------------------------------------------------------------------- */

INLINE void scores8_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t iv,
			 int nv)
{
	uint32_t bt = sp->block_tokens, hd = sp->head_dim, last = sp->n_code[sp->n_q - 1];
	const uint8_t *k[8], *ahead[8], *v[8], *qc[INT_QUERIES];
	vsum a[INT_QUERIES][8], b[INT_QUERIES][8];
	vint sum[INT_QUERIES][8];
	size_t step = (size_t)bt * 4;

#pragma GCC unroll 8
	for (int i = 0; i < nv; i++) {
		uint32_t t = (iv + i) * LANES, next = t + LANES * nv;

		k[i] = (const uint8_t *)sp->k[t / bt] + t % bt * 4;
		ahead[i] = next < last ? (const uint8_t *)sp->k[next / bt] + next % bt * 4
				       : k[i];
		v[i] = (const uint8_t *)sp->v[t / bt] + t % bt * 4;
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		qc[j] = sp->q_codes[q0 + j];
	FOR_TILE(x, nq * nv)
	a[x / nv][x % nv] = b[x / nv][x % nv] = (vsum){0};
	for (uint32_t d = 0; d < hd; d += 4) {
		struct codes c[8];
		size_t at = d / 4 * step;

#pragma GCC unroll 8
		for (int i = 0; i < nv; i++) {
			c[i] = code_bytes(code_load(k[i] + at, LANES));
			fetch(ahead[i] + at);
			fetch(v[i] + at);
		}
		FOR_TILE(x, nq * nv)
		DOT(a[x / nv][x % nv], b[x / nv][x % nv], c[x % nv], qc[x / nv] + d,
		    qc[x / nv] + hd + d);
	}
	FOR_TILE(x, nq * nv)
	sum[x / nv][x % nv] = dot_sum(a[x / nv][x % nv], b[x / nv][x % nv]);
	for (int i = 0; i < nv; i++) {
		uint32_t t = (iv + i) * LANES;
		const uint16_t *params = (const uint16_t *)sp->k_params[t / bt] + t % bt;
		vfloat scale = half_load(params), zero = half_load(params + bt);

		for (int j = 0; j < nq; j++) {
			vfloat f = to_float(sum[j][i]);

			f = fnma_f(zero, set_f((float)sp->q_sum[q0 + j]), f);
			f = mul_f(f, mul_f(scale, set_f(sp->q_scale[q0 + j])));
			store_f(sp->s + (q0 + j) * KV_SPAN + t, f);
		}
	}
}

INLINE void scores8(const struct kv_span *sp, uint32_t q0, int nq, int nv)
{
	uint32_t iv = 0, n = (sp->n_code[q0 + nq - 1] + LANES - 1) / LANES;

	for (; iv + nv <= n; iv += nv)
		scores8_tile(sp, q0, nq, iv, nv);
	for (; iv < n; iv++)
		scores8_tile(sp, q0, nq, iv, 1);
}

/* --- queries ------------------------------------------------------------------------ */

INLINE void query(const float *x, uint8_t *codes, float *ret_scale, int32_t *ret_sum,
		  uint32_t n)
{
	_Alignas(64) uint8_t p[KV_HEAD_DIM_MAX], q[KV_HEAD_DIM_MAX];
	_Alignas(64) float padded[KV_HEAD_DIM_MAX];
	uint32_t round = (n + 15) / 16 * 16;
	vint sum = zero_i();
	float top, r = 0;

	memcpy(padded, x, n * sizeof(float));
	memset(padded + n, 0, (round - n) * sizeof(float));
	top = top_of(padded, round);
	if (!(top >= 1e-30f) || isinf(top)) {
		memset(padded, 0, round * sizeof(float));
		*ret_scale = top < 1e-30f ? 0 : NAN;
	} else {
		r = KV_CODE_TOP / top;
		*ret_scale = top / KV_CODE_TOP;
	}
	for (uint32_t d = 0; d < round; d += LANES) {
		vint c = round_i(mul_f(load_f(padded + d), set_f(r)));

		sum = add_i(sum, c);
		split(c, p + d, q + d);
	}
	memcpy(codes, p, n);
	memcpy(codes + n, q, n);
	*ret_sum = sum_i(sum);
}

/* --- weighted sums ------------------------------------------------------------------ */

/* Scale and zero of each token, for all queries of a tile; zeros where none of them looks. */
INLINE void token_params_of(const struct kv_span *sp, uint32_t n, float *scale,
			    float *zero)
{
	uint32_t bt = sp->block_tokens, t = 0;

	for (; t < n; t += LANES) {
		const uint16_t *params = (const uint16_t *)sp->v_params[t / bt] + t % bt;

		store_f(scale + t, half_load(params));
		store_f(zero + t, half_load(params + bt));
	}
	for (; t < KV_SPAN; t += LANES) {
		store_f(scale + t, set_f(0));
		store_f(zero + t, set_f(0));
	}
}

/* Codes of the weights of query i, with zeros past n_code. */
INLINE void weights_of(const struct kv_span *sp, uint32_t i, const float *scale,
		       const float *zero, int j, struct weights *w)
{
	uint32_t n = sp->n_code[i], round = (n + 63) / 64 * 64;
	const float *s = sp->s + i * KV_SPAN;
	_Alignas(64) float x[KV_SPAN];
	vfloat z[16 / LANES];
	vint lanes = zero_i();
	float top, r;

	for (uint32_t t = 0; t < round; t += LANES) {
		vfloat y = mul_f(load_f(s + t), load_f(scale + t));

		if (t + LANES > n)
			y = first_lanes(y, n > t ? n - t : 0);
		store_f(x + t, y);
		lanes = max_abs(lanes, y);
	}
	top = lanes_top(lanes);
	if (!(top >= 1e-30f) || isinf(top)) {
		memset(x, 0, round * sizeof(float));
		r = 0;
		w->r[j] = top < 1e-30f ? 0 : NAN;
	} else {
		r = KV_CODE_TOP / top;
		w->r[j] = top / KV_CODE_TOP;
	}
#pragma GCC unroll 2
	for (uint32_t k = 0; k < 16 / LANES; k++)
		z[k] = set_f(0);
	for (uint32_t t0 = 0; t0 < round; t0 += 64) {
		vint c[64 / LANES];

#pragma GCC unroll 8
		for (uint32_t k = 0; k < 64 / LANES; k++) {
			uint32_t t = t0 + k * LANES;
			vfloat y = load_f(zero + t);

			if (t + LANES > n)
				y = first_lanes(y, n > t ? n - t : 0);
			c[k] = round_i(mul_f(load_f(x + t), set_f(r)));
			z[k % (16 / LANES)] =
				fma_f(to_float(c[k]), y, z[k % (16 / LANES)]);
		}
		split_64(c, w->p[j] + t0, w->q[j] + t0);
	}
	memset(w->p[j] + round, 0, KV_SPAN - round);
	memset(w->q[j] + round, 0, KV_SPAN - round);
	w->zero[j] = lanes_sum(z);
}

/* Dims d0 .. of o for all tokens; four or, as nibbles, eight tokens a row. */
INLINE void sums_int_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t d0,
			  int nd, bool nibbles, const struct weights *w)
{
	uint32_t bt = sp->block_tokens, hd = sp->head_dim, n = sp->n_code[q0 + nq - 1];
	uint32_t per_row = nibbles ? 8 : 4;
	uint32_t left = hd - d0 - LANES * ((uint32_t)nd - 1);
	vsum a[INT_QUERIES][4], b[INT_QUERIES][4];
	vint sum[INT_QUERIES][4];

	FOR_TILE(x, nq * nd)
	a[x / nd][x % nd] = b[x / nd][x % nd] = (vsum){0};
	for (uint32_t t0 = 0; t0 < n; t0 += bt) {
		const uint8_t *row = (const uint8_t *)sp->v[t0 / bt] + (size_t)d0 * 4;
		uint32_t end = n - t0 < bt ? n : t0 + bt;

		if (nibbles && q0 == 0 && d0 == 0)
			fetch_next(sp, t0 / bt);
		for (uint32_t t = t0; t < end; t += per_row, row += (size_t)hd * 4) {
			struct codes c[4];

#pragma GCC unroll 4
			for (int i = 0; i < nd; i++) {
				struct codes raw = code_load(row + i * LANES * 4,
							     i == nd - 1 ? left : LANES);

				c[i] = nibbles ? code_low(raw) : code_bytes(raw);
			}
			FOR_TILE(x, nq * nd)
			DOT(a[x / nd][x % nd], b[x / nd][x % nd], c[x % nd],
			    w->p[x / nd] + t, w->q[x / nd] + t);
			if (!nibbles)
				continue;
#pragma GCC unroll 4
			for (int i = 0; i < nd; i++)
				c[i] = code_high(code_load(row + i * LANES * 4,
							   i == nd - 1 ? left : LANES));
			FOR_TILE(x, nq * nd)
			DOT(a[x / nd][x % nd], b[x / nd][x % nd], c[x % nd],
			    w->p[x / nd] + t + 4, w->q[x / nd] + t + 4);
		}
	}
	FOR_TILE(x, nq * nd)
	sum[x / nd][x % nd] = dot_sum(a[x / nd][x % nd], b[x / nd][x % nd]);
	for (int j = 0; j < nq; j++) {
		float *o = sp->o + (q0 + j) * hd + d0;

		for (int i = 0; i < nd; i++) {
			vfloat f = sub_f(to_float(sum[j][i]), set_f(w->zero[j]));

			mask_store_f(o + i * LANES, i == nd - 1 ? left : LANES,
				     mul_f(f, set_f(w->r[j])));
		}
	}
}

INLINE void sums_int(const struct kv_span *sp, uint32_t q0, int nq, int nd, bool nibbles)
{
	uint32_t d = 0, hd = sp->head_dim;
	_Alignas(64) float scale[KV_SPAN], zero[KV_SPAN];
	struct weights w;

	token_params_of(sp, sp->n_code[q0 + nq - 1], scale, zero);
	for (int j = 0; j < nq; j++)
		weights_of(sp, q0 + j, scale, zero, j, &w);
	for (; d + LANES * (uint32_t)nd <= hd; d += LANES * (uint32_t)nd)
		sums_int_tile(sp, q0, nq, d, nd, nibbles, &w);
	for (; d < hd; d += LANES)
		sums_int_tile(sp, q0, nq, d, 1, nibbles, &w);
}

/* --- entries ------------------------------------------------------------------------ */

/* Size of the first tile for each number of queries left. */
static const uint8_t int_tiles[KV_SPAN_QUERIES + 1] = {0, 1, 2, 3, 4, 3, 6,
						       4, 4, 6, 6, 6, 6};

#define INT_TILES(sp, call1, call2, call3, call4, call6)                                 \
	for (uint32_t q = 0; q < (sp)->n_q;) {                                           \
		uint32_t n = int_tiles[(sp)->n_q - q];                                   \
                                                                                         \
		switch (n) {                                                             \
		case 1:                                                                  \
			call1;                                                           \
			break;                                                           \
		case 2:                                                                  \
			call2;                                                           \
			break;                                                           \
		case 3:                                                                  \
			call3;                                                           \
			break;                                                           \
		case 4:                                                                  \
			call4;                                                           \
			break;                                                           \
		default:                                                                 \
			call6;                                                           \
			break;                                                           \
		}                                                                        \
		q += n;                                                                  \
	}

#define INT_SPANS(isa)                                                                   \
	void kv_scores_int8_##isa(const struct kv_span *sp)                              \
	{                                                                                \
		INT_TILES(sp, scores8(sp, q, 1, NV1), scores8(sp, q, 2, NV2),            \
			  scores8(sp, q, 3, NV3), scores8(sp, q, 4, NV4),                \
			  scores8(sp, q, 6, NV6))                                        \
	}                                                                                \
	void kv_scores_int4_##isa(const struct kv_span *sp)                              \
	{                                                                                \
		INT_TILES(sp, scores4(sp, q, 1), scores4(sp, q, 2), scores4(sp, q, 3),   \
			  scores4(sp, q, 4), scores4(sp, q, 6))                          \
	}                                                                                \
	void kv_sums_int8_##isa(const struct kv_span *sp)                                \
	{                                                                                \
		INT_TILES(                                                               \
			sp, sums_int(sp, q, 1, ND1, false),                              \
			sums_int(sp, q, 2, ND2, false), sums_int(sp, q, 3, ND3, false),  \
			sums_int(sp, q, 4, ND4, false), sums_int(sp, q, 6, ND6, false))  \
	}                                                                                \
	void kv_sums_int4_##isa(const struct kv_span *sp)                                \
	{                                                                                \
		INT_TILES(sp, sums_int(sp, q, 1, ND1, true),                             \
			  sums_int(sp, q, 2, ND2, true), sums_int(sp, q, 3, ND3, true),  \
			  sums_int(sp, q, 4, ND4, true), sums_int(sp, q, 6, ND6, true))  \
	}                                                                                \
	void kv_query_##isa(const float *q, uint8_t *codes, float *ret_scale,            \
			    int32_t *ret_sum, uint32_t head_dim)                         \
	{                                                                                \
		query(q, codes, ret_scale, ret_sum, head_dim);                           \
	}

#endif
