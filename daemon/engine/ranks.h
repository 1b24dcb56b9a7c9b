/* SPDX-License-Identifier: MIT */
/*
 * The devices that a model is spread over: [model] tensor_parallel_size of them, one as a rule.
 *
 * Each rank has a share of the heads and of the feed-forward part, and so of each block of the
 * cache: block ids are the same on all of them, and a block of the cache is the blocks of that
 * number of all ranks. Every rank runs every plan; the first one has the head of the model and
 * yields the outputs.
 *
 *   thread that runs steps     rank 0 --- all_reduce --- all_reduce ---> result
 *   kvd-rank-1 ...             rank 1 --------'----------------'-------> status
 *
 * Owns devices, weights, pools, runners and the threads of all ranks but the first. Loop thread
 * before the first step and after the last one; ranks_run() on the thread that runs steps.
 * Knows no sequences and no cache.
 */
#ifndef KVD_DAEMON_ENGINE_RANKS_H
#define KVD_DAEMON_ENGINE_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/engine_device.h"
#include "daemon/engine/worker.h"
#include "daemon/model/model.h"
#include "daemon/model/runner.h"
#include "kernels/comm.h"

struct config;

/**
 * struct rank - one device and what lies on it
 * @comm: NULL: the only one
 * @plan: of the step at work
 * @status: what that step came to
 * @worker: not of the first
 */
struct rank {
	struct engine_device device;
	struct kv_comm *comm;
	struct model model;
	struct kv_pool *pool;
	struct runner runner;
	const struct plan *plan;
	int status;
	struct worker worker;
};

/**
 * struct ranks - see above; zeroed: none
 * @variant: of the device; with several ranks also their number, since each block is another
 *	then. A part of every block key
 */
struct ranks {
	struct rank *rank;
	uint32_t n;
	char variant[64];
};

/* Devices. Return: 0 or -errno, with one line in @error. ranks_close() is safe after failure. */
int ranks_open(struct ranks *ranks, const struct config *config, char *error,
	       size_t error_size);

/* Each rank's share of the weights; parameters as those of model_load(). */
int ranks_load(struct ranks *ranks, const struct gguf *gguf, const uint8_t *fingerprint,
	       struct load_error *err);

/* As pool_open() of the backend; @fd >= 0 only with one rank. */
int ranks_open_pools(struct ranks *ranks, const struct kv_layout *layout,
		     uint32_t n_blocks, uint32_t n_tails, int fd);

/* As runner_init(), and the threads. */
int ranks_start(struct ranks *ranks, const struct plan_caps *caps);

/* Run one step on all ranks; @result as that of runner_run(). */
void ranks_run(struct ranks *ranks, const struct plan *plan, struct plan_result *result);

/* Bytes of packed weights on all devices. */
size_t ranks_weight_bytes(const struct ranks *ranks);

/* Idempotent, and fine on a zeroed struct. */
void ranks_close(struct ranks *ranks);

#endif
