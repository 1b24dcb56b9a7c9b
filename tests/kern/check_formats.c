/* SPDX-License-Identifier: MIT */
/*
 * The kernels of the quantized formats against the reference, bit by bit: spans of codes as a
 * pool may hold them, with partial blocks and without, queries, rotation, and writing of codes.
 */
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/kern/checkkern.h"

#include "ipc/base.h"

static const uint32_t head_dims[] = {8, 16, 24, 64, 80, 96, 104, 112, 128, 192, 256};

struct spans {
	struct kv_span sp;
	enum kv_format k, v;
	float *rows; /* [n_q][head_dim] */
};

static void *random_bytes(size_t n)
{
	uint8_t *p = ck_alloc(n);

	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)ck_u64();
	return p;
}

/* Half numbers in [0, top], exact zeros among them. */
static void random_halves(uint16_t *p, uint32_t n, float top)
{
	for (uint32_t i = 0; i < n; i++)
		p[i] = ck_below(20) ? kv_half_from_float(top * (float)ck_unit()) : 0;
}

/* Parameters of tokens that no query sees are anything. */
static void *token_params(uint32_t bt, uint32_t n, float top_zero, bool has_zero)
{
	uint16_t *p = ck_alloc((size_t)bt * (has_zero ? 4 : 2));

	random_halves(p, n, 0.1f);
	if (has_zero)
		random_halves(p + bt, n, top_zero);
	return p;
}

static void span_planes(struct spans *s, uint32_t n_code)
{
	struct kv_span *sp = &s->sp;
	uint32_t bt = sp->block_tokens, hd = sp->head_dim;

	for (uint32_t b = 0; b * bt < n_code; b++) {
		uint32_t n = n_code - b * bt < bt ? n_code - b * bt : bt;
		uint16_t *pair = ck_alloc(4);

		random_halves(pair, 2, 0.01f);
		sp->k_pair[b] = pair;
		sp->k[b] =
			random_bytes((size_t)hd * bt / (s->k == KV_FORMAT_INT4 ? 2 : 1));
		sp->v[b] =
			random_bytes((size_t)hd * bt / (s->v == KV_FORMAT_INT4 ? 2 : 1));
		sp->k_params[b] =
			s->k == KV_FORMAT_INT4
				? random_bytes((size_t)hd * 2)
				: token_params(bt, n, 255, s->k == KV_FORMAT_INT8);
		sp->v_params[b] = token_params(bt, n, s->v == KV_FORMAT_INT4 ? 15 : 255,
					       s->v != KV_FORMAT_FP8_E4M3);
	}
}

static uint16_t *own_plane(uint32_t n)
{
	uint16_t *p = ck_alloc((size_t)n * 2);

	for (uint32_t i = 0; i < n; i++)
		p[i] = ck_half(true);
	return p;
}

/* Queries see more and more; with partial blocks each sees codes up to its own block. */
static void span_visible(struct spans *s, bool own)
{
	struct kv_span *sp = &s->sp;
	uint32_t bt = sp->block_tokens, hd = sp->head_dim;
	uint32_t n = ck_below(4) ? 1 + ck_below(KV_SPAN) : KV_SPAN;

	for (uint32_t i = sp->n_q; i-- > 0;) {
		sp->n_tok[i] = n;
		sp->n_code[i] = own ? (n - 1) / bt * bt : n;
		if (own && i + 1 < sp->n_q && sp->n_code[i] == sp->n_code[i + 1]) {
			sp->own_k[i] = sp->own_k[i + 1];
			sp->own_v[i] = sp->own_v[i + 1];
		} else if (own) {
			sp->own_k[i] = own_plane(hd * bt);
			sp->own_v[i] = own_plane(hd * bt);
		}
		if (n > 1 && ck_below(2))
			n -= 1 + ck_below(n > 3 ? 3 : n - 1);
	}
}

