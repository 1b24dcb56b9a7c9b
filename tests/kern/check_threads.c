/* SPDX-License-Identifier: MIT */
/* Every unit runs exactly once, no matter who sleeps. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/threads.h"
#include "tests/kern/checkkern.h"

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

void check_threads(const struct ck *ck)
{
	static struct job job;

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
