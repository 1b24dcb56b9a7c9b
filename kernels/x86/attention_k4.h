/* SPDX-License-Identifier: MIT */
/*
 * Scores of int4 K, written once for all bundles, included after attention_int.h. For each
 * query and block the query is brought into the units of the block's codes, in 8 bits; the
 * blocks of a span go through each stage side by side, so that what is one number per block
 * is found for all of them at once.
 *
 * Bytes become words by unpacking: a vector of bytes gives one of the low eight of each 128
 * bits and one of the high eight, which packing puts back in order. The includer defines,
 * besides what attention_int.h names:
 *   CODES              bytes in a vector, 4 * LANES
 *   bytes_load(p, n)   the first n bytes at p, at most CODES, then zeros
 *   words_low(v), words_high(v)            of the bytes v, zero-extended
 *   words_low_128(v), words_high_128(v)    the same times 128
 *   query_words(p, q, n, ret)   codes of the planes at p and q, n bytes each, as two vectors
 *                      of words in that order
 *   abs_w, max_w (unsigned), pack_w        of words; mul_w(a, b) = (a * b + 16384) >> 15
 *   dot_w(a, x, y)     a plus, in each lane, the two words x times y
 *   dot_u(a, v, u)     a plus, in each lane, the four bytes v times the four signed ones u
 *   bytes_low, bytes_high(v)   nibbles of each byte
 *   sums_of(v, ret)    ret[i] = the lanes of v[i] added up, KV_SPAN_BLOCKS of them
 *   tops_of(v, ret)    ret[i] = the largest word of v[i]
 */
#ifndef KVD_KERNELS_X86_ATTENTION_K4_H
#define KVD_KERNELS_X86_ATTENTION_K4_H

/* What the tokens of each block have in common for one query. */
struct block_query {
	_Alignas(64) int16_t p[KV_SPAN_BLOCKS * KV_HEAD_DIM_MAX];
	_Alignas(64) uint8_t u[KV_SPAN_BLOCKS * KV_HEAD_DIM_MAX];
	vint top[KV_SPAN_BLOCKS]; /* lanes not yet brought together, as the sums */
	vint u_sum[KV_SPAN_BLOCKS], m_sum[KV_SPAN_BLOCKS];
	_Alignas(64) int32_t r[KV_SPAN_BLOCKS];   /* in both halves of a dword */
	_Alignas(64) int32_t u15[KV_SPAN_BLOCKS]; /* 15 U */
	_Alignas(64) float scale[KV_SPAN_BLOCKS], shift[KV_SPAN_BLOCKS];
};

INLINE void sums_of(const vint *v, int32_t *ret);
INLINE void tops_of(const vint *v, int32_t *ret);

/* p, its top, and q * m for block b; x[nq] are the queries' words. */
INLINE void block_products(struct block_query *bq, int nq, uint32_t b,
			   const int16_t (*x)[KV_HEAD_DIM_MAX], const struct kv_span *sp,
			   uint32_t hd, uint32_t bt, uint32_t plane)
{
	uint32_t row = bt * 4;
	const uint8_t *a = sp->k_params[b], *m = a + hd, *k = sp->k[b];
	vint top[INT_QUERIES];
	vsum sum[INT_QUERIES];

#pragma GCC unroll 6
	for (int j = 0; j < nq; j++) {
		top[j] = zero_i();
		sum[j] = (vsum){0};
	}
	for (uint32_t d = 0; d < hd; d += CODES, k += (size_t)row * CODES / 8) {
		vint av = bytes_load(a + d, hd - d), mv = bytes_load(m + d, hd - d);
		vint a0 = words_low_128(av), a1 = words_high_128(av);
		vint m0 = words_low(mv), m1 = words_high(mv);

#pragma GCC unroll 8
		for (int i = 0; i < CODES / 8; i++)
			fetch(k + i * row);
#pragma GCC unroll 6
		for (int j = 0; j < nq; j++) {
			const int16_t *q = x[j] + d;
			vint q0 = load_i(q), q1 = load_i(q + CODES / 2);
			vint p0 = mul_w(q0, a0), p1 = mul_w(q1, a1);
			int16_t *p = bq[j].p + (size_t)b * plane + d;

			store_i(p, p0);
			store_i(p + CODES / 2, p1);
			top[j] = max_w(top[j], max_w(abs_w(p0), abs_w(p1)));
			sum[j] = dot_w(dot_w(sum[j], q0, m0), q1, m1);
		}
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++) {
		bq[j].top[b] = top[j];
		bq[j].m_sum[b] = (vint)sum[j];
	}
}

INLINE void block_codes(struct block_query *bq, uint32_t b, uint32_t plane)
{
	const int16_t *p = bq->p + (size_t)b * plane;
	uint8_t *u = bq->u + (size_t)b * plane;
	vint r = set_i(bq->r[b]);
	vsum sum = {0};

	for (uint32_t d = 0; d < plane; d += CODES) {
		vint v = pack_w(mul_w(load_i(p + d), r),
				mul_w(load_i(p + d + CODES / 2), r));

		store_i(u + d, v);
		sum = dot_u(sum, ones_b(), v);
	}
	bq->u_sum[b] = (vint)sum;
}

