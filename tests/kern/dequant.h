/* SPDX-License-Identifier: MIT */
/*
 * What the bytes of a pool stand for, in double, from the text of kernels/format.h alone: for
 * checks that must not share code with the kernels. Any thread; allocates nothing.
 */
#ifndef KVD_TESTS_KERN_DEQUANT_H
#define KVD_TESTS_KERN_DEQUANT_H

#include "kernels/format.h"

/* Planes of one head of one block. */
struct dq_planes {
	const uint8_t *k, *v, *k_params, *v_params;
	const uint16_t *k_pair;
};

struct dq_planes dq_planes(const struct kv_layout *l, const uint8_t *block,
			   uint32_t layer, uint32_t head);

/* K or V of one token, x[head_dim], rotated where the format is. */
void dq_k(const struct kv_layout *l, const struct dq_planes *p, uint32_t token,
	  double *x);
void dq_v(const struct kv_layout *l, const struct dq_planes *p, uint32_t token,
	  double *x);

/* Largest error that writing x[head_dim] may make, each value: half a step and what rounding
 * of the parameters takes. For int4 K amax is that of the block, otherwise of the token. */
double dq_tolerance(enum kv_format format, double amax);

/* y = H S x, or S H x for back, by the matrix. y may not be x. */
void dq_rotate(const double *x, double *y, uint32_t head_dim, int back);

#endif
