/* SPDX-License-Identifier: MIT */
/*
 * The steps: what the worker brings back is completed, the next plan goes to the worker, and
 * only then what came out is delivered: the device does not wait for the clients. See
 * engine.h; loading is in engine_model.c.
 *
 *   engine_add() ... engine_kick()
 *                        |
 *                   sched_plan() -> worker_submit() -> engine_event_fn     one in flight
 *                        ^                |
 *                 sched_complete()        |
 *                        +-- eventfd <----+
 *
 * What a client says or hears meanwhile (a stop string, a full queue, a cancellation) finds
 * the next step in flight: it costs a row there, and its token is dropped or kept back.
 */
#include "daemon/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/engine/engine_model.h"
#include "daemon/engine/weights_keep.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "ipc/base.h"

/* Of the step whose events are delivered; the other one is the worker's. */
static const struct plan_result *engine_delivered(const struct engine *engine)
{
	return &engine->results[!engine->current];
}

static void engine_log_logits(struct engine *engine, const struct sched_event *event)
{
	if (event->reason == SCHED_REASON_ERROR && event->status == -EDOM &&
	    log_due(&engine->logits_failed, event->status, loop_now(engine->loop)))
		log_event(LOG_ERR,
			  LOG_FIELDS(.message_id = MSGID_BACKEND_FAILED,
				     .error = event->status),
			  "logits of a request were not finite; it ends with an error");
}

static void engine_deliver(struct engine *engine, const struct sched_event *event)
{
	const uint32_t *dist = NULL;

	if (event->kind == SCHED_FINISHED)
		engine_log_logits(engine, event);
	else if (event->dist.words)
		dist = engine_delivered(engine)->dist + event->dist.off;
	engine->event(engine->event_ctx, event, dist);
}

/* Everything that happened since last time. The callback may cancel, which adds events. */
static void engine_drain_events(struct engine *engine)
{
	for (;;) {
		uint32_t n;
		const struct sched_event *events = sched_events(engine->sched, &n);

		if (!n)
			return;
		for (uint32_t i = 0; i < n; i++) {
			struct sched_event event;

			/* Cancelling may move the array. */
			events = sched_events(engine->sched, &n);
			event = events[i];
			engine_deliver(engine, &event);
			sched_events(engine->sched, &n);
		}
		sched_clear_events(engine->sched);
	}
}

static void engine_deadline(struct loop_timer *timer, uint64_t now_ns)
{
	struct engine *engine = container_of(timer, struct engine, deadline);

	sched_expire(engine->sched, now_ns);
	engine_kick(engine);
}

/* Steps look at the clock themselves; this is for when none is run. */
static void engine_arm_deadline(struct engine *engine)
{
	uint64_t due_ns = sched_next_deadline(engine->sched);

	if (!due_ns)
		loop_timer_stop(&engine->deadline);
	else if (loop_timer_start(engine->loop, &engine->deadline, due_ns, 0,
				  engine_deadline) &&
		 log_due(&engine->deadline_failed, -ENOMEM, loop_now(engine->loop)))
		log_errno(LOG_WARNING, -ENOMEM, "cannot watch deadlines");
}

/* Blocks of completed steps, while the worker computes or nothing is to be done. */
static void engine_save(struct loop_defer *save)
{
	struct engine *engine = container_of(save, struct engine, save);

	if (engine_keep_save(&engine->keep, &engine->cache))
		loop_defer(engine->loop, &engine->save, engine_save);
}

/* A part of the pool has its huge pages: the next one. */
static void engine_has_pages(struct loop_io *io, uint32_t events)
{
	struct engine *engine = container_of(io, struct engine, pages_io);

	engine_save(&engine->save);
}

static void engine_step(struct loop_defer *kick)
{
	struct engine *engine = container_of(kick, struct engine, kick);

	if (!engine->worker.busy &&
	    sched_plan(engine->sched, loop_now(engine->loop), &engine->plan)) {
		plan_result_reset(&engine->results[engine->current]);
		worker_submit(&engine->worker);
	}
	engine_drain_events(engine);
	engine_arm_deadline(engine);
	if (engine->keep.map)
		loop_defer(engine->loop, &engine->save, engine_save);
}

void engine_kick(struct engine *engine)
{
	if (engine->sched)
		loop_defer(engine->loop, &engine->kick, engine_step);
}

/* The result stays as it is while its events are delivered: the next step has the other. */
static void engine_complete(struct engine *engine)
{
	sched_complete(engine->sched, &engine->plan, &engine->results[engine->current]);
	engine->current = !engine->current;
}

