/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations, the reference. Activation codes lie as 16-bit integers in element
 * order.
 */
#include <math.h>
#include <string.h>

#include "kernels/c/c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"

/*
 * top = max |x|; top < 1e-30: scale = 0, a = 0; top not finite: scale = NaN, a = 0;
 * else scale = top / KV_ACT_MAX, a = round_to_even(x * (KV_ACT_MAX / top)).
 */
void kv_act_c(const float *x, const struct kv_act *act, uint32_t row)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	uint32_t n_groups = act->k / KV_GROUP, top_bits = 0;
	int16_t *codes = (int16_t *)(act->codes + (size_t)row * act->k * 2);
	float *sum = act->sum + (size_t)row * n_groups;
	int32_t *half_sum = act->half_sum + (size_t)row * n_groups * 2;
	float top, inv;

	for (uint32_t i = 0; i < act->k; i++) {
		uint32_t bits = kv_float_bits(x[i]) & 0x7fffffff;

		top_bits = bits > top_bits ? bits : top_bits;
	}
	top = kv_float_from_bits(top_bits);
	if (!(top >= 1e-30f) || isinf(top)) {
		memset(codes, 0, (size_t)act->k * 2);
		memset(sum, 0, n_groups * sizeof(*sum));
		memset(half_sum, 0, n_groups * 2 * sizeof(*half_sum));
		act->scale[row] = top < 1e-30f ? 0 : NAN;
		return;
	}
	inv = KV_ACT_MAX / top;
	act->scale[row] = top / KV_ACT_MAX;
	for (uint32_t h = 0; h < n_groups * 2; h++) {
		int32_t s = 0;

		for (uint32_t i = h * 16; i < h * 16 + 16; i++) {
			float v = x[i] * inv;

			codes[i] = (int16_t)(v + magic - magic);
			s += codes[i];
		}
		half_sum[h] = s;
	}
	for (uint32_t g = 0; g < n_groups; g++)
		sum[g] = (float)(half_sum[2 * g] + half_sum[2 * g + 1]);
}

struct form {
	bool nibbles, has_min, halves, wide; /* wide: float scales, else fp16 */
};

static float param_at(struct form f, const uint8_t *p, uint32_t i)
{
	uint16_t h;
	float x;

	if (f.wide) {
		memcpy(&x, p + i * 4, sizeof(x));
		return x;
	}
	memcpy(&h, p + i * 2, sizeof(h));
	return kv_half_to_float(h);
}

/* One group of a panel, laid out for reading: the codes of a column in element order. */
struct group {
	int16_t codes[KV_PANEL][KV_GROUP];
	float scale[2][KV_PANEL]; /* of each half; of the group, both are the same */
	float min[KV_PANEL];
};

/* Return: the next record. */
static const uint8_t *group_unpack(struct form f, const uint8_t *src, struct group *dst)
{
	/* Four bytes of each column in turn. Inner loops of constant length: gcc takes vector
	 * instructions for them, and one row alone spends most of its time here. */
	for (uint32_t q = 0; q < KV_GROUP / 8; q++) {
		for (uint32_t c = 0; c < KV_PANEL; c++) {
			const uint8_t *b =
				src + (q * (f.nibbles ? 1 : 2) * KV_PANEL + c) * 4;
			int16_t *to = &dst->codes[c][q * 8];

			for (uint32_t i = 0; f.nibbles && i < 4; i++) {
				to[i] = b[i] & 15;
				to[i + 4] = b[i] >> 4;
			}
			for (uint32_t i = 0; !f.nibbles && i < 4; i++) {
				to[i] = b[i];
				to[i + 4] = b[i + KV_PANEL * 4];
			}
		}
	}
	src += f.nibbles ? KV_PANEL * KV_GROUP / 2 : KV_PANEL * KV_GROUP;
	for (uint32_t h = 0; h < 2; h++)
		for (uint32_t c = 0; c < KV_PANEL; c++)
			dst->scale[h][c] =
				param_at(f, src, (f.halves ? h : 0) * KV_PANEL + c);
	src += KV_PANEL * (f.wide ? 4 : 2) * (f.halves ? 2 : 1);
	if (!f.has_min)
		return src;
	for (uint32_t c = 0; c < KV_PANEL; c++)
		dst->min[c] = param_at(f, src, c);
	return src + KV_PANEL * (f.wide ? 4 : 2);
}

static void store_row(const struct kv_gemm *g, uint32_t m, const float *f)
{
	float *y = g->y + (size_t)m * g->ldy;

	for (uint32_t c = 0; c < g->n_cols; c++)
		y[c] = g->bias ? f[c] + g->bias[c] : f[c];
}

/* Out of line, where gcc sees a loop and takes PMADDWD for it; inlined it unrolls instead. */
__attribute__((noinline)) static int32_t dot(const int16_t *w, const int16_t *a,
					     uint32_t n)
{
	int32_t s = 0;

	for (uint32_t e = 0; e < n; e++)
		s += (int32_t)w[e] * a[e];
	return s;
}

