/* SPDX-License-Identifier: MIT */
/* Entries of a batch that share blocks, and sequences that go on from a copy of another's. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "tests/kern/world.h"

enum { MAX_SHARING = 64 };

/*
 * n entries share prefix positions, the odd ones only all but the last span of them, where they
 * have blocks of their own; then each has own positions up to len, of which the last rows are
 * run alone, and all entries together. Bits are equal; the counter shows what was read.
 */
static void check_entries(const struct ck *ck, const struct shape *s, uint32_t n,
			  uint32_t prefix, uint32_t own, uint32_t rows, uint32_t threads)
{
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, orow = s->n_heads * s->hd;
	uint32_t per_seq = (prefix + own + s->bt - 1) / s->bt, next = 0, shared_spans;
	uint32_t *blocks = ck_alloc((size_t)n * per_seq * 4);
	uint32_t common[2] = {prefix / s->bt, (prefix - KV_SPAN) / s->bt};
	float *x = ck_alloc((size_t)(prefix + own) * row * 4), *want, *got, *xs, *y;
	struct kv_batch_entry e[MAX_SHARING];
	struct kv_batch b = {.entries = e, .n_blocks = n * per_seq, .blocks = blocks};
	struct attention_counts before, after;
	struct world w;

	ck_context("sharing k=%s,v=%s head_dim %u heads %u/%u: %u entries of %u + %u, %u "
		   "rows, %u threads",
		   kv_format_name(s->k), kv_format_name(s->v), s->hd, s->n_heads, s->n_kv,
		   n, prefix, own, rows, threads);
	want = ck_alloc((size_t)n * rows * orow * 4);
	got = ck_alloc((size_t)n * rows * orow * 4);
	xs = ck_alloc((size_t)n * rows * row * 4);
	y = ck_alloc((size_t)rows * row * 4);
	if (!world_open(&w, ck, s, threads, -1)) {
		ck_fail("open");
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < per_seq; k++)
			blocks[i * per_seq + k] =
				i > 0 && k < common[i % 2] ? blocks[k] : block_id(next++);
	CK(next <= N_BLOCKS);
	ck_fill(x, (size_t)(prefix + own) * row, CK_NORMAL);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t pos0 = i == 0 ? 0 : common[i % 2] * s->bt;
		struct kv_batch_entry all = {
			0, prefix + own - rows - pos0, pos0, i * per_seq, per_seq, i};

		b.n_entries = 1;
		b.n_rows = all.n_rows;
		b.entries = &all;
		run_batch(&w, s, &b, x + (size_t)pos0 * row, NULL);
		/* The rows of interest, different for each entry; alone first. */
		ck_fill(xs + (size_t)i * rows * row, (size_t)rows * row, CK_NORMAL);
		memcpy(y, xs + (size_t)i * rows * row, (size_t)rows * row * 4);
		e[i] = (struct kv_batch_entry){i * rows,    rows,    prefix + own - rows,
					       i * per_seq, per_seq, i};
		all = e[i];
		all.row0 = 0;
		b.n_rows = rows;
		/* Once more is the same: what the step writes, it may write again. */
		run_batch(&w, s, &b, y, want + (size_t)i * rows * orow);
		ck_fill(x + (size_t)prefix * row, (size_t)own * row, CK_NORMAL);
	}
	b.n_entries = n;
	b.n_rows = n * rows;
	b.entries = e;
	before = w.st->counts;
	run_batch(&w, s, &b, xs, got);
	after = w.st->counts;
	ck_same("out", got, want, (size_t)n * rows * orow);
	/* Full spans of the prefix are read once, the last one by each odd entry. */
	after.spans_needed -= before.spans_needed;
	after.spans_read -= before.spans_read;
	shared_spans = (prefix / KV_SPAN - 1) * (n - 1) + (n + 1) / 2 - 1;
	CK(after.spans_needed ==
	   (uint64_t)n * s->n_kv * ((prefix + own - 1) / KV_SPAN + 1));
	CK(after.spans_needed - after.spans_read == (uint64_t)shared_spans * s->n_kv);
	world_close(&w);
	ck_release_all();
}

