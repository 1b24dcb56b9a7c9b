/* SPDX-License-Identifier: MIT */
/* Attention over one span, the reference. Formulas: kernels/cpu/ops.h. */
#include <math.h>

#include "kernels/c/c.h"
#include "kernels/c/exp_c.h"
#include "kernels/half.h"

static void span_scores(const struct kv_span *sp, uint32_t i, float *s)
{
	uint32_t bt = sp->block_tokens;

	for (uint32_t t0 = 0; t0 < sp->n_tok[i]; t0 += bt) {
		const uint16_t *k = sp->k[t0 / bt];
		uint32_t n = sp->n_tok[i] - t0 < bt ? sp->n_tok[i] - t0 : bt;

		for (uint32_t t = 0; t < n; t++)
			s[t0 + t] = 0;
		for (uint32_t d = 0; d < sp->head_dim; d++)
			for (uint32_t t = 0; t < n; t++)
				s[t0 + t] =
					fmaf(sp->q[d * KV_SPAN_QUERIES + i],
					     kv_half_to_float(k[d * bt + t]), s[t0 + t]);
	}
}

void kv_span_c(const struct kv_span *sp)
{
	uint32_t bt = sp->block_tokens;

	for (uint32_t i = 0; i < sp->n_q; i++) {
		float *s = sp->s + i * KV_SPAN, *o = sp->o + i * sp->head_dim;
		float lanes[16] = {0}, max = -INFINITY;

		span_scores(sp, i, s);
		for (uint32_t t = 0; t < sp->n_tok[i]; t++)
			max = s[t] > max ? s[t] : max;
		for (uint32_t t = 0; t < sp->n_tok[i]; t++) {
			s[t] = kv_exp_c(s[t] - max);
			lanes[t % 16] += s[t];
		}
		sp->max[i] = max;
		sp->sum[i] = kv_tree_sum_c(lanes);

		for (uint32_t d = 0; d < sp->head_dim; d++)
			o[d] = 0;
		for (uint32_t t = 0; t < sp->n_tok[i]; t++) {
			const uint16_t *v = sp->v[t / bt] + (t % bt) * sp->head_dim;

			for (uint32_t d = 0; d < sp->head_dim; d++)
				o[d] = fmaf(s[t], kv_half_to_float(v[d]), o[d]);
		}
	}
}

void kv_merge_c(float *max, float *sum, float *o, float m, float s, const float *p,
		uint32_t head_dim)
{
	float top = *max > m ? *max : m;
	float a = kv_exp_c(*max - top), b = kv_exp_c(m - top);

	*max = top;
	*sum = fmaf(s, b, *sum * a);
	for (uint32_t d = 0; d < head_dim; d++)
		o[d] = fmaf(p[d], b, o[d] * a);
}
