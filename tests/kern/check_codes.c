/* SPDX-License-Identifier: MIT */
/* One span of each format, with and without partial blocks, against the reference and double. */
#include <math.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/half.h"
#include "tests/kern/checkkern.h"
#include "tests/kern/dequant.h"

enum { MAX_BLOCKS = KV_SPAN_BLOCKS };

struct codes {
	struct kv_layout l;
	struct kv_span sp;
	uint8_t *block[MAX_BLOCKS];
	uint16_t *own[MAX_BLOCKS]; /* K, then V at tail_plane_bytes */
	float *q_row[KV_SPAN_QUERIES];
};

struct out {
	float *s, *e, *max, *sum, *o;
};

static void block_write(const struct kv_cpu_ops *ref, struct codes *c, uint32_t b,
			uint32_t n, bool own, bool wild)
{
	const struct kv_layout *l = &c->l;
	uint32_t hd = l->head_dim, bt = l->block_tokens;
	struct dq_planes p = dq_planes(l, c->block[b], 0, 0);
	struct kv_plane kp = {(void *)p.k, (void *)p.k_params, (uint16_t *)p.k_pair, hd,
			      bt};
	struct kv_plane vp = {(void *)p.v, (void *)p.v_params, NULL, hd, bt};
	uint16_t *k16 = c->own[b], *v16 = k16 + l->tail_plane_bytes / 2;
	float x[KV_HEAD_DIM_MAX];

	for (uint32_t t = 0; t < n; t++) {
		ck_fill(x, hd, CK_NORMAL);
		for (uint32_t d = 0; d < hd; d++) {
			if (wild && d % 5 == 0)
				x[d] *= 20;
			k16[d * bt + t] = kv_half_from_float(x[d]);
		}
		if (!own && l->k_format != KV_FORMAT_INT4)
			ref->store_k[l->k_format](x, &kp, t);
		ck_fill(x, hd, CK_NORMAL);
		for (uint32_t d = 0; d < hd; d++)
			v16[t * hd + d] = kv_half_from_float(x[d]);
		if (!own && l->v_format != KV_FORMAT_INT4)
			ref->store_v[l->v_format](x, &vp, t);
	}
	if (!own && l->k_format == KV_FORMAT_INT4)
		ref->pack_k4(k16, &kp);
	if (!own && l->v_format == KV_FORMAT_INT4)
		ref->pack_v4(v16, &vp);
}

/* n_tok does not decrease; with tails the block of a query's last token is open. */
static void codes_new(const struct kv_cpu_ops *ref, struct codes *c, uint32_t n_q,
		      const uint32_t *n_tok, bool wild)
{
	const struct kv_layout *l = &c->l;
	uint32_t hd = l->head_dim, bt = l->block_tokens, last = n_tok[n_q - 1];
	bool tails = kv_layout_needs_tail(l), whole = ck_below(2), full[MAX_BLOCKS] = {0};

	c->sp = (struct kv_span){.n_q = n_q, .head_dim = hd, .block_tokens = bt};
	for (uint32_t i = 0; i < n_q; i++) {
		c->sp.n_tok[i] = c->sp.n_code[i] = n_tok[i];
		if (tails && !(whole && n_tok[i] == KV_SPAN))
			c->sp.n_code[i] = (n_tok[i] - 1) / bt * bt;
		for (uint32_t b = 0; b * bt < c->sp.n_code[i]; b++)
			full[b] = true;
	}
	for (uint32_t b = 0; b * bt < last; b++) {
		uint32_t n = last - b * bt < bt ? last - b * bt : bt;

		c->block[b] = ck_alloc(l->block_bytes);
		c->own[b] = ck_alloc((l->tail_plane_bytes + hd * bt * 2));
		block_write(ref, c, b, tails ? bt : n, !full[b], wild);
		if (full[b]) {
			struct dq_planes p = dq_planes(l, c->block[b], 0, 0);

			c->sp.k[b] = p.k;
			c->sp.v[b] = p.v;
			c->sp.k_params[b] = p.k_params;
			c->sp.v_params[b] = p.v_params;
			c->sp.k_pair[b] = p.k_pair;
		}
	}
	for (uint32_t i = 0; i < n_q; i++) {
		c->q_row[i] = (float *)ck_alloc(hd * 4 + 4) + 1;
		ck_fill(c->q_row[i], hd, wild ? CK_OUTLIERS : CK_NORMAL);
		for (uint32_t d = 0; d < hd; d++)
			c->q_row[i][d] /= sqrtf((float)hd) * (wild ? 100 : 1);
		if (c->sp.n_code[i] < c->sp.n_tok[i]) {
			c->sp.own_k[i] = c->own[c->sp.n_code[i] / bt];
			c->sp.own_v[i] = c->sp.own_k[i] + l->tail_plane_bytes / 2;
		}
		c->sp.q_row[i] = c->q_row[i];
	}
}

