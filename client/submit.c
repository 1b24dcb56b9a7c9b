/* SPDX-License-Identifier: MIT */
/*
 * From prepared entries to the shared ring: sizes, copies into the input arena,
 * room in the output arena, the wire form. A mistake in an entry becomes its
 * final CQE; want of room leaves it prepared.
 */
#include <errno.h>
#include <string.h>

#include "client/internal.h"
#include "client/opts.h"
#include "ipc/base.h"

/* No input is larger than its arena, so this stands for "too large" safely. */
#define TOO_LARGE (2 * (uint64_t)KVD_MAX_ARENA_BYTES)

static bool takes_params(uint8_t opcode)
{
	return opcode == KVD_OP_GENERATE || opcode == KVD_OP_FORK;
}

static uint64_t params_bytes(const struct kvc_gen_opts *o)
{
	uint64_t n = sizeof(struct kvd_gen_params);
	uint32_t i;

	for (i = 0; i < o->n_stop; i++)
		n += sizeof(uint32_t) + strnlen(o->stop[i], KVD_MAX_STOP_LEN + 1);
	return n;
}

static uint64_t chat_bytes(const struct kvc_message *m, size_t n)
{
	uint64_t total = 0;
	size_t i, role, content;

	if (n > KVD_MAX_CHAT_MESSAGES)
		return TOO_LARGE;
	for (i = 0; i < n; i++) {
		role = strlen(m[i].role);
		content = strlen(m[i].content);
		if (role > KVD_MAX_ARENA_BYTES || content > KVD_MAX_ARENA_BYTES)
			return TOO_LARGE;
		total += 8 + role + content;
	}
	return total < TOO_LARGE ? total : TOO_LARGE;
}

static uint64_t data_bytes(const struct kvc_input *in)
{
	if (in->kind == KVD_INPUT_CHAT)
		return chat_bytes(in->data, in->n);
	if (in->n > KVD_MAX_ARENA_BYTES)
		return TOO_LARGE;
	return in->kind == KVD_INPUT_TOKENS ? in->n * sizeof(uint32_t) : in->n;
}

uint64_t input_bytes(const struct kvc_sqe *sqe)
{
	struct kvc_gen_opts o;
	uint64_t params = 0;

	if (takes_params(sqe->opcode) && gen_opts_read(&o, sqe->opts) == 0)
		params = align_up(params_bytes(&o), 4);
	return params + data_bytes(&sqe->input);
}

static uint64_t element_bytes(uint8_t opcode)
{
	switch (opcode) {
	case KVD_OP_SCORE:
		return 8;
	case KVD_OP_TOKENIZE:
		return 4;
	case KVD_OP_DETOKENIZE:
		return 1;
	default:
		return 0;
	}
}

uint64_t output_bytes(const struct kvc_sqe *sqe)
{
	uint64_t each = element_bytes(sqe->opcode), cap = sqe->cap, bound, top;
	struct kvc_score_opts score;

	if (each == 0 || score_opts_of(sqe, &score) < 0)
		return 0;
	if (sqe->opcode == KVD_OP_SCORE)
		cap = score.cap;
	/*
	 * A generous caller does not use the arena up: tokens are no more than
	 * bytes, and a few that a template or the vocabulary adds.
	 */
	bound = data_bytes(&sqe->input);
	if (sqe->input.kind == KVD_INPUT_TOKENS)
		bound /= sizeof(uint32_t);
	bound += sqe->input.kind == KVD_INPUT_CHAT ? 1024 : 16;
	if (each != 1 && cap > bound)
		cap = bound;
	cap = cap < TOO_LARGE ? cap * each : TOO_LARGE;
	if (score.top) {
		top = score.top == KVD_TOP_ALL ? 4 : 8;
		cap += score.top_cap < TOO_LARGE ? score.top_cap * top : TOO_LARGE;
	}
	return cap;
}

static uint8_t *put_u32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, sizeof(v));
	return p + sizeof(v);
}

static uint8_t *put_bytes(uint8_t *p, const void *src, size_t len)
{
	if (len > 0)
		memcpy(p, src, len);
	return p + len;
}

static void write_params(uint8_t *p, const struct kvc_gen_opts *o)
{
	struct kvd_gen_params params = {
		.size = sizeof(params),
		.flags = o->gen_flags,
		.max_tokens = o->max_tokens,
		.top_k = o->top_k,
		.temperature = o->temperature,
		.top_p = o->top_p,
		.min_p = o->min_p,
		.seed = o->seed,
		.n_stop = o->n_stop,
		.n = o->n,
		.priority = o->priority,
		.timeout_ms = o->timeout_ms,
		.fork_at = o->fork_at,
		.salt = o->salt,
	};
	uint32_t i, len;

	p = put_bytes(p, &params, sizeof(params));
	for (i = 0; i < o->n_stop; i++) {
		len = (uint32_t)strnlen(o->stop[i], KVD_MAX_STOP_LEN + 1);
		p = put_u32(p, len);
		p = put_bytes(p, o->stop[i], len);
	}
}

