/* SPDX-License-Identifier: MIT */
/*
 * Attention over partial blocks, written once for all bundles over the wrappers of lanes8.h or
 * lanes16.h, one of which is included first.
 */
#ifndef KVD_KERNELS_X86_ATTENTION_OWN_H
#define KVD_KERNELS_X86_ATTENTION_OWN_H

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

#define ATTENTION_OWN(isa)                                                               \
	void kv_scores_own_##isa(const struct kv_span *sp)                               \
	{                                                                                \
		scores_own(sp);                                                          \
	}                                                                                \
	void kv_sums_own_##isa(const struct kv_span *sp)                                 \
	{                                                                                \
		sums_own(sp);                                                            \
	}

#endif
