/* SPDX-License-Identifier: MIT */
/* See submit.h. */
#include "daemon/serve/submit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/encoder.h"
#include "daemon/serve/input.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit_input.h"
#include "ipc/base.h"
#include "ipc/sqe.h"

/*
 * An operation of the table ends @op or hands it on and returns 0; else it returns the
 * res to end it with. sqe_check() has passed.
 */
typedef int32_t (*submit_fn)(struct op *op, const struct kvd_sqe *sqe,
			     uint64_t *ret_detail);

static void describe(struct op *op, const struct token_list *list,
		     struct request_desc *desc)
{
	const struct session *session = op->ring->session;
	const struct user *user = session->user;

	*desc = (struct request_desc){
		.tokens = list->ids,
		.n_tokens = (uint32_t)list->n,
		.uid = session->cred.uid,
		.client = session->id,
		.quota = &user->quota,
		.domain = user->domain,
		.owner = session->owner,
		.cookie = (uint64_t)(uintptr_t)op,
	};
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

/* The other sequences of a request with n > 1; each ends by itself, also by an error. */
static int32_t submit_siblings(struct op *op, const struct kvd_sqe *sqe,
			       const struct kvd_gen_params *params,
			       const struct sqe_span *stops, struct request_desc *desc)
{
	for (uint32_t i = 1; i < params->n; i++) {
		struct kvd_cqe_usage usage = {
			.prompt_tokens = op->n_asked,
			.finish_reason = KVD_FINISH_ERROR,
		};
		struct op *other = op_new_sibling(op, sqe, (uint8_t)i);
		int32_t r;

		if (!other)
			return -ENOMEM;
		other->salt = op->salt;
		r = emit_init(&other->emit, stops, params->n_stop);
		desc->sample.seed = params->seed + i;
		desc->cookie = (uint64_t)(uintptr_t)other;
		if (!r)
			r = engine_add(op->engine, desc, &other->seq_id, &usage.detail);
		if (r) {
			op->ring->session->sessions->n_failed++;
			op_end(other, r, &usage, op->taken_ns);
			op_flush(other);
		}
	}
	return 0;
}

/* The name of a domain, then what the client said: it only narrows. */
struct salt {
	char bytes[CONFIG_DOMAIN_NAME + sizeof(uint64_t)];
};

static void describe_salt(const struct op *op, uint64_t own, struct salt *salt,
			  struct request_desc *desc)
{
	const struct user *user = op->ring->session->user;
	size_t n = 0;

	if (user->domain_name) {
		n = strlen(user->domain_name) + 1;
		memcpy(salt->bytes, user->domain_name, n);
	}
	if (own) {
		memcpy(salt->bytes + n, &own, sizeof(own));
		n += sizeof(own);
	}
	desc->salt = salt->bytes;
	desc->salt_len = n;
	desc->reads_public = !own;
}

static int32_t submit_generate(struct op *op, const struct kvd_sqe *sqe,
			       uint64_t *ret_detail)
{
	struct session *session = op->ring->session;
	uint32_t limit = session->sessions->config->daemon.max_inflight_per_client;
	struct sqe_span stops[KVD_MAX_STOP];
	struct token_list list = {0};
	struct kvd_gen_params params;
	struct request_desc desc;
	struct salt salt;
	void *copy = NULL;
	int32_t r;

	if (!op->engine->model)
		return KVD_E_MODEL_NONE;
	r = submit_read_params(op, sqe, &copy, &params, stops);
	if (!r && params.n > 1 && session->n_ops + params.n - 1 > limit) {
		*ret_detail = limit;
		r = KVD_E_BUSY;
	}
	if (!r)
		r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r)
		r = op_keep_room(op, (uint32_t)list.n, params.max_tokens, ret_detail);
	if (!r) {
		op_keep(op, list.ids, (uint32_t)list.n);
		describe(op, &list, &desc);
		describe_generate(&params, 0, op->taken_ns, &desc);
		op->salt = params.salt;
		describe_salt(op, op->salt, &salt, &desc);
		r = engine_add(op->engine, &desc, &op->seq_id, ret_detail);
		if (!r)
			r = submit_siblings(op, sqe, &params, stops, &desc);
		if (r && op->seq_id) {
			/* its end says so; those that run go on */
			op_cancel(op);
			r = 0;
		}
	}
	secret_free(copy, sqe->params_len);
	token_list_deinit(&list);
	return r;
}

