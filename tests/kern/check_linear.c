/* SPDX-License-Identifier: MIT */
/*
 * Activation codes and panels. The right value of an output is the sum in double of the
 * dequantized weights times the activations, within the error that 15 bits allow.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/cpu/weight.h"
#include "kernels/half.h"
#include "tests/kern/checkkern.h"

static struct kv_act act_new(uint32_t m, uint32_t k)
{
	return (struct kv_act){
		.codes = ck_alloc((size_t)m * k * 2),
		.scale = ck_alloc(m * sizeof(float)),
		.sum = ck_alloc((size_t)m * (k / 32) * sizeof(float)),
		.half_sum = ck_alloc((size_t)m * (k / 16) * sizeof(int32_t)),
		.k = k,
	};
}

/* Not a float of the padding is set. */
static struct kv_act act_many_new(uint32_t m, uint32_t k)
{
	uint32_t rows = (m + KV_ACT_TILE_ROWS - 1) / KV_ACT_TILE_ROWS * KV_ACT_TILE_ROWS;

	return (struct kv_act){
		.codes = ck_alloc((size_t)rows * k * 4),
		.scale = ck_alloc(m * sizeof(float)),
		.sum = ck_alloc((size_t)rows * (k / 32) * sizeof(float)),
		.k = k,
	};
}

/* Each bundle may order codes as it likes, so only scales and sums are comparable. */
static void check_act(const struct ck *ck)
{
	static const uint32_t ks[] = {32, 64, 96, 576, 1536};

	for (size_t i = 0; i < KVD_ARRAY_LEN(ks); i++) {
		for (int p = 0; p < CK_N_PATTERNS + 2; p++) {
			uint32_t k = ks[i];
			struct kv_act got = act_new(1, k), want = act_new(1, k);
			float *x = ck_alloc(k * sizeof(float));

			ck_context("act k %u pattern %d", k, p);
			ck_fill(x, k, p < CK_N_PATTERNS ? p : CK_NORMAL);
			if (p == CK_N_PATTERNS)
				x[ck_below(k)] = NAN;
			if (p == CK_N_PATTERNS + 1)
				x[ck_below(k)] = -INFINITY;
			ck->ops.act(x, &got, 0);
			ck->ref.act(x, &want, 0);
			ck_same("scale", got.scale, want.scale, 1);
			ck_same("sum", got.sum, want.sum, k / 32);
			CK(memcmp(got.half_sum, want.half_sum, k / 16 * 4) == 0);

			const int16_t *a = (const int16_t *)want.codes;
			for (uint32_t j = 0; j < k && isfinite(want.scale[0]); j++)
				ck_near("a * scale", (double)a[j] * want.scale[0], x[j],
					0.5001 * want.scale[0] + 1e-30, 2e-7);
			ck_release_all();
		}
	}
}

/* act_many orders codes and sums by tiles, so only scales and sums are comparable. */
static void check_act_many(const struct ck *ck)
{
	static const uint32_t ks[] = {32, 96, 576};

	for (size_t i = 0; i < KVD_ARRAY_LEN(ks); i++) {
		for (int p = 0; p < CK_N_PATTERNS + 2; p++) {
			uint32_t k = ks[i], m = 1 + ck_below(40), n_groups = k / 32;
			struct kv_act got = act_many_new(m, k), want = act_new(m, k);
			float *x = ck_alloc((size_t)m * k * sizeof(float));

			ck_context("act_many m %u k %u pattern %d", m, k, p);
			ck_fill(x, (size_t)m * k, p < CK_N_PATTERNS ? p : CK_NORMAL);
			if (p == CK_N_PATTERNS)
				x[ck_below(m * k)] = NAN;
			if (p == CK_N_PATTERNS + 1)
				x[ck_below(m * k)] = -INFINITY;
			for (uint32_t r = 0; r < m; r++) {
				ck->ops.act_many(x + (size_t)r * k, &got, r);
				ck->ref.act(x + (size_t)r * k, &want, r);
			}
			ck_same("scale", got.scale, want.scale, m);
			for (uint32_t r = 0; r < m; r++) {
				const float *tile =
					got.sum + (size_t)(r / 16) * n_groups * 16;

				for (uint32_t g = 0; g < n_groups; g++)
					ck_same("sum", &tile[g * 16 + r % 16],
						&want.sum[r * n_groups + g], 1);
			}
			ck_release_all();
		}
	}
}