void engine_stepped(struct loop_io *io, uint32_t events)
{
	struct engine *engine = container_of(io, struct engine, worker_io);
	int status;

	if (!worker_collect(&engine->worker))
		return;
	engine->n_steps++;
	loop_now_refresh(engine->loop);
	status = engine->results[engine->current].status;
	if (status >= 0)
		engine->step_failed = (struct log_last){0};
	else if (log_due(&engine->step_failed, status, loop_now(engine->loop)))
		log_event(LOG_ERR,
			  LOG_FIELDS(.message_id = MSGID_BACKEND_FAILED, .error = status),
			  "the device failed in a step; its requests end with an error");
	engine_complete(engine);
	engine_step(&engine->kick);
}

/* What a condition of sched_add() and sched_fork() is to a client. */
static const kvd_res refusals[] = {
	[SCHED_PROMPT_TOO_LONG] = KVD_E_CONTEXT,
	[SCHED_CANNOT_EVER_FIT] = KVD_E_POOL,
	[SCHED_QUEUE_FULL] = KVD_E_BUSY,
	[SCHED_QUOTA_BLOCKS] = KVD_E_QUOTA,
	[SCHED_QUOTA_WAITING] = KVD_E_QUOTA,
	[SCHED_INVALID] = KVD_E_TOKEN,
	[SCHED_NO_PARENT] = -ENOENT,
};

/* The detail is the limit, in what clients know: tokens, and the model's whole context. */
static kvd_res engine_refused(struct engine *engine, int r,
			      const struct sched_refusal *refusal, uint64_t *ret_detail)
{
	if (!r)
		engine_kick(engine);
	if (r <= 0)
		return r;
	assert((size_t)r < KVD_ARRAY_LEN(refusals) && refusals[r]);
	*ret_detail = refusal->limit;
	if (r == SCHED_PROMPT_TOO_LONG)
		*ret_detail = engine->info.context_length;
	else if (r == SCHED_CANNOT_EVER_FIT)
		*ret_detail *= engine->info.block_tokens;
	else if (r == SCHED_INVALID)
		*ret_detail = refusal->wanted;
	return refusals[r];
}

kvd_res engine_may_add(struct engine *engine, const struct request_desc *desc,
		       uint64_t *ret_detail)
{
	struct sched_refusal refusal = {0};
	int r = sched_may_add(engine->sched, desc, &refusal);

	return r ? engine_refused(engine, r, &refusal, ret_detail) : 0;
}

kvd_res engine_add(struct engine *engine, const struct request_desc *desc,
		   uint32_t *ret_seq_id, uint64_t *ret_detail)
{
	struct sched_refusal refusal = {0};
	int r;

	if (!desc->n_tokens)
		return KVD_E_EMPTY;
	r = sched_add(engine->sched, desc, loop_now(engine->loop), ret_seq_id, &refusal);
	return engine_refused(engine, r, &refusal, ret_detail);
}

uint64_t engine_request_bytes(const struct engine *engine,
			      const struct request_desc *desc)
{
	return sched_request_bytes(engine->sched, desc);
}

kvd_res engine_fork(struct engine *engine, uint32_t parent, uint32_t n_tokens,
		    const struct request_desc *desc, uint32_t *ret_seq_id,
		    uint64_t *ret_detail)
{
	struct sched_refusal refusal = {0};
	int r;

	r = sched_fork(engine->sched, parent, n_tokens, desc, loop_now(engine->loop),
		       ret_seq_id, &refusal);
	return engine_refused(engine, r, &refusal, ret_detail);
}

void engine_cancel(struct engine *engine, uint32_t seq_id)
{
	sched_cancel(engine->sched, seq_id);
	engine_kick(engine);
}

const struct request *engine_sequence(const struct engine *engine, uint32_t seq_id)
{
	return seq_id ? sched_get(engine->sched, seq_id) : NULL;
}

void engine_usage(const struct engine *engine, uint32_t uid, struct sched_usage *ret)
{
	*ret = (struct sched_usage){0};
	if (engine->sched)
		sched_usage(engine->sched, uid, ret);
}

void engine_set_quota(struct engine *engine, uint32_t uid,
		      const struct sched_quota *quota)
{
	if (engine->sched)
		sched_set_quota(engine->sched, uid, quota);
	engine_kick(engine);
}

uint64_t engine_evicted_blocks(const struct engine *engine)
{
	return engine->cache.index.counters.evicted_blocks;
}

