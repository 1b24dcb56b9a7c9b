/* SPDX-License-Identifier: MIT */
/*
 * The table of inner kernels that the CPU backend fills once per device: the reference in
 * kernels/c/ first, then each bundle's kernels over it. Kernels are pure functions on the
 * memory that their argument names; they run on any compute thread, allocate nothing, and
 * read nothing outside the ranges given here.
 *
 * Arrays of float are aligned to 4 bytes where nothing else is said.
 *
 * Every variant of a kernel gives the same bits: integer sums are exact, float operations
 * are named one by one below, with a fixed order. "fma(a, b, c)" is a * b + c rounded once.
 */
#ifndef KVD_KERNELS_CPU_OPS_H
#define KVD_KERNELS_CPU_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"
#include "kernels/rope.h"

/* --- linear ------------------------------------------------------------------------- */

enum {
	KV_PANEL = 32,          /* columns (outputs) of a panel     */
	KV_GROUP = 32,          /* elements along k under one scale */
	KV_ACT_MAX = 127 * 128, /* largest activation code          */
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
	KV_FORM_NIB_SYM,    /* nibbles, fp16 scales                 Q4_0      */
	KV_FORM_NIB_MIN,    /* nibbles, fp16 scales and minimums    Q4_1      */
	KV_FORM_NIB_MIN32,  /* nibbles, float scales and minimums   Q4_K      */
	KV_FORM_BYTE_SYM,   /* bytes, fp16 scales                   Q5_0 Q8_0 */
	KV_FORM_BYTE_MIN,   /* bytes, fp16 scales and minimums      Q5_1      */
	KV_FORM_BYTE_MIN32, /* bytes, float scales and minimums     Q5_K      */
	KV_FORM_BYTE_HALF,  /* bytes, float scales of 16 elements   Q6_K      */
	KV_FORM_F32,
	KV_FORM_F16,
	KV_FORM_BF16,
	KV_FORM_N,
	KV_FORM_N_INT = KV_FORM_F32, /* forms below use quantized activations */
};

/*
 * struct kv_act - m rows of activations as integers: x = scale * a, |a| <= KV_ACT_MAX
 *
 * codes is 64 bytes per group of 32 elements in an order that each bundle chooses for its
 * own kernels; sums are those of a.
 */
struct kv_act {
	uint8_t *codes;    /* [m][k * 2], rows 64-byte aligned        */
	float *scale;      /* [m]                                     */
	float *sum;        /* [m][k / 32] per group, as float (exact) */
	int32_t *half_sum; /* [m][k / 16] per 16 elements             */
	uint32_t k;
};

/*
 * For act_many and gemm_many the same holds as follows, rows in tiles of KV_ACT_TILE_ROWS;
 * what a row past the last one holds changes nothing:
 *   codes     [m / 16][k / 32] of what a bundle chooses, 128 bytes per group and row
 *   sum       [m / 16][k / 32][16]
 *   half_sum  not used
 */
enum { KV_ACT_TILE_ROWS = 16 };

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
 * Then f = f + bias where there is one, and y = f.
 */
