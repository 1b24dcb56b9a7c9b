/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations without byte dot products: VPMADDWD on 16-bit integers, exact in
 * 32 bits (2 * 255 * 16256 < 2^23, 16 such per group. VPMADDUBSW saturates: 2 * 255 * 127 does
 * not fit its 16 bits.) Also what calls the tiles of float forms.
 *
 * A column's four codes of a quad (elements 0..3) are split into the even ones (0, 2) and the
 * odd ones (1, 3), each pair being the two 16-bit halves of the column's lane; activation
 * codes of a quad lie as 0, 2, 1, 3, so that each pair is broadcast as 32 bits.
 *
 * The includer defines TILE_ROWS, MID_ROWS (of a smaller tile, or 1), TILE_VECS (vectors of a
 * tile), FLOAT_ROWS, and
 *   add_products(s, w, even, odd)   s plus w[0] times even plus w[1] times odd, in the order
 *                                   that leaves the bundle the shortest chain
 *   float_tile(g, form, m, rows)    rows rows of a float form
 */
#ifndef KVD_KERNELS_X86_LINEAR_WORDS_H
#define KVD_KERNELS_X86_LINEAR_WORDS_H

#include "kernels/x86/linear.h"

enum { PANEL_VECS = KV_PANEL / LANES };

/* Where codes come from: nibbles or bytes of the panel, or the unpacked pairs of scratch. */
enum source { FROM_NIBBLES, FROM_BYTES, FROM_PAIRS };

INLINE vint pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, 4);
	return V(set1_epi32)(x);
}

/* Even and odd codes of quad q, columns LANES * v .., of one group. */
INLINE void pairs_load(enum source src, const uint8_t *codes, int q, int v, vint ret[2])
{
	const vint nib = V(set1_epi16)(15), byte = V(set1_epi16)(255);
	vint n;

	switch (src) {
	case FROM_PAIRS:
		ret[0] = V_BITS(load)((const void *)(codes + q * 256 + v * LANES * 4));
		ret[1] = V_BITS(load)(
			(const void *)(codes + q * 256 + 128 + v * LANES * 4));
		break;
	case FROM_BYTES:
		n = V_BITS(load)((const void *)(codes + q * 128 + v * LANES * 4));
		ret[0] = V_BITS(and)(n, byte);
		ret[1] = V(srli_epi16)(n, 8);
		break;
	case FROM_NIBBLES:
		n = V_BITS(load)((const void *)(codes + q / 2 * 128 + v * LANES * 4));
		if (q % 2)
			n = V(srli_epi16)(n, 4);
		ret[0] = V_BITS(and)(n, nib);
		ret[1] = V_BITS(and)(V(srli_epi16)(n, 8), nib);
		break;
	}
}

