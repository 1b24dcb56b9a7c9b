/* SPDX-License-Identifier: MIT */
/* The table of inner kernels that the CPU backend fills once per device: the reference first,
 * then each bundle's kernels over it. Kernels are pure functions on the memory that their
 * argument names: any compute thread, no allocation, no read outside the ranges given here.
 * The arithmetic is defined in kernels/c/, at each reference kernel; every variant gives the
 * same bits. Arrays of float are aligned to 4 bytes where nothing else is said. */
#ifndef KVD_KERNELS_CPU_OPS_H
#define KVD_KERNELS_CPU_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"
#include "kernels/rope.h"

/* --- linear ------------------------------------------------------------------------- */

/* Outputs of a panel; elements along k under one scale; largest activation code. */
enum {
	KV_PANEL = 32,
	KV_GROUP = 32,
	KV_ACT_MAX = 127 * 128,
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
 * Scales and minimums are fp16, float for _MIN32 and _HALF. The float forms are [k][32 cols]
 * of the element type. Columns past n are all zero.
 */
enum kv_form {
	KV_FORM_NIB_SYM,
	KV_FORM_NIB_MIN,
	KV_FORM_NIB_MIN32,
	KV_FORM_BYTE_SYM,
	KV_FORM_BYTE_MIN,
	KV_FORM_BYTE_MIN32,
	KV_FORM_BYTE_HALF,
	KV_FORM_F32,
	KV_FORM_F16,
	KV_FORM_BF16,
	KV_FORM_N,
	KV_FORM_N_INT = KV_FORM_F32, /* forms below use quantized activations */
};

/**
 * struct kv_act - m rows of activations as integers: x = scale * a, |a| <= KV_ACT_MAX
 * @codes: [m][k * 2], rows 64-byte aligned, in an order that each bundle chooses
 * @scale: [m]
 * @sum: [m][k / 32] sums of a, exact
 * @half_sum: [m][k / 16] sums of a
 */
struct kv_act {
	uint8_t *codes;
	float *scale;
	float *sum;
	int32_t *half_sum;
	uint32_t k;
};

/* For act_many and gemm_many rows come in tiles: codes [m / 16][k / 32] of 128 bytes per group and
 * row, sum [m / 16][k / 32][16]; half_sum is not used, rows past the last one hold anything. */
enum { KV_ACT_TILE_ROWS = 16 };

/* Quantize x[k] to a row of act. */
typedef void kv_act_fn(const float *x, const struct kv_act *act, uint32_t row);

/**
 * struct kv_gemm - one panel times rows m0 .. m1 - 1
 * @panel, @scratch: 64-byte aligned; scratch has kv_gemm_scratch(k) bytes, one per thread
 * @n_cols: outputs of this panel, 1..32
 * @act: for the integer forms
 * @x: [.][ldx], for the float forms
 * @y, @bias: at column 0 of this panel, y at row 0; bias may be NULL
 */
struct kv_gemm {
	const uint8_t *panel;
	uint32_t k, zero_shift;
	uint32_t n_cols;
	uint32_t m0, m1;
	const struct kv_act *act;
	const float *x;
	size_t ldx;
	float *y;
	size_t ldy;
	const float *bias;
	uint8_t *scratch;
};

/* Room for one panel's codes as 16-bit integers and three float parameters a group, and for
 * seven times the panel's sums of 32 rows. */
static inline size_t kv_gemm_scratch(uint32_t k)
{
	return (size_t)k * KV_PANEL * 2 + (size_t)(k / KV_GROUP) * KV_PANEL * 3 * 4 +
	       7 * 32 * KV_PANEL * 4;
}

typedef void kv_gemm_fn(const struct kv_gemm *g);

/* --- attention ---------------------------------------------------------------------- */

/* Positions of a span, which starts at a multiple; queries of one call, at most; blocks of a span,
 * at most; largest code of a query or a weight. */
enum {
	KV_SPAN = 256,
	KV_SPAN_QUERIES = 12,
	KV_SPAN_BLOCKS = KV_SPAN / KV_BLOCK_TOKENS_MIN,
	KV_CODE_TOP = 16383,
};

static inline size_t kv_query_bytes(uint32_t head_dim)
{
	return ((size_t)head_dim * 2 + 63) / 64 * 64;
}

/* A query for the integer formats: q = ret_scale * c, |c| <= KV_CODE_TOP, ret_sum that of c; codes
 * is kv_query_bytes(head_dim) long, 64-byte aligned, in an order that each bundle chooses. */
typedef void kv_query_fn(const float *q, uint8_t *codes, float *ret_scale,
			 int32_t *ret_sum, uint32_t head_dim);

/**
 * struct kv_span - n_q queries against one span of one KV head
 * @n_tok: 1..KV_SPAN: positions of the span that a query sees
 * @n_code: 0..n_tok[i]: those in the pool; the others, at most block_tokens, are in the fp16
 *	planes of its own partial block, whose first position is n_code[i]. A multiple of
 *	block_tokens, or n_tok[i]. Neither count decreases with i.
 * @q: [head_dim][KV_SPAN_QUERIES], where K is fp16 or fp8
 * @q_row: [head_dim], for scores_own
 * @q_codes, @q_scale, @q_sum: for integer K, from kv_query_fn
 * @k, @v, @k_params, @v_params, @k_pair: planes of the span's blocks, as far as some n_code
 *	reaches; codes 64-byte aligned, parameters 32; k_pair is A, B of int4 K
 * @fetched: K of this span was prefetched as the next_k of another
 * @next_k, @next_params: [n_next] what this thread runs next: prefetched while V is read
 * @own_k, @own_v: [head_dim][block_tokens], [block_tokens][head_dim] of own partial blocks
 * @max, @sum, @o: [n_q], [n_q], [n_q][head_dim] out
 * @s: scratch [KV_SPAN_QUERIES][KV_SPAN], 64-byte aligned; may be written past n_tok
 *
 * Queries are multiplied by the scale of the scores, and rotated where K is. In this order, each
 * for all queries; the two _own only where there are partial blocks:
 *   scores[k_format]    s[i][t], t < n_code[i]
 *   scores_own          s[i][t], n_code[i] <= t < n_tok[i]
 *   softmax             max[i], sum[i]; s[i][t] becomes e[t] = exp(s[i][t] - max[i])
 *   sums[v_format]      o[i][d] from e[t], t < n_code[i]
 *   sums_own            the rest is added to o[i][d]
 * Positions of the planes that a query does not see hold anything.
 */
struct kv_span {
	uint32_t n_q, head_dim, block_tokens;
	uint32_t n_tok[KV_SPAN_QUERIES];
	uint32_t n_code[KV_SPAN_QUERIES];

