/* SPDX-License-Identifier: MIT */
/*
 * See op.h.
 *
 *                        op_new()
 *                           |
 *   op_generate_token() ----+---- op_end()      what happens to it
 *                           |
 *                       op_flush()              what of that fits the client's CQ
 *                           |
 *              CQE CQE CQE ... final CQE -> freed
 */
#include "daemon/serve/op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/engine/engine.h"
#include "daemon/serve/op_generate.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "ipc/base.h"
#include "ipc/sqe.h"

/* Each struct begins with its operation, so that free() takes either pointer. */
_Static_assert(offsetof(struct op_generate, op) == 0, "see above");
_Static_assert(offsetof(struct op_score, op) == 0, "see above");

static size_t op_size(uint8_t opcode)
{
	switch (opcode) {
	case KVD_OP_GENERATE:
	case KVD_OP_FORK:
		return sizeof(struct op_generate);
	case KVD_OP_SCORE:
		return sizeof(struct op_score);
	default:
		return sizeof(struct op);
	}
}

struct op *op_new(struct engine *engine, struct session_ring *ring,
		  const struct kvd_sqe *sqe, uint64_t now_ns)
{
	struct op *op = calloc(1, op_size(sqe->opcode));

	if (!op)
		return NULL;
	op->engine = engine;
	op->ring = ring;
	op->user_data = sqe->user_data;
	op->opcode = sqe->opcode;
	op->out_off = sqe->out_off;
	op->out_len = sqe->out_len;
	op->taken_ns = now_ns;
	op->prev = ring->ops_tail;
	if (ring->ops_tail)
		ring->ops_tail->next = op;
	else
		ring->ops = op;
	ring->ops_tail = op;
	ring->n_ops++;
	ring->session->n_ops++;
	return op;
}

kvd_res op_charge(struct op *op, const struct request_desc *desc, uint64_t more,
		  uint64_t *ret_detail)
{
	struct user *user = op->ring->session->user;
	uint64_t n = engine_request_bytes(op->engine, desc) + op_size(op->opcode) + more;

	if (!user_charge(&op->memory, user, USER_BYTES, n))
		return 0;
	*ret_detail = user->max[USER_BYTES];
	return KVD_E_QUOTA;
}

struct op_score *op_score(struct op *op)
{
	return op->opcode == KVD_OP_SCORE ? container_of(op, struct op_score, op) : NULL;
}

/* A paused sequence adds at most the token of the step in flight. */
static void op_set_blocked(struct op *op, bool blocked)
{
	if (op->blocked == blocked)
		return;
	op->blocked = blocked;
	if (blocked)
		op->ring->n_blocked++;
	else
		op->ring->n_blocked--;
	if (op->seq_id)
		engine_pause(op->engine, op->seq_id, blocked);
}

void op_detach(struct op *op)
{
	struct session_ring *ring = op->ring;
	struct op_generate *g;

	if (!ring)
		return;
	g = op_generate(op);
	if (g)
		op_generate_drop_kept(g);
	if (op->blocked) {
		op->blocked = false;
		ring->n_blocked--;
	}
	if (op->prev)
		op->prev->next = op->next;
	else
		ring->ops = op->next;
	if (op->next)
		op->next->prev = op->prev;
	else
		ring->ops_tail = op->prev;
	ring->n_ops--;
	ring->session->n_ops--;
	op->prev = op->next = NULL;
	op->ring = NULL;
}

void op_cancel(struct op *op)
{
	if (op->seq_id)
		engine_cancel(op->engine, op->seq_id);
}

static void op_score_deinit(struct op_score *score)
{
	/* the prompt's ids stand in it */
	secret_free(score->scores, (size_t)score->n_tokens * 8);
}

struct op *op_free(struct op *op)
{
	if (!op)
		return NULL;
	assert(!op->seq_id);
	op_detach(op);
	user_charge_deinit(&op->memory);
	if (op_generate(op))
		op_generate_deinit(op_generate(op));
	else if (op_score(op))
		op_score_deinit(op_score(op));
	/* with tokens and text of the answer */
	secret_free(op, op_size(op->opcode));
	return NULL;
}

/* For the client's statistics, and for those who watch. */
static void op_report(const struct op *op, kvd_res res, const struct kvd_cqe_usage *u)
{
	struct session *session = op->ring->session;

	if (res < 0 && res != -ECANCELED)
		session->requests_failed++;
	if (u->ttft_ns)
		session->ttft_ns = u->ttft_ns;
	if (op_size(op->opcode) == sizeof(*op))
		return;
	session_event(session, (struct kvd_event){
				       .kind = KVD_EVENT_REQUEST,
				       .status = res,
				       .opcode = op->opcode,
				       .finish_reason = u->finish_reason,
				       .prompt_tokens = u->prompt_tokens,
				       .cached_tokens = u->cached_tokens,
				       .generated_tokens = u->generated_tokens,
				       .ttft_ns = u->ttft_ns,
				       .total_ns = u->total_ns,
			       });
}

void op_end(struct op *op, kvd_res res, const struct kvd_cqe_usage *usage,
	    uint64_t now_ns)
{
	struct kvd_cqe_usage *u = &op->final.u.usage;
	const struct op_generate *g = op_generate(op);

	op->ended = true;
	op->final.user_data = op->user_data;
	op->final.res = res;
	if (usage)
		*u = *usage;
	u->ttft_ns = g && g->first_ns ? g->first_ns - op->taken_ns : 0;
	u->total_ns = now_ns - op->taken_ns;
	if (op->ring)
		op_report(op, res, u);
}

/* Build the next CQE. Return: false when there is nothing to say yet. */
static bool op_stage(struct op *op, struct op_generate *g)
{
	if (g && op_generate_stage(g, &op->staged))
		return op->has_staged = true;
	if (!op->ended)
		return false;
	op->staged = op->final;
	op->staged_final = true;
	return op->has_staged = true;
}

/* Its final CQE is with the client. */
static void op_done(struct op *op, struct op_generate *g)
{
	if (g && g->group)
		g->group->n_open--;
	if (g && g->keep && g->n_kept && sqe_was_kept(&op->staged))
		op_generate_hand_over(g);
	op_free(op);
}

bool op_flush(struct op *op)
{
	struct op_generate *g = op_generate(op);
	struct session_ring *ring = op->ring;

	if (!ring) {
		if (g)
			g->n_pending = 0;
		return false;
	}
	while (op->has_staged || op_stage(op, g)) {
		/* how many others are open may have changed since it was built */
		if (g && g->group)
			op_generate_mark(g, &op->staged, op->staged_final);
		switch (session_ring_post(ring, &op->staged)) {
		case RING_OK:
			break;
		case RING_FULL:
			op_set_blocked(op, true);
			return false;
		default:
			session_fault(ring->session,
				      "impossible completion queue position");
			return false;
		}
		op->has_staged = false;
		if (op->staged_final) {
			op_done(op, g);
			return true;
		}
	}
	op_set_blocked(op, false);
	return false;
}
