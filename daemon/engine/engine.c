/* SPDX-License-Identifier: MIT */
/*
 * The steps: events of the scheduler become tokens and ends of operations, and the next
 * plan goes to the worker before anything else is done, so that the device does not wait
 * for the clients. See engine.h; loading is in engine_model.c.
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
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "ipc/base.h"

static struct op *engine_op(const struct sched_event *event)
{
	return (struct op *)(uintptr_t)event->cookie;
}

static void engine_token(struct engine *engine, const struct sched_event *event)
{
	struct op *op = engine_op(event);
	struct gguf_str piece = {0};

	if (!op->ring || op->stopping)
		return;
	/* Control tokens are structure, not text; the end token is delivered without any. */
	if (engine->tokenizer && !tokenizer_is_control(engine->tokenizer, event->token))
		piece = tokenizer_piece(engine->tokenizer, event->token);
	op_keep(op, &event->token, 1);
	if (op_token(op, event->token, event->logprob, piece.data, piece.len,
		     loop_now(engine->loop)) ||
	    op->emit.stopped) {
		op->stopping = true;
		sched_cancel(engine->sched, event->id);
	}
	/* What a stop string cut off is settled when FINISHED comes. */
	op_flush(op);
}

/*
 * A position's distribution goes straight to the client: the tail of the output holds one
 * after the other, either whole rows, or all lists of ids and then all of logprobs. The
 * request's bounds were checked when it was taken; the arena is the ring's.
 */
static void engine_put_dist(const struct engine *engine, struct op *op,
			    const struct sched_event *event)
{
	const uint32_t *words = engine->result.dist + event->dist.off;
	uint64_t n = op->n_tokens - op->dist_first;
	uint64_t row = event->position - 1 - op->dist_first;
	size_t part = event->dist.words * sizeof(uint32_t);
	uint64_t off = op->out_off + (uint64_t)op->n_tokens * 8;
	void *out;

	if (event->dist.top != PLAN_DIST_ALL)
		part /= 2;
	for (size_t done = 0; done < event->dist.words * sizeof(uint32_t); done += part) {
		out = ring_daemon_out(&op->ring->ring, off + row * part, part);
		if (out)
			memcpy(out, (const char *)words + done, part);
		off += n * part;
	}
}

static void engine_scored(const struct engine *engine, const struct sched_event *event)
{
	struct op *op = engine_op(event);

	if (op->scores && event->position < op->n_tokens)
		memcpy(&op->scores[op->n_tokens + event->position], &event->logprob,
		       sizeof(float));
	if (event->dist.words && op->ring)
		engine_put_dist(engine, op, event);
}

/* SCORE is complete: put it where the client wants it. */
static int32_t engine_deliver_scores(struct op *op)
{
	size_t bytes = (size_t)op->n_tokens * 8;
	void *out = ring_daemon_out(&op->ring->ring, op->out_off, bytes);

	if (!out)
		return -EFAULT;
	memcpy(out, op->scores, bytes);
	return (int32_t)op->n_tokens;
}