/* Random rows of a type: any codes, scales of the usual size. */
static void random_rows(enum kv_wtype type, uint32_t n, uint32_t k, uint8_t *data,
			bool extreme)
{
	size_t row_bytes = (size_t)kv_wtype_row_bytes(type, k);
	uint32_t group = kv_wtype_group(type);
	size_t group_bytes = row_bytes / (k / group);

	uint8_t most = type == KV_WTYPE_Q8_0 ? 0x7f : 0xff;

	for (size_t i = 0; i < n * row_bytes; i++) {
		/* Runs of a sign make the largest sums. */
		if (type == KV_WTYPE_Q8_0 && i % 16 == 0 && ck_below(8) == 0)
			most = most == 0x7f ? 0x80 : 0x7f;
		data[i] = extreme ? most : (uint8_t)ck_u64();
	}
	for (size_t g = 0; g < (size_t)n * (k / group); g++) {
		uint8_t *p = data + g * group_bytes;
		uint16_t h = kv_half_from_float(ck_normal() * 0.05f);
		uint16_t h2 = kv_half_from_float(ck_normal() * 0.2f);

		switch (type) {
		case KV_WTYPE_F32: {
			float f = ck_normal();

			memcpy(p, &f, 4);
			break;
		}
		case KV_WTYPE_F16:
			h = ck_half(true);
			memcpy(p, &h, 2);
			break;
		case KV_WTYPE_BF16:
			h = (uint16_t)(kv_float_bits(ck_normal()) >> 16);
			memcpy(p, &h, 2);
			break;
		case KV_WTYPE_Q6_K:
			memcpy(p + 208, &h, 2);
			break;
		case KV_WTYPE_Q4_1:
		case KV_WTYPE_Q5_1:
		case KV_WTYPE_Q4_K:
		case KV_WTYPE_Q5_K:
			memcpy(p + 2, &h2, 2);
			memcpy(p, &h, 2);
			break;
		default:
			memcpy(p, &h, 2);
			break;
		}
	}
}

struct gemm_case {
	enum kv_wtype type;
	uint32_t n, k, m;
	enum ck_pattern pattern;
	bool bias, extreme;
	bool one_sign; /* activations are near the largest one, and of its sign */
};

static void run_gemm(kv_gemm_fn *const gemm[], const struct kv_weight *w,
		     const struct gemm_case *c, const float *x, const struct kv_act *act,
		     const float *bias, float *y, size_t ldy, uint32_t step)
{
	const struct weight_segment *seg = &w->segments[0];
	uint8_t *scratch = ck_alloc(kv_gemm_scratch(c->k));

	for (uint32_t p = 0; p < seg->n_panels; p++) {
		uint32_t left = seg->n - p * KV_PANEL;

		for (uint32_t m0 = 0; m0 < c->m; m0 += step) {
			struct kv_gemm g = {
				.panel = seg->panels + p * seg->panel_bytes,
				.k = c->k,
				.zero_shift = seg->zero_shift,
				.n_cols = left < KV_PANEL ? left : KV_PANEL,
				.m0 = m0,
				.m1 = m0 + step < c->m ? m0 + step : c->m,
				.act = act,
				.x = x,
				.ldx = c->k,
				.y = y + p * KV_PANEL,
				.ldy = ldy,
				.bias = c->bias ? bias + p * KV_PANEL : NULL,
				.scratch = scratch,
			};
			gemm[seg->form](&g);
		}
	}
}

/* The kernels for many rows, in chunks from one tile to all. */
static void check_gemm_many(const struct ck *ck, const struct gemm_case *c,
			    const struct kv_weight *w, const float *x, const float *bias,
			    const float *start, const float *want, float *got, size_t ny,
			    size_t ldy)
{
	struct kv_act act = act_many_new(c->m, c->k);

	for (uint32_t i = 0; i < c->m; i++)
		ck->ops.act_many(x + (size_t)i * c->k, &act, i);
	for (uint32_t step = KV_ACT_TILE_ROWS;; step = step * 2 + KV_ACT_TILE_ROWS) {
		memcpy(got, start, ny * 4);
		run_gemm(ck->ops.gemm_many, w, c, x, &act, bias, got, ldy, step);
		ck_same("y of many", got, want, ny);
		if (step >= c->m)
			break;
	}
}

