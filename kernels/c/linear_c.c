/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations, the reference. Formulas: kernels/cpu/ops.h. Activation codes lie
 * as 16-bit integers in element order.
 */
#include <math.h>
#include <string.h>

#include "kernels/c/c.h"
#include "kernels/half.h"

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

enum scale_kind { SCALE_F16, SCALE_F32 };

struct form {
	bool nibbles, has_min, halves;
	enum scale_kind scale;
};

static size_t codes_bytes(struct form f)
{
	return f.nibbles ? KV_PANEL * KV_GROUP / 2 : KV_PANEL * KV_GROUP;
}

static size_t record_bytes(struct form f)
{
	size_t scale = KV_PANEL * (f.scale == SCALE_F16 ? 2 : 4);

	return codes_bytes(f) + scale * (f.halves ? 2 : 1) + scale * (f.has_min ? 1 : 0);
}

/* The codes of one record as [32 elements][32 cols] of 16 bits. */
static void codes_unpack(struct form f, const uint8_t *src, int16_t *dst)
{
	for (uint32_t e = 0; e < KV_GROUP; e++) {
		for (uint32_t c = 0; c < KV_PANEL; c++) {
			uint8_t b;

			if (f.nibbles) {
				b = src[e / 8 * 128 + c * 4 + e % 4];
				b = e % 8 < 4 ? b & 15 : b >> 4;
			} else {
				b = src[e / 4 * 128 + c * 4 + e % 4];
			}
			dst[e * KV_PANEL + c] = b;
		}
	}
}

static float scale_at(struct form f, const uint8_t *p, uint32_t i)
{
	uint16_t h;
	float x;

	if (f.scale == SCALE_F16) {
		memcpy(&h, p + i * 2, sizeof(h));
		return kv_half_to_float(h);
	}
	memcpy(&x, p + i * 4, sizeof(x));
	return x;
}

static void store_row(const struct kv_gemm *g, uint32_t m, const float *f)
{
	float *y = g->y + (size_t)m * g->ldy;

	for (uint32_t c = 0; c < g->n_cols; c++) {
		float v = g->bias ? f[c] + g->bias[c] : f[c];

		y[c] = g->accumulate ? y[c] + v : v;
	}
}

/* S of n elements for all columns of a panel. */
static void dot_panel(const int16_t *w, const int16_t *a, uint32_t n, int32_t minus,
		      int32_t s[KV_PANEL])
{
	for (uint32_t c = 0; c < KV_PANEL; c++)
		s[c] = -minus;
	for (uint32_t e = 0; e < n; e++)
		for (uint32_t c = 0; c < KV_PANEL; c++)
			s[c] += (int32_t)w[e * KV_PANEL + c] * a[e];
}

static inline void gemm_int(const struct kv_gemm *g, struct form form)
{
	uint32_t n_groups = g->k / KV_GROUP;
	size_t record = record_bytes(form), codes = codes_bytes(form);
	int16_t *w = (int16_t *)g->scratch;
	int32_t s[KV_PANEL];

	for (uint32_t i = 0; i < n_groups; i++)
		codes_unpack(form, g->panel + i * record, w + i * KV_GROUP * KV_PANEL);

	for (uint32_t m = g->m0; m < g->m1; m++) {
		const int16_t *a =
			(const int16_t *)(g->act->codes + (size_t)m * g->k * 2);
		const float *sum = g->act->sum + (size_t)m * n_groups;
		const int32_t *half_sum = g->act->half_sum + (size_t)m * n_groups * 2;
		float f[KV_PANEL] = {0};

		for (uint32_t i = 0; i < n_groups; i++) {
			const uint8_t *scale = g->panel + i * record + codes;
			const uint8_t *min = scale + (form.scale == SCALE_F16 ? 64 : 128);
			const int16_t *wg = w + i * KV_GROUP * KV_PANEL;
			uint32_t n = form.halves ? 2 : 1, len = KV_GROUP / n;

			for (uint32_t h = 0; h < n; h++) {
				int32_t as = form.halves ? half_sum[2 * i + h]
							 : half_sum[2 * i] +
								   half_sum[2 * i + 1];

				if (form.has_min)
					as = 0;
				dot_panel(wg + h * len * KV_PANEL,
					  a + i * KV_GROUP + h * len, len,
					  as * (1 << g->zero_shift), s);
				for (uint32_t c = 0; c < KV_PANEL; c++) {
					float d = scale_at(form, scale, h * KV_PANEL + c);

					f[c] = fmaf((float)s[c], d, f[c]);
				}
			}
			if (form.has_min)
				for (uint32_t c = 0; c < KV_PANEL; c++)
					f[c] = fmaf(sum[i], scale_at(form, min, c), f[c]);
		}
		for (uint32_t c = 0; c < KV_PANEL; c++)
			f[c] *= g->act->scale[m];
		store_row(g, m, f);
	}
}

void kv_gemm_nib_sym_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.nibbles = true, .scale = SCALE_F16});
}

void kv_gemm_nib_min_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.nibbles = true, .has_min = true, .scale = SCALE_F16});
}

void kv_gemm_nib_min32_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.nibbles = true, .has_min = true, .scale = SCALE_F32});
}

void kv_gemm_byte_sym_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.scale = SCALE_F16});
}

void kv_gemm_byte_min_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.has_min = true, .scale = SCALE_F16});
}

void kv_gemm_byte_min32_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.has_min = true, .scale = SCALE_F32});
}

void kv_gemm_byte_half_c(const struct kv_gemm *g)
{
	gemm_int(g, (struct form){.halves = true, .scale = SCALE_F32});
}

static void gemm_float(const struct kv_gemm *g, float (*get)(const uint8_t *, size_t))
{
	for (uint32_t m = g->m0; m < g->m1; m++) {
		const float *x = g->x + (size_t)m * g->ldx;
		float f[KV_PANEL] = {0};

		for (uint32_t i = 0; i < g->k; i++)
			for (uint32_t c = 0; c < g->n_cols; c++)
				f[c] = fmaf(x[i], get(g->panel, (size_t)i * KV_PANEL + c),
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
