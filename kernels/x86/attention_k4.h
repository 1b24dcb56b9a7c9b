/* SPDX-License-Identifier: MIT */
/*
 * Scores of int4 K, written once for all bundles, included after attention_int.h. For each
 * query and block the query is brought into the units of the block's codes, in 8 bits. What
 * is done once a block is done for all blocks of a span, one a lane: the parameters of the
 * blocks are transposed first, so that nothing has to be added up across lanes, and a dword of
 * the result is what the tokens of its block are multiplied with.
 *
 * Arrays over blocks are [head_dim / 4][KV_SPAN_BLOCKS] of four dims each. Bytes become words
 * by unpacking: a vector of bytes gives one of the low two blocks of each four and one of the
 * high two, which packing puts back in order. The includer defines, besides what
 * attention_int.h names:
 *   CODES              bytes in a vector, 4 * LANES
 *   bytes_load(p, n)   the first n bytes at p, at most CODES, then zeros
 *   transpose(v)       LANES vectors, in place
 *   words_low_128(v), words_high_128(v)    words of 128 times the bytes v
 *   query_words(p, q, x)   8 codes, of 8 bytes of each plane, as words in order
 *   words_4(x)         four words, again and again
 *   abs_w, max_w (unsigned), pack_w        of words; mul_w(a, b) = (a * b + 16384) >> 15
 *   tops_of(low, high) the largest of four words each, a block a lane
 *   twice_low(v), twice_high(v)            lanes as the unpacked words of a block lie
 *   dot_u(a, v, u)     a plus, in each lane, the four bytes v times the four signed ones u, v at
 *                      most 15, as the bundle adds them up; DOT_DWORDS times, from 0, or 64
 *                      times where v is at most 1
 *   dot_dword(a, v, u) the same with the dword at u in every lane
 *   dot_wide(a)        such a sum as a number a lane
 *   bytes_low(v), nibbles_high(v)          nibbles of each byte, the latter as it likes
 *   score_add(sum, a, b)   sum plus 16 times (products a of low nibbles plus b of high ones)
 */
#ifndef KVD_KERNELS_X86_ATTENTION_K4_H
#define KVD_KERNELS_X86_ATTENTION_K4_H

enum { BLOCKS_ROW = KV_SPAN_BLOCKS * 4 };

/* Scales and middles of the blocks' channels. */
struct block_params {
	_Alignas(64) uint8_t a[KV_HEAD_DIM_MAX / 4 * BLOCKS_ROW];
	_Alignas(64) uint8_t m[KV_HEAD_DIM_MAX / 4 * BLOCKS_ROW];
	_Alignas(64) uint32_t pairs[KV_SPAN_BLOCKS]; /* A, B */
};

/* What the tokens of each block have in common for one query. */
struct block_query {
	_Alignas(64) int16_t x[KV_HEAD_DIM_MAX]; /* its codes */
	_Alignas(64) int16_t p[KV_HEAD_DIM_MAX / 4 * BLOCKS_ROW];
	_Alignas(64) uint8_t u[KV_HEAD_DIM_MAX / 4 * BLOCKS_ROW];
	_Alignas(64) int32_t u120[KV_SPAN_BLOCKS]; /* 120 U */
	_Alignas(64) float scale[KV_SPAN_BLOCKS], shift[KV_SPAN_BLOCKS];
};

/* Blocks b0 .. b0 + LANES - 1; those that no query sees are taken for the last one. */
INLINE void params_transpose(struct block_params *bp, const struct kv_span *sp,
			     uint32_t b0, uint32_t n_blocks, uint32_t hd)
{
	const uint8_t *rows[LANES];

	for (uint32_t i = 0; i < LANES; i++) {
		uint32_t b = b0 + i < n_blocks ? b0 + i : n_blocks - 1;

		rows[i] = sp->k_params[b];
		memcpy(&bp->pairs[b0 + i], sp->k_pair[b], 4);
	}
	for (uint32_t d = 0; d < 2 * hd; d += CODES) {
		vint v[LANES];

#pragma GCC unroll 16
		for (uint32_t i = 0; i < LANES; i++)
			v[i] = bytes_load(rows[i] + d, 2 * hd - d);
		transpose(v);
#pragma GCC unroll 16
		for (uint32_t i = 0; i < LANES; i++) {
			uint32_t at = d / 4 + i;

			if (at < hd / 4)
				store_i(bp->a + at * BLOCKS_ROW + b0 * 4, v[i]);
			else if (at < hd / 2)
				store_i(bp->m + (at - hd / 4) * BLOCKS_ROW + b0 * 4,
					v[i]);
		}
	}
}

