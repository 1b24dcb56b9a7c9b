/* SPDX-License-Identifier: MIT */
/*
 * Attention over partial blocks, and over fp8 planes, written once for all bundles over the
 * wrappers of lanes8.h or lanes16.h, one of which is included first. fp8 becomes fp16 some
 * blocks at a time, in memory that stays in the first cache, for the kernels of fp16: so it
 * costs one more pass over half the bytes.
 */
#ifndef KVD_KERNELS_X86_ATTENTION_OWN_H
#define KVD_KERNELS_X86_ATTENTION_OWN_H

#include <string.h>

/* --- partial blocks ----------------------------------------------------------------- */

enum { OWN_QUERIES = 4 };

/* Queries i .. i + nq - 1, which are in the same block, against tokens t .. of it. */
INLINE void own_tile(const struct kv_span *sp, uint32_t i, int nq, uint32_t t)
{
	const uint16_t *k = sp->own_k[i] + t;
	vfloat acc[OWN_QUERIES];

#pragma GCC unroll 4
	for (int j = 0; j < nq; j++)
		acc[j] = set_f(0);
	for (uint32_t d = 0; d < sp->head_dim; d++, k += sp->block_tokens) {
		vfloat x = half_load(k);

#pragma GCC unroll 4
		for (int j = 0; j < nq; j++)
			acc[j] = fma_f(set_f(sp->q_row[i + j][d]), x, acc[j]);
	}
#pragma GCC unroll 4
	for (int j = 0; j < nq; j++)
		store_f(sp->s + (i + j) * KV_SPAN + sp->n_code[i + j] + t, acc[j]);
}

INLINE void scores_own(const struct kv_span *sp)
{
	for (uint32_t i = 0, n; i < sp->n_q; i += n) {
		uint32_t seen;

		for (n = 1; n < OWN_QUERIES && i + n < sp->n_q; n++)
			if (sp->own_k[i + n] != sp->own_k[i] ||
			    sp->n_code[i + n] != sp->n_code[i])
				break;
		seen = sp->n_tok[i + n - 1] - sp->n_code[i + n - 1];
		for (uint32_t t = 0; t < seen; t += LANES) {
			switch (n) {
			case 1:
				own_tile(sp, i, 1, t);
				break;
			case 2:
				own_tile(sp, i, 2, t);
				break;
			case 3:
				own_tile(sp, i, 3, t);
				break;
			default:
				own_tile(sp, i, 4, t);
				break;
			}
		}
	}
}

INLINE void sums_own(const struct kv_span *sp)
{
	uint32_t hd = sp->head_dim;

	for (uint32_t i = 0; i < sp->n_q; i++) {
		const float *e = sp->s + i * KV_SPAN + sp->n_code[i];
		uint32_t n = sp->n_tok[i] - sp->n_code[i], d = 0;
		float *o = sp->o + i * hd;

		for (; n && d + LANES <= hd; d += LANES) {
			vfloat acc = load_f(o + d);

			for (uint32_t t = 0; t < n; t++)
				acc = fma_f(set_f(e[t]),
					    half_load(sp->own_v[i] + t * hd + d), acc);
			store_f(o + d, acc);
		}
		/* head_dim is a multiple of 8. */
		for (; n && d < hd; d += 8) {
			__m256 acc = _mm256_loadu_ps(o + d);

			for (uint32_t t = 0; t < n; t++) {
				const uint16_t *v = sp->own_v[i] + t * hd + d;
				__m256 x =
					_mm256_cvtph_ps(_mm_loadu_si128((const void *)v));

				acc = _mm256_fmadd_ps(_mm256_set1_ps(e[t]), x, acc);
			}
			_mm256_storeu_ps(o + d, acc);
		}
	}
}

/* --- fp8 ---------------------------------------------------------------------------- */

enum { FP8_TOKENS = 64 }; /* that are fp16 at a time; a multiple of any block's */

/*
 * fp8_widen(src, dst, n), of the includer: n codes, a multiple of 128, as halves. Sign
 * extension puts the sign where shifting leaves it; the bit below it is cleared.
 */

/* Blocks are short and lie apart, which the CPU's own prefetchers do not see. */
INLINE void fp8_fetch(const void *plane, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 64)
		_mm_prefetch((const char *)plane + i, _MM_HINT_T0);
}

