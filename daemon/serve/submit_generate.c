/* SPDX-License-Identifier: MIT */
/* GENERATE and FORK. See submit_ops.h. */
#include "daemon/serve/submit_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/op_generate.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit_input.h"
#include "daemon/serve/submit_request.h"
#include "ipc/base.h"
#include "ipc/sqe.h"

/* What both of them are given. */
struct generate_input {
	struct kvd_gen_params params;
	struct sqe_span stops[KVD_MAX_STOP];
	void *copy; /* of the parameters, which @stops point into */
	struct token_list list;
};

static kvd_res check_n(const struct op *op, uint32_t n, uint64_t *ret_detail)
{
	const struct session *session = op->ring->session;
	uint32_t limit = session->sessions->config->daemon.max_inflight_per_client;

	if (n <= 1)
		return 0;
	if (op->opcode == KVD_OP_FORK)
		return -EINVAL;
	if (session->n_ops + n - 1 <= limit)
		return 0;
	*ret_detail = limit;
	return KVD_E_BUSY;
}

/* Return: 0 or the res; generate_input_deinit() is safe after failure. */
static kvd_res generate_input_init(struct generate_input *in, struct op *op,
				   const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	kvd_res r;

	*in = (struct generate_input){.copy = NULL};
	r = submit_read_params(op_generate(op), sqe, &in->copy, &in->params, in->stops);
	if (r)
		return r;
	r = check_n(op, in->params.n, ret_detail);
	if (r)
		return r;
	if (op->opcode == KVD_OP_FORK && sqe->input == KVD_INPUT_NONE)
		return 0;
	return submit_read_tokens(op, sqe, &in->list, ret_detail);
}

static void generate_input_deinit(struct generate_input *in, const struct kvd_sqe *sqe)
{
	secret_free(in->copy, sqe->params_len);
	token_list_deinit(&in->list);
}

/* How a sequence is to be generated; @index of several. */
static void describe_generate(const struct kvd_gen_params *params, uint32_t index,
			      uint64_t now_ns, struct request_desc *desc)
{
	desc->kind = REQUEST_GENERATE;
	desc->ignore_eos = params->flags & KVD_GEN_IGNORE_EOS;
	desc->max_tokens = params->max_tokens;
	desc->priority = params->priority;
	if (params->timeout_ms)
		desc->deadline_ns = now_ns + params->timeout_ms * UINT64_C(1000000);
	desc->sample = (struct kv_sample_params){
		.temperature = params->temperature,
		.top_p = params->top_p > 0 ? params->top_p : 1.0f,
		.min_p = params->min_p,
		.top_k = params->top_k,
		.seed = params->seed + index,
	};
}

/* One more sequence of the request of @first. Return: 0 or the res that ends it. */
static kvd_res submit_sibling(struct op_generate *g, struct op_generate *first,
			      const struct generate_input *in, struct request_desc *desc,
			      uint8_t index, uint64_t *ret_detail)
{
	kvd_res r;

	r = op_generate_join(g, first, index);
	if (r)
		return r;
	r = emit_init(&g->emit, in->stops, in->params.n_stop);
	if (r)
		return r;
	desc->sample.seed = in->params.seed + index;
	desc->cookie = (uint64_t)(uintptr_t)&g->op;
	r = op_charge(&g->op, desc, 0, ret_detail);
	if (r)
		return r;
	return engine_add(g->op.engine, desc, &g->op.seq_id, ret_detail);
}

/*
 * The other sequences of a request with n > 1; each ends by itself, also by an error.
 * Return: 0, or -ENOMEM where there is none that could say so.
 */
static kvd_res submit_siblings(struct op_generate *first, const struct kvd_sqe *sqe,
			       const struct generate_input *in, struct request_desc *desc)
{
	struct op *op = &first->op;

	for (uint32_t i = 1; i < in->params.n; i++) {
		struct op *other = op_new(op->engine, op->ring, sqe, op->taken_ns);
		struct kvd_cqe_usage usage = {
			.prompt_tokens = op->n_asked,
			.finish_reason = KVD_FINISH_ERROR,
		};
		kvd_res r;

		if (!other)
			return error_origin(-ENOMEM);
		r = submit_sibling(op_generate(other), first, in, desc, (uint8_t)i,
				   &usage.detail);
		if (!r)
			continue;
		if (!op_generate(other)->group) {
			op_free(other);
			return r;
		}
		session_count_end(op->ring->session, KVD_FINISH_ERROR);
		op_end(other, r, &usage, op->taken_ns);
		op_flush(other);
	}
	return 0;
}

