/* SPDX-License-Identifier: MIT */
/*
 * The table of inner kernels that the CPU backend fills once per device: the reference in
 * kernels/c/ first, then each bundle's kernels over it. Kernels are pure functions on the
 * memory that their argument names; they run on any compute thread, allocate nothing, and
 * read nothing outside the ranges given here.
 *
 * Every variant of a kernel gives the same bits: integer sums are exact, float operations
 * are named one by one below, with a fixed order. "fma(a, b, c)" is a * b + c rounded once.
 */
#ifndef KVD_KERNELS_CPU_OPS_H
#define KVD_KERNELS_CPU_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

/* --- linear ------------------------------------------------------------------------- */

enum {
	KV_PANEL = 32, /* columns (outputs) of a panel                            */
	KV_GROUP = 32, /* elements along k under one scale                        */
	KV_ACT_MAX =
		127 * 128, /* largest activation code                                 */
};

/*
 * Packed forms of a weight. A panel is KV_PANEL outputs; along k it is a run of records,
 * one per group of 32 elements, each record being codes, scales, minimums:
 *
 *   codes, nibbles  [4 pairs][32 cols][4]: byte i of pair p holds element 8p + i of its
 *                   column in the low nibble, element 8p + 4 + i in the high one
 *   codes, bytes    [8 quads][32 cols][4]: byte i of quad p is element 4p + i
 *   scales          [32 cols], or [2 halves][32 cols] for _HALF (16 elements each)
 *   minimums        [32 cols], only for _MIN
 *
 * with w = scale * (code - zero) + minimum, where zero = 1 << zero_shift, or 0 for _MIN.
 * The float forms are [k][32 cols] of the element type. Columns past n are all zero.
 */
enum kv_form {
	KV_FORM_NIB_SYM, /* nibbles, fp16 scales                  Q4_0                   */
	KV_FORM_NIB_MIN, /* nibbles, fp16 scales and minimums     Q4_1                   */
	KV_FORM_NIB_MIN32, /* nibbles, float scales and minimums    Q4_K                   */
	KV_FORM_BYTE_SYM, /* bytes, fp16 scales                    Q5_0 Q8_0              */
	KV_FORM_BYTE_MIN, /* bytes, fp16 scales and minimums       Q5_1                   */
	KV_FORM_BYTE_MIN32, /* bytes, float scales and minimums     Q5_K                   */
	KV_FORM_BYTE_HALF, /* bytes, float scales of 16 elements    Q6_K                   */
	KV_FORM_F32,
	KV_FORM_F16,
	KV_FORM_BF16,
	KV_FORM_N,
	KV_FORM_N_INT =
		KV_FORM_F32, /* forms below use quantized activations              */
};

/*
 * struct kv_act - m rows of activations as integers: x = scale * a, |a| <= KV_ACT_MAX
 *
 * codes is 64 bytes per group of 32 elements in an order that each bundle chooses for its
 * own kernels; sums are those of a.
 */
struct kv_act {
	uint8_t *codes; /* [m][k * 2], rows 64-byte aligned                             */
	float *scale;   /* [m]                                                          */
	float *sum;     /* [m][k / 32] per group, as float (exact)                      */
	int32_t *
		half_sum; /* [m][k / 16] per 16 elements                                  */
	uint32_t k;
};

/*
 * Quantize one row x[k] to row number row of act:
 *   top = max |x|; top < 1e-30: scale = 0, a = 0; top not finite: scale = NaN, a = 0;
 *   else scale = top / KV_ACT_MAX, a = round_to_even(x * (KV_ACT_MAX / top)).
 */
typedef void kv_act_fn(const float *x, const struct kv_act *act, uint32_t row);

/*
 * struct kv_gemm - one panel times rows m0 .. m1 - 1
 *
 * Integer forms, per row and column:
 *   f = 0
 *   per group g:  S = sum(a * (code - zero)), exact
 *                 f = fma((float)S, scale, f), and for _MIN f = fma(sum[g], minimum, f);
 *                 _HALF does the first line for each 16 elements
 *   f = f * act.scale
 * Float forms: f = 0, then f = fma(x[i], w[i], f) for i = 0 .. k - 1.
 * Then f = f + bias where there is one, and y = f, or y = y + f to accumulate.
 */
struct kv_gemm {
	const uint8_t *panel; /* 64-byte aligned                                       */
	uint32_t k, zero_shift;
	uint32_t n_cols; /* outputs of this panel, 1..32                          */
	uint32_t m0, m1;
	const struct kv_act
		*act;   /* integer forms                                         */
	const float *x; /* float forms, [.][ldx]                                 */
	size_t ldx;
	float *y; /* column 0 of this panel, row 0                         */
	size_t ldy;
	const float *bias; /* for column 0 of this panel, or NULL                   */
	bool accumulate;
	uint8_t *scratch; /* this thread's, kv_gemm_scratch(k) bytes, 64 aligned   */
};