/*
 * A sequence of 20 positions goes on in two ways: by itself, and as a copy of its tail slot in
 * front of which stand the same full blocks. Both see the same.
 */
static void check_fork(const struct ck *ck, enum kv_format k, enum kv_format v)
{
	const struct shape s = {16, 2, 1, 16, 16, KV_ROPE_NORMAL, .k = k, .v = v};
	enum { LEN = 20, ROW = 4 * 16, OROW = 2 * 16 };
	uint32_t blocks[] = {9, 4, 9, 200};
	struct kv_batch_entry e = {0, LEN, 0, 0, 2, 3};
	struct kv_batch b = {LEN, 1, 4, NULL, &e, blocks};
	float *x = ck_alloc((LEN + 1) * ROW * 4), *last = ck_alloc(ROW * 4);
	float *y = ck_alloc(LEN * OROW * 4), *z = ck_alloc(OROW * 4);
	struct kv_attention a = {x, y, ROW, OROW, 2, 0.25f};
	struct world w;

	ck_context("fork k=%s,v=%s", kv_format_name(k), kv_format_name(v));
	if (!world_open(&w, ck, &s, 1, -1)) {
		ck_fail("open");
		return;
	}
	ck_fill(x, (LEN + 1) * ROW, CK_NORMAL);
	memcpy(last, x + LEN * ROW, ROW * 4);
	CK(w.be->batch_load(w.st, &b) == 0);
	if (!kv_layout_needs_tail(&w.layout)) {
		world_close(&w);
		return;
	}
	/* Its partial block has not been written. */
	CK(w.be->attention(w.st, w.pool, LAYER, &a) == -EINVAL);
	run_batch(&w, &s, &b, x, y);
	e = (struct kv_batch_entry){0, 1, LEN, 2, 2, 60};
	b.n_rows = 1;
	memcpy(w.pool->tails + 60 * w.layout.tail_bytes,
	       w.pool->tails + 3 * w.layout.tail_bytes, w.layout.tail_bytes);
	run_batch(&w, &s, &b, last, z);
	memcpy(last, x + LEN * ROW, ROW * 4);
	e.block_off = 0;
	e.tail = 3;
	run_batch(&w, &s, &b, last, y);
	ck_same("out", z, y, OROW);
	e.tail = N_TAILS;
	CK(w.be->batch_load(w.st, &b) == 0);
	CK(w.be->attention(w.st, w.pool, LAYER, &a) == -EINVAL);
	world_close(&w);
	ck_release_all();
}

void check_sharing(const struct ck *ck)
{
	static const struct shape sharing[] = {
		{64, 9, 3, 16, 64, KV_ROPE_NORMAL, 0},
		{16, 26, 2, 32, 16, KV_ROPE_NORMAL, 0},
	};
	/* Thirty entries of 64 heads put more aside than one window holds. */
	static const struct shape window = {256, 64, 1, 32, 256, KV_ROPE_NORMAL, 0};

	for (int pair = 0; pair < KV_FORMAT_N * KV_FORMAT_N; pair++)
		check_fork(ck, pair / KV_FORMAT_N, pair % KV_FORMAT_N);
	if (ck->quick)
		return;
	for (int f = 0; f < KV_FORMAT_N; f++) {
		for (uint32_t threads = 1; threads <= 2; threads++) {
			for (size_t i = 0; i < 2; i++) {
				struct shape s = sharing[i];

				s.k = s.v = f;
				check_entries(ck, &s, 7, 512, 40, 1, threads);
				check_entries(ck, &s, 2, 768, 270, 1, threads);
			}
		}
	}
	check_entries(ck, &sharing[0], 5, 512, 40, 3, 2);
	if (ck->below.act)
		check_entries(ck, &window, 30, 2304, 10, 1, 2);
}
