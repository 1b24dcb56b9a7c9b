/* SPDX-License-Identifier: MIT */
/* Rotation, and codes as they are written: against the reference, double, and mkplanes.py. */
#include <math.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/half.h"
#include "tests/kern/checkkern.h"
#include "tests/kern/dequant.h"
#include "tests/kern/planes.h"

static void check_rotate(const struct ck *ck, uint32_t hd, enum ck_pattern p)
{
	/* An output row starts anywhere. */
	float *x = ck_alloc(hd * 4), *got = (float *)ck_alloc(hd * 4 + 12) + 3,
	      *want = ck_alloc(hd * 4);
	double in[KV_HEAD_DIM_MAX], out[KV_HEAD_DIM_MAX], size = 0;

	ck_fill(x, hd, p);
	for (int back = 0; back <= 1; back++) {
		ck_context("rotate head_dim %u pattern %d back %d", hd, p, back);
		memcpy(got, x, hd * 4);
		memcpy(want, x, hd * 4);
		ck->ref.rotate(want, hd, back);
		ck->ops.rotate(got, hd, back);
		ck_same("x", got, want, hd);
		for (uint32_t d = 0; d < hd; d++) {
			in[d] = x[d];
			size = ck_max(size, fabs(in[d]));
		}
		dq_rotate(in, out, hd, back);
		for (uint32_t d = 0; d < hd; d++)
			ck_near("x", want[d], out[d], size * 2e-6 + 1e-44, 1e-6);
	}
	/* One after the other they are nothing. */
	ck->ops.rotate(got, hd, false);
	for (uint32_t d = 0; d < hd; d++)
		ck_near("there and back", got[d], x[d], size * 2e-6 + 1e-43, 1e-6);
}

/* Planes of one head, with room for nothing else. */
struct planes {
	struct kv_plane k, v;
	size_t k_bytes, v_bytes, kp_bytes, vp_bytes;
	uint16_t *pair;
};

static void *filled(size_t size)
{
	return size ? ck_alloc(size) : NULL;
}

static void planes_new(struct planes *p, const struct kv_layout *l)
{
	size_t n = (size_t)l->head_dim * l->block_tokens;
	static const uint8_t half_bytes[KV_FORMAT_N] = {4, 2, 1, 2};
	static const uint8_t token_bytes[KV_FORMAT_N] = {0, 4, 4, 2};

	p->k_bytes = n * half_bytes[l->k_format] / 2;
	p->v_bytes = n * half_bytes[l->v_format] / 2;
	p->kp_bytes = (size_t)token_bytes[l->k_format] * l->block_tokens;
	p->vp_bytes = (size_t)token_bytes[l->v_format] * l->block_tokens;
	if (l->k_format == KV_FORMAT_INT4)
		p->kp_bytes = (size_t)l->head_dim * 2;
	p->pair = ck_alloc(4);
	p->k = (struct kv_plane){filled(p->k_bytes), filled(p->kp_bytes), p->pair,
				 l->head_dim, l->block_tokens};
	p->v = (struct kv_plane){filled(p->v_bytes), filled(p->vp_bytes), NULL,
				 l->head_dim, l->block_tokens};
}

static void planes_same(const struct planes *a, const struct planes *b)
{
	CK(memcmp(a->k.codes, b->k.codes, a->k_bytes) == 0);
	CK(memcmp(a->v.codes, b->v.codes, a->v_bytes) == 0);
	CK(a->kp_bytes == 0 || memcmp(a->k.params, b->k.params, a->kp_bytes) == 0);
	CK(a->vp_bytes == 0 || memcmp(a->v.params, b->v.params, a->vp_bytes) == 0);
	CK(memcmp(a->pair, b->pair, 4) == 0);
}

/* Write tokens of a block, or pack the block: rows[block_tokens][head_dim]. */
static void write_planes(const struct kv_cpu_ops *ops, const struct kv_layout *l,
			 struct planes *p, const float *rows, uint32_t n)
{
	uint32_t hd = l->head_dim, bt = l->block_tokens;
	static uint16_t k[KV_HEAD_DIM_MAX * KV_BLOCK_TOKENS_MAX],
		v[KV_HEAD_DIM_MAX * KV_BLOCK_TOKENS_MAX];

	for (uint32_t t = 0; t < n; t++) {
		const float *x = rows + t * hd;

		for (uint32_t d = 0; d < hd; d++)
			k[d * bt + t] = v[t * hd + d] = kv_half_from_float(x[d]);
		if (l->k_format != KV_FORMAT_INT4)
			ops->store_k[l->k_format](x, &p->k, t);
		if (l->v_format != KV_FORMAT_INT4)
			ops->store_v[l->v_format](x, &p->v, t);
	}
	if (l->k_format == KV_FORMAT_INT4 && n == bt)
		ops->pack_k4(k, &p->k);
	if (l->v_format == KV_FORMAT_INT4 && n == bt)
		ops->pack_v4(v, &p->v);
}

static double amax_of(const float *x, uint32_t n)
{
	double top = 0;

	for (uint32_t i = 0; i < n; i++)
		top = ck_max(top, fabs((double)x[i]));
	return top;
}

