/* SPDX-License-Identifier: MIT */
/*
 * The devices that a model is spread over: [model] tensor_parallel_size of them. Every rank runs
 * every plan on its share of the heads; the first yields the outputs. Block ids are the same on
 * all: a block of the cache is the blocks of that number of all ranks. Owns devices, weights,
 * pools, runners and threads. Thread: loop, while no step runs; for ranks_run() that of the steps.
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

/* @comm: NULL: the only one. @plan, @status: of the step at work. @worker: not of the first */
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

/* All zero: none. @variant: of device and number of ranks; a part of every block key */
struct ranks {
	struct rank *rank;
	uint32_t n;
	char variant[64];
};

/* Opens the devices. Return: 0, or -errno with @error. ranks_close() is safe after failure. */
int ranks_open(struct ranks *ranks, const struct config *config, char *error,
	       size_t error_size);

/* Each rank's share of the weights; parameters as those of model_load(). */
int ranks_load(struct ranks *ranks, const struct gguf *gguf, const uint8_t *fingerprint,
	       struct load_error *err);

/* As pool_open() of the backend; @fd >= 0 only with one rank. */
int ranks_open_pools(struct ranks *ranks, const struct kv_layout *layout,
		     uint32_t n_blocks, uint32_t n_tails, int fd);

/* As runner_init(), and starts the threads. */
int ranks_start(struct ranks *ranks, const struct plan_caps *caps);

/* Runs one step on all ranks; @result as that of runner_run(). */
void ranks_run(struct ranks *ranks, const struct plan *plan, struct plan_result *result);

size_t ranks_weight_bytes(const struct ranks *ranks);

/* Idempotent, and fine on a zeroed struct. */
void ranks_close(struct ranks *ranks);

#endif
