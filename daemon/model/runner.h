/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_RUNNER_H
#define KVD_DAEMON_MODEL_RUNNER_H

/*
 * Runs steps: a plan goes through the layers of the model as one batch of rows.
 *
 *   tokens -> embed -> x [rows, d]
 *   each layer:  x += Wo attention(rope(Wqkv norm(x)))     K and V of the rows are written
 *                x += Wdown (silu(gate) * up)              to the pool before attention
 *                                                          reads it
 *   outputs:     logits = Whead norm(x), a slice of rows at a time -> token, logprob
 *
 * Owns its scratch, sized when it is made: a step allocates nothing. The device, the model
 * and the pool are the caller's and outlive it. Rows are independent of one another, so a
 * row's bits depend on its own sequence only, whatever else is in the plan.
 *
 * Thread: made on the loading thread, then the worker's. Knows plans and block ids, no
 * sessions, sockets or clocks but the monotonic one for elapsed_ns.
 */

#include <stdint.h>

#include "daemon/model/model.h"
#include "daemon/model/sampler.h"
#include "daemon/sched/plan.h"
#include "kernels/backend.h"

/* Rows whose logits are in memory at once. */
#define RUNNER_LOGIT_ROWS 16

/* Rows that go through one pass of the feed-forward part: enough to fill the threads. */
#define RUNNER_FF_ROWS 128

struct runner {
	const struct model *model;
	const struct kv_backend *backend;
	struct kv_stream *stream;
	struct kv_pool *pool;
	struct plan_caps caps;
	struct sampler sampler;
	/* If set, called several times a layer: whoever watches the worker learns that it
	 * gets on. */
	void (*progress)(void *ctx);
	void *progress_ctx;

	uint32_t *rows;    /* [caps.outputs] */
	float *logits_row; /* [n_vocab], host */

	size_t scratch_bytes;
	void *scratch KV_DEV;
	float *x KV_DEV;                    /* [rows, d] the residual stream */
	float *h KV_DEV;                    /* [rows, d] a norm of it */
	float *qkv KV_DEV;                  /* [rows, heads + 2 kv] */
	float *attn KV_DEV;                 /* [rows, heads] */
	float *gate_up KV_DEV;              /* [RUNNER_FF_ROWS, gate_up_stride()] */
	float *act KV_DEV;                  /* [RUNNER_FF_ROWS, ff] */
	float *logits KV_DEV;               /* [RUNNER_LOGIT_ROWS, n_vocab] */
	struct kv_logits_stat *stat KV_DEV; /* [RUNNER_LOGIT_ROWS] */
};

/**
 * runner_init() - make scratch for plans of these capacities
 *
 * Return: 0; -ENOMEM; -EINVAL when caps.rows is above what the device takes at once.
 */
int runner_init(struct runner *runner, const struct model *model, struct kv_pool *pool,
		const struct plan_caps *caps);

/* Idempotent, and fine on a zeroed struct. */
void runner_deinit(struct runner *runner);

/* Run one step. Errors go into @result->status. Thread: worker. */
void runner_run(struct runner *runner, const struct plan *plan,
		struct plan_result *result);

#endif
