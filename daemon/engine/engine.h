/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_H
#define KVD_DAEMON_ENGINE_H

/*
 * The model, its pool and cache, the scheduler, and the steps between them. What happens to a
 * sequence goes to one callback; the engine knows no client, ring or session. Without a model it
 * serves no sequence. Thread: loop; the runner inside is the worker's while a step is in flight.
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

/*
 * Something happened to a sequence; its id is gone after SCHED_FINISHED. May add, pause and cancel
 * sequences. @dist: [event->dist.words] valid during the call, or NULL.
 */
typedef void (*engine_event_fn)(void *ctx, const struct sched_event *event,
				const uint32_t *dist);

/* Requests that may wait beyond those that run. */
#define ENGINE_MAX_WAITING 16384

/* All of it outlives the engine. @fdstore: where the pool is kept over a restart; NULL: nowhere */
struct engine_setup {
	struct loop *loop;
	const struct config *config;
	struct fdstore *fdstore;
	engine_event_fn event;
	void *event_ctx;
};

/**
 * struct engine - see above
 * @model:   NULL: none; then @cache is not open
 * @info:    what WELCOME says of it
 * @keep:    what of it outlives the process, in @fdstore
 * @results: of the step in flight, [@current], and of the one whose events are delivered
 * @step_failed: no error when the last step was well
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
	struct log_last step_failed;
	struct log_last logits_failed;
	struct log_last deadline_failed;
	uint64_t n_steps;
	uint64_t seen_beats, seen_ns;
};

/* Return: 0, or -errno with cause and remedy in @error. engine_deinit() is safe after failure. */
int engine_init(struct engine *engine, const struct engine_setup *setup, char *error,
		size_t error_size);

/* Waits for the step in flight and delivers the last events. Idempotent. */
void engine_deinit(struct engine *engine);

/* Whether engine_add() would take a request of that many tokens. Return: as engine_add(). */
kvd_res engine_may_add(struct engine *engine, const struct request_desc *desc,
		       uint64_t *ret_detail);

/*
 * Hands a request to the scheduler; no event of *@ret_seq_id comes before this has returned.
 * Return: 0, or the res of the final CQE with @ret_detail: KVD_E_EMPTY, KVD_E_CONTEXT, KVD_E_POOL,
 * KVD_E_BUSY, KVD_E_QUOTA, KVD_E_TOKEN, -ENOMEM.
 */
kvd_res engine_add(struct engine *engine, const struct request_desc *desc,
		   uint32_t *ret_seq_id, uint64_t *ret_detail);

/* Memory that it takes until SCHED_FINISHED, waiting or not; of a branch @desc has all tokens. */
uint64_t engine_request_bytes(const struct engine *engine,
			      const struct request_desc *desc);

/* As engine_add(), for a branch of @parent at its first @n_tokens; -ENOENT: it does not run. */
kvd_res engine_fork(struct engine *engine, uint32_t parent, uint32_t n_tokens,
		    const struct request_desc *desc, uint32_t *ret_seq_id,
		    uint64_t *ret_detail);

/* SCHED_FINISHED comes as always. */
void engine_cancel(struct engine *engine, uint32_t seq_id);

/* Borrowed until the loop turns. NULL: gone, or id 0. */
const struct request *engine_sequence(const struct engine *engine, uint32_t seq_id);

/* What a uid's requests hold; all 0 without a model. */
void engine_usage(const struct engine *engine, uint32_t uid, struct sched_usage *ret);

void engine_set_quota(struct engine *engine, uint32_t uid,
		      const struct sched_quota *quota);

uint64_t engine_evicted_blocks(const struct engine *engine);

/* Paused: the client's CQ is full. */
void engine_pause(struct engine *engine, uint32_t seq_id, bool paused);

/* Callback of worker_io. */
void engine_stepped(struct loop_io *io, uint32_t events);

/* Plans a step soon, unless one is in flight. */
void engine_kick(struct engine *engine);

/* A step is in flight: the compute threads want the CPUs. */
static inline bool engine_busy(const struct engine *engine)
{
	return engine->worker.busy;
}

/* Call it regularly. Return: false: no part of the step in flight was finished for @patience_ns. */
bool engine_progresses(struct engine *engine, uint64_t now_ns, uint64_t patience_ns);

void engine_stats(const struct engine *engine, struct kvd_stats *stats);

#endif
