/* SPDX-License-Identifier: MIT */
/* Every unit runs exactly once, no matter who sleeps; rows of one group have one writer. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/threads.h"
#include "tests/kern/world.h"

enum { MAX_UNITS = 1000 };

struct job {
	_Atomic uint32_t runs[MAX_UNITS];
	_Atomic uint32_t bad_thread;
	uint32_t n_threads;
};

static void count(void *arg, uint32_t unit, uint32_t thread)
{
	struct job *job = arg;

	atomic_fetch_add_explicit(&job->runs[unit], 1, memory_order_relaxed);
	if (thread >= job->n_threads)
		atomic_store(&job->bad_thread, 1);
}

enum { GROUP_ROWS = 61, GROUP_BLOCKS = 4 };

/* One row a piece, so that threads write side by side: what they leave is what one leaves. */
static void check_groups(const struct ck *ck)
{
	struct shape s = {
		256,           1, 16, 16, 256, KV_ROPE_NORMAL, 0, {0}, KV_FORMAT_INT8,
		KV_FORMAT_INT8};
	size_t n = GROUP_ROWS * (s.n_heads + 2 * s.n_kv) * s.hd;
	float *x = ck_alloc(n * sizeof(float)), *again = ck_alloc(n * sizeof(float));
	uint32_t blocks[GROUP_BLOCKS] = {0, 1, 2, 3}, tokens[GROUP_ROWS] = {0};
	struct kv_batch_entry e = {
		.n_rows = GROUP_ROWS, .pos0 = 3, .n_blocks = GROUP_BLOCKS};
	struct kv_batch b = {GROUP_ROWS, 1, GROUP_BLOCKS, tokens, &e, blocks};
	struct world one, many;
	size_t bytes;

	ck_context("groups of %s", ck->bundle);
	ck_fill(x, n, CK_NORMAL);
	if (!world_open(&one, ck, &s, 1, -1) || !world_open(&many, ck, &s, 4, -1)) {
		ck_fail("world_open");
		return;
	}
	bytes = GROUP_BLOCKS * one.layout.block_bytes;
	memcpy(again, x, n * sizeof(float));
	run_batch(&one, &s, &b, again, NULL);
	for (int i = 0; i < (ck->quick ? 5 : 100); i++) {
		memset(many.be->pool_base(many.pool), 0xff, bytes);
		memcpy(again, x, n * sizeof(float));
		run_batch(&many, &s, &b, again, NULL);
		CK(memcmp(many.be->pool_base(many.pool), one.be->pool_base(one.pool),
			  bytes) == 0);
	}
	world_close(&one);
	world_close(&many);
}

void check_threads(const struct ck *ck)
{
	static struct job job;

	check_groups(ck);
	if (ck->below.act)
		return;
	for (uint32_t n = 1; n <= 4; n++) {
		struct threads *t;
		int rounds = ck->quick ? 50 : 3000;

		ck_context("%u threads", n);
		if (threads_new(n, n == 3 ? 0 : 20, n == 4, &t) < 0) {
			ck_fail("threads_new");
			return;
		}
		CK(threads_count(t) == n);
		job.n_threads = n;
		for (int i = 0; i < rounds; i++) {
			uint32_t n_units =
				ck_below(8) ? ck_below(20) : ck_below(MAX_UNITS);
			bool once = true;

			memset(job.runs, 0, sizeof(job.runs));
			threads_run(t, count, &job, n_units);
			for (uint32_t u = 0; u < MAX_UNITS; u++)
				once &= job.runs[u] == (u < n_units);
			CK(once);
			/* Now and then long enough for the others to fall asleep. */
			if (i % 500 == 0)
				nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		}
		CK(job.bad_thread == 0);
		threads_free(t);
	}
	struct threads *t;

	CK(threads_new(0, 0, false, &t) < 0);
	CK(threads_new(KV_MAX_THREADS + 1, 0, false, &t) < 0);
}