static void write_data(uint8_t *p, const struct kvc_input *in, uint64_t len)
{
	const struct kvc_message *m = in->data;
	size_t i, role, content;

	if (in->kind != KVD_INPUT_CHAT) {
		put_bytes(p, in->data, len);
		return;
	}
	for (i = 0; i < in->n; i++) {
		role = strlen(m[i].role);
		content = strlen(m[i].content);
		p = put_u32(p, (uint32_t)role);
		p = put_u32(p, (uint32_t)content);
		p = put_bytes(p, m[i].role, role);
		p = put_bytes(p, m[i].content, content);
	}
}

/* What CANCEL or FORK names on the wire; nothing has the user_data of all ones. */
static uint64_t find_target(const struct kvc_ring *r, uint64_t user_data)
{
	uint64_t wire = WIRE_NOBODY;
	uint32_t i, newest = 0;
	const struct kvc_request *q;

	for (i = 0; i < r->n_reqs; i++) {
		q = &r->reqs[i];
		if (!q->used || q->user_data != user_data || q->opcode == KVD_OP_CANCEL)
			continue;
		if (wire != WIRE_NOBODY && (int32_t)(q->serial - newest) < 0)
			continue;
		newest = q->serial;
		wire = (uint64_t)q->serial << 32 | i;
	}
	for (i = 0; wire == WIRE_NOBODY && i < KVD_MAX_KEPT && i < r->n_kept; i++) {
		const struct kept *k = &r->kept[(r->n_kept - 1 - i) % KVD_MAX_KEPT];

		if (k->user_data == user_data)
			wire = k->wire;
	}
	return wire;
}

/* The options of @sqe; what they take of the input arena. They were checked before. */
static uint64_t read_options(const struct kvc_sqe *sqe, struct kvc_request *q,
			     struct kvd_sqe *wire, struct kvc_gen_opts *ret_gen)
{
	wire->flags = (uint8_t)sqe->flags;
	if (sqe->opcode == KVD_OP_SCORE && score_opts_of(sqe, &q->score) == 0) {
		wire->flags = (uint8_t)q->score.flags;
		wire->arg = (uint64_t)q->score.first << 32 | q->score.top;
		q->out = q->score.tokens;
		q->out2 = q->score.logprobs;
		q->cap = q->score.cap;
	}
	if (!takes_params(sqe->opcode) || gen_opts_read(ret_gen, sqe->opts) < 0)
		return 0;
	wire->flags = (uint8_t)ret_gen->input_flags;
	q->keep = ret_gen->gen_flags & KVD_GEN_KEEP;
	q->several = ret_gen->n > 1;
	q->n_seqs = ret_gen->n > 1 ? (uint8_t)ret_gen->n : 1;
	if (ret_gen->timeout_ms)
		q->deadline_ns = clock_ns() + ret_gen->timeout_ms * UINT64_C(1000000);
	return sqe->opts ? params_bytes(ret_gen) : 0;
}

static int never_fits(struct kvc_request *q, const char *arena, uint64_t need,
		      uint64_t size)
{
	q->detail = size;
	return kvc_fail(
		-E2BIG,
		"the request needs %llu bytes of its ring's %s arena, which has %llu",
		(unsigned long long)need, arena, (unsigned long long)size);
}

/* Room for, and a copy of, everything that @sqe names. Return: 0, -ENOBUFS, -E2BIG. */
static int marshal(struct kvc_ring *r, const struct kvc_sqe *sqe, struct kvc_request *q,
		   struct kvd_sqe *wire)
{
	uint64_t params, data, total, out = output_bytes(sqe);
	struct kvc_gen_opts o;

	params = read_options(sqe, q, wire, &o);
	data = data_bytes(&sqe->input);
	total = align_up(params, 4) + data;
	if (total > r->in.size)
		return never_fits(q, "input", total, r->in.size);
	if (out > r->out.size)
		return never_fits(q, "output", out, r->out.size);
	if (total > 0 && !arena_alloc(&r->in, total, &q->in_off))
		return -ENOBUFS;
	q->in_len = (uint32_t)total;
	if (out > 0 && !arena_alloc(&r->out, out, &q->out_off))
		return -ENOBUFS;
	q->out_len = (uint32_t)out;

	if (params > 0) {
		wire->params_off = q->in_off;
		wire->params_len = (uint32_t)params;
		write_params(r->ring.in + wire->params_off, &o);
	}
	if (data > 0) {
		wire->in_off = q->in_off + align_up(params, 4);
		wire->in_len = (uint32_t)data;
		write_data(r->ring.in + wire->in_off, &sqe->input, data);
	}
	if (out > 0) {
		wire->out_off = q->out_off;
		wire->out_len = (uint32_t)out;
	}
	return 0;
}

