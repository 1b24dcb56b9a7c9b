/* SPDX-License-Identifier: MIT */
/*
 * See submit.h. Copy, then validate, then act: the SQE was copied once by the ring, inputs and
 * parameters are copied once by submit_input.c, and nothing in shared memory is looked at
 * twice. Whatever is wrong ends in the final CQE of that SQE.
 */
#include "daemon/serve/submit.h"

#include <errno.h>
#include <stdbool.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/encoder.h"
#include "daemon/serve/input.h"
#include "daemon/serve/op_generate.h"
#include "daemon/serve/output.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit_ops.h"
#include "ipc/base.h"
#include "ipc/sqe.h"

/* See submit_ops.h. */
typedef kvd_res (*submit_fn)(struct op *op, const struct kvd_sqe *sqe,
			     uint64_t *ret_detail);

static kvd_res submit_cancel(struct op *op, const struct kvd_sqe *sqe,
			     uint64_t *ret_detail)
{
	int32_t n = session_ring_forget_kept(op->ring, sqe->arg);

	for (struct op *other = op->ring->ops; other; other = other->next) {
		if (other == op || other->user_data != sqe->arg || !other->seq_id)
			continue;
		op_cancel(other);
		n++;
	}
	if (!n)
		return -ENOENT;
	op_end(op, n, NULL, op->taken_ns);
	return 0;
}

/* All but CANCEL are for the model. */
static const submit_fn submit_ops[] = {
	[KVD_OP_GENERATE] = submit_generate,    [KVD_OP_SCORE] = submit_score,
	[KVD_OP_TOKENIZE] = submit_tokenize,    [KVD_OP_DETOKENIZE] = submit_detokenize,
	[KVD_OP_CANCEL] = submit_cancel,        [KVD_OP_FORK] = submit_fork,
	[KVD_OP_PREFIX_LOOKUP] = submit_lookup,
};

/* Answer on the spot, without an operation. */
static void answer_at_once(struct session_ring *ring, const struct kvd_sqe *sqe,
			   kvd_res res, uint64_t detail)
{
	struct kvd_cqe cqe = {.user_data = sqe->user_data, .res = res};

	if (res == KVD_E_BUSY)
		session_event(ring->session,
			      (struct kvd_event){.kind = KVD_EVENT_LIMIT, .status = res});
	cqe.u.usage.detail = detail;
	/* ring_daemon_take() saw room for it. */
	if (session_ring_post(ring, &cqe) != RING_OK)
		session_fault(ring->session, "impossible completion queue position");
}

/* An operation that is refused ends by that. */
static void submit_refuse(struct op *op, kvd_res r, uint64_t detail)
{
	struct kvd_cqe_usage usage = {
		.detail = detail,
		.prompt_tokens = op->n_asked,
		.finish_reason = op_generate(op) ? KVD_FINISH_ERROR : KVD_FINISH_NONE,
	};

	if (op_generate(op) || op_score(op))
		session_count_end(op->ring->session, KVD_FINISH_ERROR);
	op_end(op, r, &usage, loop_now(op->engine->loop));
}

/* Do what is asked for. */
static void submit_op(struct op *op, const struct kvd_sqe *sqe)
{
	uint64_t detail = 0;
	kvd_res r = KVD_E_MODEL_NONE;

	if (op->engine->model || sqe->opcode == KVD_OP_CANCEL)
		r = submit_ops[sqe->opcode](op, sqe, &detail);
	if (r)
		submit_refuse(op, r, detail);
	if (op->ended)
		op_flush(op);
}

void submit_sqe(struct session_ring *ring, const struct kvd_sqe *sqe, uint64_t now_ns)
{
	struct sessions *sessions = ring->session->sessions;
	uint32_t limit = sessions->config->daemon.max_inflight_per_client;
	struct kvd_sqe own;
	struct op *op;
	kvd_res r;

	r = sqe_check(sqe, ring->ring.geometry.in_bytes, ring->ring.geometry.out_bytes);
	if (r || sqe->opcode == KVD_OP_NOP) {
		/* A NOP measures the way there and back: it is nothing but that way. */
		answer_at_once(ring, sqe, r, 0);
		return;
	}
	if (sessions->draining &&
	    (sqe->opcode == KVD_OP_GENERATE || sqe->opcode == KVD_OP_FORK ||
	     sqe->opcode == KVD_OP_SCORE)) {
		answer_at_once(ring, sqe, KVD_E_DRAINING, 0);
		return;
	}
	if (ring->n_ops >= KVD_MAX_IN_FLIGHT && limit > KVD_MAX_IN_FLIGHT)
		limit = KVD_MAX_IN_FLIGHT;
	if ((ring->n_ops >= KVD_MAX_IN_FLIGHT || ring->session->n_ops >= limit) &&
	    sqe->opcode != KVD_OP_CANCEL) {
		answer_at_once(ring, sqe, KVD_E_BUSY, limit);
		return;
	}
	op = op_new(sessions->engine, ring, sqe, now_ns);
	if (!op) {
		answer_at_once(ring, sqe, -ENOMEM, 0);
		return;
	}
	own = *sqe;
	/* A branch goes on in the middle of a text. */
	if (sqe->opcode == KVD_OP_FORK)
		own.flags |= KVD_SQE_NO_BOS;
	if (op->engine->model && encoder_wants(&sessions->encoder, &own)) {
		ring->held_op = op;
		ring->encoding.uid = ring->session->cred.uid;
		ring->encoding.arena = &ring->ring;
		ring->encoding.sqe = own;
		encoder_add(&sessions->encoder, &ring->encoding);
	} else {
		submit_op(op, &own);
	}
}

void submit_encoded(struct encoder_wait *wait, struct encoder_result *result)
{
	struct session_ring *ring = container_of(wait, struct session_ring, encoding);

	/* Its operations end with it. */
	if (ring->session->state == SESSION_CLOSING)
		return;
	ring->encoded = *result;
	ring->has_encoded = true;
	*result = (struct encoder_result){.res = 0};
	session_ring_warm(ring);
}

static void submit_with_encoded(struct session_ring *ring)
{
	struct encoder_result encoded = ring->encoded;
	struct kvd_sqe sqe = ring->encoding.sqe;
	struct op *op = ring->held_op;

	ring->held_op = NULL;
	ring->has_encoded = false;
	ring->encoded = (struct encoder_result){.res = 0};
	op->encoded = &encoded;
	submit_op(op, &sqe);
	token_list_deinit(&encoded.list);
}

bool submit_go_on(struct session_ring *ring)
{
	struct op *op = ring->held_op;

	if (!op)
		return false;
	if (ring->has_encoded) {
		submit_with_encoded(ring);
		return true;
	}
	if (!ring->output.op)
		return false;
	while (!output_step(&ring->output))
		if (turns_due(&ring->session->sessions->turns))
			return true;
	ring->held_op = NULL;
	op_flush(op);
	return true;
}