/* Queries first .. first + n - 1 of the span. */
static struct out codes_run(const struct kv_cpu_ops *ops, const struct codes *c,
			    uint32_t first, uint32_t n)
{
	const struct kv_layout *l = &c->l;
	uint32_t hd = l->head_dim;
	struct kv_span sp = c->sp;
	bool own = false;
	float *q = ck_alloc((size_t)hd * KV_SPAN_QUERIES * 4);
	struct out out = {
		.s = ck_alloc(KV_SPAN_QUERIES * KV_SPAN * 4),
		.e = ck_alloc(KV_SPAN_QUERIES * KV_SPAN * 4),
		.max = ck_alloc(n * 4),
		.sum = ck_alloc(n * 4),
		.o = ck_alloc((size_t)n * hd * 4),
	};

	sp.n_q = n;
	for (uint32_t i = 0; i < n; i++) {
		uint8_t *codes = ck_alloc(kv_query_bytes(hd));

		sp.n_tok[i] = c->sp.n_tok[first + i];
		sp.n_code[i] = c->sp.n_code[first + i];
		sp.own_k[i] = c->sp.own_k[first + i];
		sp.own_v[i] = c->sp.own_v[first + i];
		sp.q_row[i] = c->sp.q_row[first + i];
		own = own || sp.n_code[i] < sp.n_tok[i];
		for (uint32_t d = 0; d < hd; d++)
			q[d * KV_SPAN_QUERIES + i] = sp.q_row[i][d];
		sp.q_codes[i] = codes;
		ops->query(sp.q_row[i], codes, &sp.q_scale[i], &sp.q_sum[i], hd);
	}
	for (uint32_t i = n; i < KV_SPAN_QUERIES; i++)
		sp.q_codes[i] = NULL;
	sp.q = q;
	sp.max = out.max;
	sp.sum = out.sum;
	sp.o = out.o;
	sp.s = out.s;
	ops->scores[l->k_format](&sp);
	if (own)
		ops->scores_own(&sp);
	memcpy(out.e, out.s, KV_SPAN_QUERIES * KV_SPAN * 4);
	sp.s = out.e;
	ops->softmax(&sp);
	ops->sums[l->v_format](&sp);
	if (own)
		ops->sums_own(&sp);
	return out;
}

/* What rounding the query to 15 bits, and for int4 times the channel scales to 8 bits of the
 * block's largest, may do to a score. */
static double score_tolerance(const struct codes *c, uint32_t i, uint32_t t,
			      const double *k)
{
	double top = 0, size = 0, step, tol;

	for (uint32_t d = 0; d < c->l.head_dim; d++) {
		top = ck_max(top, fabs((double)c->q_row[i][d]));
		size += fabs(k[d]);
	}
	step = top / KV_CODE_TOP;
	/* A float of a sum of codes whose zero is taken off after it, and float sums. */
	tol = top * size * 4e-6;
	if (t >= c->sp.n_code[i] || c->l.k_format == KV_FORMAT_FP16 ||
	    c->l.k_format == KV_FORMAT_FP8_E4M3)
		return tol;
	tol += 0.51 * step * size;
	if (c->l.k_format == KV_FORMAT_INT4) {
		uint32_t block = t / c->l.block_tokens;
		const uint8_t *a = c->sp.k_params[block];
		double largest = 0;

		for (uint32_t d = 0; d < c->l.head_dim; d++)
			largest = ck_max(largest, fabs((double)c->q_row[i][d]) * a[d]);
		tol += (128.1 * step + 0.51 * largest / 126) * 7.5 * c->l.head_dim *
		       kv_half_to_float(c->sp.k_pair[block][0]);
	}
	return tol;
}

