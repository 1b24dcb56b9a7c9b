/* SPDX-License-Identifier: MIT */
/* SCORE. See submit_ops.h. */
#include "daemon/serve/submit_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit_input.h"
#include "daemon/serve/submit_request.h"

/* What SCORE's arg asks for. Return: 0, -EINVAL. */
static kvd_res describe_dist(const struct op *op, const struct kvd_sqe *sqe,
			     struct request_desc *desc)
{
	uint32_t n_vocab = op->engine->info.n_vocab;
	uint32_t top = (uint32_t)sqe->arg, first = (uint32_t)(sqe->arg >> 32);

	if (!top)
		return 0;
	if (first >= desc->n_tokens || (top != KVD_TOP_ALL && top > n_vocab))
		return -EINVAL;
	desc->dist_first = first;
	desc->dist = top == KVD_TOP_ALL
			     ? (struct plan_dist){.top = PLAN_DIST_ALL, .words = n_vocab}
			     : (struct plan_dist){.top = top, .words = 2 * top};
	return 0;
}

/* Return: 0; -ENOBUFS with the bytes that it takes; -EFAULT: outside of the arena. */
static kvd_res check_output(const struct op *op, const struct request_desc *desc,
			    uint64_t *ret_detail)
{
	uint64_t need =
		(uint64_t)desc->n_tokens * 8 +
		(uint64_t)(desc->n_tokens - desc->dist_first) * desc->dist.words * 4;

	if (need > op->out_len) {
		*ret_detail = need;
		return -ENOBUFS;
	}
	return ring_daemon_out_ok(&op->ring->ring, op->out_off, op->out_len)
		       ? 0
		       : error_origin(-EFAULT);
}

static kvd_res start_score(struct op_score *score, const struct kvd_sqe *sqe,
			   const struct token_list *list, uint64_t *ret_detail)
{
	struct submit_request request;
	struct op *op = &score->op;
	kvd_res r;

	if (!list->n)
		return KVD_E_EMPTY;
	submit_request_init(&request, op, list, 0);
	request.desc.kind = REQUEST_SCORE;
	r = describe_dist(op, sqe, &request.desc);
	if (r)
		return r;
	r = check_output(op, &request.desc, ret_detail);
	if (r)
		return r;
	score->dist_first = request.desc.dist_first;
	r = op_charge(op, &request.desc, list->n * 8, ret_detail);
	if (r)
		return r;
	/* While it waits only the first half has pages of its own. */
	score->scores = calloc(list->n, 8);
	if (!score->scores)
		return error_origin(-ENOMEM);
	score->n_tokens = (uint32_t)list->n;
	memcpy(score->scores, list->ids, list->n * sizeof(list->ids[0]));
	return engine_add(op->engine, &request.desc, &op->seq_id, ret_detail);
}

kvd_res submit_score(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	struct token_list list = {0};
	kvd_res r;

	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r)
		r = start_score(op_score(op), sqe, &list, ret_detail);
	token_list_deinit(&list);
	return r;
}
