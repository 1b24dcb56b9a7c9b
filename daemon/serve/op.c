/* SPDX-License-Identifier: MIT */
/* See op.h. */
#include "daemon/serve/op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "ipc/base.h"
#include "ipc/sqe.h"

struct op *op_new(struct engine *engine, struct session_ring *ring,
		  const struct kvd_sqe *sqe, uint64_t now_ns)
{
	struct op *op = calloc(1, sizeof(*op));

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

struct op *op_new_sibling(struct op *first, const struct kvd_sqe *sqe, uint8_t index)
{
	struct op *op;

	if (!first->group) {
		first->group = calloc(1, sizeof(*first->group));
		if (!first->group)
			return NULL;
		*first->group = (struct op_group){.n_open = 1, .refs = 1};
	}
	op = op_new(first->engine, first->ring, sqe, first->taken_ns);
	if (!op)
		return NULL;
	op->want_logprobs = first->want_logprobs;
	op->index = index;
	op->group = first->group;
	op->group->n_open++;
	op->group->refs++;
	return op;
}

int32_t op_keep_room(struct op *op, uint32_t n_prompt, uint32_t max_tokens,
		     uint64_t *ret_detail)
{
	uint32_t context = op->engine->info.context_length;
	uint32_t room = context > n_prompt ? context - n_prompt : 0, cap;
	struct user *user = op->ring->session->user;
	int r;

	if (!op->keep)
		return 0;
	/* a prompt beyond the context is refused as such */
	if (max_tokens && max_tokens < room)
		room = max_tokens;
	cap = (n_prompt < context ? n_prompt : context) + room;
	r = user_charge(&op->charge, user, USER_BYTES, cap * sizeof(*op->kept));
	if (r) {
		*ret_detail = user->max[USER_BYTES];
		return KVD_E_QUOTA;
	}
	op->kept = calloc(cap, sizeof(*op->kept));
	if (!op->kept) {
		user_charge_deinit(&op->charge);
		return -ENOMEM;
	}
	op->cap_kept = cap;
	return 0;
}

void op_keep(struct op *op, const int32_t *tokens, uint32_t n)
{
	if (!op->keep || !n)
		return;
	if (n > op->cap_kept - op->n_kept) {
		op->keep = false;
		return;
	}
	memcpy(op->kept + op->n_kept, tokens, n * sizeof(*tokens));
	op->n_kept += n;
}

static void op_drop_kept(struct op *op)
{
	if (!op->kept)
		return;
	user_charge_deinit(&op->charge);
	secret_free(op->kept, op->n_kept * sizeof(*op->kept));
	op->kept = NULL;
	op->n_kept = op->cap_kept = 0;
	op->keep = false;
}

/* The ring takes over what is kept, and its charge, less the room the answer did not take. */
static void op_hand_over_kept(struct op *op)
{
	size_t size = sizeof(op->kept[0]);
	int32_t *cut = secret_realloc(op->kept, op->n_kept * size, op->n_kept * size);
	struct session_kept kept;

	user_charge_shrink(&op->charge, USER_BYTES, op->n_kept * size);
	kept = (struct session_kept){
		.user_data = op->user_data,
		.salt = op->salt,
		.tokens = cut ? cut : op->kept,
		.n_tokens = op->n_kept,
		.charge = user_charge_take(&op->charge),
	};
	session_ring_keep(op->ring, &kept);
	op->kept = NULL;
	op->n_kept = op->cap_kept = 0;
}

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

	if (!ring)
		return;
	op_drop_kept(op);
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

struct op *op_free(struct op *op)
{
	if (!op)
		return NULL;
	assert(!op->seq_id);
	op_detach(op);
	emit_deinit(&op->emit);
	if (op->group && !--op->group->refs)
		free(op->group);
	/* the prompt's ids stand in it */
	secret_free(op->scores, (size_t)op->n_tokens * 8);
	free(op);
	return NULL;
}

int op_token(struct op *op, int32_t token, float logprob, const void *bytes, size_t len,
	     uint64_t now_ns)
{
	assert(op->n_pending < OP_MAX_TOKENS && !op->ended);
	if (!op->first_ns)
		op->first_ns = now_ns;
	op->pending[op->n_pending++] = (struct op_token){token, logprob};
	return emit_push(&op->emit, bytes, len);
}

void op_end(struct op *op, int32_t res, const struct kvd_cqe_usage *usage,
	    uint64_t now_ns)
{
	struct kvd_cqe_usage *u = &op->final.u.usage;

	op->ended = true;
	op->final.user_data = op->user_data;
	op->final.res = res;
	if (usage)
		*u = *usage;
	u->ttft_ns = op->first_ns ? op->first_ns - op->taken_ns : 0;
	u->total_ns = now_ns - op->taken_ns;
	if (!op->ring)
		return;
	if (res < 0 && res != -ECANCELED)
		op->ring->session->requests_failed++;
	if (op->first_ns)
		op->ring->session->ttft_ns = u->ttft_ns;
	if (op->opcode == KVD_OP_GENERATE || op->opcode == KVD_OP_FORK ||
	    op->opcode == KVD_OP_SCORE)
		session_event(op->ring->session,
			      (struct kvd_event){
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

/*
 * Build the next CQE. A token carries the bytes that became safe with it, what does not
 * fit follows in pieces. Return: false when there is nothing to say yet.
 */
static bool op_stage(struct op *op)
{
	struct kvd_cqe *cqe = &op->staged;
	struct kvd_cqe_token *t = &cqe->u.token;
	/* Held bytes may wait for later tokens only while there are later tokens. */
	bool last = op->ended && op->n_pending <= 1;

	*cqe = (struct kvd_cqe){.user_data = op->user_data, .flags = KVD_CQE_MORE};
	if (op->n_pending) {
		t->token = op->pending[0].token;
		if (op->want_logprobs) {
			cqe->flags |= KVD_CQE_LOGPROB;
			t->logprob = op->pending[0].logprob;
		}
		op->n_pending--;
		memmove(op->pending, op->pending + 1,
			op->n_pending * sizeof(op->pending[0]));
	} else if (emit_pending(&op->emit, last)) {
		cqe->flags |= KVD_CQE_PIECE;
	} else if (op->ended) {
		*cqe = op->final;
		op->staged_final = true;
		return op->has_staged = true;
	} else {
		return false;
	}
	t->n_bytes = (uint8_t)emit_take(&op->emit, t->bytes, sizeof(t->bytes), last);
	return op->has_staged = true;
}

/* Whose CQE it is; the last to be posted of the last ones is the request's final CQE. */
static void op_mark(struct op *op)
{
	struct kvd_cqe *cqe = &op->staged;

	cqe->flags &= ~(KVD_CQE_END | UINT32_C(0xff) << 24);
	cqe->flags |= (uint32_t)op->index << 24;
	if (!op->staged_final)
		return;
	cqe->flags &= ~KVD_CQE_MORE;
	if (op->group->n_open > 1)
		cqe->flags |= KVD_CQE_MORE | KVD_CQE_END;
}

bool op_flush(struct op *op)
{
	struct session_ring *ring = op->ring;

	if (!ring) {
		op->n_pending = 0;
		return false;
	}
	while (op->has_staged || op_stage(op)) {
		if (op->group)
			op_mark(op);
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
			if (op->group)
				op->group->n_open--;
			if (op->keep && op->n_kept && sqe_was_kept(&op->staged))
				op_hand_over_kept(op);
			op_free(op);
			return true;
		}
	}
	op_set_blocked(op, false);
	return false;
}