static void span_run(const struct kv_cpu_ops *ops, const struct spans *s, bool own,
		     float *max, float *sum, float *o)
{
	struct kv_span sp = s->sp;
	uint32_t hd = sp.head_dim;
	float *q = ck_alloc((size_t)hd * KV_SPAN_QUERIES * 4);

	sp.q = q;
	sp.max = max;
	sp.sum = sum;
	sp.o = o;
	sp.s = ck_alloc(KV_SPAN_QUERIES * KV_SPAN * 4);
	for (uint32_t i = 0; i < sp.n_q; i++) {
		uint8_t *codes = ck_alloc(kv_query_bytes(hd));

		sp.q_row[i] = s->rows + (size_t)i * hd;
		for (uint32_t d = 0; d < hd; d++)
			q[d * KV_SPAN_QUERIES + i] = sp.q_row[i][d];
		ops->query(sp.q_row[i], codes, &sp.q_scale[i], &sp.q_sum[i], hd);
		sp.q_codes[i] = codes;
	}
	ops->scores[s->k](&sp);
	if (own)
		ops->scores_own(&sp);
	ops->softmax(&sp);
	ops->sums[s->v](&sp);
	if (own)
		ops->sums_own(&sp);
}

static void check_span(const struct ck *ck, enum kv_format k, enum kv_format v,
		       uint32_t n_q, uint32_t hd, uint32_t bt)
{
	bool own = ck_below(2);
	struct spans s = {
		.sp = {.n_q = n_q, .head_dim = hd, .block_tokens = bt}, .k = k, .v = v};
	float *got[3], *want[3];

	ck_context("span k %s v %s queries %u head_dim %u block_tokens %u%s",
		   kv_format_name(k), kv_format_name(v), n_q, hd, bt,
		   own ? " with partial blocks" : "");
	span_visible(&s, own);
	span_planes(&s, s.sp.n_code[n_q - 1]);
	s.rows = ck_alloc((size_t)n_q * hd * 4);
	ck_fill(s.rows, (size_t)n_q * hd,
		ck_below(8) ? CK_NORMAL : ck_below(CK_N_PATTERNS));
	for (int i = 0; i < 3; i++) {
		got[i] = ck_alloc((i == 2 ? (size_t)n_q * hd : n_q) * 4);
		want[i] = ck_alloc((i == 2 ? (size_t)n_q * hd : n_q) * 4);
	}
	span_run(&ck->ref, &s, own, want[0], want[1], want[2]);
	span_run(&ck->ops, &s, own, got[0], got[1], got[2]);
	ck_same("max", got[0], want[0], n_q);
	ck_same("sum", got[1], want[1], n_q);
	ck_same("o", got[2], want[2], (size_t)n_q * hd);
	ck_release_all();
}

static void check_rotate(const struct ck *ck, uint32_t hd)
{
	float *x = ck_alloc(hd * 4), *y = ck_alloc(hd * 4);

	for (int pattern = 0; pattern < CK_N_PATTERNS; pattern++) {
		for (int back = 0; back < 2; back++) {
			ck_context("rotate head_dim %u pattern %d back %d", hd, pattern,
				   back);
			ck_fill(x, hd, (enum ck_pattern)pattern);
			memcpy(y, x, hd * 4);
			ck->ref.rotate(x, hd, back);
			ck->ops.rotate(y, hd, back);
			ck_same("x", y, x, hd);
		}
	}
	ck_release_all();
}

static void same_bytes(const char *what, const void *got, const void *want, size_t n)
{
	const uint8_t *g = got, *w = want;

	for (size_t i = 0; i < n; i++)
		if (g[i] != w[i]) {
			ck_fail("%s: byte %zu is 0x%02x, not 0x%02x", what, i, g[i],
				w[i]);
			return;
		}
}

static void store_pattern(float *x, uint32_t hd, int pattern)
{
	ck_fill(x, hd, pattern < CK_N_PATTERNS ? (enum ck_pattern)pattern : CK_NORMAL);
	if (pattern == CK_N_PATTERNS)
		x[ck_below(hd)] = NAN;
	else if (pattern == CK_N_PATTERNS + 1)
		x[ck_below(hd)] = -INFINITY;
	else if (pattern == CK_N_PATTERNS + 2)
		for (uint32_t d = 0; d < hd; d++)
			x[d] = fabsf(x[d]);
}

