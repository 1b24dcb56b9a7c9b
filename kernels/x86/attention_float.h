/* SPDX-License-Identifier: MIT */
/*
 * Attention over fp16 and fp8 planes, written once for all bundles over the wrappers of lanes8.h
 * or lanes16.h, one of which is included first: scores with a token per lane, sums with a dim
 * per lane. Queries are taken a few at a time, so that each K and V element is converted once for
 * all of them. The elements of an fp8 plane are read as 1/256 of their values; scores are
 * multiplied by the rest of their tokens' scales afterwards, weights before.
 *
 * The includer defines:
 *   half_load_n(p, n), fp8_load_n(p, n)   the first n elements at p, at most LANES, as numbers
 *   load_f_n(p, n)              the same of floats
 *   ONE_QUERY_DIMS              vectors of dims of a tile of one query
 *   scores_all(sp, fp8), sums_all(sp, w, fp8)   scores() and sums() of tiles of all queries
 */
#ifndef KVD_KERNELS_X86_ATTENTION_FLOAT_H
#define KVD_KERNELS_X86_ATTENTION_FLOAT_H

#include <string.h>

enum { FLOAT_QUERIES = 12, FLOAT_VECTORS = 8 }; /* of a tile, at most */

/* acc[q][v] += scalar(q) * vector(v). With few registers the fewer of the two stay in them. */
#define OUTER(acc, nq, nv, scalar, vector)                                               \
	do {                                                                             \
		vfloat fixed[FLOAT_QUERIES];                                             \
                                                                                         \
		if (LANES == 16 || (nq) > (nv)) {                                        \
			_Pragma("GCC unroll 8") for (int v = 0; v < (nv); v++)           \
				fixed[v] = vector(v);                                    \
			_Pragma("GCC unroll 12") for (int q = 0; q < (nq); q++)          \
			{                                                                \
				vfloat x = scalar(q);                                    \
                                                                                         \
				_Pragma("GCC unroll 8") for (int v = 0; v < (nv); v++)   \
					acc[q][v] = fma_f(x, fixed[v], acc[q][v]);       \
			}                                                                \
		} else {                                                                 \
			_Pragma("GCC unroll 12") for (int q = 0; q < (nq); q++)          \
				fixed[q] = scalar(q);                                    \
			_Pragma("GCC unroll 8") for (int v = 0; v < (nv); v++)           \
			{                                                                \
				vfloat x = vector(v);                                    \
                                                                                         \
				_Pragma("GCC unroll 12") for (int q = 0; q < (nq); q++)  \
					acc[q][v] = fma_f(fixed[q], x, acc[q][v]);       \
			}                                                                \
		}                                                                        \
	} while (0)

/* Element i of a plane and those behind it, n at most. */
INLINE vfloat plane_load(const uint8_t *plane, size_t i, uint32_t n, bool fp8)
{
	return fp8 ? fp8_load_n(plane + i, n)
		   : half_load_n((const uint16_t *)plane + i, n);
}

/* What the tokens from t on of a span are multiplied by. */
INLINE vfloat fp8_scale(const struct kv_span *sp, const void *const *params, uint32_t t)
{
	const uint16_t *p = params[t / sp->block_tokens];

	return mul_f(half_load(p + t % sp->block_tokens), set_f(256));
}

/* Blocks of fp8 are short and lie apart, which the CPU's own prefetchers do not see. */
INLINE void plane_fetch(const void *p)
{
	_mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* Scores of queries q0 .. q0 + nq - 1 for nv vectors of tokens from vector iv on. */
INLINE void scores_tile(const struct kv_span *sp, uint32_t q0, int nq, uint32_t iv,
			int nv, bool fp8)
{
	uint32_t bt = sp->block_tokens, last = sp->n_code[sp->n_q - 1];
	const float *qd = sp->q + q0;
	const uint8_t *k[FLOAT_VECTORS], *ahead[FLOAT_VECTORS], *sums[FLOAT_VECTORS];
	vfloat acc[FLOAT_QUERIES][FLOAT_VECTORS];

#pragma GCC unroll 8
	for (int v = 0; v < nv; v++) {
		uint32_t t = (iv + v) * LANES, next = t + LANES * nv;

		k[v] = (const uint8_t *)sp->k[t / bt] + t % bt * (fp8 ? 1 : 2);
		ahead[v] = next < last ? (const uint8_t *)sp->k[next / bt] + next % bt
				       : k[v];
		sums[v] = (const uint8_t *)sp->v[t / bt] + t % bt;
#pragma GCC unroll 12
		for (int q = 0; q < nq; q++)
			acc[q][v] = set_f(0);
	}
	for (uint32_t d = 0; d < sp->head_dim; d++, qd += KV_SPAN_QUERIES) {
		size_t at = (size_t)d * bt;

#define QUERY(q) set_f(qd[q])
#define KEYS(v)  plane_load(k[v], at, LANES, fp8)
		OUTER(acc, nq, nv, QUERY, KEYS);
		if (!fp8 || d % 4 != 0)
			continue;
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			plane_fetch(ahead[v] + at);
			plane_fetch(sums[v] + at);
		}
	}
#pragma GCC unroll 8
	for (int v = 0; v < nv; v++) {
		uint32_t t = (iv + v) * LANES;
		vfloat scale = fp8 ? fp8_scale(sp, sp->k_params, t) : set_f(1);

#pragma GCC unroll 12
		for (int q = 0; q < nq; q++)
			store_f(sp->s + (q0 + q) * KV_SPAN + t,
				fp8 ? mul_f(acc[q][v], scale) : acc[q][v]);
	}
}

