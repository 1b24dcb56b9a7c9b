/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_RUNNER_H
#define KVD_DAEMON_MODEL_RUNNER_H

/*
 * Runs steps: a plan goes through the layers of the model as one batch of rows.
 *
 * Owns its scratch, sized when it is made: a step allocates nothing. The device, the model and the
 * pool are the caller's and outlive it. Rows are independent of one another, so a row's bits depend
 * on its own sequence only, whatever else is in the plan. Knows plans and block ids, no sessions or
 * sockets. Thread: made on the loading thread, then the worker's.
 */

#include <stdint.h>

#include "daemon/model/model.h"
#include "daemon/sched/plan.h"
#include "kernels/backend.h"
#include "kernels/comm.h"

/* Rows whose logits are in memory at once. */
#define RUNNER_LOGIT_ROWS 16

/* Rows that go through one pass of the feed-forward part: enough to fill the threads. */
#define RUNNER_FF_ROWS 128

/* @comm: the other ranks of a model that is spread over devices, or NULL. @progress: if set, called
 * several times a layer, for a watcher. @rows: [caps.outputs] rows of the plan that have an output.
 * Arrays, with elements of @act_bytes: @x: [rows, d] the residual stream; @h: [rows, d] a norm of
 * it, or what is to be added to it; @qkv: [rows, heads + 2 kv]; @attn: [rows, heads]; @gate_up:
 * [RUNNER_FF_ROWS, gate_up_stride()]; @act: [RUNNER_FF_ROWS, ff]; @logits: [RUNNER_LOGIT_ROWS,
 * n_vocab] */
struct runner {
	const struct model *model;
	const struct kv_backend *backend;
	struct kv_stream *stream;
	struct kv_pool *pool;
	struct kv_comm *comm;
	struct plan_caps caps;
	void (*progress)(void *ctx);
	void *progress_ctx;
	uint32_t *rows;

	uint32_t act_bytes;
	size_t scratch_bytes;
	void *scratch KV_DEV;
	void *x KV_DEV;
	void *h KV_DEV;
	void *qkv KV_DEV;
	void *attn KV_DEV;
	void *gate_up KV_DEV;
	void *act KV_DEV;
	void *logits KV_DEV;
};

/* Makes scratch for plans of these capacities. @comm: NULL: the model is whole. Return: 0; -ENOMEM;
 * -EINVAL: caps.rows is above what the device takes at once. */
int runner_init(struct runner *runner, const struct model *model, struct kv_pool *pool,
		struct kv_comm *comm, const struct plan_caps *caps);

/* Idempotent, and fine on a zeroed struct. */
void runner_deinit(struct runner *runner);

/* Runs one step. Errors go into @result->status. Thread: worker; all ranks run the same plan, each
 * on a thread of its own. The first one yields the outputs; results of the others need no room for
 * any. Where one fails the others do, with -ECANCELED at the latest in the next sum, and the caller
 * resets the ranks when all have returned. */
void runner_run(struct runner *runner, const struct plan *plan,
		struct plan_result *result);

#endif