/* Room for one panel's codes as 16-bit integers and three float parameters a group. */
static inline size_t kv_gemm_scratch(uint32_t k)
{
	return (size_t)k * KV_PANEL * 2 + (size_t)(k / KV_GROUP) * KV_PANEL * 3 * 4;
}

typedef void kv_gemm_fn(const struct kv_gemm *g);

/* --- attention ---------------------------------------------------------------------- */

enum {
	KV_SPAN = 256, /* positions of a span, starting at multiples of it          */
	KV_SPAN_QUERIES =
		12, /* at most, of one kernel call                               */
	KV_SPAN_BLOCKS = KV_SPAN / KV_BLOCK_TOKENS_MIN,
};

/*
 * struct kv_span - n_q queries against one span of one KV head
 *
 * Query i sees the first n_tok[i] positions of the span, n_tok not decreasing. For each:
 *   s[t] = fma over d = 0 .. head_dim - 1 of q[d] * k[d][t], from 0
 *   max  = the largest s[t]
 *   e[t] = exp(s[t] - max)                                  by kv_exp, see kernels/c/exp_c.h
 *   sum  = lane j adds e[16 i + j] in order of i, lanes then added as a tree (8 apart, 4,
 *          2, 1)
 *   o[d] = fma over t = 0 .. n_tok - 1 of e[t] * v[t][d], from 0
 * Positions from n_tok[i] on change nothing, whatever is stored there.
 */
struct kv_span {
	uint32_t n_q, head_dim, block_tokens;
	uint32_t n_tok[KV_SPAN_QUERIES]; /* 1..KV_SPAN                                */
	const float *q; /* [head_dim][KV_SPAN_QUERIES], already scaled: dim by dim */
	const uint16_t *k[KV_SPAN_BLOCKS]; /* fp16 K planes of the span's blocks        */
	const uint16_t *v[KV_SPAN_BLOCKS];
	float *max, *sum; /* [n_q] out                                 */
	float *o;         /* [n_q][head_dim] out                       */
	float *s;         /* scratch [KV_SPAN_QUERIES][KV_SPAN], 64 al. */
};

typedef void kv_span_fn(const struct kv_span *span);

/*
 * Merge a span's result into a running one (the span of lower positions comes first):
 *   M = max(max, m); a = exp(max - M); b = exp(m - M);
 *   sum = fma(s, b, sum * a); o[d] = fma(p[d], b, o[d] * a); max = M
 */
typedef void kv_merge_fn(float *max, float *sum, float *o, float m, float s,
			 const float *p, uint32_t head_dim);

/* --- rows --------------------------------------------------------------------------- */

/* y = (x * r) * w, r = 1 / sqrt(ss / d + eps); ss: lane j of 16 does fma(x, x, .) over
 * elements 16 i + j in order, lanes then added as a tree (8 apart, 4, 2, 1). */
typedef void kv_rms_norm_fn(const float *x, const float *w, float eps, float *y,
			    uint32_t d);

/* y = (gate / (1 + exp(-gate))) * up */
typedef void kv_silu_mul_fn(const float *gate, const float *up, float *y, uint32_t d);

/* max, argmax; lse = max + log(sum), sum of exp(x - max) in 16 lanes and tree as above,
 * log in double. target is left to the caller. */
typedef void kv_logits_fn(const float *x, uint32_t n, struct kv_logits_stat *ret);

/*
 * Rotate one head x[head_dim] in place by cs = [cos, sin][rope_dims / 2 each]:
 *   (a, b) -> (a * cos - b * sin, a * sin + b * cos), each product rounded.
 */
typedef void kv_rope_fn(float *x, const float *cs, uint32_t rope_dims,
			enum kv_rope_mode mode);

/* One token's K and V of one head, as fp16, into planes: k[d * block_tokens], v[d]. */
typedef void kv_store_fn(const float *k, const float *v, uint16_t *k_dst, uint16_t *v_dst,
			 uint32_t head_dim, uint32_t block_tokens);

struct kv_cpu_ops {
	kv_act_fn *act;
	kv_gemm_fn *gemm[KV_FORM_N];
	kv_span_fn *span;
	kv_merge_fn *merge;
	kv_rms_norm_fn *rms_norm;
	kv_silu_mul_fn *silu_mul;
	kv_logits_fn *logits;
	kv_rope_fn *rope;
	kv_store_fn *store;
};

/* Fill ops for a set of bundles, lowest first. */
void kv_cpu_ops_init(struct kv_cpu_ops *ops, uint32_t features);

/* What each folder adds; act and the integer gemm kernels of one bundle come together. */
void kv_cpu_ops_c(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx2(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx512(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx512vnni(struct kv_cpu_ops *ops);

#endif
