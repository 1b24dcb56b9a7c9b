/* SPDX-License-Identifier: MIT */
/*
 * Ranks on the CPU: threads of one process that read and write one another's arrays. A barrier
 * stands in front of the work, so that all arrays are there, and one behind it, so that none is
 * used while another rank still reads it.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/clock.h"
#include "kernels/comm.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/futex.h"

enum { SPIN_NS = 50000 };

struct group;

struct end {
	struct kv_comm comm;
	struct group *group;
};

/*
 * @arrived: ranks that wait in the barrier of this phase
 * @phase: one more after each barrier, and after abort(); what sleepers sleep on
 * @n_open: ends that have not been closed
 * @arrays: [n_ranks] of the operation at work; written before the first barrier, read after it
 */
struct group {
	_Atomic uint32_t arrived, phase, n_open;
	_Atomic bool aborted;
	uint32_t n_ranks;
	float *arrays[KV_MAX_RANKS];
	struct end ends[KV_MAX_RANKS];
};

static struct group *group_of(struct kv_comm *comm)
{
	return ((struct end *)comm)->group;
}

static void leave_phase(struct group *g)
{
	atomic_fetch_add(&g->phase, 1);
	futex_wake(&g->phase, KV_MAX_RANKS);
}

static void wait_phase(struct group *g, uint32_t phase)
{
	uint64_t end = kv_now_ns() + SPIN_NS;

	do {
		for (int i = 0; i < 64; i++) {
			if (atomic_load_explicit(&g->phase, memory_order_acquire) !=
			    phase)
				return;
			cpu_pause();
		}
	} while (kv_now_ns() < end);
	while (atomic_load(&g->phase) == phase)
		futex_wait(&g->phase, phase);
}

static int barrier(struct group *g)
{
	uint32_t phase = atomic_load(&g->phase);

	if (atomic_load(&g->aborted))
		return -ECANCELED;
	if (atomic_fetch_add(&g->arrived, 1) + 1 == g->n_ranks) {
		atomic_store(&g->arrived, 0);
		leave_phase(g);
	} else {
		wait_phase(g, phase);
	}
	return atomic_load(&g->aborted) ? -ECANCELED : 0;
}

/* Each rank adds up one part of the arrays and hands it to all of them. */
static int threads_all_reduce(struct kv_comm *comm, struct kv_stream *st, void *x,
			      size_t n)
{
	struct group *g = group_of(comm);
	size_t from = n * comm->rank / g->n_ranks;
	size_t to = n * (comm->rank + 1) / g->n_ranks;
	int r;

	g->arrays[comm->rank] = x;
	r = barrier(g);
	if (r)
		return r;
	for (size_t i = from; i < to; i++) {
		float sum = g->arrays[0][i];

		for (uint32_t k = 1; k < g->n_ranks; k++)
			sum += g->arrays[k][i];
		for (uint32_t k = 0; k < g->n_ranks; k++)
			g->arrays[k][i] = sum;
	}
	return barrier(g);
}

static int threads_all_gather(struct kv_comm *comm, struct kv_stream *st, const void *src,
			      void *dst, size_t n)
{
	struct group *g = group_of(comm);
	int r;

	g->arrays[comm->rank] = (float *)src;
	r = barrier(g);
	for (uint32_t k = 0; !r && k < g->n_ranks; k++)
		memcpy((float *)dst + k * n, g->arrays[k], n * sizeof(float));
	return r ? r : barrier(g);
}

static int threads_broadcast(struct kv_comm *comm, struct kv_stream *st, void *x,
			     size_t n, uint32_t root)
{
	struct group *g = group_of(comm);
	int r;

	if (root >= g->n_ranks)
		return -EINVAL;
	g->arrays[comm->rank] = x;
	r = barrier(g);
	if (!r && comm->rank != root)
		memcpy(x, g->arrays[root], n * sizeof(float));
	return r ? r : barrier(g);
}

static void threads_abort(struct kv_comm *comm)
{
	struct group *g = group_of(comm);

	atomic_store(&g->aborted, true);
	leave_phase(g);
}

static void threads_reset(struct kv_comm *comm)
{
	struct group *g = group_of(comm);

	atomic_store(&g->arrived, 0);
	atomic_store(&g->aborted, false);
}

static void threads_close(struct kv_comm *comm)
{
	struct group *g = group_of(comm);

	if (atomic_fetch_sub(&g->n_open, 1) == 1)
		free(g);
}

static const struct kv_comm_ops threads_ops = {
	.all_reduce = threads_all_reduce,
	.all_gather = threads_all_gather,
	.broadcast = threads_broadcast,
	.abort = threads_abort,
	.reset = threads_reset,
	.close = threads_close,
};

int cpu_comm_open(struct kv_device *const *devs, uint32_t n, struct kv_comm **ret_comms)
{
	struct group *g;

	if (n == 0 || n > KV_MAX_RANKS)
		return -EINVAL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->n_ranks = n;
	atomic_store(&g->n_open, n);
	for (uint32_t i = 0; i < n; i++) {
		g->ends[i] = (struct end){{&threads_ops, i, n}, g};
		ret_comms[i] = &g->ends[i].comm;
	}
	return 0;
}