static kvd_res start_generate(struct op_generate *g, const struct kvd_sqe *sqe,
			      const struct generate_input *in, uint64_t *ret_detail)
{
	struct submit_request request;
	struct op *op = &g->op;
	kvd_res r;

	r = op_generate_keep_room(g, (uint32_t)in->list.n, in->params.max_tokens,
				  ret_detail);
	if (r)
		return r;
	op_generate_keep(g, in->list.ids, (uint32_t)in->list.n);
	g->salt = in->params.salt;
	submit_request_init(&request, op, &in->list, g->salt);
	describe_generate(&in->params, 0, op->taken_ns, &request.desc);
	r = op_charge(op, &request.desc, 0, ret_detail);
	if (!r)
		r = engine_add(op->engine, &request.desc, &op->seq_id, ret_detail);
	if (r)
		return r;
	/* Those that run go on; the first one ends for the one that could not be made. */
	g->refused = submit_siblings(g, sqe, in, &request.desc);
	if (g->refused)
		op_cancel(op);
	return 0;
}

kvd_res submit_generate(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	struct generate_input in;
	kvd_res r;

	r = generate_input_init(&in, op, sqe, ret_detail);
	if (!r)
		r = start_generate(op_generate(op), sqe, &in, ret_detail);
	generate_input_deinit(&in, sqe);
	return r;
}

/* A running sequence of this ring by its name, the newest. */
static struct op_generate *find_running(const struct op *self, uint64_t user_data)
{
	for (struct op *op = self->ring->ops_tail; op; op = op->prev)
		if (op != self && op->user_data == user_data && op->seq_id &&
		    op_generate(op))
			return op_generate(op);
	return NULL;
}

/* Branch what runs. Return: 0 or the res. */
static kvd_res fork_running(struct op_generate *g, const struct op_generate *parent,
			    uint32_t at, struct request_desc *desc, uint64_t *ret_detail)
{
	struct op *op = &g->op;
	const struct request *request = engine_sequence(op->engine, parent->op.seq_id);
	struct request_desc whole = *desc;
	kvd_res r;

	if (!request || at > request->n_tokens) {
		*ret_detail = request ? request->n_tokens : 0;
		return -ENOENT;
	}
	if (!at)
		at = request->n_tokens;
	op->n_asked = whole.n_tokens = at + desc->n_tokens;
	r = op_charge(op, &whole, 0, ret_detail);
	if (r)
		return r;
	r = op_generate_keep_room(g, op->n_asked, desc->max_tokens, ret_detail);
	if (r)
		return r;
	op_generate_keep(g, request->tokens, at);
	op_generate_keep(g, desc->tokens, desc->n_tokens);
	return engine_fork(op->engine, parent->op.seq_id, at, desc, &op->seq_id,
			   ret_detail);
}

/* Branch what has ended: the tokens are here, the blocks in the index. */
static kvd_res fork_kept(struct op_generate *g, const struct session_kept *kept,
			 uint32_t at, struct request_desc *desc, uint64_t *ret_detail)
{
	uint32_t n = at ? at : kept->n_tokens, total;
	struct request_desc whole = *desc;
	struct op *op = &g->op;
	int32_t *tokens;
	kvd_res r;

	if (at > kept->n_tokens) {
		*ret_detail = kept->n_tokens;
		return -ENOENT;
	}
	if (__builtin_add_overflow(n, desc->n_tokens, &total))
		return -EINVAL;
	op->n_asked = whole.n_tokens = total;
	/* A refusal has to cost less than a copy. */
	r = engine_may_add(op->engine, &whole, ret_detail);
	if (!r)
		r = op_charge(op, &whole, 0, ret_detail);
	if (r)
		return r;
	tokens = calloc(total, sizeof(*tokens));
	if (!tokens)
		return error_origin(-ENOMEM);
	memcpy(tokens, kept->tokens, n * sizeof(*tokens));
	if (desc->n_tokens)
		memcpy(tokens + n, desc->tokens, desc->n_tokens * sizeof(*tokens));
	desc->tokens = tokens;
	desc->n_tokens = total;
	r = op_generate_keep_room(g, total, desc->max_tokens, ret_detail);
	if (!r) {
		op_generate_keep(g, tokens, total);
		r = engine_add(op->engine, desc, &op->seq_id, ret_detail);
	}
	secret_free(tokens, total * sizeof(*tokens));
	return r;
}

static kvd_res start_fork(struct op_generate *g, const struct kvd_sqe *sqe,
			  const struct generate_input *in, uint64_t *ret_detail)
{
	struct op *op = &g->op;
	const struct op_generate *parent = find_running(op, sqe->arg);
	const struct session_kept *kept = session_ring_find_kept(op->ring, sqe->arg);
	struct submit_request request;

	if (!parent && !kept)
		return -ENOENT;
	/* A branch shares with whom its parent does, also after its end. */
	g->salt = parent ? parent->salt : kept->salt;
	submit_request_init(&request, op, &in->list, g->salt);
	describe_generate(&in->params, 0, op->taken_ns, &request.desc);
	if (parent)
		return fork_running(g, parent, in->params.fork_at, &request.desc,
				    ret_detail);
	return fork_kept(g, kept, in->params.fork_at, &request.desc, ret_detail);
}

kvd_res submit_fork(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	struct generate_input in;
	kvd_res r;

	r = generate_input_init(&in, op, sqe, ret_detail);
	if (!r)
		r = start_fork(op_generate(op), sqe, &in, ret_detail);
	generate_input_deinit(&in, sqe);
	return r;
}
