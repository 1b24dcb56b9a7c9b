/* SPDX-License-Identifier: MIT */
/* Row kernels against the reference, and the reference against double. */
#include <math.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/c/exp_c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"
#include "tests/kern/checkkern.h"

static const uint32_t dims[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 576, 1000, 1536};
enum { N_DIMS = KVD_ARRAY_LEN(dims) };

static void check_exp(void)
{
	double worst = 0;

	ck_context("exp");
	for (int i = 0; i < 200000; i++) {
		float x = (float)(ck_unit() * 174.5 - 86.8);
		double want = exp((double)x), e = fabs(kv_exp_c(x) - want) / want;

		worst = ck_max(worst, e);
	}
	if (worst > 1.2e-7)
		ck_fail("relative error %.3g", worst);
	CK(kv_exp_c(0) == 1);
	CK(kv_exp_c(-1e30f) < 1.7e-38f && kv_exp_c(-1e30f) >= 0);
	CK(isfinite(kv_exp_c(1e30f)) && isfinite(kv_exp_c(INFINITY)));
	CK(isnan(kv_exp_c(NAN)));
}

/* Random operands of any size, and products plus an addend half a step below or above. */
static void check_fma(void)
{
	ck_context("fma");
	for (int i = 0; i < 200000; i++) {
		float a = ck_normal(), b = ck_normal(), c = ck_normal(), got, want;

		if (i % 4 == 1)
			c = ldexpf(c, (int)ck_below(60) - 30);
		if (i % 4 == 2) {
			a = ldexpf(a, -(int)ck_below(140));
			b = ldexpf(b, -(int)ck_below(20));
			c = ldexpf(c, -130 - (int)ck_below(20));
		}
		if (i % 4 == 3) {
			a = 1 + ldexpf((float)ck_below(4096), -23);
			b = 1 + ldexpf((float)ck_below(4096), -23);
			c = ldexpf(1 + ldexpf((float)ck_below(4096), -23),
				   (int)ck_below(50) - 25);
		}
		got = kv_fma_c(a, b, c);
		want = fmaf(a, b, c);
		ck_same("fma", &got, &want, 1);
	}
	CK(kv_fma_c(0x1p100f, 0x1p100f, 1) == INFINITY);
	CK(isnan(kv_fma_c(INFINITY, 0, 1)) && isnan(kv_fma_c(1, NAN, 1)));
	CK(signbit(kv_fma_c(-0.0f, 1, -0.0f)) && !signbit(kv_fma_c(-1, 1, 1)));
}

static void check_rms_norm(const struct ck *ck, uint32_t d, enum ck_pattern p)
{
	float *x = ck_alloc(d * 4), *w = ck_alloc(d * 4);
	float *got = ck_alloc(d * 4), *want = ck_alloc(d * 4);
	double ss = 0, r;

	ck_context("rms_norm d %u pattern %d", d, p);
	ck_fill(x, d, p);
	ck_fill(w, d, CK_NORMAL);
	ck->ref.rms_norm(x, w, 1e-5f, want, d);
	ck->ops.rms_norm(x, w, 1e-5f, got, d);
	ck_same("y", got, want, d);
	for (uint32_t i = 0; i < d; i++)
		ss += (double)x[i] * x[i];
	r = 1 / sqrt(ss / d + 1e-5);
	for (uint32_t i = 0; i < d; i++)
		ck_near("y", want[i], x[i] * r * w[i], 1e-37, 3e-6);
	ck->ops.rms_norm(x, w, 1e-5f, x, d);
	ck_same("y in place", x, want, d);
}

static void check_silu(const struct ck *ck, uint32_t d, enum ck_pattern p)
{
	float *g = ck_alloc(d * 4), *u = ck_alloc(d * 4);
	float *got = ck_alloc(d * 4), *want = ck_alloc(d * 4);

	ck_context("silu_mul d %u pattern %d", d, p);
	ck_fill(g, d, p);
	ck_fill(u, d, CK_NORMAL);
	if (p == CK_NORMAL && d > 8) {
		g[3] = NAN;
		g[5] = INFINITY;
		g[6] = -INFINITY;
	}
	ck->ref.silu_mul(g, u, want, d);
	ck->ops.silu_mul(g, u, got, d);
	ck_same("y", got, want, d);
	for (uint32_t i = 0; i < d; i++)
		if (isfinite(g[i]) && fabsf(g[i]) < 80)
			ck_near("y", want[i],
				(double)g[i] / (1 + exp(-(double)g[i])) * u[i], 1e-36,
				1e-6);
}