static void engine_finished(struct engine *engine, const struct sched_event *event)
{
	struct op *op = engine_op(event);
	struct kvd_cqe_usage usage = {
		.prompt_tokens = event->n_prompt,
		.cached_tokens = event->n_cached,
		.generated_tokens = event->n_generated,
	};
	int32_t res = (int32_t)event->n_generated;

	op->seq_id = 0;
	if (!op->ring) {
		engine->n_cancelled++;
		op_free(op);
		return;
	}
	op->ring->session->tokens_prompt += event->n_prompt;
	op->ring->session->tokens_cached += event->n_cached;
	op->ring->session->tokens_generated += event->n_generated;
	if (op->emit.stopped) {
		/* Also when the stop string ended with the token that was the last. */
		usage.finish_reason = KVD_FINISH_STOP;
		engine->n_completed++;
	} else if (op->stopping) {
		/* Bytes of a token found no room: the text has a hole. */
		usage.finish_reason = KVD_FINISH_ERROR;
		res = -ENOMEM;
		engine->n_failed++;
	} else if (event->reason == SCHED_REASON_CANCELLED) {
		usage.finish_reason = KVD_FINISH_CANCELLED;
		res = -ECANCELED;
		engine->n_cancelled++;
	} else if (event->reason == SCHED_REASON_DEADLINE) {
		usage.finish_reason = KVD_FINISH_ERROR;
		res = KVD_E_DEADLINE;
		engine->n_failed++;
	} else if (event->reason == SCHED_REASON_ERROR) {
		usage.finish_reason = KVD_FINISH_ERROR;
		res = event->status == -ENOSPC   ? KVD_E_POOL
		      : event->status == -EDQUOT ? KVD_E_QUOTA
						 : KVD_E_DEVICE;
		engine->n_failed++;
		/* A step that failed as a whole has its line already. */
		if (event->status == -EIO && engine->result.status == 0 &&
		    log_due(&engine->logits_failed, event->status,
			    loop_now(engine->loop)))
			log_event(LOG_ERR,
				  LOG_FIELDS(.message_id = MSGID_BACKEND_FAILED,
					     .error = event->status),
				  "logits of a request were not finite; it ends with an "
				  "error");
	} else {
		if (op->opcode == KVD_OP_SCORE)
			res = engine_deliver_scores(op);
		usage.finish_reason = event->reason == SCHED_REASON_STOP
					      ? KVD_FINISH_STOP
					      : KVD_FINISH_LENGTH;
		engine->n_completed++;
	}
	if (op->opcode != KVD_OP_GENERATE && op->opcode != KVD_OP_FORK)
		usage.finish_reason = KVD_FINISH_NONE;
	op_end(op, res, &usage, loop_now(engine->loop));
	op_flush(op);
}

/* Everything that happened since last time. Handlers may cancel, which adds events. */
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
			switch (event.kind) {
			case SCHED_TOKEN:
				engine_token(engine, &event);
				break;
			case SCHED_SCORED:
				engine_scored(engine, &event);
				break;
			case SCHED_FINISHED:
				engine_finished(engine, &event);
				break;
			}
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

	if (engine_keep_save(&engine->keep, &engine->index))
		loop_defer(engine->loop, &engine->save, engine_save);
}

/* A part of the pool has its huge pages: the next one. */
static void engine_has_pages(struct loop_io *io, uint32_t events)
{
	struct engine *engine = container_of(io, struct engine, pages_io);

	(void)events;
	engine_save(&engine->save);
}