/* rows rows from m, columns LANES * v0 .. LANES * (v0 + TILE_VECS) - 1. */
INLINE void int_tile(const struct kv_gemm *g, struct form form, enum source src,
		     const uint8_t *codes, size_t codes_step, const uint8_t *scales,
		     size_t record, uint32_t m, int rows, int v0)
{
	uint32_t n_groups = g->k / KV_GROUP;
	const int16_t *act = (const int16_t *)(g->act->codes + (size_t)m * g->k * 2);
	const float *sum = g->act->sum + (size_t)m * n_groups;
	const int32_t *half_sum = g->act->half_sum + (size_t)m * n_groups * 2;
	int n_halves = form.halves ? 2 : 1, quads = 8 / n_halves;
	vfloat f[TILE_ROWS][TILE_VECS];

	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			f[r][v] = V(setzero_ps)();
	for (uint32_t i = 0; i < n_groups; i++) {
		for (int h = 0; h < n_halves; h++) {
			vint s[TILE_ROWS][TILE_VECS];

			for (int r = 0; r < rows; r++) {
				const int32_t *hs =
					half_sum + (size_t)r * n_groups * 2 + i * 2;
				int32_t z = form.halves ? hs[h] : hs[0] + hs[1];

				z = form.has_min ? 0 : -z * (1 << g->zero_shift);
				for (int v = 0; v < TILE_VECS; v++)
					s[r][v] = V(set1_epi32)(z);
			}
#pragma GCC unroll 8
			for (int q = h * quads; q < (h + 1) * quads; q++) {
				vint w[TILE_VECS][2];

				for (int v = 0; v < TILE_VECS; v++)
					pairs_load(src, codes, q, v0 + v, w[v]);
				for (int r = 0; r < rows; r++) {
					const int16_t *a = act + (size_t)r * g->k + q * 4;
					vint even = pair(a), odd = pair(a + 2);

					for (int v = 0; v < TILE_VECS; v++) {
						s[r][v] = add_products(s[r][v], w[v],
								       even, odd);
					}
				}
			}
			for (int r = 0; r < rows; r++)
				for (int v = 0; v < TILE_VECS; v++)
					f[r][v] = V(fmadd_ps)(
						V(cvtepi32_ps)(s[r][v]),
						scale_load(form, scales, h, v0 + v),
						f[r][v]);
		}
		for (int r = 0; form.has_min && r < rows; r++)
			for (int v = 0; v < TILE_VECS; v++)
				f[r][v] = V(fmadd_ps)(
					V(set1_ps)(sum[(size_t)r * n_groups + i]),
					scale_load(form, scales, 1, v0 + v), f[r][v]);
		act += KV_GROUP;
		codes += codes_step;
		scales += record;
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			row_store(g, m + r, v0 + v,
				  V(mul_ps)(f[r][v], V(set1_ps)(g->act->scale[m + r])));
}

INLINE void int_gemm(const struct kv_gemm *g, struct form form, enum source src)
{
	size_t codes_bytes = src == FROM_NIBBLES ? 512 : 1024;
	size_t record = codes_bytes + form_scale_bytes(form);
	const uint8_t *scales = g->panel + codes_bytes;
	uint8_t *pairs = g->scratch;
	uint32_t m = g->m0;

	if (g->m1 - m == 1) {
		for (int v = 0; v < PANEL_VECS; v += TILE_VECS)
			int_tile(g, form, src, g->panel, record, scales, record, m, 1, v);
		return;
	}
	for (uint32_t i = 0; i < g->k / KV_GROUP; i++) {
		for (int q = 0; q < 8; q++) {
			for (int v = 0; v < PANEL_VECS; v++) {
				uint8_t *dst = pairs + i * 2048 + q * 256 + v * LANES * 4;
				vint w[2];

				pairs_load(src, g->panel + i * record, q, v, w);
				V_BITS(store)((void *)dst, w[0]);
				V_BITS(store)((void *)(dst + 128), w[1]);
			}
		}
	}
	for (; m + TILE_ROWS <= g->m1; m += TILE_ROWS)
		for (int v = 0; v < PANEL_VECS; v += TILE_VECS)
			int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m,
				 TILE_ROWS, v);
	for (; MID_ROWS > 1 && m + MID_ROWS <= g->m1; m += MID_ROWS)
		for (int v = 0; v < PANEL_VECS; v += TILE_VECS)
			int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m,
				 MID_ROWS, v);
	for (; m < g->m1; m++)
		for (int v = 0; v < PANEL_VECS; v += TILE_VECS)
			int_tile(g, form, FROM_PAIRS, pairs, 2048, scales, record, m, 1,
				 v);
}

INLINE void nib_gemm(const struct kv_gemm *g, struct form form)
{
	int_gemm(g, form, FROM_NIBBLES);
}

INLINE void byte_gemm(const struct kv_gemm *g, struct form form)
{
	int_gemm(g, form, FROM_BYTES);
}

/* --- float forms -------------------------------------------------------------------- */

INLINE void float_gemm(const struct kv_gemm *g, enum kv_form form)
{
	uint32_t m = g->m0;

	for (; m + FLOAT_ROWS <= g->m1; m += FLOAT_ROWS)
		float_tile(g, form, m, FLOAT_ROWS);
	for (; FLOAT_ROWS > 3 && m + 3 <= g->m1; m += 3)
		float_tile(g, form, m, 3);
	for (; m < g->m1; m++)
		float_tile(g, form, m, 1);
}

/* The entries of one bundle, those of linear.h among them. */
#define GEMM_WORDS(isa)                                                                  \
	GEMM_INT(isa)                                                                    \
	void kv_gemm_f32_##isa(const struct kv_gemm *g)                                  \
	{                                                                                \
		float_gemm(g, KV_FORM_F32);                                              \
	}                                                                                \
	void kv_gemm_f16_##isa(const struct kv_gemm *g)                                  \
	{                                                                                \
		float_gemm(g, KV_FORM_F16);                                              \
	}                                                                                \
	void kv_gemm_bf16_##isa(const struct kv_gemm *g)                                 \
	{                                                                                \
		float_gemm(g, KV_FORM_BF16);                                             \
	}

#endif