void engine_pause(struct engine *engine, uint32_t seq_id, bool paused)
{
	sched_pause(engine->sched, seq_id, paused);
	if (!paused)
		engine_kick(engine);
}

bool engine_progresses(struct engine *engine, uint64_t now_ns, uint64_t patience_ns)
{
	uint64_t beats = worker_beats(&engine->worker);

	if (!engine_busy(engine) || beats != engine->seen_beats) {
		engine->seen_beats = beats;
		engine->seen_ns = now_ns;
		return true;
	}
	return now_ns - engine->seen_ns < patience_ns;
}

void engine_stats(const struct engine *engine, struct kvd_stats *stats)
{
	struct cache_stats cache;
	struct sched_stats s;

	engine_model_stats(engine, stats);
	if (!engine->sched)
		return;
	sched_stats(engine->sched, &s);
	stats->requests_running = s.running;
	stats->requests_waiting = s.waiting;
	stats->tokens_prompt = s.counters.prompt_tokens;
	stats->tokens_generated = s.counters.generated_tokens;
	cache_stats(&engine->cache, &cache);
	stats->blocks_total = cache.n_blocks;
	stats->blocks_free = cache.n_free;
	stats->blocks_cached = cache.n_cached;
	stats->blocks_active = cache.n_active;
	stats->blocks_pinned = cache.n_pinned;
	stats->queried_tokens = cache.counters.queried_tokens;
	stats->hit_tokens = cache.counters.hit_tokens;
	stats->shared_hit_tokens = cache.counters.shared_hit_tokens;
	stats->evicted_blocks = cache.counters.evicted_blocks;
}

static int engine_make_plan(struct engine *engine)
{
	struct plan_caps caps;
	int r;

	sched_plan_caps(engine->sched, &caps);
	r = plan_init(&engine->plan, &caps);
	if (r)
		return r;
	r = plan_result_init(&engine->results[0], &caps);
	if (r)
		return r;
	return plan_result_init(&engine->results[1], &caps);
}

static int engine_start_workers(struct engine *engine)
{
	int r;

	r = engine_model_worker_start(engine);
	if (r)
		return r;
	r = loop_io_add(engine->loop, &engine->worker_io, engine->worker.event_fd,
			LOOP_READ, engine_stepped);
	if (r || !engine->keep.pages.worker.started)
		return r;
	return loop_io_add(engine->loop, &engine->pages_io,
			   engine->keep.pages.worker.event_fd, LOOP_READ,
			   engine_has_pages);
}

int engine_init(struct engine *engine, const struct engine_setup *setup, char *error,
		size_t error_size)
{
	int r;

	*engine = (struct engine){
		.loop = setup->loop,
		.config = setup->config,
		.fdstore = setup->fdstore,
		.event = setup->event,
		.event_ctx = setup->event_ctx,
	};
	if (!*engine->config->model.path) {
		if (engine->fdstore) {
			engine_keep_discard(engine->fdstore, "no model is configured");
			weights_keep_discard(engine->fdstore);
		}
		return 0;
	}
	r = engine_model_load(engine, error, error_size);
	if (r)
		return r;
	r = engine_make_plan(engine);
	if (r) {
		snprintf(error, error_size,
			 "cannot get the memory for a step: %s; lower [scheduler] "
			 "max_num_batched_tokens or max_num_seqs",
			 strerror(-r));
		return r;
	}
	r = engine_start_workers(engine);
	if (r)
		snprintf(error, error_size, "cannot start the worker threads: %s%s",
			 strerror(-r),
			 r == -EAGAIN ? "; TasksMax= or RLIMIT_NPROC permits no more"
				      : "");
	return r;
}

void engine_deinit(struct engine *engine)
{
	bool in_flight = engine->worker.busy;

	if (!engine->loop)
		return;
	loop_defer_cancel(&engine->kick);
	loop_defer_cancel(&engine->save);
	loop_timer_stop(&engine->deadline);
	loop_io_remove(&engine->worker_io);
	loop_io_remove(&engine->pages_io);
	worker_deinit(&engine->worker);
	engine->worker.busy = false;
	if (engine->sched) {
		/* Sessions are gone; what is left are operations cut off from them. */
		if (in_flight)
			engine_complete(engine);
		engine_drain_events(engine);
	}
	engine_model_unload(engine);
	plan_result_deinit(&engine->results[0]);
	plan_result_deinit(&engine->results[1]);
	plan_deinit(&engine->plan);
	engine->loop = NULL;
}