static void check_store(const struct ck *ck, enum kv_format format, bool v, uint32_t hd,
			uint32_t bt)
{
	kv_store_fn *const *ref = v ? ck->ref.store_v : ck->ref.store_k;
	kv_store_fn *const *ops = v ? ck->ops.store_v : ck->ops.store_k;
	size_t n = (size_t)hd * bt;
	void *codes[2] = {ck_alloc(n), ck_alloc(n)};
	void *params[2] = {ck_alloc((size_t)bt * 4), ck_alloc((size_t)bt * 4)};
	float *x = ck_alloc(hd * 4);

	for (int i = 0; i < 2; i++) {
		memset(codes[i], 0, n);
		memset(params[i], 0, (size_t)bt * 4);
	}
	for (int pattern = 0; pattern < CK_N_PATTERNS + 3; pattern++) {
		uint32_t t = ck_below(bt);

		ck_context("store %s %c head_dim %u block_tokens %u pattern %d",
			   kv_format_name(format), v ? 'v' : 'k', hd, bt, pattern);
		store_pattern(x, hd, pattern);
		for (int i = 0; i < 2; i++) {
			struct kv_plane dst = {codes[i], params[i], NULL, hd, bt};

			(i ? ref : ops)[format](x, &dst, t);
		}
		same_bytes("codes", codes[0], codes[1], n);
		same_bytes("parameters", params[0], params[1], (size_t)bt * 4);
	}
	ck_release_all();
}

static void check_pack(const struct ck *ck, bool v, uint32_t hd, uint32_t bt)
{
	size_t n = (size_t)hd * bt, n_params = v ? (size_t)bt * 4 : (size_t)hd * 2;
	float *x = ck_alloc(n * 4);
	uint16_t *src = ck_alloc(n * 2);

	for (int pattern = 0; pattern < CK_N_PATTERNS + 3; pattern++) {
		uint8_t *codes[2] = {ck_alloc(n / 2), ck_alloc(n / 2)};
		uint8_t *params[2] = {ck_alloc(n_params), ck_alloc(n_params)};
		uint16_t *pair[2] = {ck_alloc(4), ck_alloc(4)};

		ck_context("pack %c head_dim %u block_tokens %u pattern %d",
			   v ? 'v' : 'k', hd, bt, pattern);
		store_pattern(x, (uint32_t)n, pattern);
		for (size_t i = 0; i < n; i++)
			src[i] = kv_half_from_float(x[i]);
		for (int i = 0; i < 2; i++) {
			const struct kv_cpu_ops *ops = i ? &ck->ref : &ck->ops;
			struct kv_plane dst = {codes[i], params[i], pair[i], hd, bt};

			(v ? ops->pack_v4 : ops->pack_k4)(src, &dst);
		}
		same_bytes("codes", codes[0], codes[1], n / 2);
		same_bytes("parameters", params[0], params[1], n_params);
		if (!v)
			same_bytes("pair", pair[0], pair[1], 4);
	}
	ck_release_all();
}

void check_formats(const struct ck *ck)
{
	static const enum kv_format formats[] = {KV_FORMAT_INT8, KV_FORMAT_INT4,
						 KV_FORMAT_FP8_E4M3};

	for (size_t i = 0; i < KVD_ARRAY_LEN(head_dims); i++) {
		uint32_t hd = head_dims[i];

		if (ck->quick && hd > 64)
			break;
		check_rotate(ck, hd);
		for (uint32_t bt = 16; bt <= 32; bt *= 2) {
			for (int v = 0; v < 2; v++) {
				check_store(ck, KV_FORMAT_INT8, v, hd, bt);
				check_store(ck, KV_FORMAT_FP8_E4M3, v, hd, bt);
				check_pack(ck, v, hd, bt);
			}
			for (uint32_t n_q = 1; n_q <= KV_SPAN_QUERIES;
			     n_q += ck->quick ? 4 : 1)
				for (int f = 0; f < 9; f++)
					check_span(ck, formats[f / 3], formats[f % 3],
						   n_q, hd, bt);
		}
	}
}