struct kv_gemm {
	const uint8_t *panel; /* 64-byte aligned */
	uint32_t k, zero_shift;
	uint32_t n_cols; /* outputs of this panel, 1..32 */
	uint32_t m0, m1;
	const struct kv_act *act; /* integer forms */
	const float *x;           /* float forms, [.][ldx] */
	size_t ldx;
	float *y; /* column 0 of this panel, row 0 */
	size_t ldy;
	const float *bias; /* for column 0 of this panel, or NULL */
	uint8_t *scratch;  /* this thread's, kv_gemm_scratch(k) bytes, 64 aligned */
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

enum {
	KV_SPAN = 256,        /* positions of a span, starting at multiples of it */
	KV_SPAN_QUERIES = 12, /* at most, of one kernel call                      */
	KV_SPAN_BLOCKS = KV_SPAN / KV_BLOCK_TOKENS_MIN,
	KV_CODE_TOP = 16383, /* largest 15-bit code of a query or a weight */
};

/*
 * A query for the integer formats: q = scale * c, |c| <= KV_CODE_TOP, from a row that is
 * already multiplied by the scale of the scores, and rotated where K is.
 *   top = the largest |q[d]|, compared by its bits, so that a NaN is the largest;
 *   top < 1e-30: scale = 0, c = 0; top not finite: scale = NaN, c = 0;
 *   else scale = top / KV_CODE_TOP, c = round_to_even(q * (KV_CODE_TOP / top)).
 * sum is that of c. codes is kv_query_bytes(head_dim) long, 64-byte aligned, in an order that
 * each bundle chooses: query comes together with scores[KV_FORMAT_INT8] and _INT4.
 */
static inline size_t kv_query_bytes(uint32_t head_dim)
{
	return ((size_t)head_dim * 2 + 63) / 64 * 64;
}

typedef void kv_query_fn(const float *q, uint8_t *codes, float *ret_scale,
			 int32_t *ret_sum, uint32_t head_dim);

/*
 * struct kv_span - n_q queries against one span of one KV head
 *
 * Query i sees the first n_tok[i] positions of the span: the first n_code[i] of them in the
 * pool, the others, at most block_tokens, in the fp16 planes of its own partial block, whose
 * first position is n_code[i]. Without a partial block n_code[i] = n_tok[i]. n_code[i] is a
 * multiple of block_tokens, or n_tok[i]. Neither decreases with i.
 *
 * In this order, each for all queries:
 *   scores[k_format]    s[i][t], t < n_code[i]
 *   scores_own          s[i][t], n_code[i] <= t < n_tok[i]     where there are partial blocks
 *   softmax             max[i], sum[i]; s[i][t] becomes e[t] = exp(s[i][t] - max[i])
 *   sums[v_format]      o[i][d] from e[t], t < n_code[i]
 *   sums_own            the rest is added to o[i][d]           where there are partial blocks
 * What lies in the planes at positions that a query does not see changes nothing for it.
 * Scores past what a query sees may be written, up to KV_SPAN.
 */
struct kv_span {
	uint32_t n_q, head_dim, block_tokens;
	uint32_t n_tok[KV_SPAN_QUERIES];  /* 1..KV_SPAN                                */
	uint32_t n_code[KV_SPAN_QUERIES]; /* 0..n_tok[i]                               */

	/* Queries, multiplied by the scale of the scores, rotated where K is. */
	const float *q; /* [head_dim][KV_SPAN_QUERIES]; only where K is fp16 or fp8 */
	const float *q_row[KV_SPAN_QUERIES];     /* [head_dim]; only for scores_own */
	const uint8_t *q_codes[KV_SPAN_QUERIES]; /* integer K: kv_query_fn's        */
	float q_scale[KV_SPAN_QUERIES];
	int32_t q_sum[KV_SPAN_QUERIES];

	/* Planes of the span's blocks, as far as some n_code reaches. Codes are 64-byte
	 * aligned, parameters 32. */
	const void *k[KV_SPAN_BLOCKS], *v[KV_SPAN_BLOCKS];
	const void *k_params[KV_SPAN_BLOCKS], *v_params[KV_SPAN_BLOCKS];
	const uint16_t *k_pair[KV_SPAN_BLOCKS]; /* int4 K: A, B */

	/* Blocks are short and lie apart, so kernels of the integer formats have memory come
	 * ahead: that of V while they read K, and, while they read V, K of what this thread
	 * runs next (of n_next blocks). fetched: K of this span has been asked for so. */
	bool fetched;
	uint32_t n_next, next_k_bytes, next_params_bytes;
	const void *next_k[KV_SPAN_BLOCKS], *next_params[KV_SPAN_BLOCKS];

