/* SPDX-License-Identifier: MIT */
/* One span, and merging, against the reference and against double. */
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/kern/checkkern.h"

#include "ipc/base.h"

struct span_mem {
	struct kv_span sp;
	float *q;
	uint16_t *k[KV_SPAN_BLOCKS], *v[KV_SPAN_BLOCKS];
};

/* Planes of garbage past the last visible position, as a pool has them. */
static void span_new(struct span_mem *s, uint32_t n_q, uint32_t hd, uint32_t bt,
		     const uint32_t *n_tok, bool wild)
{
	uint32_t last = n_tok[n_q - 1];

	s->sp = (struct kv_span){.n_q = n_q, .head_dim = hd, .block_tokens = bt};
	/* Only what the queries need is there. */
	s->q = ck_alloc(((size_t)(hd - 1) * KV_SPAN_QUERIES + n_q) * 4);
	ck_fill(s->q, (size_t)(hd - 1) * KV_SPAN_QUERIES + n_q,
		wild ? CK_OUTLIERS : CK_NORMAL);
	for (uint32_t i = 0; i < (hd - 1) * KV_SPAN_QUERIES + n_q; i++)
		s->q[i] *= 1 / sqrtf((float)hd);
	s->sp.q = s->q;
	for (uint32_t i = 0; i < n_q; i++) {
		s->sp.n_tok[i] = s->sp.n_code[i] = n_tok[i];
	}
	for (uint32_t b = 0; b * bt < last; b++) {
		s->k[b] = ck_alloc((size_t)hd * bt * 2);
		s->v[b] = ck_alloc((size_t)hd * bt * 2);
		for (uint32_t t = 0; t < bt && b * bt + t < last; t++) {
			for (uint32_t d = 0; d < hd; d++) {
				float kf = ck_normal() * (wild ? 30.0f : 1.0f);

				s->k[b][d * bt + t] = kv_half_from_float(kf);
				s->v[b][t * hd + d] =
					wild ? ck_half(false)
					     : kv_half_from_float(ck_normal());
			}
		}
		s->sp.k[b] = s->k[b];
		s->sp.v[b] = s->v[b];
	}
}

struct span_out {
	float *max, *sum, *o;
};

static struct span_out span_run(const struct kv_cpu_ops *ops, struct kv_span sp)
{
	struct span_out out = {
		.max = ck_alloc(sp.n_q * 4),
		.sum = ck_alloc(sp.n_q * 4),
		.o = ck_alloc((size_t)sp.n_q * sp.head_dim * 4),
	};

	sp.max = out.max;
	sp.sum = out.sum;
	sp.o = out.o;
	sp.s = ck_alloc(KV_SPAN_QUERIES * KV_SPAN * 4);
	ops->scores[KV_FORMAT_FP16](&sp);
	ops->softmax(&sp);
	ops->sums[KV_FORMAT_FP16](&sp);
	return out;
}

static void span_in_double(const struct span_mem *s, uint32_t i,
			   const struct span_out *got)
{
	uint32_t hd = s->sp.head_dim, bt = s->sp.block_tokens, n = s->sp.n_tok[i];
	double score[KV_SPAN], max = -INFINITY, sum = 0;

	for (uint32_t t = 0; t < n; t++) {
		score[t] = 0;
		for (uint32_t d = 0; d < hd; d++)
			score[t] += (double)s->q[d * KV_SPAN_QUERIES + i] *
				    kv_half_to_float(s->k[t / bt][d * bt + t % bt]);
		max = ck_max(max, score[t]);
	}
	for (uint32_t t = 0; t < n; t++)
		sum += exp(score[t] - max);
	ck_near("max", got->max[i], max, 1e-5, 1e-5);
	ck_near("log sum", got->max[i] + log(got->sum[i]), max + log(sum), 2e-5, 1e-5);
	for (uint32_t d = 0; d < hd; d++) {
		double o = 0, size = 0;

		for (uint32_t t = 0; t < n; t++) {
			double p = exp(score[t] - max) / sum *
				   kv_half_to_float(s->v[t / bt][t % bt * hd + d]);

			o += p;
			size += fabs(p);
		}
		ck_near("o", got->o[i * hd + d] / got->sum[i], o, 1e-6 + 3e-5 * size, 0);
	}
}

