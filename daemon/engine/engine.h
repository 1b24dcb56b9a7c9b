/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_H
#define KVD_DAEMON_ENGINE_H

/*
 * The engine: the model, its pool and cache, the scheduler, and the steps between them.
 *
 *   engine_add() ... engine_kick()
 *                        |
 *                   sched_plan() -> worker_submit() -> engine_event_fn     one in flight
 *                        ^                |
 *                 sched_complete()        |
 *                        +-- eventfd <----+
 *
 * What happens to a sequence goes to one callback, with the cookie of its request. The
 * engine knows nothing of who asks: no client, no ring, no session. Without a model it is
 * there and serves no sequence.
 *
 * Thread: loop; the runner inside belongs to the worker while a step is in flight.
 */

#include <stdbool.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

#include "daemon/cache/cache.h"
#include "daemon/engine/engine_keep.h"
#include "daemon/engine/worker.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/model/text.h"
#include "daemon/res.h"
#include "daemon/sched/plan.h"
#include "daemon/sched/sched.h"

struct config;
struct engine_model;
struct request_desc;

/**
 * engine_event_fn - something happened to a sequence
 * @dist: [event->dist.words] words that event->dist asks for, or NULL; gone afterwards
 *
 * It may add, pause and cancel sequences. After SCHED_FINISHED the id is gone.
 */
typedef void (*engine_event_fn)(void *ctx, const struct sched_event *event,
				const uint32_t *dist);

/**
 * struct engine_setup - what an engine is made of; all of it outlives the engine
 * @fdstore: where the pool is kept for the next daemon and comes from; NULL: nowhere
 */
struct engine_setup {
	struct loop *loop;
	const struct config *config;
	struct fdstore *fdstore;
	engine_event_fn event;
	void *event_ctx;
};

/**
 * struct engine - see above
 * @cache:  not open without a model
 * @model:  what engine_model.c loaded; NULL without a model
 * @info:   what WELCOME says of it
 * @text:   tokenizer and chat template of the model
 * @keep:   what of it outlives the process
 * @fdstore: where that is kept
 * @results, @current: of the step in flight, and of the one whose events are delivered
 */
struct engine {
	struct loop *loop;
	const struct config *config;
	struct engine_model *model;
	struct kvd_model_info info;
	struct model_text text;
	engine_event_fn event;
	void *event_ctx;
	struct cache cache;
	struct engine_keep keep;
	struct fdstore *fdstore;
	struct sched *sched;
	struct plan plan;
	struct plan_result results[2];
	unsigned current;
	struct worker worker;
	struct loop_io worker_io;
	struct loop_io pages_io;
	struct loop_defer kick;
	struct loop_defer save;
	struct loop_timer deadline;
	struct log_last step_failed; /* no error when the last step was well */
	struct log_last logits_failed;
	struct log_last deadline_failed;
	uint64_t n_steps;
	uint64_t seen_beats, seen_ns; /* of engine_gets_on() */
};

/**
 * engine_init() - load the model that the configuration names
 * @error: [error_size] one line that says what is wrong and how to mend it
 *
 * Return: 0; -errno with @error filled. engine_deinit() is safe after failure.
 */
int engine_init(struct engine *engine, const struct engine_setup *setup, char *error,
		size_t error_size);

/* Waits for the step in flight, and delivers the last events. Idempotent. */
void engine_deinit(struct engine *engine);

/**
 * engine_add() - hand a request to the scheduler
 * @desc: its cookie comes back with each event
 * @ret_seq_id: set on success; no event of it comes before this has returned
 *
 * Return: 0, or the res of the final CQE with @ret_detail: KVD_E_CONTEXT, KVD_E_POOL,
 * KVD_E_BUSY, -EINVAL, -ENOMEM.
 */
kvd_res engine_add(struct engine *engine, const struct request_desc *desc,
		   uint32_t *ret_seq_id, uint64_t *ret_detail);

/* As engine_add(), for a branch of @parent, which runs, at its first @n_tokens tokens. */
kvd_res engine_fork(struct engine *engine, uint32_t parent, uint32_t n_tokens,
		    const struct request_desc *desc, uint32_t *ret_seq_id,
		    uint64_t *ret_detail);

/* End a sequence early; SCHED_FINISHED comes as always. */
void engine_cancel(struct engine *engine, uint32_t seq_id);

/* What is known of a sequence; borrowed until the loop turns. NULL: gone, or id 0. */
const struct request *engine_sequence(const struct engine *engine, uint32_t seq_id);

/* What a uid's requests hold now; all 0 without a model. */
void engine_usage(const struct engine *engine, uint32_t uid, struct sched_usage *ret);

/* New limits of a uid, which is in use or not. */
void engine_set_quota(struct engine *engine, uint32_t uid,
		      const struct sched_quota *quota);

/* Cached blocks that had to go, since the start. */
uint64_t engine_evicted_blocks(const struct engine *engine);

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

#endif