/* p of LANES blocks, and what follows from its top: r. The codes come from memory meanwhile. */
INLINE void block_products(struct block_query *bq, int nq, const struct block_params *bp,
			   const struct kv_span *sp, uint32_t b0, uint32_t n_blocks,
			   uint32_t hd, uint32_t bt, vint *ret_r)
{
	vint low[INT_QUERIES], high[INT_QUERIES];

#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		low[j] = high[j] = zero_i();
	for (uint32_t d = 0; d < hd; d += 4) {
		uint32_t at = d / 4 * BLOCKS_ROW + b0 * 4;
		vint a = load_i(bp->a + at);
		vint a0 = words_low_128(a), a1 = words_high_128(a);

		if (!sp->fetched && d / 4 < LANES && b0 + d / 4 < n_blocks)
			fetch_bytes(sp->k[b0 + d / 4], hd * bt / 2);
#pragma GCC unroll 6
		for (int j = 0; j < nq; j++) {
			vint q = words_4(bq[j].x + d);
			vint p0 = mul_w(q, a0), p1 = mul_w(q, a1);

			store_i(bq[j].p + at, p0);
			store_i(bq[j].p + at + CODES / 2, p1);
			low[j] = max_w(low[j], abs_w(p0));
			high[j] = max_w(high[j], abs_w(p1));
		}
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++) {
		vfloat top = to_float(tops_of(low[j], high[j]));

		/* Of nothing but zeros the quotient is infinite. */
		ret_r[j] = trunc_i(min_f(div_f(set_f(127 << 15), top), set_f(32767)));
	}
}

/* u of LANES blocks. Return: U. */
INLINE vint block_codes(struct block_query *bq, uint32_t b0, uint32_t hd, vint r)
{
	vint r0 = twice_low(both_halves(r)), r1 = twice_high(both_halves(r));
	vsum sum = {0};

	for (uint32_t d = 0; d < hd; d += 4) {
		uint32_t at = d / 4 * BLOCKS_ROW + b0 * 4;
		vint v = pack_w(mul_w(load_i(bq->p + at), r0),
				mul_w(load_i(bq->p + at + CODES / 2), r1));

		store_i(bq->u + at, v);
		sum = dot_u(sum, ones_b(), v);
	}
	return dot_wide(sum);
}