static void check_gemm(const struct ck *ck, const struct gemm_case *c)
{
	size_t row_bytes = (size_t)kv_wtype_row_bytes(c->type, c->k), ny;
	uint8_t *data = ck_alloc(c->n * row_bytes);
	float *x = ck_alloc((size_t)c->m * c->k * 4), *bias = ck_alloc(c->n * 4);
	float *row = ck_alloc(c->k * 4);
	float *got, *want, *start;
	struct kv_act act = act_new(c->m, c->k / 32 * 32 + 32);
	struct kv_act ref_act = act_new(c->m, c->k / 32 * 32 + 32);
	struct kv_weight_part part = {c->type, c->n, c->k, data};
	size_t ldy = c->n + 3;
	struct kv_weight *w;
	enum kv_form form;

	ck_context("%s n %u k %u m %u pattern %d%s%s%s", kv_wtype_name(c->type), c->n,
		   c->k, c->m, c->pattern, c->bias ? " bias" : "",
		   c->extreme ? " extreme" : "", c->one_sign ? " one sign" : "");
	random_rows(c->type, c->n, c->k, data, c->extreme);
	ck_fill(x, (size_t)c->m * c->k, c->pattern);
	for (size_t i = 0; c->one_sign && i < (size_t)c->m * c->k; i++)
		x[i] = 1 - 0.01f * (float)ck_unit();
	ck_fill(bias, c->n, CK_NORMAL);
	ny = (size_t)(c->m - 1) * ldy + c->n; /* the last row has no gap behind it */
	got = ck_alloc(ny * 4);
	want = ck_alloc(ny * 4);
	start = ck_alloc(ny * 4);
	ck_fill(start, ny, CK_NORMAL);
	memcpy(got, start, ny * 4);
	memcpy(want, start, ny * 4);
	if (weight_pack(NULL, NULL, &part, 1, &w) < 0) {
		ck_fail("weight_pack");
		return;
	}
	form = w->segments[0].form;
	act.k = ref_act.k = c->k;
	for (uint32_t i = 0; form < KV_FORM_N_INT && i < c->m; i++) {
		ck->ops.act(x + (size_t)i * c->k, &act, i);
		ck->ref.act(x + (size_t)i * c->k, &ref_act, i);
	}
	run_gemm(ck->ref.gemm, w, c, x, &ref_act, bias, want, ldy, c->m);
	run_gemm(ck->ops.gemm, w, c, x, &act, bias, got, ldy, c->m);
	ck_same("y", got, want, ny);
	/* Rows one by one and in odd chunks must not change a bit. */
	for (uint32_t step = 1; step < c->m; step = step * 2 + 1) {
		memcpy(got, start, ny * 4);
		run_gemm(ck->ops.gemm, w, c, x, &act, bias, got, ldy, step);
		ck_same("y in chunks", got, want, ny);
	}

	if (form < KV_FORM_N_INT && ck->ops.act_many)
		check_gemm_many(ck, c, w, x, bias, start, want, got, ny, ldy);

	/* In double, on some outputs. Each activation is off by half a step at most; float
	 * sums by some roundings of the largest term. */
	for (uint32_t n = 0; n < c->n; n += 1 + c->n / 16) {
		kv_row_dequantize(c->type, c->k, data + n * row_bytes, row);
		for (uint32_t m = 0; m < c->m; m += 1 + c->m / 4) {
			const float *xm = x + (size_t)m * c->k;
			double sum = 0, size = 0, top = 0, wsum = 0;

			for (uint32_t i = 0; i < c->k; i++) {
				sum += (double)row[i] * xm[i];
				size += fabs((double)row[i] * xm[i]);
				wsum += fabs((double)row[i]);
				top = ck_max(top, fabs((double)xm[i]));
			}
			if (form >= KV_FORM_N_INT)
				wsum = 0;
			if (c->bias)
				sum += bias[n];
			ck_near("y", want[m * ldy + n], sum,
				1e-5 + 1e-5 * size + 0.51 * wsum * top / KV_ACT_MAX,
				1e-5);
		}
	}
	weight_free(w);
	ck_release_all();
}

void check_linear(const struct ck *ck)
{
	static const uint32_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 17, 25, 43};
	uint32_t n_ms = ck->quick ? 4 : KVD_ARRAY_LEN(ms);

	if (ck->ops.act != ck->below.act)
		check_act(ck);
	if (ck->ops.act_many)
		check_act_many(ck);
	for (int type = 0; type < KV_WTYPE_N; type++) {
		uint32_t group = kv_wtype_group(type), base = group == 1 ? 7 : group;

		for (uint32_t i = 0; i < n_ms; i++) {
			for (int p = 0; p < CK_N_PATTERNS; p++) {
				struct gemm_case c = {
					.type = type,
					.n = 1 + ck_below(ck->quick ? 40 : 100),
					.k = base * (1 + ck_below(group == 256 ? 2 : 6)),
					.m = ms[i],
					.pattern = p,
					.bias = ck_below(2),
					.extreme = ck_below(4) == 0,
					.one_sign = ck_below(6) == 0,
				};
				if (c.n > 60)
					c.n = c.n / 32 * 32;
				check_gemm(ck, &c);
			}
		}
	}
	if (!ck->quick) {
		struct gemm_case c = {.type = KV_WTYPE_Q4_1, .n = 64, .k = 1536, .m = 70};

		check_gemm(ck, &c);
		c.type = KV_WTYPE_Q8_0;
		c.extreme = true;
		c.pattern = CK_EXTREMES;
		check_gemm(ck, &c);
		c.type = KV_WTYPE_Q5_1;
		check_gemm(ck, &c);
		c.one_sign = true;
		for (int type = 0; type < KV_WTYPE_N; type++) {
			c.type = type;
			check_gemm(ck, &c);
		}
	}
}