/* Fill the copy's blocks from position t0 of the span on, and what its queries see there. */
INLINE void fp8_open(const struct kv_span *sp, uint32_t t0, const void *const *planes,
		     struct kv_span *copy, uint16_t *mem)
{
	uint32_t bt = sp->block_tokens, n = sp->head_dim * bt;
	uint32_t last = sp->n_code[sp->n_q - 1];

	for (uint32_t b = 0; b < FP8_TOKENS / bt && t0 + b * bt < last; b++) {
		const uint8_t *src = planes[t0 / bt + b];
		uint32_t next = t0 + FP8_TOKENS + b * bt;
		uint16_t *dst = mem + b * n;

		if (next < last)
			fp8_fetch(planes[next / bt], n);

		fp8_widen(src, dst, n);
		copy->k[b] = copy->v[b] = dst;
	}
	for (uint32_t i = 0; i < sp->n_q; i++) {
		uint32_t left = sp->n_code[i] > t0 ? sp->n_code[i] - t0 : 0;

		copy->n_code[i] = left < FP8_TOKENS ? left : FP8_TOKENS;
	}
}

INLINE vfloat fp8_scale(const struct kv_span *sp, const void *const *params, uint32_t t)
{
	const uint16_t *p = params[t / sp->block_tokens];

	return mul_f(half_load(p + t % sp->block_tokens), set_f(256));
}

INLINE void scores_fp8(const struct kv_span *sp, kv_span_fn *scores)
{
	_Alignas(64) uint16_t mem[FP8_TOKENS * KV_HEAD_DIM_MAX];
	uint32_t last = sp->n_code[sp->n_q - 1];
	struct kv_span copy = *sp;

	for (uint32_t t0 = 0; t0 < last; t0 += FP8_TOKENS) {
		fp8_open(sp, t0, sp->k, &copy, mem);
		copy.s = sp->s + t0;
		/* The first blocks of the weighted sum, which comes next. */
		if (t0 + FP8_TOKENS >= last)
			for (uint32_t t = 0; t < FP8_TOKENS && t < last;
			     t += sp->block_tokens)
				fp8_fetch(sp->v[t / sp->block_tokens],
					  sp->head_dim * sp->block_tokens);
		scores(&copy);
		for (uint32_t i = 0; i < sp->n_q; i++) {
			float *s = copy.s + i * KV_SPAN;

			for (uint32_t t = 0; t < copy.n_code[i]; t += LANES)
				store_f(s + t,
					mul_f(load_f(s + t),
					      fp8_scale(sp, sp->k_params, t0 + t)));
		}
	}
}

INLINE void sums_fp8(const struct kv_span *sp, kv_span_fn *sums_add)
{
	_Alignas(64) uint16_t mem[FP8_TOKENS * KV_HEAD_DIM_MAX];
	_Alignas(64) float w[KV_SPAN_QUERIES * KV_SPAN];
	uint32_t last = sp->n_code[sp->n_q - 1];
	struct kv_span copy = *sp;

	for (uint32_t i = 0; i < sp->n_q; i++)
		for (uint32_t t = 0; t < sp->n_code[i]; t += LANES)
			store_f(w + i * KV_SPAN + t,
				mul_f(load_f(sp->s + i * KV_SPAN + t),
				      fp8_scale(sp, sp->v_params, t)));
	memset(sp->o, 0, (size_t)sp->n_q * sp->head_dim * sizeof(float));
	for (uint32_t t0 = 0; t0 < last; t0 += FP8_TOKENS) {
		fp8_open(sp, t0, sp->v, &copy, mem);
		copy.s = w + t0;
		sums_add(&copy);
	}
}

#define ATTENTION_OWN(isa)                                                               \
	void kv_scores_own_##isa(const struct kv_span *sp)                               \
	{                                                                                \
		scores_own(sp);                                                          \
	}                                                                                \
	void kv_sums_own_##isa(const struct kv_span *sp)                                 \
	{                                                                                \
		sums_own(sp);                                                            \
	}                                                                                \
	void kv_scores_fp8_##isa(const struct kv_span *sp)                               \
	{                                                                                \
		scores_fp8(sp, kv_scores_fp16_##isa);                                    \
	}                                                                                \
	void kv_sums_fp8_##isa(const struct kv_span *sp)                                 \
	{                                                                                \
		sums_fp8(sp, kv_sums_add_fp16_##isa);                                    \
	}

#endif