static void engine_step(struct loop_defer *kick)
{
	struct engine *engine = container_of(kick, struct engine, kick);

	engine_drain_events(engine);
	if (engine->worker.busy)
		return;
	if (sched_plan(engine->sched, loop_now(engine->loop), &engine->plan)) {
		plan_result_reset(&engine->result);
		worker_submit(&engine->worker);
	}
	/* A plan without rows may have given up on a request. */
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

void engine_stepped(struct loop_io *io, uint32_t events)
{
	struct engine *engine = container_of(io, struct engine, worker_io);

	(void)events;
	if (!worker_collect(&engine->worker))
		return;
	engine->n_steps++;
	loop_now_refresh(engine->loop);
	if (engine->result.status >= 0)
		engine->step_failed = (struct log_last){0};
	else if (log_due(&engine->step_failed, engine->result.status,
			 loop_now(engine->loop)))
		log_event(LOG_ERR,
			  LOG_FIELDS(.message_id = MSGID_BACKEND_FAILED,
				     .error = engine->result.status),
			  "the device failed in a step; its requests end with an error");
	sched_complete(engine->sched, &engine->plan, &engine->result);
	engine_step(&engine->kick);
}

/* The answer to what sched_add() or sched_fork() returned. */
static int32_t engine_refused(struct engine *engine, int r,
			      const struct sched_refusal *refusal, uint64_t *ret_detail)
{
	switch (r) {
	case 0:
		engine_kick(engine);
		return 0;
	case SCHED_PROMPT_TOO_LONG:
		*ret_detail = engine->info.context_length;
		return KVD_E_CONTEXT;
	case SCHED_CANNOT_EVER_FIT:
		*ret_detail = refusal->limit * engine->info.block_tokens;
		return KVD_E_POOL;
	case SCHED_QUEUE_FULL:
		*ret_detail = refusal->limit;
		return KVD_E_BUSY;
	case SCHED_QUOTA_BLOCKS:
	case SCHED_QUOTA_WAITING:
		*ret_detail = refusal->limit;
		return KVD_E_QUOTA;
	case SCHED_INVALID:
		*ret_detail = refusal->wanted;
		return KVD_E_TOKEN;
	case SCHED_NO_PARENT:
		*ret_detail = refusal->limit;
		return -ENOENT;
	default:
		return r;
	}
}

int32_t engine_add(struct engine *engine, struct op *op, struct request_desc *desc,
		   uint64_t *ret_detail)
{
	struct sched_refusal refusal = {0};
	int r;

	desc->cookie = (uint64_t)(uintptr_t)op;
	if (!desc->n_tokens)
		return KVD_E_EMPTY;
	r = sched_add(engine->sched, desc, loop_now(engine->loop), &op->seq_id, &refusal);
	return engine_refused(engine, r, &refusal, ret_detail);
}

int32_t engine_fork(struct engine *engine, struct op *op, const struct op *parent,
		    uint32_t n_tokens, struct request_desc *desc, uint64_t *ret_detail)
{
	struct sched_refusal refusal = {0};
	int r;

	desc->cookie = (uint64_t)(uintptr_t)op;
	r = sched_fork(engine->sched, parent->seq_id, n_tokens, desc,
		       loop_now(engine->loop), &op->seq_id, &refusal);
	return engine_refused(engine, r, &refusal, ret_detail);
}

void engine_cancel(struct engine *engine, struct op *op)
{
	if (!op->seq_id)
		return;
	sched_cancel(engine->sched, op->seq_id);
	engine_kick(engine);
}

void engine_pause(struct engine *engine, uint32_t seq_id, bool paused)
{
	sched_pause(engine->sched, seq_id, paused);
	if (!paused)
		engine_kick(engine);
}

bool engine_gets_on(struct engine *engine, uint64_t now_ns, uint64_t patience_ns)
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
	struct sched_stats s;

	stats->requests_completed = engine->n_completed;
	stats->requests_failed = engine->n_failed;
	stats->requests_cancelled = engine->n_cancelled;
	engine_model_stats(engine, stats);
	if (!engine->sched)
		return;
	sched_stats(engine->sched, &s);
	stats->requests_running = s.running;
	stats->requests_waiting = s.waiting;
	stats->tokens_prompt = s.counters.prompt_tokens;
	stats->tokens_generated = s.counters.generated_tokens;
	stats->blocks_total = engine->pool.n_blocks;
	stats->blocks_free = engine->pool.n_free;
	/* The report counts a cached block that an administrator pinned as active. */
	stats->blocks_cached = engine->pool.n_cached - engine->pool.n_cached_pinned;
	stats->blocks_active = engine->pool.n_active + engine->pool.n_cached_pinned;
	stats->blocks_pinned = engine->pool.n_pinned;
	stats->queried_tokens = engine->index.counters.queried_tokens;
	stats->hit_tokens = engine->index.counters.hit_tokens;
	stats->shared_hit_tokens = engine->index.counters.shared_hit_tokens;
	stats->evicted_blocks = engine->index.counters.evicted_blocks;
}

uint64_t engine_prefix_id(const struct engine *engine, uint32_t block)
{
	return (uint64_t)block_pool_get(&engine->pool, block)->generation << 32 | block;
}

bool engine_prefix_block(const struct engine *engine, uint64_t id, uint32_t *ret_block)
{
	uint32_t block = (uint32_t)id;

	if (!engine->have_index || block >= engine->pool.n_blocks ||
	    !block_pool_get(&engine->pool, block)->indexed ||
	    engine_prefix_id(engine, block) != id)
		return false;
	*ret_block = block;
	return true;
}

