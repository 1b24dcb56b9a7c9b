/* SPDX-License-Identifier: MIT */
/*
 * What all vector bundles share, over what avx2.h or avx512.h defines before it includes this:
 *   LANES, vint, vfloat, vsum    lanes of 32 bits in a vector, and such vectors; vsum the same
 *                                as integers that the compiler keeps in registers
 *   V(op), V_BITS(op)            the bundle's instruction op, and the one on whole vectors
 *   V_SET_64, V_INT_FLOAT, V_FLOAT_INT    those whose names say more than that
 */
#ifndef KVD_KERNELS_X86_VECTOR_H
#define KVD_KERNELS_X86_VECTOR_H

#define INLINE static inline __attribute__((always_inline))

/* How a form's scales lie in a record. Constant at every call, so that the branches go. */
struct form {
	bool has_min, halves, wide; /* wide: float, else fp16 */
};

INLINE size_t form_scale_bytes(struct form f)
{
	return (size_t)KV_PANEL * (f.wide ? 4 : 2) *
	       ((f.halves ? 2 : 1) + (f.has_min ? 1 : 0));
}

/* kv_exp_c() lane by lane. The operand order of max and min lets NaN pass. */
INLINE vfloat exp_f(vfloat x)
{
	const vfloat magic = V(set1_ps)(KV_EXP_MAGIC);
	vfloat t, n, r, p;

	x = V(max_ps)(V(set1_ps)(KV_EXP_LOW), x);
	x = V(min_ps)(V(set1_ps)(KV_EXP_HIGH), x);
	t = V(fmadd_ps)(x, V(set1_ps)(KV_EXP_LOG2E), magic);
	n = V(sub_ps)(t, magic);
	r = V(fmadd_ps)(n, V(set1_ps)(-KV_EXP_LN2_HI), x);
	r = V(fmadd_ps)(n, V(set1_ps)(-KV_EXP_LN2_LO), r);
	p = V(fmadd_ps)(r, V(set1_ps)(KV_EXP_C7), V(set1_ps)(KV_EXP_C6));
	p = V(fmadd_ps)(p, r, V(set1_ps)(KV_EXP_C5));
	p = V(fmadd_ps)(p, r, V(set1_ps)(KV_EXP_C4));
	p = V(fmadd_ps)(p, r, V(set1_ps)(KV_EXP_C3));
	p = V(fmadd_ps)(p, r, V(set1_ps)(0.5f));
	p = V(fmadd_ps)(p, r, V(set1_ps)(1.0f));
	p = V(fmadd_ps)(p, r, V(set1_ps)(1.0f));
	return V(mul_ps)(p, V_INT_FLOAT(V(add_epi32)(V(slli_epi32)(V_BITS(castps)(t), 23),
						     V(set1_epi32)(0x3f800000))));
}

#endif
