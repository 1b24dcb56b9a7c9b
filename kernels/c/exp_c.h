/* SPDX-License-Identifier: MIT */
/*
 * exp() as every kernel computes it, written for one float. Variants do the same operations
 * on lanes. Relative error below 1.2e-7 over the range (checked by tests/kern).
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), r = x - n ln 2 in two parts, exp(r) by its
 * Taylor series to r^7 (|r| <= 0.3466: remainder below 6e-9). x is clamped to the range
 * where 2^n is a normal float; NaN passes.
 */
#ifndef KVD_KERNELS_C_EXP_C_H
#define KVD_KERNELS_C_EXP_C_H

#include "kernels/c/fma_c.h"

#include "kernels/half.h"

#define KV_EXP_LOW    (-87.0f)
#define KV_EXP_HIGH   88.0f
#define KV_EXP_LOG2E  1.44269504088896341f
#define KV_EXP_LN2_HI 0.693145751953125f
#define KV_EXP_LN2_LO 1.42860682030941723e-6f
#define KV_EXP_MAGIC  12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define KV_EXP_C7     (1.0f / 5040)
#define KV_EXP_C6     (1.0f / 720)
#define KV_EXP_C5     (1.0f / 120)
#define KV_EXP_C4     (1.0f / 24)
#define KV_EXP_C3     (1.0f / 6)

static inline float kv_exp_c(float x)
{
	float n, r, p, t;

	x = KV_EXP_LOW > x ? KV_EXP_LOW : x;
	x = KV_EXP_HIGH < x ? KV_EXP_HIGH : x;
	t = kv_fma_c(x, KV_EXP_LOG2E, KV_EXP_MAGIC);
	n = t - KV_EXP_MAGIC;
	r = kv_fma_c(n, -KV_EXP_LN2_HI, x);
	r = kv_fma_c(n, -KV_EXP_LN2_LO, r);
	p = kv_fma_c(r, KV_EXP_C7, KV_EXP_C6);
	p = kv_fma_c(p, r, KV_EXP_C5);
	p = kv_fma_c(p, r, KV_EXP_C4);
	p = kv_fma_c(p, r, KV_EXP_C3);
	p = kv_fma_c(p, r, 0.5f);
	p = kv_fma_c(p, r, 1.0f);
	p = kv_fma_c(p, r, 1.0f);
	/* The low bits of t are n: moved to the exponent they are 2^n. */
	return p * kv_float_from_bits((kv_float_bits(t) << 23) + 0x3f800000);
}

#endif