/* A running sequence of this ring by its name, the newest. */
static struct op *find_running(const struct op *self, uint64_t user_data)
{
	for (struct op *op = self->ring->ops_tail; op; op = op->prev)
		if (op != self && op->user_data == user_data && op->seq_id &&
		    op->opcode != KVD_OP_SCORE)
			return op;
	return NULL;
}

/* Branch what runs. Return: 0 or the res. */
static int32_t fork_running(struct op *op, const struct op *parent, uint32_t at,
			    struct request_desc *desc, uint64_t *ret_detail)
{
	const struct request *request = engine_sequence(op->engine, parent->seq_id);
	int32_t r;

	if (!request || at > request->n_tokens) {
		*ret_detail = request ? request->n_tokens : 0;
		return -ENOENT;
	}
	if (!at)
		at = request->n_tokens;
	op->n_asked = at + desc->n_tokens;
	r = op_keep_room(op, op->n_asked, desc->max_tokens, ret_detail);
	if (r)
		return r;
	op_keep(op, request->tokens, at);
	op_keep(op, desc->tokens, desc->n_tokens);
	return engine_fork(op->engine, parent->seq_id, at, desc, &op->seq_id, ret_detail);
}

/* Branch what has ended: the tokens are here, the blocks in the index. */
static int32_t fork_kept(struct op *op, const struct session_kept *kept, uint32_t at,
			 struct request_desc *desc, uint64_t *ret_detail)
{
	uint32_t n = at ? at : kept->n_tokens, total;
	int32_t *tokens;
	int32_t r;

	if (at > kept->n_tokens) {
		*ret_detail = kept->n_tokens;
		return -ENOENT;
	}
	if (__builtin_add_overflow(n, desc->n_tokens, &total))
		return -EINVAL;
	tokens = calloc(total, sizeof(*tokens));
	if (!tokens)
		return -ENOMEM;
	memcpy(tokens, kept->tokens, n * sizeof(*tokens));
	if (desc->n_tokens)
		memcpy(tokens + n, desc->tokens, desc->n_tokens * sizeof(*tokens));
	desc->tokens = tokens;
	desc->n_tokens = total;
	op->n_asked = total;
	r = op_keep_room(op, total, desc->max_tokens, ret_detail);
	if (!r) {
		op_keep(op, tokens, total);
		r = engine_add(op->engine, desc, &op->seq_id, ret_detail);
	}
	secret_free(tokens, total * sizeof(*tokens));
	return r;
}

static int32_t submit_fork(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	const struct op *parent = find_running(op, sqe->arg);
	const struct session_kept *kept = session_ring_find_kept(op->ring, sqe->arg);
	struct sqe_span stops[KVD_MAX_STOP];
	struct token_list list = {0};
	struct kvd_gen_params params;
	struct request_desc desc;
	struct salt salt;
	void *copy = NULL;
	int32_t r;

	if (!op->engine->model)
		return KVD_E_MODEL_NONE;
	r = submit_read_params(op, sqe, &copy, &params, stops);
	if (!r && params.n > 1)
		r = -EINVAL;
	if (!r && sqe->input != KVD_INPUT_NONE)
		r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r) {
		describe(op, &list, &desc);
		describe_generate(&params, 0, op->taken_ns, &desc);
		/* A branch shares with whom its parent does, also after its end. */
		op->salt = parent ? parent->salt : kept ? kept->salt : 0;
		describe_salt(op, op->salt, &salt, &desc);
		if (parent)
			r = fork_running(op, parent, params.fork_at, &desc, ret_detail);
		else if (kept)
			r = fork_kept(op, kept, params.fork_at, &desc, ret_detail);
		else
			r = -ENOENT;
	}
	secret_free(copy, sqe->params_len);
	token_list_deinit(&list);
	return r;
}

