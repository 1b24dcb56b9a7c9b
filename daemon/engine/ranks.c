/* SPDX-License-Identifier: MIT */
/*
 * See ranks.h.
 *
 *   thread that runs steps     rank 0 --- all_reduce --- all_reduce ---> result
 *   kvd-rank-1 ...             rank 1 --------'----------------'-------> status
 */
#include "daemon/engine/ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/log.h"

_Static_assert(CONFIG_MAX_RANKS == KV_MAX_RANKS, "what passes the check also starts");

static int open_comms(struct ranks *ranks)
{
	const struct kv_backend *backend = ranks->rank[0].device.backend;
	struct kv_device *devs[KV_MAX_RANKS];
	struct kv_comm *comms[KV_MAX_RANKS];
	int r;

	if (ranks->n == 1)
		return 0;
	for (uint32_t i = 0; i < ranks->n; i++)
		devs[i] = ranks->rank[i].device.dev;
	r = backend->comm_open(devs, ranks->n, comms);
	for (uint32_t i = 0; !r && i < ranks->n; i++)
		ranks->rank[i].comm = comms[i];
	return r;
}

int ranks_open(struct ranks *ranks, const struct config *config, char *error,
	       size_t error_size)
{
	uint32_t n = config->model.tensor_parallel_size;
	int r = 0;

	*ranks = (struct ranks){.rank = calloc(n, sizeof(*ranks->rank)), .n = n};
	if (!ranks->rank) {
		ranks->n = 0;
		snprintf(error, error_size, "no memory for %u devices", n);
		return error_origin(-ENOMEM);
	}
	for (uint32_t i = 0; !r && i < n; i++)
		r = engine_device_open(&ranks->rank[i].device, config, i, n, error,
				       error_size);
	if (r)
		return r;
	r = open_comms(ranks);
	if (r)
		snprintf(error, error_size,
			 "cannot tie the %u devices of [model] tensor_parallel_size "
			 "together: %s",
			 n, strerror(-r));
	/* part of every key: a block of the first of two devices is not one of a single one */
	snprintf(ranks->variant, sizeof(ranks->variant), n > 1 ? "%s/%u" : "%s",
		 ranks->rank[0].device.props.variant, n);
	return r;
}

int ranks_load(struct ranks *ranks, const struct gguf *gguf, const uint8_t *fingerprint,
	       struct load_error *err)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < ranks->n; i++) {
		struct rank *rank = &ranks->rank[i];
		struct model_shard shard = {.rank = i, .n_ranks = ranks->n};

		r = model_load(&rank->model, gguf, rank->device.backend, rank->device.dev,
			       &shard, fingerprint, err);
		/* the file is hashed once */
		fingerprint = ranks->rank[0].model.fingerprint;
	}
	return r;
}

int ranks_open_pools(struct ranks *ranks, const struct kv_layout *layout,
		     uint32_t n_blocks, uint32_t n_tails, int fd)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < ranks->n; i++) {
		struct rank *rank = &ranks->rank[i];

		r = rank->device.backend->pool_open(rank->device.dev, layout, n_blocks,
						    n_tails, fd, 0, &rank->pool);
	}
	return r;
}

/* worker_fn of a rank that is not the first: of its results only the status counts. */
static void rank_run(void *ctx)
{
	struct rank *rank = ctx;
	struct plan_result result = {0};

	runner_run(&rank->runner, rank->plan, &result);
	rank->status = result.status;
}

int ranks_start(struct ranks *ranks, const struct plan_caps *caps)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < ranks->n; i++) {
		struct rank *rank = &ranks->rank[i];
		char name[16];

		r = runner_init(&rank->runner, &rank->model, rank->pool, rank->comm,
				caps);
		if (r || i == 0)
			continue;
		snprintf(name, sizeof(name), "kvd-rank-%u", i % KV_MAX_RANKS);
		r = worker_init(&rank->worker, name, rank_run, rank);
		if (!r && CPU_COUNT(&rank->device.worker_cpus))
			r = worker_bind(&rank->worker, &rank->device.worker_cpus);
	}
	return r;
}

/* What a rank failed with says more than that the others were stopped. */
static void add_status(struct plan_result *result, int status)
{
	if (status && (!result->status || result->status == -ECANCELED))
		result->status = status;
	if (result->status)
		result->n_outputs = 0;
}

void ranks_run(struct ranks *ranks, const struct plan *plan, struct plan_result *result)
{
	struct rank *first = &ranks->rank[0];

	/* The others first: they meet this thread, which is rank 0, in the middle of a layer. */
	for (uint32_t i = 1; i < ranks->n; i++) {
		ranks->rank[i].plan = plan;
		worker_submit(&ranks->rank[i].worker);
	}
	runner_run(&first->runner, plan, result);
	for (uint32_t i = 1; i < ranks->n; i++) {
		worker_wait(&ranks->rank[i].worker);
		add_status(result, ranks->rank[i].status);
	}
	if (result->status && first->comm)
		first->comm->ops->reset(first->comm);
}

size_t ranks_weight_bytes(const struct ranks *ranks)
{
	size_t n = 0;

	for (uint32_t i = 0; i < ranks->n; i++)
		n += ranks->rank[i].model.weight_bytes;
	return n;
}

void ranks_close(struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->n; i++) {
		struct rank *rank = &ranks->rank[i];

		/* the thread goes before what it runs in */
		worker_deinit(&rank->worker);
		runner_deinit(&rank->runner);
		if (rank->pool)
			rank->device.backend->pool_close(rank->pool);
		model_unload(&rank->model);
		if (rank->comm)
			rank->comm->ops->close(rank->comm);
		engine_device_close(&rank->device);
	}
	free(ranks->rank);
	*ranks = (struct ranks){0};
}
