/* SPDX-License-Identifier: MIT */
/* See op_event.h. */
#include "daemon/serve/op_event.h"

#include <errno.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/model/tokenizer.h"
#include "daemon/serve/op_generate.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"

static void on_token(struct op *op, const struct sched_event *event)
{
	const struct tokenizer *tokenizer = op->engine->text.tokenizer;
	struct op_generate *g = op_generate(op);
	struct gguf_str piece = {0};

	if (!op->ring || g->stopping)
		return;
	/* Control tokens are structure, not text; the end token is delivered without any. */
	if (tokenizer && !tokenizer_is_control(tokenizer, event->token))
		piece = tokenizer_piece(tokenizer, event->token);
	op_generate_keep(g, &event->token, 1);
	if (op_generate_token(g, event->token, event->logprob, piece.data, piece.len,
			      loop_now(op->engine->loop)) ||
	    g->emit.stopped) {
		g->stopping = true;
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
static void put_dist(struct op_score *score, const struct sched_event *event,
		     const uint32_t *words)
{
	uint64_t n = score->n_tokens - score->dist_first;
	uint64_t row = event->position - 1 - score->dist_first;
	size_t part = event->dist.words * sizeof(uint32_t);
	uint64_t off = score->op.out_off + (uint64_t)score->n_tokens * 8;
	void *out;

	if (event->dist.top != PLAN_DIST_ALL)
		part /= 2;
	for (size_t done = 0; done < event->dist.words * sizeof(uint32_t); done += part) {
		out = ring_daemon_out(&score->op.ring->ring, off + row * part, part);
		if (out)
			memcpy(out, (const char *)words + done, part);
		off += n * part;
	}
}

static void on_scored(struct op_score *score, const struct sched_event *event,
		      const uint32_t *dist)
{
	if (event->position < score->n_tokens)
		memcpy(&score->scores[score->n_tokens + event->position], &event->logprob,
		       sizeof(float));
	if (dist && score->op.ring)
		put_dist(score, event, dist);
}

/* SCORE is complete: put it where the client wants it. Return: the res. */
static kvd_res deliver_scores(const struct op_score *score)
{
	size_t bytes = (size_t)score->n_tokens * 8;
	void *out = ring_daemon_out(&score->op.ring->ring, score->op.out_off, bytes);

	if (!out)
		return error_origin(-EFAULT);
	memcpy(out, score->scores, bytes);
	return (int32_t)score->n_tokens;
}

/* An answer's own end, before anything that the scheduler says. */
static bool ended_by_itself(const struct op_generate *g, kvd_res *ret_res,
			    uint32_t *ret_finish)
{
	if (g->refused) {
		*ret_finish = KVD_FINISH_ERROR;
		*ret_res = g->refused;
		return true;
	}
	/* Also when the stop string ended with the token that was the last. */
	if (g->emit.stopped) {
		*ret_finish = KVD_FINISH_STOP;
		return true;
	}
	/* Bytes of a token found no room: the text has a hole. */
	if (g->stopping) {
		*ret_finish = KVD_FINISH_ERROR;
		*ret_res = error_origin(-ENOMEM);
		return true;
	}
	return false;
}

static kvd_res error_res(int status)
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
static kvd_res settle(struct op *op, const struct sched_event *event,
		      uint32_t *ret_finish)
{
	const struct op_generate *g = op_generate(op);
	kvd_res res = (int32_t)event->n_generated;

	if (g && ended_by_itself(g, &res, ret_finish))
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
		return op_score(op) ? deliver_scores(op_score(op)) : res;
	}
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
	kvd_res res;

	op->seq_id = 0;
	if (!op->ring) {
		sessions->n_cancelled++;
		op_free(op);
		return;
	}
	session = op->ring->session;
	session->tokens_prompt += event->n_prompt;
	session->tokens_cached += event->n_cached;
	session->tokens_generated += event->n_generated;
	session->user->counts.tokens_prompt += event->n_prompt;
	session->user->counts.tokens_cached += event->n_cached;
	session->user->counts.tokens_generated += event->n_generated;
	res = settle(op, event, &usage.finish_reason);
	session_count_end(session, usage.finish_reason);
	if (!op_generate(op))
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
		on_scored(op_score(op), event, dist);
		break;
	case SCHED_FINISHED:
		on_finished(sessions, op, event);
		break;
	}
}
