/* SPDX-License-Identifier: MIT */
/*
 * Operations on single rows, written once for all bundles; a shorter tail is masked. The
 * arithmetic is that of kernels/c/rows_c.c. Included after avx2.h or avx512.h; the includer
 * defines, n counting from 0 to any number of lanes:
 *   first_load(p, n), first_store(p, n, x)   the first n lanes at p, others 0; only those
 *   first_load_or(low, p, n)    others low
 *   first_add(sum, x, n)        x added to the first n lanes
 *   first_equal(p, n, x)        a bit for each of the first n lanes at p that equals x's
 *   max_lanes(x), tree(sum)     the largest lane; kv_tree_sum_c() of SUMS vectors
 */
#ifndef KVD_KERNELS_X86_ROWS_H
#define KVD_KERNELS_X86_ROWS_H

#include <math.h>

enum { SUMS = 16 / LANES };

INLINE void rms_norm(const float *x, const float *w, float eps, float *y, uint32_t d)
{
	vfloat ss[SUMS], r;

	for (int i = 0; i < SUMS; i++)
		ss[i] = V(setzero_ps)();
	/* A masked lane adds the square of 0 to a sum that is not negative: no change. */
	for (uint32_t i = 0; i < d; i += LANES) {
		vfloat v = first_load(x + i, d - i);

		ss[i / LANES % SUMS] = V(fmadd_ps)(v, v, ss[i / LANES % SUMS]);
	}
	r = V(set1_ps)(1.0f / sqrtf(tree(ss) / (float)d + eps));
	for (uint32_t i = 0; i < d; i += LANES) {
		vfloat v = V(mul_ps)(first_load(x + i, d - i), r);

		first_store(y + i, d - i, V(mul_ps)(v, first_load(w + i, d - i)));
	}
}

INLINE void silu_mul(const float *gate, const float *up, float *y, uint32_t d)
{
	const vfloat one = V(set1_ps)(1.0f), sign = V(set1_ps)(-0.0f);

	for (uint32_t i = 0; i < d; i += LANES) {
		vfloat g = first_load(gate + i, d - i);
		vfloat e = exp_f(V(xor_ps)(g, sign));
		vfloat s = V(div_ps)(g, V(add_ps)(one, e));

		first_store(y + i, d - i, V(mul_ps)(s, first_load(up + i, d - i)));
	}
}

/* The first index that equals the maximum; none when nothing is above -infinity. */
INLINE uint32_t find_first(const float *x, uint32_t n, float max)
{
	const vfloat v = V(set1_ps)(max);

	if (max == -INFINITY)
		return 0;
	for (uint32_t i = 0; i < n; i += LANES) {
		uint32_t equal = first_equal(x + i, n - i, v);

		if (equal)
			return i + (uint32_t)__builtin_ctz(equal);
	}
	return 0;
}

INLINE void logits(const float *x, uint32_t n, struct kv_logits_stat *ret)
{
	const vfloat low = V(set1_ps)(-INFINITY);
	vfloat top = low, sum[SUMS];
	float max;

	for (uint32_t i = 0; i < n; i += LANES)
		top = V(max_ps)(first_load_or(low, x + i, n - i), top);
	max = max_lanes(top);
	ret->argmax = find_first(x, n, max);
	if (max != -INFINITY)
		max = x[ret->argmax]; /* of 0 and -0 the first */
	top = V(set1_ps)(max);
	for (int i = 0; i < SUMS; i++)
		sum[i] = V(setzero_ps)();
	for (uint32_t i = 0; i < n; i += LANES) {
		vfloat e = exp_f(V(sub_ps)(first_load(x + i, n - i), top));

		sum[i / LANES % SUMS] = first_add(sum[i / LANES % SUMS], e, n - i);
	}
	ret->max = max;
	ret->lse = (float)((double)max + log((double)tree(sum)));
}

INLINE void rope_neox(float *x, const float *cs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += LANES) {
		vfloat a = first_load(x + i, n - i), b = first_load(x + n + i, n - i);
		vfloat c = first_load(cs + i, n - i), s = first_load(cs + n + i, n - i);

		first_store(x + i, n - i, V(sub_ps)(V(mul_ps)(a, c), V(mul_ps)(b, s)));
		first_store(x + n + i, n - i,
			    V(add_ps)(V(mul_ps)(a, s), V(mul_ps)(b, c)));
	}
}

/* fp16 rows: head_dim is a multiple of 8, which is what one conversion takes. */
INLINE void store_k_fp16(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint32_t bt = dst->block_tokens;
	uint16_t *k = (uint16_t *)dst->codes + token;

	for (uint32_t d = 0; d < dst->head_dim; d += 8) {
		_Alignas(16) uint16_t h[8];

		_mm_store_si128((__m128i *)h, _mm256_cvtps_ph(_mm256_loadu_ps(x + d),
							      _MM_FROUND_TO_NEAREST_INT));
		for (uint32_t i = 0; i < 8; i++)
			k[(d + i) * bt] = h[i];
	}
}

INLINE void store_v_fp16(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint16_t *v = (uint16_t *)dst->codes + token * dst->head_dim;

	for (uint32_t d = 0; d < dst->head_dim; d += 8)
		_mm_storeu_si128((__m128i *)(v + d),
				 _mm256_cvtps_ph(_mm256_loadu_ps(x + d),
						 _MM_FROUND_TO_NEAREST_INT));
}

/* The entries of one bundle, over its rope_normal() too. */
#define ROWS(isa)                                                                        \
	void kv_rms_norm_##isa(const float *x, const float *w, float eps, float *y,      \
			       uint32_t d)                                               \
	{                                                                                \
		rms_norm(x, w, eps, y, d);                                               \
	}                                                                                \
	void kv_silu_mul_##isa(const float *gate, const float *up, float *y, uint32_t d) \
	{                                                                                \
		silu_mul(gate, up, y, d);                                                \
	}                                                                                \
	void kv_logits_##isa(const float *x, uint32_t n, struct kv_logits_stat *ret)     \
	{                                                                                \
		logits(x, n, ret);                                                       \
	}                                                                                \
	void kv_rope_##isa(float *x, const float *cs, uint32_t rope_dims,                \
			   enum kv_rope_mode mode)                                       \
	{                                                                                \
		if (mode == KV_ROPE_NEOX)                                                \
			rope_neox(x, cs, rope_dims / 2);                                 \
		else                                                                     \
			rope_normal(x, cs, rope_dims / 2);                               \
	}                                                                                \
	void kv_store_k_fp16_##isa(const float *x, const struct kv_plane *dst,           \
				   uint32_t token)                                       \
	{                                                                                \
		store_k_fp16(x, dst, token);                                             \
	}                                                                                \
	void kv_store_v_fp16_##isa(const float *x, const struct kv_plane *dst,           \
				   uint32_t token)                                       \
	{                                                                                \
		store_v_fp16(x, dst, token);                                             \
	}

#endif
