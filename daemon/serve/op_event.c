/* SPDX-License-Identifier: MIT */
/* See op_event.h. */
#include "daemon/serve/op_event.h"

#include <errno.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/model/tokenizer.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"

static void on_token(struct op *op, const struct sched_event *event)
{
	const struct tokenizer *tokenizer = op->engine->text.tokenizer;
	struct gguf_str piece = {0};

	if (!op->ring || op->stopping)
		return;
	/* Control tokens are structure, not text; the end token is delivered without any. */
	if (tokenizer && !tokenizer_is_control(tokenizer, event->token))
		piece = tokenizer_piece(tokenizer, event->token);
	op_keep(op, &event->token, 1);
	if (op_token(op, event->token, event->logprob, piece.data, piece.len,
		     loop_now(op->engine->loop)) ||
	    op->emit.stopped) {
		op->stopping = true;
		op_cancel(op);
	}
	/* What a stop string cut off is settled when SCHED_FINISHED comes. */
	op_flush(op);
}

/*
 * A position's distribution goes straight to the client: the tail of the output holds one
 * after the other, either whole rows, or all lists of ids and then all of logprobs. The
 * request's bounds were checked when it was taken; the arena is the ring's.
 */
static void put_dist(struct op *op, const struct sched_event *event,
		     const uint32_t *words)
{
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

static void on_scored(struct op *op, const struct sched_event *event,
		      const uint32_t *dist)
{
	if (op->scores && event->position < op->n_tokens)
		memcpy(&op->scores[op->n_tokens + event->position], &event->logprob,
		       sizeof(float));
	if (dist && op->ring)
		put_dist(op, event, dist);
}

/* SCORE is complete: put it where the client wants it. Return: the res. */
static int32_t deliver_scores(struct op *op)
{
	size_t bytes = (size_t)op->n_tokens * 8;
	void *out = ring_daemon_out(&op->ring->ring, op->out_off, bytes);

	if (!out)
		return -EFAULT;
	memcpy(out, op->scores, bytes);
	return (int32_t)op->n_tokens;
}

/* An answer's own end, before anything that the scheduler says. */
static bool ended_by_text(const struct op *op, int32_t *ret_res, uint32_t *ret_finish)
{
	/* Also when the stop string ended with the token that was the last. */
	if (op->emit.stopped) {
		*ret_finish = KVD_FINISH_STOP;
		return true;
	}
	/* Bytes of a token found no room: the text has a hole. */
	if (op->stopping) {
		*ret_finish = KVD_FINISH_ERROR;
		*ret_res = -ENOMEM;
		return true;
	}
	return false;
}

static int32_t error_res(int status)
{
	switch (status) {
	case -ENOSPC:
		return KVD_E_POOL;
	case -EDQUOT:
		return KVD_E_QUOTA;
	case -EDOM:
		return KVD_E_NUMERIC;
	default:
		return KVD_E_DEVICE;
	}
}

/* Return: the res of the final CQE. */
static int32_t settle(struct op *op, const struct sched_event *event,
		      uint32_t *ret_finish)
{
	int32_t res = (int32_t)event->n_generated;

	if (ended_by_text(op, &res, ret_finish))
		return res;
	switch (event->reason) {
	case SCHED_REASON_CANCELLED:
		*ret_finish = KVD_FINISH_CANCELLED;
		return -ECANCELED;
	case SCHED_REASON_DEADLINE:
		*ret_finish = KVD_FINISH_ERROR;
		return KVD_E_DEADLINE;
	case SCHED_REASON_ERROR:
		*ret_finish = KVD_FINISH_ERROR;
		return error_res(event->status);
	default:
		*ret_finish = event->reason == SCHED_REASON_STOP ? KVD_FINISH_STOP
								 : KVD_FINISH_LENGTH;
		return op->opcode == KVD_OP_SCORE ? deliver_scores(op) : res;
	}
}

static void count_end(struct sessions *sessions, uint32_t finish)
{
	if (finish == KVD_FINISH_CANCELLED)
		sessions->n_cancelled++;
	else if (finish == KVD_FINISH_ERROR)
		sessions->n_failed++;
	else
		sessions->n_completed++;
}

static void on_finished(struct sessions *sessions, struct op *op,
			const struct sched_event *event)
{
	struct kvd_cqe_usage usage = {
		.prompt_tokens = event->n_prompt,
		.cached_tokens = event->n_cached,
		.generated_tokens = event->n_generated,
	};
	struct session *session;
	int32_t res;

	op->seq_id = 0;
	if (!op->ring) {
		count_end(sessions, KVD_FINISH_CANCELLED);
		op_free(op);
		return;
	}
	session = op->ring->session;
	session->tokens_prompt += event->n_prompt;
	session->tokens_cached += event->n_cached;
	session->tokens_generated += event->n_generated;
	res = settle(op, event, &usage.finish_reason);
	count_end(sessions, usage.finish_reason);
	if (op->opcode != KVD_OP_GENERATE && op->opcode != KVD_OP_FORK)
		usage.finish_reason = KVD_FINISH_NONE;
	op_end(op, res, &usage, loop_now(op->engine->loop));
	op_flush(op);
}

void op_event(void *sessions, const struct sched_event *event, const uint32_t *dist)
{
	struct op *op = (struct op *)(uintptr_t)event->cookie;

	switch (event->kind) {
	case SCHED_TOKEN:
		on_token(op, event);
		break;
	case SCHED_SCORED:
		on_scored(op, event, dist);
		break;
	case SCHED_FINISHED:
		on_finished(sessions, op, event);
		break;
	}
}