	const float *q;
	const float *q_row[KV_SPAN_QUERIES];
	const uint8_t *q_codes[KV_SPAN_QUERIES];
	float q_scale[KV_SPAN_QUERIES];
	int32_t q_sum[KV_SPAN_QUERIES];

	const void *k[KV_SPAN_BLOCKS], *v[KV_SPAN_BLOCKS];
	const void *k_params[KV_SPAN_BLOCKS], *v_params[KV_SPAN_BLOCKS];
	const uint16_t *k_pair[KV_SPAN_BLOCKS];

	bool fetched;
	uint32_t n_next, next_k_bytes, next_params_bytes;
	const void *next_k[KV_SPAN_BLOCKS], *next_params[KV_SPAN_BLOCKS];

	const uint16_t *own_k[KV_SPAN_QUERIES], *own_v[KV_SPAN_QUERIES];

	float *max, *sum;
	float *o;
	float *s;
};

typedef void kv_span_fn(const struct kv_span *span);

/* Merge the result (m, s, p) of a span into that of all spans at lower positions. */
typedef void kv_merge_fn(float *max, float *sum, float *o, float m, float s,
			 const float *p, uint32_t head_dim);

/* --- rows --------------------------------------------------------------------------- */

/* y = x / sqrt(mean(x^2) + eps) * w */
typedef void kv_rms_norm_fn(const float *x, const float *w, float eps, float *y,
			    uint32_t d);

typedef void kv_silu_mul_fn(const float *gate, const float *up, float *y, uint32_t d);

/* max is never a NaN, lse is log(sum(exp(logit))), argmax the lowest index among equals. */
struct kv_logits_stat {
	float max;
	float lse;
	uint32_t argmax;
};

typedef void kv_logits_fn(const float *x, uint32_t n, struct kv_logits_stat *ret);

/* Rotate one head x[head_dim] in place by cs = [cos, sin][rope_dims / 2 each]. */
typedef void kv_rope_fn(float *x, const float *cs, uint32_t rope_dims,
			enum kv_rope_mode mode);

/* --- writing K and V ---------------------------------------------------------------- */

/* Whose bytes of int8 V lie side by side; a block is a number of such groups. */
enum { KV_GROUP_TOKENS = 4 };

/* x[head_dim] in place: x = H S x of kernels/format.h, or back, x = S H x. */
typedef void kv_rotate_fn(float *x, uint32_t head_dim, bool back);

/* The K or V planes of one head of one block; pair for int4 K only. */
struct kv_plane {
	void *codes, *params;
	uint16_t *pair;
	uint32_t head_dim, block_tokens;
};

/* Write x[head_dim], rotated where the format is, as token @token of a plane. Other tokens keep
 * their bytes; those of its KV_GROUP_TOKENS may be written back, so one thread writes them. */
typedef void kv_store_fn(const float *x, const struct kv_plane *dst, uint32_t token);

/* Write a block of int4 from fp16, K [head_dim][block_tokens] or V [block_tokens][head_dim]. */
typedef void kv_pack_fn(const uint16_t *src, const struct kv_plane *dst);

/**
 * struct kv_cpu_ops - one kernel of each kind; a bundle replaces act and the integer gemm
 *	kernels together, and query with scores[] of int8 and int4
 * @act_many, @gemm_many: the same for many rows, with the same bits, m0 being a multiple of
 *	KV_ACT_TILE_ROWS; or all NULL
 * @store_k, @store_v: not for int4
 */
struct kv_cpu_ops {
	kv_act_fn *act;
	kv_gemm_fn *gemm[KV_FORM_N];
	kv_act_fn *act_many;
	kv_gemm_fn *gemm_many[KV_FORM_N_INT];
	kv_query_fn *query;
	kv_span_fn *scores[KV_FORMAT_N], *sums[KV_FORMAT_N];
	kv_span_fn *scores_own, *softmax, *sums_own;
	kv_merge_fn *merge;
	kv_rms_norm_fn *rms_norm;
	kv_silu_mul_fn *silu_mul;
	kv_logits_fn *logits;
	kv_rope_fn *rope;
	kv_rotate_fn *rotate;
	kv_store_fn *store_k[KV_FORMAT_N], *store_v[KV_FORMAT_N];
	kv_pack_fn *pack_k4, *pack_v4;
};

/* Fill ops for a set of bundles, lowest first; the others are what each bundle adds. */
void kv_cpu_ops_init(struct kv_cpu_ops *ops, uint32_t features);
void kv_cpu_ops_c(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx2(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx512(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx512vnni(struct kv_cpu_ops *ops);
void kv_cpu_ops_amx(struct kv_cpu_ops *ops);
void kv_cpu_ops_dotprod(struct kv_cpu_ops *ops);

#endif