static struct kvc_request *request_begin(struct kvc_ring *r, const struct kvc_sqe *sqe)
{
	struct kvc_request *q = &r->reqs[r->free_req - 1];

	r->free_req = q->next;
	r->in_flight++;
	q->used = true;
	q->serial++;
	q->user_data = sqe->user_data;
	q->opcode = sqe->opcode;
	q->out = sqe->out;
	q->out2 = sqe->out2;
	q->cap = sqe->cap;
	q->score.top = 0;
	q->detail = 0;
	q->keep = false;
	q->several = false;
	q->n_seqs = 1;
	q->shown = false;
	q->replay = false;
	q->n_lost = 0;
	q->n_lives = 0;
	q->n_refused = 0;
	q->resent = false;
	q->deadline_ns = 0;
	q->given = (struct progress){0};
	return q;
}

/* Does a FORK name what a restart has lost, or what has not come as far as before? */
static bool parent_lost(const struct kvc_ring *r, uint64_t wire)
{
	uint32_t i = (uint32_t)wire;

	if (wire == WIRE_LOST)
		return true;
	return i < r->n_reqs && r->reqs[i].used &&
	       (r->reqs[i].replay || r->reqs[i].doomed || r->reqs[i].held);
}

/* Does a CANCEL name what is held back, so that no daemon knows of it? NULL: no. */
static struct kvc_request *find_held(struct kvc_ring *r, uint8_t opcode, uint64_t arg)
{
	uint32_t i = (uint32_t)arg;

	if (opcode != KVD_OP_CANCEL || i >= r->n_reqs || !r->reqs[i].used ||
	    !r->reqs[i].held || r->reqs[i].serial != (uint32_t)(arg >> 32))
		return NULL;
	return &r->reqs[i];
}

/* One entry. Return: 0: gone; -EAGAIN, -ENOBUFS: no room now. */
static int submit_one(struct kvc_ring *r, const struct kvc_sqe *sqe)
{
	struct kvc_request *q, *held;
	uint64_t detail, arg = 0;
	bool lost;
	int rc;

	if (!r->free_req || r->n_unsent ||
	    (r->ring.sq_pos - r->ring.sq_seen >= r->ring.sq_entries &&
	     ring_client_sq_space(&r->ring) == 0))
		return -EAGAIN;
	/* The last slot stays free for a CANCEL, or nothing could end the rest. */
	if (r->in_flight + 1 >= r->n_reqs && sqe->opcode != KVD_OP_CANCEL &&
	    r->n_reqs > 1)
		return -EAGAIN;

	rc = entry_check(sqe, &detail);
	if (rc < 0) {
		q = request_begin(r, sqe);
		q->detail = detail;
		request_end(r, q, rc);
		return 0;
	}
	if (sqe->opcode == KVD_OP_CANCEL || sqe->opcode == KVD_OP_FORK)
		arg = find_target(r, sqe->target);
	lost = sqe->opcode == KVD_OP_FORK && parent_lost(r, arg);
	held = find_held(r, sqe->opcode, arg);
	q = request_begin(r, sqe);
	q->wire = (struct kvd_sqe){
		.user_data = (uint64_t)q->serial << 32 | (uint32_t)(q - r->reqs),
		.opcode = sqe->opcode,
		.input = (uint16_t)sqe->input.kind,
		.arg = arg,
	};
	if (held) {
		request_end(r, held, -ECANCELED);
		request_end(r, q, held->n_seqs);
		return 0;
	}
	if (lost) {
		request_end(r, q, KVD_E_RESTARTED);
		return 0;
	}
	if (sqe->opcode != KVD_OP_NOP && sqe->opcode != KVD_OP_CANCEL)
		rc = marshal(r, sqe, q, &q->wire);
	if (rc == -ENOBUFS) {
		request_release(r, q);
		return rc;
	}
	if (rc < 0) {
		request_end(r, q, rc);
		return 0;
	}
	(void)ring_client_put(&r->ring, &q->wire);
	return 0;
}

int kvc_ring_submit(struct kvc_ring *r)
{
	uint64_t before;
	int rc, n = 0;

	rc = client_check(r->client);
	if (rc >= 0 && r->fault)
		rc = kvc_fail_status(r->fault, 0);
	if (rc < 0)
		return rc;
	if (r->n_unsent || r->n_held)
		ring_pump(r);
	before = r->ring.sq_pos;
	while (r->sqe_head != r->sqe_tail) {
		rc = submit_one(r, &r->sqes[r->sqe_head & (r->ring.sq_entries - 1)]);
		if (rc < 0)
			break;
		r->sqe_head++;
		n++;
	}
	if (r->ring.sq_pos != before)
		ring_client_kick(&r->ring);
	return n > 0 ? n : rc;
}