/* Each value is back within half a step. */
static void check_values(const struct kv_layout *l, const struct planes *p,
			 const float *rows)
{
	uint32_t hd = l->head_dim, bt = l->block_tokens;
	struct dq_planes dq = {p->k.codes, p->v.codes, p->k.params, p->v.params, p->pair};
	double k[KV_HEAD_DIM_MAX], v[KV_HEAD_DIM_MAX];
	double top = amax_of(rows, hd * bt);

	for (uint32_t t = 0; t < bt; t++) {
		double t_top = amax_of(rows + t * hd, hd);

		dq_k(l, &dq, t, k);
		dq_v(l, &dq, t, v);
		for (uint32_t d = 0; d < hd; d++) {
			ck_near("k", k[d], rows[t * hd + d],
				dq_tolerance(l->k_format,
					     l->k_format == KV_FORMAT_INT4 ? top : t_top),
				0);
			ck_near("v", v[d], rows[t * hd + d],
				dq_tolerance(l->v_format, t_top), 0);
		}
	}
}

static void check_write(const struct ck *ck, enum kv_format f, uint32_t hd, uint32_t bt,
			enum ck_pattern p)
{
	float *rows = ck_alloc((size_t)hd * bt * 4);
	struct planes got, want;
	struct kv_layout l;

	ck_context("write %s head_dim %u block_tokens %u pattern %d", kv_format_name(f),
		   hd, bt, p);
	CK(kv_layout_init(&l, f, f, 1, 1, hd, bt) == 0);
	ck_fill(rows, (size_t)hd * bt, p);
	if (p == CK_NORMAL && ck_below(4) == 0)
		rows[ck_below(hd * bt)] = ck_below(2) ? NAN : -INFINITY;
	planes_new(&got, &l);
	planes_new(&want, &l);
	/* Part of a block first: other tokens' bytes stay as they are. */
	write_planes(&ck->ref, &l, &want, rows, bt / 2 + 1);
	write_planes(&ck->ops, &l, &got, rows, bt / 2 + 1);
	planes_same(&got, &want);
	write_planes(&ck->ref, &l, &want, rows, bt);
	write_planes(&ck->ops, &l, &got, rows, bt);
	planes_same(&got, &want);
	if (isfinite(amax_of(rows, hd * bt)) && amax_of(rows, hd * bt) < 20000) {
		bool finite = true;

		for (uint32_t i = 0; i < hd * bt; i++)
			finite = finite && isfinite(rows[i]);
		if (finite)
			check_values(&l, &want, rows);
	}
	ck_release_all();
}

/* Bytes that an independent implementation writes. */
static void check_planes(const struct ck *ck)
{
	for (size_t i = 0; i < KVD_ARRAY_LEN(plane_vectors); i++) {
		const struct plane_vector *v = &plane_vectors[i];
		struct kv_layout l;
		struct planes p;

		ck_context("%s head_dim %u block_tokens %u as mkplanes.py writes it",
			   kv_format_name(v->format), v->head_dim, v->block_tokens);
		CK(kv_layout_init(&l, v->format, v->format, 1, 1, v->head_dim,
				  v->block_tokens) == 0);
		planes_new(&p, &l);
		write_planes(&ck->ops, &l, &p, v->rows, v->block_tokens);
		CK(memcmp(p.k.codes, v->k, p.k_bytes) == 0);
		CK(memcmp(p.v.codes, v->v, p.v_bytes) == 0);
		CK(memcmp(p.k.params, v->k_params, p.kp_bytes) == 0);
		CK(memcmp(p.v.params, v->v_params, p.vp_bytes) == 0);
		if (v->format == KV_FORMAT_INT4)
			CK(memcmp(p.pair, v->pair, 4) == 0);
		ck_release_all();
	}
}

static void check_e4m3(void)
{
	ck_context("e4m3");
	for (int c = 0; c < 256; c++) {
		float f = kv_half_to_float(kv_half_from_e4m3((uint8_t)c)) * 256;

		if ((c & 0x7f) == 0x7f)
			continue;
		CK(kv_e4m3_from_float(f) == c);
		/* Halfway to the next one goes to the even code. */
		if ((c & 0x7f) < 0x7e) {
			float g = kv_half_to_float(kv_half_from_e4m3((uint8_t)(c + 1))) *
				  256;

			CK(kv_e4m3_from_float((f + g) / 2) == (c % 2 ? c + 1 : c));
		}
	}
	CK(kv_e4m3_from_float(1e9f) == 0x7e && kv_e4m3_from_float(-449) == 0xfe);
}

static bool same_ops(const struct ck *ck)
{
	const struct kv_cpu_ops *a = &ck->ops, *b = &ck->below;

	return a->rotate == b->rotate && a->pack_k4 == b->pack_k4 &&
	       a->pack_v4 == b->pack_v4 &&
	       memcmp(a->store_k, b->store_k, sizeof(a->store_k)) == 0 &&
	       memcmp(a->store_v, b->store_v, sizeof(a->store_v)) == 0;
}

void check_quant(const struct ck *ck)
{
	if (!ck->below.act)
		check_e4m3();
	if (same_ops(ck))
		return;
	check_planes(ck);
	for (uint32_t hd = 8; hd <= KV_HEAD_DIM_MAX; hd += 8) {
		for (int p = 0; p < CK_N_PATTERNS; p++) {
			if (p != CK_HUGE)
				check_rotate(ck, hd, p);
			ck_release_all();
			if (ck->quick && (hd + (uint32_t)p) % 7)
				continue;
			for (uint32_t bt = 16; bt <= 32; bt *= 2)
				for (int f = 0; f < KV_FORMAT_N; f++)
					check_write(ck, f, hd, bt, p);
		}
	}
}