/* What SCORE's arg asks for. Return: 0, -EINVAL. */
static int32_t describe_dist(const struct op *op, const struct kvd_sqe *sqe,
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

static int32_t submit_score(struct op *op, const struct kvd_sqe *sqe,
			    uint64_t *ret_detail)
{
	struct token_list list = {0};
	struct request_desc desc;
	struct salt salt;
	uint64_t need;
	int32_t r;

	if (!op->engine->model)
		return KVD_E_MODEL_NONE;
	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (r)
		goto out;
	r = KVD_E_EMPTY;
	if (!list.n)
		goto out;
	describe(op, &list, &desc);
	desc.kind = REQUEST_SCORE;
	describe_salt(op, 0, &salt, &desc);
	r = describe_dist(op, sqe, &desc);
	if (r)
		goto out;
	need = (uint64_t)list.n * 8 +
	       (uint64_t)(list.n - desc.dist_first) * desc.dist.words * 4;
	r = -ENOBUFS;
	*ret_detail = need;
	if (need > sqe->out_len)
		goto out;
	*ret_detail = 0;
	r = -EFAULT;
	if (!ring_daemon_out(&op->ring->ring, sqe->out_off, sqe->out_len))
		goto out;
	r = -ENOMEM;
	op->dist_first = desc.dist_first;
	op->n_tokens = (uint32_t)list.n;
	op->scores = calloc(list.n, 8);
	if (!op->scores)
		goto out;
	memcpy(op->scores, list.ids, list.n * sizeof(list.ids[0]));
	r = engine_add(op->engine, &desc, &op->seq_id, ret_detail);
out:
	token_list_deinit(&list);
	return r;
}

/* End with @n units of output, or say how many bytes it takes. */
static int32_t end_with_output(struct op *op, const void *data, size_t bytes, size_t n,
			       uint64_t *ret_detail)
{
	void *out = NULL;

	if (n > INT32_MAX)
		return -E2BIG;
	if (bytes > op->out_len) {
		*ret_detail = bytes;
		return -ENOBUFS;
	}
	if (bytes) {
		out = ring_daemon_out(&op->ring->ring, op->out_off, bytes);
		if (!out)
			return -EFAULT;
		memcpy(out, data, bytes);
	}
	op_end(op, (int32_t)n, NULL, op->taken_ns);
	return 0;
}

static int32_t submit_tokenize(struct op *op, const struct kvd_sqe *sqe,
			       uint64_t *ret_detail)
{
	struct token_list list = {0};
	int32_t r;

	if (!op->engine->model)
		return KVD_E_MODEL_NONE;
	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r)
		r = end_with_output(op, list.ids, list.n * sizeof(list.ids[0]), list.n,
				    ret_detail);
	token_list_deinit(&list);
	return r;
}

static int32_t submit_find(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	struct kvd_cqe_usage usage = {0};
	struct token_list list = {0};
	struct request_desc desc;
	struct cache_query query;
	struct salt salt;
	int32_t r;

	if (!op->engine->model)
		return KVD_E_MODEL_NONE;
	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r) {
		describe(op, &list, &desc);
		describe_salt(op, 0, &salt, &desc);
		query = (struct cache_query){
			.tokens = desc.tokens,
			.n_tokens = desc.n_tokens,
			.domain = desc.domain,
			.salt = desc.salt,
			.salt_len = desc.salt_len,
			.reads_public = desc.reads_public,
		};
		r = cache_lookup(&op->engine->cache, &query, &usage.detail);
		if (r >= 0) {
			usage.prompt_tokens = (uint32_t)list.n;
			usage.cached_tokens = (uint32_t)r;
			op_end(op, r, &usage, op->taken_ns);
			r = 0;
		}
	}
	token_list_deinit(&list);
	return r;
}