/* Sums of codes times m, of LANES blocks. */
INLINE void block_shifts(const struct kv_span *sp, uint32_t q0, int nq,
			 const struct block_params *bp, uint32_t b0, uint32_t hd,
			 vint *ret)
{
	vsum a[INT_QUERIES], b[INT_QUERIES];

#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		a[j] = b[j] = (vsum){0};
	for (uint32_t d = 0; d < hd; d += 4) {
		struct codes c =
			code_bytes(code_load(bp->m + d / 4 * BLOCKS_ROW + b0 * 4, LANES));

#pragma GCC unroll 6
		for (int j = 0; j < nq; j++) {
			const uint8_t *q = sp->q_codes[q0 + j] + d;

			DOT(a[j], b[j], c, q, q + hd);
		}
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		ret[j] = dot_sum(a[j], b[j]);
}

INLINE void block_factors(struct block_query *bq, const struct kv_span *sp, uint32_t q,
			  const struct block_params *bp, uint32_t b0, vint r, vint u,
			  vint m)
{
	vint pair = load_i(bp->pairs + b0);
	vfloat q_scale = set_f(sp->q_scale[q]);
	vfloat scale =
		mul_f(mul_f(q_scale, low_half(pair)), div_f(set_f(1 << 19), to_float(r)));
	vfloat shift = mul_f(q_scale, high_half(pair));

	m = sub_i(m, set_i(128 * sp->q_sum[q]));
	store_f(bq->scale + b0, scale);
	store_f(bq->shift + b0, mul_f(to_float(m), shift));
	store_i(bq->u120 + b0, times_120(u));
}

/* LANES tokens from t on; low and high nibbles add up apart, to be two chains. */
INLINE void scores4_tokens(const struct kv_span *sp, uint32_t q0, int nq, uint32_t t,
			   const struct block_query *bq, uint32_t hd, uint32_t bt)
{
	uint32_t block = t / bt;
	const uint8_t *k = (const uint8_t *)sp->k[block] + t % bt * 4;
	const uint8_t *v = (const uint8_t *)sp->v[block] + t % bt * 4;
	vint sum[INT_QUERIES];

#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		sum[j] = set_i(-bq[j].u120[block]);
	for (uint32_t d0 = 0; d0 < hd; d0 += 8 * DOT_DWORDS) {
		uint32_t end = d0 + 8 * DOT_DWORDS < hd ? d0 + 8 * DOT_DWORDS : hd;
		vsum a[INT_QUERIES], b[INT_QUERIES];

#pragma GCC unroll 6
		for (int j = 0; j < nq; j++)
			a[j] = b[j] = (vsum){0};
		for (uint32_t d = d0; d < end; d += 8, k += bt * 4, v += bt * 4) {
			vint raw = load_i(k);
			vint low = bytes_low(raw), high = nibbles_high(raw);
			uint32_t at = d / 4 * BLOCKS_ROW + block * 4;

			fetch(v);
#pragma GCC unroll 6
			for (int j = 0; j < nq; j++) {
				a[j] = dot_dword(a[j], low, bq[j].u + at);
				b[j] = dot_dword(b[j], high, bq[j].u + at + BLOCKS_ROW);
			}
		}
#pragma GCC unroll 6
		for (int j = 0; j < nq; j++)
			sum[j] = score_add(sum[j], dot_wide(a[j]), dot_wide(b[j]));
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		store_f(sp->s + (q0 + j) * KV_SPAN + t,
			fma_f(to_float(sum[j]), set_f(bq[j].scale[block]),
			      set_f(bq[j].shift[block])));
}

INLINE void scores4_shape(const struct kv_span *sp, uint32_t q0, int nq, uint32_t hd,
			  uint32_t bt)
{
	uint32_t n_code = sp->n_code[q0 + nq - 1], n_blocks = (n_code + bt - 1) / bt;
	struct block_query bq[INT_QUERIES];
	struct block_params bp;

	if (n_blocks == 0)
		return;
	for (uint32_t i = 0; i < n_blocks && !sp->fetched; i++)
		fetch_bytes(sp->k_params[i], 2 * hd);
	for (uint32_t i = 0; i < n_blocks; i++)
		fetch(sp->k_pair[i]);
	for (uint32_t i = 0; i < n_blocks; i++) {
		fetch(sp->v_params[i]);
	}
	for (int j = 0; j < nq; j++)
		for (uint32_t d = 0; d < hd; d += 8) {
			const uint8_t *p = sp->q_codes[q0 + j] + d;

			query_words(p, p + hd, bq[j].x + d);
		}
	for (uint32_t b0 = 0; b0 < n_blocks; b0 += LANES) {
		vint r[INT_QUERIES], m[INT_QUERIES];

		params_transpose(&bp, sp, b0, n_blocks, hd);
		block_products(bq, nq, &bp, sp, b0, n_blocks, hd, bt, r);
		block_shifts(sp, q0, nq, &bp, b0, hd, m);
		for (int j = 0; j < nq; j++) {
			vint u = block_codes(&bq[j], b0, hd, r[j]);

			block_factors(&bq[j], sp, q0 + j, &bp, b0, r[j], u, m[j]);
		}
	}
	for (uint32_t t = 0; t < n_code; t += LANES)
		scores4_tokens(sp, q0, nq, t, bq, hd, bt);
}

/* The most common shape is compiled on its own, so that its loops are unrolled. */
INLINE void scores4(const struct kv_span *sp, uint32_t q0, int nq)
{
	if (sp->head_dim == 64 && sp->block_tokens == 16)
		scores4_shape(sp, q0, nq, 64, 16);
	else
		scores4_shape(sp, q0, nq, sp->head_dim, sp->block_tokens);
}

#endif