/* Of w[t] = e[t] * scale[t] rounded to 15 bits, on dim d of the sum. */
static void check_sums(const struct codes *c, uint32_t i, const struct out *got,
		       double v[KV_SPAN][KV_HEAD_DIM_MAX])
{
	uint32_t hd = c->l.head_dim, bt = c->l.block_tokens;
	const float *e = got->e + i * KV_SPAN;
	bool ints = c->l.v_format == KV_FORMAT_INT8 || c->l.v_format == KV_FORMAT_INT4;
	double scale[KV_SPAN] = {0}, top = 0;

	for (uint32_t t = 0; ints && t < c->sp.n_code[i]; t++) {
		scale[t] = kv_half_to_float(
			((const uint16_t *)c->sp.v_params[t / bt])[t % bt]);
		top = ck_max(top, e[t] * scale[t]);
	}
	for (uint32_t d = 0; d < hd; d++) {
		double o = 0, tol = 1e-6, size = 0;

		for (uint32_t t = 0; t < c->sp.n_tok[i]; t++) {
			o += e[t] * v[t][d];
			size += fabs(e[t] * v[t][d]);
			if (ints && t < c->sp.n_code[i] && scale[t] > 0)
				tol += 0.51 * top / KV_CODE_TOP * fabs(v[t][d]) /
				       scale[t];
		}
		/* Again a float sum of codes less their zeros. */
		tol += 2e-5 * size + (ints ? 256 * top * 255 * 2e-6 : 0);
		ck_near("o", got->o[i * hd + d], o, tol, 0);
	}
}

static void codes_in_double(const struct codes *c, uint32_t i, const struct out *got)
{
	const struct kv_layout *l = &c->l;
	uint32_t hd = l->head_dim, bt = l->block_tokens;
	static double v[KV_SPAN][KV_HEAD_DIM_MAX];
	double k[KV_HEAD_DIM_MAX];

	for (uint32_t t = 0; t < c->sp.n_tok[i]; t++) {
		double s = 0;

		if (t < c->sp.n_code[i]) {
			struct dq_planes p = dq_planes(l, c->block[t / bt], 0, 0);

			dq_k(l, &p, t % bt, k);
			dq_v(l, &p, t % bt, v[t]);
		} else {
			const uint16_t *k16 = c->own[t / bt],
				       *v16 = k16 + l->tail_plane_bytes / 2;

			for (uint32_t d = 0; d < hd; d++) {
				k[d] = kv_half_to_float(k16[d * bt + t % bt]);
				v[t][d] = kv_half_to_float(v16[t % bt * hd + d]);
			}
		}
		for (uint32_t d = 0; d < hd; d++)
			s += c->q_row[i][d] * k[d];
		ck_near("score", got->s[i * KV_SPAN + t], s, score_tolerance(c, i, t, k),
			1e-6);
	}
	check_sums(c, i, got, v);
}

