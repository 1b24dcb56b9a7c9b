/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_H
#define KVD_DAEMON_ENGINE_H

/*
 * The engine: the model, its pool and cache, the scheduler, and the steps between them.
 *
 *   engine_add() ... engine_kick()
 *                        |
 *       drain events -> sched_plan() -> worker_submit()        at most one in flight
 *                        ^                     |
 *                        +--- engine_stepped() <+  eventfd: sched_complete(), events
 *
 * Operations (op.h) are the scheduler's cookies: an operation outlives the FINISHED event
 * of its sequence. Without a model the engine is there and refuses generation.
 *
 * Thread: loop; the runner inside belongs to the worker while a step is in flight.
 */

#include <stdbool.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

#include "daemon/cache/block.h"
#include "daemon/cache/prefix.h"
#include "daemon/engine/engine_keep.h"
#include "daemon/engine/worker.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/model/tokenizer.h"
#include "daemon/sched/plan.h"
#include "daemon/sched/sched.h"
#include "daemon/serve/encoder.h"

struct chat_template;
struct config;
struct engine_model;
struct op;
struct request_desc;

/**
 * struct engine - see above
 * @model:  what engine_model.c loaded; NULL without a model
 * @info:   what WELCOME says of it
 * @keep:   what of it outlives the process
 * @fdstore: where that is kept
 * @tokenizer, @chat: of the model; NULL where it has none that kvd knows
 * @n_completed, @n_failed, @n_cancelled: operations that named the model, since start
 */
struct engine {
	struct loop *loop;
	const struct config *config;
	struct engine_model *model;
	struct kvd_model_info info;
	const struct tokenizer *tokenizer;
	const struct chat_template *chat;
	struct block_pool pool;
	struct prefix_index index;
	struct engine_keep keep;
	struct fdstore *fdstore;
	struct sched *sched;
	struct plan plan;
	struct plan_result result;
	struct worker worker;
	struct loop_io worker_io;
	struct loop_io pages_io;
	struct encoder encoder;
	struct loop_defer kick;
	struct loop_defer save;
	struct loop_timer deadline;
	bool have_pool, have_index, have_plan, have_result;
	uint64_t n_completed, n_failed, n_cancelled;
	struct log_last step_failed; /* no error when the last step was well */
	struct log_last logits_failed;
	struct log_last deadline_failed;
	uint64_t n_steps;
	uint64_t seen_beats, seen_ns; /* of engine_gets_on() */
};

/**
 * engine_init() - load the model that the configuration names
 * @fdstore: where the pool is kept for the next daemon and comes from; outlives the engine;
 *	NULL: nowhere
 * @error: [error_size] one line that says what is wrong and how to mend it
 *
 * Return: 0; -errno with @error filled. engine_deinit() is right after both.
 */
int engine_init(struct engine *engine, struct loop *loop, const struct config *config,
		struct fdstore *fdstore, char *error, size_t error_size);

/* Waits for the step in flight. No operation may be left. Idempotent. */
void engine_deinit(struct engine *engine);

/**
 * engine_add() - hand a request to the scheduler
 * @op: becomes the cookie; its seq_id is set on success
 *
 * Return: 0, or the res of the final CQE with @ret_detail: KVD_E_CONTEXT, KVD_E_POOL,
 * KVD_E_BUSY, -EINVAL, -ENOMEM.
 */
int32_t engine_add(struct engine *engine, struct op *op, struct request_desc *desc,
		   uint64_t *ret_detail);

/* As engine_add(), for a branch of @parent, which runs, at its first @n_tokens tokens. */
int32_t engine_fork(struct engine *engine, struct op *op, const struct op *parent,
		    uint32_t n_tokens, struct request_desc *desc, uint64_t *ret_detail);

/* End a sequence early; its operation gets its end by the usual way. */
void engine_cancel(struct engine *engine, struct op *op);

/* The client's CQ is full, or has room again. */
void engine_pause(struct engine *engine, uint32_t seq_id, bool paused);

/* A result waits: callback of worker_io. */
void engine_stepped(struct loop_io *io, uint32_t events);

/* Plan a step soon, unless one is in flight. */
void engine_kick(struct engine *engine);

/* Is a step in flight? Then the compute threads want the CPUs. */
static inline bool engine_busy(const struct engine *engine)
{
	return engine->worker.busy;
}

/**
 * engine_gets_on() - does the worker make progress?
 * @patience_ns: for how long a step may stand still
 *
 * To be called regularly. Return: false when a step is in flight of which no part was
 * finished for that long.
 */
bool engine_gets_on(struct engine *engine, uint64_t now_ns, uint64_t patience_ns);

/* The cache's and the scheduler's part of the statistics. */
void engine_stats(const struct engine *engine, struct kvd_stats *stats);

/**
 * engine_prefix_find() - the longest cached prefix of a prompt
 * @desc: tokens, domain and salt
 * @ret_id: engine_prefix_id() of its last block, 0 for none
 *
 * Return: its tokens, or -ENOMEM.
 */
int32_t engine_prefix_find(struct engine *engine, const struct request_desc *desc,
			   uint64_t *ret_id);

/* How clients name the prefix that ends at a block: one life of the block. */
uint64_t engine_prefix_id(const struct engine *engine, uint32_t block);

/* The other way round. Return: false if it has gone. */
bool engine_prefix_block(const struct engine *engine, uint64_t id, uint32_t *ret_block);

/* Flush one domain, or all. */
void engine_flush(struct engine *engine, bool all, uint32_t domain,
		  struct kvd_flush_counts *ret_counts);

/* prefix_flush_chain(). */
void engine_flush_prefix(struct engine *engine, uint32_t block, bool tree,
			 struct kvd_flush_counts *ret_counts);

#endif