static void add_group(const struct kv_gemm *g, struct form form, const struct group *w,
		      const int16_t *a, float sum, const int32_t half_sum[2],
		      float f[KV_PANEL])
{
	int32_t zero = form.has_min ? 0 : 1 << g->zero_shift;

	for (uint32_t c = 0; c < KV_PANEL; c++) {
		const int16_t *q = w->codes[c];

		if (form.halves) {
			int32_t s0 = dot(q, a, 16) - zero * half_sum[0];
			int32_t s1 = dot(q + 16, a + 16, 16) - zero * half_sum[1];

			f[c] = kv_fma_c((float)s0, w->scale[0][c], f[c]);
			f[c] = kv_fma_c((float)s1, w->scale[1][c], f[c]);
		} else {
			int32_t s = dot(q, a, 32) - zero * (half_sum[0] + half_sum[1]);

			f[c] = kv_fma_c((float)s, w->scale[0][c], f[c]);
		}
		if (form.has_min)
			f[c] = kv_fma_c(sum, w->min[c], f[c]);
	}
}

/*
 * Per row and column:
 *   f = 0
 *   per group g:  S = sum(a * (code - zero)), exact
 *                 f = fma((float)S, scale, f), and for _MIN f = fma(sum[g], minimum, f);
 *                 _HALF does the first line for each 16 elements
 *   f = f * act.scale, then f = f + bias where there is one, and y = f.
 */
static void gemm_int(const struct kv_gemm *g, struct form form)
{
	uint32_t n_groups = g->k / KV_GROUP;
	struct group *w = (struct group *)g->scratch;
	const uint8_t *record = g->panel;

	_Static_assert(sizeof(struct group) == KV_GROUP * KV_PANEL * 2 + KV_PANEL * 3 * 4,
		       "kv_gemm_scratch() holds the groups of a panel");
	for (uint32_t i = 0; i < n_groups; i++)
		record = group_unpack(form, record, &w[i]);

	for (uint32_t m = g->m0; m < g->m1; m++) {
		const int16_t *a =
			(const int16_t *)(g->act->codes + (size_t)m * g->k * 2);
		const float *sum = g->act->sum + (size_t)m * n_groups;
		const int32_t *half_sum = g->act->half_sum + (size_t)m * n_groups * 2;
		float f[KV_PANEL] = {0};

		for (uint32_t i = 0; i < n_groups; i++)
			add_group(g, form, &w[i], a + i * KV_GROUP, sum[i],
				  half_sum + 2 * i, f);
		for (uint32_t c = 0; c < KV_PANEL; c++)
			f[c] *= g->act->scale[m];
		store_row(g, m, f);
	}
}

void kv_gemm_nib_sym_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.nibbles = true});
}

void kv_gemm_nib_min_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.nibbles = true, .has_min = true});
}

void kv_gemm_nib_min32_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.nibbles = true, .has_min = true, .wide = true});
}

void kv_gemm_byte_sym_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){0});
}

void kv_gemm_byte_min_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.has_min = true});
}

void kv_gemm_byte_min32_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.has_min = true, .wide = true});
}

void kv_gemm_byte_half_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.halves = true, .wide = true});
}

/* f = 0, then f = fma(x[i], w[i], f) for i = 0 .. k - 1; bias as above. */
static void gemm_float(const struct kv_gemm *g, float (*get)(const uint8_t *, size_t))
{
	for (uint32_t m = g->m0; m < g->m1; m++) {
		const float *x = g->x + (size_t)m * g->ldx;
		float f[KV_PANEL] = {0};

		for (uint32_t i = 0; i < g->k; i++)
			for (uint32_t c = 0; c < g->n_cols; c++)
				f[c] = kv_fma_c(x[i],
						get(g->panel, (size_t)i * KV_PANEL + c),
						f[c]);
		store_row(g, m, f);
	}
}

static float get_f32(const uint8_t *p, size_t i)
{
	float x;

	memcpy(&x, p + i * 4, sizeof(x));
	return x;
}

static float get_f16(const uint8_t *p, size_t i)
{
	uint16_t h;

	memcpy(&h, p + i * 2, sizeof(h));
	return kv_half_to_float(h);
}

static float get_bf16(const uint8_t *p, size_t i)
{
	uint16_t h;

	memcpy(&h, p + i * 2, sizeof(h));
	return kv_bf16_to_float(h);
}

void kv_gemm_f32_c(const struct kv_gemm *g)
{
	gemm_float(g, get_f32);
}

void kv_gemm_f16_c(const struct kv_gemm *g)
{
	gemm_float(g, get_f16);
}

void kv_gemm_bf16_c(const struct kv_gemm *g)
{
	gemm_float(g, get_bf16);
}