static void check_span(const struct ck *ck, uint32_t n_q, uint32_t hd, uint32_t bt,
		       bool wild)
{
	uint32_t n_tok[KV_SPAN_QUERIES], n = 1 + ck_below(KV_SPAN);
	struct span_out got, want, one;
	struct span_mem s;

	if (ck_below(4) == 0)
		n = KV_SPAN;
	for (uint32_t i = n_q; i-- > 0;) {
		n_tok[i] = n;
		if (n > 1 && ck_below(2))
			n -= 1 + ck_below(n > 3 ? 3 : n - 1);
	}
	ck_context("span queries %u head_dim %u block_tokens %u tokens %u..%u%s", n_q, hd,
		   bt, n_tok[0], n_tok[n_q - 1], wild ? " wild" : "");
	span_new(&s, n_q, hd, bt, n_tok, wild);
	want = span_run(&ck->ref, s.sp);
	got = span_run(&ck->ops, s.sp);
	ck_same("max", got.max, want.max, n_q);
	ck_same("sum", got.sum, want.sum, n_q);
	ck_same("o", got.o, want.o, (size_t)n_q * hd);
	/* A query alone gives what it gives among others. */
	for (uint32_t i = 0; i < n_q; i++) {
		struct kv_span sp = s.sp;

		sp.n_q = 1;
		sp.n_tok[0] = sp.n_code[0] = n_tok[i];
		sp.q = s.q + i;
		one = span_run(&ck->ops, sp);
		ck_same("max alone", one.max, want.max + i, 1);
		ck_same("sum alone", one.sum, want.sum + i, 1);
		ck_same("o alone", one.o, want.o + i * hd, hd);
	}
	if (!wild)
		for (uint32_t i = 0; i < n_q; i++)
			span_in_double(&s, i, &want);
	ck_release_all();
}

static void check_merge(const struct ck *ck, uint32_t hd)
{
	float *o = ck_alloc(hd * 4), *o2 = ck_alloc(hd * 4), *p = ck_alloc(hd * 4);
	float max = ck_normal() * 5, sum = 1 + 10 * (float)ck_unit();
	float m = ck_normal() * 5, s = 1 + 10 * (float)ck_unit();
	float max2 = max, sum2 = sum, start[KV_HEAD_DIM_MAX];
	double top = ck_max(max, m), a = exp(max - top), b = exp(m - top);
	double want_sum = sum * a + s * b;

	ck_context("merge head_dim %u", hd);
	ck_fill(o, hd, CK_NORMAL);
	ck_fill(p, hd, CK_NORMAL);
	memcpy(o2, o, hd * 4);
	memcpy(start, o, hd * 4);
	ck->ref.merge(&max, &sum, o, m, s, p, hd);
	ck->ops.merge(&max2, &sum2, o2, m, s, p, hd);
	ck_same("max", &max2, &max, 1);
	ck_same("sum", &sum2, &sum, 1);
	ck_same("o", o2, o, hd);
	ck_near("max", max, top, 0, 0);
	ck_near("sum", sum, want_sum, 0, 1e-6);
	for (uint32_t d = 0; d < hd; d++)
		ck_near("o", o[d], start[d] * a + p[d] * b, 1e-5, 1e-6);
}

void check_attention(const struct ck *ck)
{
	static const uint32_t hds[] = {8, 16, 24, 64, 80, 96, 104, 112, 128, 192, 256};

	if (ck->ops.scores[KV_FORMAT_FP16] == ck->below.scores[KV_FORMAT_FP16] &&
	    ck->ops.merge == ck->below.merge)
		return;
	for (size_t i = 0; i < KVD_ARRAY_LEN(hds); i++) {
		if (ck->quick && hds[i] > 64)
			break;
		for (uint32_t n_q = 1; n_q <= KV_SPAN_QUERIES; n_q += ck->quick ? 4 : 1)
			for (uint32_t bt = 16; bt <= 32; bt *= 2)
				check_span(ck, n_q, hds[i], bt, ck_below(4) == 0);
		check_merge(ck, hds[i]);
	}
}