static void check_logits(const struct ck *ck, uint32_t n, enum ck_pattern p)
{
	float *x = ck_alloc(n * 4);
	struct kv_logits_stat got = {0}, want = {0};
	double max = -INFINITY, sum = 0;
	uint32_t argmax = 0;

	ck_context("logits n %u pattern %d", n, p);
	ck_fill(x, n, p);
	if (p == CK_NORMAL && n > 20)
		x[n - 1] = x[n / 2] = 9; /* equal maxima: the first counts */
	ck->ref.logits(x, n, &want);
	ck->ops.logits(x, n, &got);
	ck_same("max", &got.max, &want.max, 1);
	ck_same("lse", &got.lse, &want.lse, 1);
	CK(got.argmax == want.argmax);
	for (uint32_t i = 0; i < n; i++) {
		if (x[i] > max) {
			max = x[i];
			argmax = i;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		sum += exp(x[i] - max);
	CK(want.argmax == argmax && (double)want.max == max);
	ck_near("lse", want.lse, max + log(sum), 1e-5, 2e-7);
}

static void check_rope(const struct ck *ck, uint32_t hd, uint32_t rd,
		       enum kv_rope_mode mode)
{
	float *got = ck_alloc(hd * 4), *want = ck_alloc(hd * 4), *cs = ck_alloc(rd * 4);
	float x[KV_HEAD_DIM_MAX];

	ck_context("rope head_dim %u dims %u mode %d", hd, rd, mode);
	ck_fill(x, hd, CK_NORMAL);
	memcpy(got, x, hd * 4);
	memcpy(want, x, hd * 4);
	for (uint32_t i = 0; i < rd / 2; i++) {
		double a = ck_unit() * 6;

		cs[i] = (float)cos(a);
		cs[rd / 2 + i] = (float)sin(a);
	}
	ck->ref.rope(want, cs, rd, mode);
	ck->ops.rope(got, cs, rd, mode);
	ck_same("x", got, want, hd);
	for (uint32_t i = 0; i < rd / 2; i++) {
		uint32_t a = mode == KV_ROPE_NEOX ? i : 2 * i;
		uint32_t b = mode == KV_ROPE_NEOX ? i + rd / 2 : 2 * i + 1;
		double c = cs[i], s = cs[rd / 2 + i];

		ck_near("a", want[a], x[a] * c - x[b] * s, 1e-6, 1e-6);
		ck_near("b", want[b], x[a] * s + x[b] * c, 1e-6, 1e-6);
	}
	for (uint32_t i = rd; i < hd; i++)
		CK(want[i] == x[i]);
}

static void check_store(const struct ck *ck, uint32_t hd, uint32_t bt, enum ck_pattern p)
{
	float *x = ck_alloc(hd * 4);
	uint16_t *kd = ck_alloc((size_t)hd * bt * 2), *vd = ck_alloc((size_t)hd * bt * 2);
	struct kv_plane kp = {.codes = kd, .head_dim = hd, .block_tokens = bt};
	struct kv_plane vp = {.codes = vd, .head_dim = hd, .block_tokens = bt};
	uint32_t token = ck_below(bt);

	ck_context("store head_dim %u block_tokens %u pattern %d", hd, bt, p);
	ck_fill(x, hd, p);
	ck->ops.store_k[KV_FORMAT_FP16](x, &kp, token);
	ck->ops.store_v[KV_FORMAT_FP16](x, &vp, token);
	for (uint32_t d = 0; d < hd; d++) {
		uint16_t want = kv_half_from_float(x[d]);

		for (uint32_t t = 0; t < bt; t++) {
			CK(kd[d * bt + t] == (t == token ? want : 0xffff));
			CK(vd[t * hd + d] == (t == token ? want : 0xffff));
		}
	}
}

void check_rows(const struct ck *ck)
{
	if (!ck->below.act)
		check_exp();
	if (!ck->below.act)
		check_fma();
	for (uint32_t i = 0; i < N_DIMS; i++) {
		for (int p = 0; p < CK_N_PATTERNS; p++) {
			check_rms_norm(ck, dims[i], p);
			check_silu(ck, dims[i], p);
			check_logits(ck, dims[i], p);
			ck_release_all();
		}
	}
	if (!ck->quick)
		check_logits(ck, 49152, CK_NORMAL);
	for (uint32_t hd = 8; hd <= KV_HEAD_DIM_MAX; hd += 8) {
		for (int mode = KV_ROPE_NORMAL; mode <= KV_ROPE_NEOX; mode++) {
			check_rope(ck, hd, hd, mode);
			check_rope(ck, hd, 2 + 2 * ck_below(hd / 2), mode);
		}
		for (uint32_t bt = 16; bt <= 32; bt *= 2)
			for (int p = 0; p < CK_N_PATTERNS; p++)
				check_store(ck, hd, bt, p);
		ck_release_all();
	}
}