	/* fp16 planes of each query's own partial block, K [head_dim][block_tokens], V
	 * [block_tokens][head_dim]; equal for neighbours in the same block. */
	const uint16_t *own_k[KV_SPAN_QUERIES], *own_v[KV_SPAN_QUERIES];

	float *max, *sum; /* [n_q] out                                 */
	float *o;         /* [n_q][head_dim] out                       */
	float *s;         /* scratch [KV_SPAN_QUERIES][KV_SPAN], 64 al. */
};

/*
 * scores[], float formats:
 *   f = fma over d = 0 .. head_dim - 1 of q[d] * h[d][t], from 0
 *   fp16      h is the plane's value; s[t] = f
 *   fp8_e4m3  h is the code's fp16 reading (code & 0x80) << 8 | (code & 0x7f) << 7, which is
 *             its value / 256; s[t] = f * (scale_t * 256)
 *
 * scores[], integer formats, with qi the query's codes, sums exact in int32:
 *   int8      S = sum over d of qi[d] * c[d][t]
 *             s[t] = fma(-zero_t, (float)q_sum, (float)S) * (scale_t * q_scale)
 *   int4, in each block
 *             p[d] = (qi[d] * a[d] + 128) >> 8                 (arithmetic shift)
 *             r = trunc(min(4161536 / largest |p[d]|, 32767))  (float; 127 << 15 is 4161536)
 *             u[d] = (p[d] * r + 16384) >> 15                  (arithmetic shift), 8 bits
 *             S = sum of u[d] * c[d][t],  U = sum of u[d],  M = sum of qi[d] * (m[d] - 128)
 *             s[t] = fma((float)(16 S - 120 U), (q_scale * A) * (524288 / r),
 *                        (float)M * (q_scale * B))             (1 << 19 is 524288)
 *
 * scores_own: s[t] = fma over d = 0 .. of q_row[d] * own_k[d][t - n_code], from 0
 *
 * softmax:
 *   max  = the largest s[t], t < n_tok, a NaN never being it
 *   e[t] = exp(s[t] - max)                                  by kv_exp, see kernels/c/exp_c.h
 *   sum  = lane j adds e[16 i + j] in order of i, lanes then added as a tree (8 apart, 4,
 *          2, 1)
 *
 * sums[], float formats, o[d] from 0 over t = 0 .. n_code - 1:
 *   fp16      o[d] = fma(e[t], v[t][d], o[d])
 *   fp8_e4m3  o[d] = fma(e[t] * (scale_t * 256), h[t][d], o[d]), h as above
 *
 * sums[], int8 and int4:
 *   w[t] = e[t] * scale_t, t < n_code
 *   top = the largest |w[t]|, compared by its bits (a NaN is the largest), 0 if n_code = 0;
 *   top < 1e-30: r = 0, wi = 0; top not finite: r = NaN, wi = 0;
 *   else r = top / KV_CODE_TOP, wi[t] = round_to_even(w[t] * (KV_CODE_TOP / top))
 *   A[d] = sum over t of wi[t] * c[t][d], exact in int32
 *   z = lane j of 16 does fma((float)wi[16 i + j], zero of it, .) in order of i from 0, lanes
 *       then added as a tree (8 apart, 4, 2, 1)
 *   o[d] = ((float)A[d] - z) * r
 *
 * sums_own: o[d] = fma(e[t], own_v[t - n_code][d], o[d]), t = n_code .. n_tok - 1 in order
 */
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

/**
 * struct kv_logits_stat - what is known of one row of logits
 * @max: a NaN never being it
 * @lse: log(sum(exp(logit)))
 * @argmax: lowest index among equals
 */
struct kv_logits_stat {
	float max;
	float lse;
	uint32_t argmax;
};

/* max, argmax; lse = max + log(sum), sum of exp(x - max) in 16 lanes and tree as above,
 * log in double. */
typedef void kv_logits_fn(const float *x, uint32_t n, struct kv_logits_stat *ret);

/*
 * Rotate one head x[head_dim] in place by cs = [cos, sin][rope_dims / 2 each]:
 *   (a, b) -> (a * cos - b * sin, a * sin + b * cos), each product rounded.
 */
typedef void kv_rope_fn(float *x, const float *cs, uint32_t rope_dims,
			enum kv_rope_mode mode);

/* --- writing K and V ---------------------------------------------------------------- */

/*
 * x[head_dim] in place: back false, x = H S x; back true, x = S H x. S and the pieces that H
 * works on are in kernels/format.h. A piece of n = 2^m elements: for l = 1, 2, 4 .. n / 2, all
 * pairs (a, b) of elements l apart in runs of 2 l become (a + b, a - b); then each is
 * multiplied by 1/sqrt(n) rounded to float.
 */
typedef void kv_rotate_fn(float *x, uint32_t head_dim, bool back);

/* The K or V planes of one head of one block. */
struct kv_plane {
	void *codes, *params;
	uint16_t *pair; /* int4 K only */
	uint32_t head_dim, block_tokens;
};

/*
 * Write x[head_dim], rotated where the format is, as token token of a plane. Nothing but the
 * bytes of that token is written, as threads may write neighbours. Not for int4.
 *   fp16      to nearest even
 *   int8      lo = min(0, x), hi = max(0, x); scale = fp16((hi - lo) / 255);
 *             x or scale not finite: scale = NaN, zero = 0, c = 0;
 *             scale = 0: zero = 0, c = 0; else
 *             r = 1 / scale, zero = fp16(min(0 - lo * r, 255)),
 *             c = clamp(round_to_even(fma(x, r, zero)), 0, 255)
 *   fp8_e4m3  top = max |x|, scale = fp16(top / 448); not finite and 0 as above; else
 *             c = e4m3(x * (1 / scale)), to nearest even, past 448 to 448
 */
typedef void kv_store_fn(const float *x, const struct kv_plane *dst, uint32_t token);

/*
 * Write a whole block of int4 from fp16 planes, K [head_dim][block_tokens] or V
 * [block_tokens][head_dim] (rotated).
 *   V   as int8 of each token, with 15 in place of 255
 *   K   lo, hi: least and largest of a dim over the tokens;
 *       s = (hi - lo) / 15, mid = 0.5 * (lo + hi);
 *       A = fp16(largest s / 255), B = fp16(largest |mid| / 127);
 *       an x, A or B that is not finite: A = B = NaN, a = 1, m = 128, c = 0; else
 *       a = clamp(round_to_even(s * (1 / A)), 1, 255), 1 if A = 0;
 *       m = 128 + clamp(round_to_even(mid * (1 / B)), -127, 127), 128 if B = 0;
 *       r = 1 / (A * a), 0 if A = 0;
 *       c = clamp(round_to_even(fma(x - B * (m - 128), r, 7.5)), 0, 15)
 */
typedef void kv_pack_fn(const uint16_t *src, const struct kv_plane *dst);

struct kv_cpu_ops {
	kv_act_fn *act;
	kv_gemm_fn *gemm[KV_FORM_N];
	/* The same, with the same bits, for many rows, m0 being a multiple of
	 * KV_ACT_TILE_ROWS; or all NULL. */
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
	kv_store_fn *store_k[KV_FORMAT_N], *store_v[KV_FORMAT_N]; /* not int4 */
	kv_pack_fn *pack_k4, *pack_v4;
};

/* Fill ops for a set of bundles, lowest first. */
void kv_cpu_ops_init(struct kv_cpu_ops *ops, uint32_t features);

/* What each folder adds; act and the integer gemm kernels of one bundle come together. */
void kv_cpu_ops_c(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx2(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx512(struct kv_cpu_ops *ops);
void kv_cpu_ops_avx512vnni(struct kv_cpu_ops *ops);
void kv_cpu_ops_amx(struct kv_cpu_ops *ops);
void kv_cpu_ops_dotprod(struct kv_cpu_ops *ops);

#endif