/* Codes of all blocks, and r as a float. */
INLINE void query_codes(struct block_query *bq, uint32_t n_blocks, uint32_t plane)
{
	tops_of(bq->top, bq->r);
	for (uint32_t b = 0; b < KV_SPAN_BLOCKS; b += LANES) {
		vfloat top = to_float(load_i(bq->r + b));
		vint r;

		/* Of nothing but zeros the quotient is infinite. */
		r = trunc_i(min_f(div_f(set_f(127 << 15), top), set_f(32767)));
		store_f(bq->scale + b, to_float(r));
		store_i(bq->r + b, both_halves(r));
	}
	for (uint32_t b = 0; b < n_blocks; b++)
		block_codes(bq, b, plane);
}

/* pairs are the factors of the blocks' channels, A and B. */
INLINE void block_factors(struct block_query *bq, const struct kv_span *sp, uint32_t q,
			  const uint32_t *pairs)
{
	_Alignas(64) int32_t m_sum[KV_SPAN_BLOCKS];
	vfloat q_scale = set_f(sp->q_scale[q]);

	sums_of(bq->m_sum, m_sum);
	sums_of(bq->u_sum, bq->u15);
	for (uint32_t i = 0; i < KV_SPAN_BLOCKS; i += LANES) {
		vint pair = load_i(pairs + i);
		vfloat scale = mul_f(q_scale, low_half(pair));
		vfloat shift = mul_f(q_scale, high_half(pair));
		vint u = load_i(bq->u15 + i);
		vint m = sub_i(load_i(m_sum + i), set_i(128 * sp->q_sum[q]));

		scale = mul_f(scale, div_f(set_f(128 << 15), load_f(bq->scale + i)));
		store_f(bq->scale + i, scale);
		store_f(bq->shift + i, mul_f(to_float(m), shift));
		store_i(bq->u15 + i, sub_i(times_16(u), u));
	}
}

/* LANES tokens from t on; low and high nibbles add up apart, to be two chains. */
INLINE void scores4_tokens(const struct kv_span *sp, uint32_t q0, int nq, uint32_t t,
			   const struct block_query *bq, uint32_t hd, uint32_t bt,
			   uint32_t plane)
{
	uint32_t block = t / bt;
	const uint8_t *k = (const uint8_t *)sp->k[block] + t % bt * 4;
	const uint8_t *v = (const uint8_t *)sp->v[block] + t % bt * 4;
	size_t u = (size_t)block * plane;
	vsum a[INT_QUERIES], b[INT_QUERIES];

#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		a[j] = b[j] = (vsum){0};
	for (uint32_t d = 0; d < hd; d += 8, k += (size_t)bt * 4, v += (size_t)bt * 4) {
		vint raw = load_i(k), low = bytes_low(raw), high = bytes_high(raw);

		fetch(v);
#pragma GCC unroll 6
		for (int j = 0; j < nq; j++) {
			a[j] = dot_u(a[j], low, dword(bq[j].u + u + d));
			b[j] = dot_u(b[j], high, dword(bq[j].u + u + d + 4));
		}
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++) {
		vint sum = (vint)(a[j] + b[j]);
		vfloat f = to_float(sub_i(add_i(sum, sum), set_i(bq[j].u15[block])));

		store_f(sp->s + (q0 + j) * KV_SPAN + t,
			fma_f(f, set_f(bq[j].scale[block]), set_f(bq[j].shift[block])));
	}
}

INLINE void fetch_bytes(const void *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 64)
		fetch((const uint8_t *)p + i);
}

INLINE void scores4_shape(const struct kv_span *sp, uint32_t q0, int nq, uint32_t hd,
			  uint32_t bt)
{
	uint32_t plane = (hd + CODES - 1) / CODES * CODES;
	uint32_t n_code = sp->n_code[q0 + nq - 1], n_blocks = (n_code + bt - 1) / bt;
	_Alignas(64) int16_t x[INT_QUERIES][KV_HEAD_DIM_MAX];
	_Alignas(64) uint32_t pairs[KV_SPAN_BLOCKS] = {0};
	struct block_query bq[INT_QUERIES];

	for (uint32_t i = 0; i < n_blocks; i++) {
		fetch_bytes(sp->k_params[i], 2 * hd);
		fetch(sp->k_pair[i]);
	}
	for (int j = 0; j < nq; j++)
		for (uint32_t d = 0; d < hd; d += CODES) {
			const uint8_t *p = sp->q_codes[q0 + j] + d;
			vint w[2];

			query_words(p, p + hd, hd - d, w);
			store_i(x[j] + d, w[0]);
			store_i(x[j] + d + CODES / 2, w[1]);
		}
	for (uint32_t i = 0; i < n_blocks; i++) {
		fetch(sp->v_params[i]);
		block_products(bq, nq, i, x, sp, hd, bt, plane);
		memcpy(&pairs[i], sp->k_pair[i], 4);
	}
	for (int j = 0; j < nq; j++)
		query_codes(&bq[j], n_blocks, plane);
	for (int j = 0; j < nq; j++)
		block_factors(&bq[j], sp, q0 + j, pairs);
	for (uint32_t t = 0; t < n_code; t += LANES)
		scores4_tokens(sp, q0, nq, t, bq, hd, bt, plane);
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