int32_t engine_prefix_find(struct engine *engine, const struct request_desc *desc,
			   uint64_t *ret_id)
{
	uint32_t n, bt = engine->index.block_tokens, block = BLOCK_NONE;
	struct prefix_chain chain = {
		.domain = desc->domain,
		.reads_public = desc->reads_public,
	};
	int32_t found = 0;

	*ret_id = 0;
	if (!engine->have_index || desc->n_tokens < bt)
		return 0;
	chain.cap_keys = desc->n_tokens / bt;
	chain.keys = calloc(chain.cap_keys, sizeof(*chain.keys));
	if (!chain.keys)
		return -ENOMEM;
	if (prefix_key_root(&engine->index.keyer, desc->domain, NULL, 0, desc->salt,
			    desc->salt_len, &chain.root) < 0)
		found = -ENOMEM;
	for (n = 0; !found && n < chain.cap_keys; n++) {
		uint32_t next =
			prefix_find(&engine->index, &chain, desc->tokens, n, block);

		if (next == BLOCK_NONE)
			break;
		block = next;
	}
	if (block != BLOCK_NONE) {
		*ret_id = engine_prefix_id(engine, block);
		found = (int32_t)(n * bt);
	}
	free(chain.keys);
	return found;
}

static void report_flush(const struct engine *engine, const struct prefix_flush_result *r,
			 struct kvd_flush_counts *ret_counts)
{
	*ret_counts = (struct kvd_flush_counts){
		.flushed_blocks = r->flushed,
		.flushed_bytes = r->flushed * engine->info.block_bytes,
		.kept_pinned = r->kept_pinned,
		.kept_active = r->kept_active,
		.remaining = r->remaining,
	};
}

void engine_flush(struct engine *engine, bool all, uint32_t domain,
		  struct kvd_flush_counts *ret_counts)
{
	struct prefix_flush_result r = {0};

	*ret_counts = (struct kvd_flush_counts){0};
	if (!engine->have_index)
		return;
	if (all)
		prefix_flush_all(&engine->index, &r);
	else
		prefix_flush(&engine->index, domain, &r);
	report_flush(engine, &r, ret_counts);
}

void engine_flush_prefix(struct engine *engine, uint32_t block, bool tree,
			 struct kvd_flush_counts *ret_counts)
{
	struct prefix_flush_result r;

	prefix_flush_chain(&engine->index, block, tree, &r);
	report_flush(engine, &r, ret_counts);
}

int engine_init(struct engine *engine, struct loop *loop, const struct config *config,
		struct fdstore *fdstore, char *error, size_t error_size)
{
	struct plan_caps caps;
	int r;

	*engine = (struct engine){.loop = loop, .config = config, .fdstore = fdstore};
	if (!*config->model.path) {
		if (fdstore) {
			engine_keep_discard(fdstore);
			weights_keep_discard(fdstore);
		}
		return 0;
	}
	r = engine_model_load(engine, error, error_size);
	if (r)
		return r;
	sched_plan_caps(engine->sched, &caps);
	r = plan_init(&engine->plan, &caps);
	engine->have_plan = !r;
	if (!r) {
		r = plan_result_init(&engine->result, &caps);
		engine->have_result = !r;
	}
	if (r) {
		snprintf(error, error_size,
			 "cannot get the memory for a step: %s; lower [scheduler] "
			 "max_num_batched_tokens or max_num_seqs",
			 strerror(-r));
		return r;
	}
	r = engine_model_worker_start(engine);
	if (!r)
		r = loop_io_add(loop, &engine->worker_io, engine->worker.event_fd,
				LOOP_READ, engine_stepped);
	if (!r && engine->keep.pages.worker.started)
		r = loop_io_add(loop, &engine->pages_io,
				engine->keep.pages.worker.event_fd, LOOP_READ,
				engine_has_pages);
	if (!r && engine->tokenizer)
		r = encoder_init(&engine->encoder, engine);
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
	encoder_deinit(&engine->encoder);
	engine->worker.busy = false;
	if (engine->sched) {
		/* Sessions are gone; what is left are operations cut off from them. */
		if (in_flight)
			sched_complete(engine->sched, &engine->plan, &engine->result);
		engine_drain_events(engine);
	}
	engine_model_unload(engine);
	if (engine->have_result)
		plan_result_deinit(&engine->result);
	if (engine->have_plan)
		plan_deinit(&engine->plan);
	engine->loop = NULL;
}