INLINE void scores(const struct kv_span *sp, uint32_t q0, int nq, int nv, bool fp8)
{
	uint32_t iv = 0, n = (sp->n_code[q0 + nq - 1] + LANES - 1) / LANES;

	for (; iv + nv <= n; iv += nv)
		scores_tile(sp, q0, nq, iv, nv, fp8);
	for (; iv < n; iv++)
		scores_tile(sp, q0, nq, iv, 1, fp8);
}

/* Add tokens t0 .. t1 - 1, with weights w, to dims d0 .. (nd vectors, cut at head_dim) of o. */
INLINE void sums_tile(const struct kv_span *sp, const float *w, uint32_t q0, int nq,
		      uint32_t d0, int nd, uint32_t t0, uint32_t t1, bool fp8)
{
	uint32_t bt = sp->block_tokens, hd = sp->head_dim;
	uint32_t left = hd - d0 - LANES * ((uint32_t)nd - 1);
	float *o = sp->o + q0 * hd + d0;
	const float *s = w + q0 * KV_SPAN;
	vfloat acc[FLOAT_QUERIES][FLOAT_VECTORS];

#define LEFT(d) ((d) == nd - 1 ? left : LANES)
#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int d = 0; d < nd; d++)
			acc[q][d] = load_f_n(o + q * hd + d * LANES, LEFT(d));
	while (t0 < t1) {
		uint32_t end = (t0 / bt + 1) * bt;
		const uint8_t *plane = sp->v[t0 / bt];
		size_t at = (size_t)(t0 % bt) * hd + d0;

		end = end < t1 ? end : t1;
		for (const float *e0 = s + t0; t0 < end; t0++, e0++, at += hd) {
#define WEIGHT(q) set_f(e0[(q)*KV_SPAN])
#define VALUES(d) plane_load(plane, at + (d)*LANES, LEFT(d), fp8)
			OUTER(acc, nq, nd, WEIGHT, VALUES);
		}
	}
#pragma GCC unroll 12
	for (int q = 0; q < nq; q++)
#pragma GCC unroll 8
		for (int d = 0; d < nd; d++)
			mask_store_f(o + q * hd + d * LANES, LEFT(d), acc[q][d]);
}

INLINE void sums_range(const struct kv_span *sp, const float *w, uint32_t q0, int nq,
		       int nd, uint32_t t0, uint32_t t1, bool fp8)
{
	uint32_t d = 0, hd = sp->head_dim;

	for (; d + LANES * (uint32_t)nd <= hd; d += LANES * (uint32_t)nd)
		sums_tile(sp, w, q0, nq, d, nd, t0, t1, fp8);
	for (; d < hd; d += LANES)
		sums_tile(sp, w, q0, nq, d, 1, t0, t1, fp8);
}

/* What the queries of a tile do not all see is added for each one alone: a product with zero
 * would let another row's V reach this one's bits. */
INLINE void sums(const struct kv_span *sp, const float *w, uint32_t q0, int nq, int nd,
		 bool fp8)
{
	uint32_t common = sp->n_code[q0];

	sums_range(sp, w, q0, nq, nd, 0, common, fp8);
	for (int q = 1; q < nq; q++)
		if (sp->n_code[q0 + q] > common)
			sums_range(sp, w, q0 + q, 1, ONE_QUERY_DIMS, common,
				   sp->n_code[q0 + q], fp8);
}

/* Weights of fp8 tokens, with their scales. */
INLINE void fp8_weights(const struct kv_span *sp, float *w)
{
	for (uint32_t i = 0; i < sp->n_q; i++)
		for (uint32_t t = 0; t < sp->n_code[i]; t += LANES)
			store_f(w + i * KV_SPAN + t,
				mul_f(load_f(sp->s + i * KV_SPAN + t),
				      fp8_scale(sp, sp->v_params, t)));
}

INLINE void merge(float *max, float *sum, float *o, float m, float s, const float *p,
		  uint32_t head_dim)
{
	float top = *max > m ? *max : m;
	float a = kv_exp_c(*max - top), b = kv_exp_c(m - top);

	*max = top;
	*sum = fmaf(s, b, *sum * a);
	for (uint32_t d = 0; d < head_dim; d += LANES) {
		uint32_t n = head_dim - d;
		vfloat x = mul_f(load_f_n(o + d, n), set_f(a));

		mask_store_f(o + d, n, fma_f(load_f_n(p + d, n), set_f(b), x));
	}
}

#define FLOAT_SPANS(isa)                                                                 \
	void kv_scores_fp16_##isa(const struct kv_span *sp)                              \
	{                                                                                \
		scores_all(sp, false);                                                   \
	}                                                                                \
	void kv_scores_fp8_##isa(const struct kv_span *sp)                               \
	{                                                                                \
		scores_all(sp, true);                                                    \
	}                                                                                \
	void kv_sums_fp16_##isa(const struct kv_span *sp)                                \
	{                                                                                \
		memset(sp->o, 0, (size_t)sp->n_q * sp->head_dim * sizeof(float));        \
		sums_all(sp, sp->s, false);                                              \
	}                                                                                \
	void kv_sums_fp8_##isa(const struct kv_span *sp)                                 \
	{                                                                                \
		_Alignas(64) float w[KV_SPAN_QUERIES * KV_SPAN];                         \
                                                                                         \
		fp8_weights(sp, w);                                                      \
		memset(sp->o, 0, (size_t)sp->n_q * sp->head_dim * sizeof(float));        \
		sums_all(sp, w, true);                                                   \
	}                                                                                \
	void kv_merge_##isa(float *max, float *sum, float *o, float m, float s,          \
			    const float *p, uint32_t head_dim)                           \
	{                                                                                \
		merge(max, sum, o, m, s, p, head_dim);                                   \
	}

#endif