static void check_codes_span(const struct ck *ck, enum kv_format kf, enum kv_format vf,
			     uint32_t n_q, uint32_t hd, uint32_t bt, bool wild)
{
	uint32_t n_tok[KV_SPAN_QUERIES], n = 1 + ck_below(KV_SPAN);
	struct out got, want, one;
	struct codes c;

	memset(&c, 0, sizeof(c));
	CK(kv_layout_init(&c.l, kf, vf, 1, 1, hd, bt) == 0);
	if (ck_below(3) == 0)
		n = KV_SPAN;
	for (uint32_t i = n_q; i-- > 0;) {
		n_tok[i] = n;
		if (n > 1 && ck_below(2))
			n -= 1 + ck_below(n > 3 ? 3 : n - 1);
	}
	ck_context("k=%s,v=%s queries %u head_dim %u block_tokens %u tokens %u..%u%s",
		   kv_format_name(kf), kv_format_name(vf), n_q, hd, bt, n_tok[0],
		   n_tok[n_q - 1], wild ? " wild" : "");
	codes_new(&ck->ref, &c, n_q, n_tok, wild);
	want = codes_run(&ck->ref, &c, 0, n_q);
	got = codes_run(&ck->ops, &c, 0, n_q);
	for (uint32_t i = 0; i < n_q; i++) {
		ck_same("score", got.s + i * KV_SPAN, want.s + i * KV_SPAN, n_tok[i]);
		ck_same("e", got.e + i * KV_SPAN, want.e + i * KV_SPAN, n_tok[i]);
	}
	ck_same("max", got.max, want.max, n_q);
	ck_same("sum", got.sum, want.sum, n_q);
	ck_same("o", got.o, want.o, (size_t)n_q * hd);
	for (uint32_t i = 0; i < n_q; i += 1 + ck_below(3)) {
		one = codes_run(&ck->ops, &c, i, 1);
		ck_same("max alone", one.max, want.max + i, 1);
		ck_same("sum alone", one.sum, want.sum + i, 1);
		ck_same("o alone", one.o, want.o + i * hd, hd);
	}
	if (!ck->below.act && !ck->quick)
		for (uint32_t i = 0; i < n_q; i += 1 + ck_below(3))
			codes_in_double(&c, i, &want);
	ck_release_all();
}

/* Codes of a query: round trip, sum, and what is not finite. */
static void check_query(const struct ck *ck, uint32_t hd, enum ck_pattern p)
{
	float *q = (float *)ck_alloc(hd * 4 + 8) + 2, scale, want_scale;
	uint8_t *codes = ck_alloc(kv_query_bytes(hd)),
		*want = ck_alloc(kv_query_bytes(hd));
	int32_t sum, want_sum;

	ck_context("query head_dim %u pattern %d", hd, p);
	ck_fill(q, hd, p);
	if (p == CK_NORMAL && ck_below(3) == 0)
		q[ck_below(hd)] = ck_below(2) ? NAN : INFINITY;
	ck->ref.query(q, want, &want_scale, &want_sum, hd);
	ck->ops.query(q, codes, &scale, &sum, hd);
	ck_same("scale", &scale, &want_scale, 1);
	CK(sum == want_sum);
	for (uint32_t d = 0; d < hd && isfinite(want_scale) && want_scale > 0; d++) {
		int16_t c;

		memcpy(&c, want + 2 * d, 2);
		ck_near("code", (double)c * want_scale, q[d], 0.51 * want_scale, 0);
	}
	ck_release_all();
}

static bool same_ops(const struct ck *ck)
{
	const struct kv_cpu_ops *a = &ck->ops, *b = &ck->below;

	return a->query == b->query && a->scores_own == b->scores_own &&
	       a->sums_own == b->sums_own && a->softmax == b->softmax &&
	       memcmp(a->scores, b->scores, sizeof(a->scores)) == 0 &&
	       memcmp(a->sums, b->sums, sizeof(a->sums)) == 0;
}

void check_codes(const struct ck *ck)
{
	static const uint32_t hds[] = {8, 24, 64, 80, 96, 104, 112, 128, 192, 256};

	if (same_ops(ck))
		return;
	for (size_t i = 0; i < KVD_ARRAY_LEN(hds); i++) {
		for (int p = 0; p < CK_N_PATTERNS; p++)
			check_query(ck, hds[i], p);
		if (ck->quick && hds[i] > 64)
			break;
		/* Each K format with each V format, and some number of queries. */
		for (int pair = 0; pair < KV_FORMAT_N * KV_FORMAT_N; pair++)
			for (uint32_t bt = 16; bt <= 32; bt *= 2)
				for (int n = ck->quick ? 1 : 3; n > 0; n--)
					check_codes_span(ck, pair / KV_FORMAT_N,
							 pair % KV_FORMAT_N,
							 1 + ck_below(KV_SPAN_QUERIES),
							 hds[i], bt, ck_below(4) == 0);
	}
}
