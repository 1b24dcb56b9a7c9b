/* SPDX-License-Identifier: MIT */
/* Operations on single rows, the reference. */
#include <math.h>

#include "kernels/c/c.h"
#include "kernels/c/exp_c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"

float kv_tree_sum_c(const float lanes[16])
{
	float t[16];

	for (int i = 0; i < 16; i++)
		t[i] = lanes[i];
	for (int n = 8; n > 0; n /= 2)
		for (int i = 0; i < n; i++)
			t[i] += t[i + n];
	return t[0];
}

/* y = (x * r) * w, r = 1 / sqrt(ss / d + eps), ss = fma(x, x, .) in 16 lanes. */
void kv_rms_norm_c(const float *x, const float *w, float eps, float *y, uint32_t d)
{
	float lanes[16] = {0}, r;

	for (uint32_t i = 0; i < d; i++)
		lanes[i % 16] = kv_fma_c(x[i], x[i], lanes[i % 16]);
	r = 1.0f / sqrtf(kv_tree_sum_c(lanes) / (float)d + eps);
	for (uint32_t i = 0; i < d; i++)
		y[i] = x[i] * r * w[i];
}

/* y = (gate / (1 + exp(-gate))) * up */
void kv_silu_mul_c(const float *gate, const float *up, float *y, uint32_t d)
{
	for (uint32_t i = 0; i < d; i++)
		y[i] = gate[i] / (1.0f + kv_exp_c(-gate[i])) * up[i];
}

/* lse = max + log(sum), sum of exp(x - max) in 16 lanes, log in double. */
void kv_logits_c(const float *x, uint32_t n, struct kv_logits_stat *ret)
{
	float lanes[16] = {0}, max = -INFINITY;
	uint32_t argmax = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (x[i] > max) {
			max = x[i];
			argmax = i;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		lanes[i % 16] += kv_exp_c(x[i] - max);
	ret->max = max;
	ret->argmax = argmax;
	ret->lse = (float)((double)max + log((double)kv_tree_sum_c(lanes)));
}

/* (a, b) -> (a * cos - b * sin, a * sin + b * cos), each product rounded. */
void kv_rope_c(float *x, const float *cs, uint32_t rope_dims, enum kv_rope_mode mode)
{
	uint32_t n = rope_dims / 2;

	for (uint32_t i = 0; i < n; i++) {
		float *a = mode == KV_ROPE_NEOX ? &x[i] : &x[2 * i];
		float *b = mode == KV_ROPE_NEOX ? &x[i + n] : &x[2 * i + 1];
		float c = cs[i], s = cs[n + i], ta = *a, tb = *b;

		*a = ta * c - tb * s;
		*b = ta * s + tb * c;
	}
}

void kv_store_k_fp16_c(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint16_t *k = dst->codes;

	for (uint32_t d = 0; d < dst->head_dim; d++)
		k[d * dst->block_tokens + token] = kv_half_from_float(x[d]);
}

void kv_store_v_fp16_c(const float *x, const struct kv_plane *dst, uint32_t token)
{
	uint16_t *v = (uint16_t *)dst->codes + token * dst->head_dim;

	for (uint32_t d = 0; d < dst->head_dim; d++)
		v[d] = kv_half_from_float(x[d]);
}