static int32_t submit_detokenize(struct op *op, const struct kvd_sqe *sqe,
				 uint64_t *ret_detail)
{
	const struct tokenizer *tokenizer = op->engine->text.tokenizer;
	struct token_list list = {0};
	char *text = NULL;
	size_t len = 0;
	int32_t r;

	if (!op->engine->model)
		return KVD_E_MODEL_NONE;
	if (!tokenizer)
		return KVD_E_TOKENIZER;
	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (r)
		goto out;
	if (sqe->flags & KVD_SQE_SKIP_SPECIAL) {
		size_t kept = 0;

		for (size_t i = 0; i < list.n; i++)
			if (!tokenizer_is_control(tokenizer, list.ids[i]))
				list.ids[kept++] = list.ids[i];
		list.n = kept;
	}
	len = tokenizer_decode(tokenizer, list.ids, list.n, NULL, 0);
	r = -ENOMEM;
	text = malloc(len + 1);
	if (!text)
		goto out;
	tokenizer_decode(tokenizer, list.ids, list.n, text, len);
	r = end_with_output(op, text, len, len, ret_detail);
out:
	secret_free(text, len);
	token_list_deinit(&list);
	return r;
}

static int32_t submit_cancel(struct op *op, const struct kvd_sqe *sqe,
			     uint64_t *ret_detail)
{
	int32_t n = session_ring_forget_kept(op->ring, sqe->arg);

	(void)ret_detail;
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

static const submit_fn submit_ops[] = {
	[KVD_OP_GENERATE] = submit_generate,  [KVD_OP_SCORE] = submit_score,
	[KVD_OP_TOKENIZE] = submit_tokenize,  [KVD_OP_DETOKENIZE] = submit_detokenize,
	[KVD_OP_CANCEL] = submit_cancel,      [KVD_OP_FORK] = submit_fork,
	[KVD_OP_PREFIX_LOOKUP] = submit_find,
};

/* Answer on the spot, without an operation. */
static void answer_at_once(struct session_ring *ring, const struct kvd_sqe *sqe,
			   int32_t res, uint64_t detail)
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

/* Do what is asked for; an operation that is refused ends by that. */
static void submit_op(struct op *op, const struct kvd_sqe *sqe)
{
	struct kvd_cqe_usage usage = {0};
	int32_t r = submit_ops[sqe->opcode](op, sqe, &usage.detail);

	if (r) {
		bool generate =
			sqe->opcode == KVD_OP_GENERATE || sqe->opcode == KVD_OP_FORK;

		if (generate || sqe->opcode == KVD_OP_SCORE) {
			op->ring->session->sessions->n_failed++;
			if (generate)
				usage.finish_reason = KVD_FINISH_ERROR;
		}
		usage.prompt_tokens = op->n_asked;
		op_end(op, r, &usage, loop_now(op->engine->loop));
	}
	if (op->ended)
		op_flush(op);
}

void submit_sqe(struct session_ring *ring, const struct kvd_sqe *sqe, uint64_t now_ns)
{
	struct sessions *sessions = ring->session->sessions;
	uint32_t limit = sessions->config->daemon.max_inflight_per_client;
	struct kvd_sqe own = *sqe;
	struct op *op;
	int32_t r;

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
	/* A branch goes on in the middle of a text. */
	if (sqe->opcode == KVD_OP_FORK)
		own.flags |= KVD_SQE_NO_BOS;
	if (own.in_len <= INPUT_MAX_TEXT && op->engine->model &&
	    encoder_wants(&sessions->encoder, &own)) {
		ring->encoded_op = op;
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
	struct kvd_sqe sqe = wait->sqe;
	struct op *op = ring->encoded_op;

	ring->encoded_op = NULL;
	/* Its operations end with it. */
	if (ring->session->state == SESSION_CLOSING)
		return;
	op->encoded = result;
	submit_op(op, &sqe);
	session_ring_warm(ring);
}
