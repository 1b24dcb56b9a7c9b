/* SPDX-License-Identifier: MIT */
/* The compute threads of one CPU device: one parallel loop at a time. Owns n_threads - 1
 * threads, which spin for spin_us when idle, then sleep; the caller of threads_run() works as
 * thread 0. All calls come from one thread at a time. */
#ifndef KVD_KERNELS_CPU_THREADS_H
#define KVD_KERNELS_CPU_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu_backend.h"

enum {
	KV_MAX_THREADS = KV_CPU_MAX_THREADS,
	KV_MAX_UNITS = (1 << 24) - 2 * KV_MAX_THREADS,
};

struct threads;

/* thread: 0 .. n_threads - 1, for per-thread scratch; it must not change the unit's result. */
typedef void threads_fn(void *arg, uint32_t unit, uint32_t thread);

/* Return: 0, -EINVAL (n_threads 0 or above KV_MAX_THREADS), -ENOMEM, -EAGAIN. */
int threads_new(uint32_t n_threads, uint32_t spin_us, bool affinity,
		struct threads **ret_threads);
void threads_free(struct threads *t);
uint32_t threads_count(const struct threads *t);

/* Call fn once for each unit below n_units (at most KV_MAX_UNITS), on any thread; return when all
 * are done. Writes before the call are visible to fn, those of fn after it. */
void threads_run(struct threads *t, threads_fn *fn, void *arg, uint32_t n_units);

#endif
