/* SPDX-License-Identifier: MIT */
/*
 * What the linear kernels of all vector bundles share: how a row of activations begins, and
 * their entries. Included after avx2.h or avx512.h.
 */
#ifndef KVD_KERNELS_X86_LINEAR_H
#define KVD_KERNELS_X86_LINEAR_H

#include <math.h>
#include <string.h>

/* Scale of row number row, whose largest |x| is top. Return: whether there are codes to make; else
 * the row is zeros. */
INLINE bool act_open(const struct kv_act *act, uint32_t row, float top)
{
	uint32_t n_groups = act->k / KV_GROUP;

	if (top >= 1e-30f && !isinf(top)) {
		act->scale[row] = top / KV_ACT_MAX;
		return true;
	}
	memset(act->codes + (size_t)row * act->k * 2, 0, (size_t)act->k * 2);
	memset(act->sum + (size_t)row * n_groups, 0, n_groups * sizeof(float));
	memset(act->half_sum + (size_t)row * n_groups * 2, 0,
	       n_groups * 2 * sizeof(int32_t));
	act->scale[row] = top < 1e-30f ? 0 : NAN;
	return false;
}

/* The entries of one bundle, over its nib_gemm() and byte_gemm(). */
#define GEMM_INT_ENTRY(name, isa, gemm, ...)                                             \
	void kv_gemm_##name##_##isa(const struct kv_gemm *g)                             \
	{                                                                                \
		gemm(g, (struct form){__VA_ARGS__});                                     \
	}
#define GEMM_INT(isa)                                                                    \
	GEMM_INT_ENTRY(nib_sym, isa, nib_gemm, 0)                                        \
	GEMM_INT_ENTRY(nib_min, isa, nib_gemm, .has_min = true)                          \
	GEMM_INT_ENTRY(nib_min32, isa, nib_gemm, .has_min = true, .wide = true)          \
	GEMM_INT_ENTRY(byte_sym, isa, byte_gemm, 0)                                      \
	GEMM_INT_ENTRY(byte_min, isa, byte_gemm, .has_min = true)                        \
	GEMM_INT_ENTRY(byte_min32, isa, byte_gemm, .has_min = true, .wide = true)        \
	GEMM_INT_ENTRY(byte_half, isa, byte_gemm, .halves = true, .wide = true)

#endif
