/* SPDX-License-Identifier: MIT */
/*
 * Blocking calls. Each takes a hidden ring out of the client's pool for its time,
 * so calls of several threads run side by side and none sees another's
 * completions. The pool grows on demand up to what the daemon grants; then calls
 * wait for one to come back. A ring whose request did not end in good order is
 * closed instead of given back.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"
#include "client/opts.h"
#include "ipc/base.h"

#define HIDDEN_SQ    4u
#define HIDDEN_CQ    256u
#define HIDDEN_BYTES (256u << 10)

/* The daemon keeps a request's deadline, and tells what had come; if it says nothing for
 * that much longer, the call ends by itself. */
#define DEADLINE_GRACE_NS INT64_C(500000000)

/* The idle ring that is large enough, or else any, or NULL. */
static struct kvc_ring *take_idle(struct kvc_client *c, uint64_t in, uint64_t out)
{
	struct kvc_ring **at, *r;

	for (at = &c->idle; *at; at = &(*at)->next_idle)
		if ((*at)->in.size >= in && (*at)->out.size >= out)
			break;
	if (!*at)
		at = &c->idle;
	r = *at;
	if (r)
		*at = r->next_idle;
	return r;
}

static uint64_t hidden_size(uint64_t need, uint64_t max)
{
	uint64_t size = HIDDEN_BYTES;

	while (size < need)
		size *= 2;
	return size < max ? size : max;
}

/* Close it, or leave that to a later call if another thread holds the socket too long. */
static void drop_hidden(struct kvc_client *c, struct kvc_ring *r, uint64_t deadline_ns)
{
	bool closed = ring_close(r, deadline_ns) == 0;

	pthread_mutex_lock(&c->pool_lock);
	if (closed) {
		c->n_hidden--;
	} else {
		r->next_idle = c->dropped;
		c->dropped = r;
	}
	pthread_cond_signal(&c->pool_cond);
	pthread_mutex_unlock(&c->pool_lock);
}

/* Take up what such calls have left. */
static void drop_left(struct kvc_client *c, uint64_t deadline_ns)
{
	struct kvc_ring *r;

	pthread_mutex_lock(&c->pool_lock);
	r = c->dropped;
	if (r)
		c->dropped = r->next_idle;
	pthread_mutex_unlock(&c->pool_lock);
	if (r)
		drop_hidden(c, r, deadline_ns);
}

static void put_hidden(struct kvc_client *c, struct kvc_ring *r, uint64_t deadline_ns)
{
	if (r->in_flight || r->fault || r->has_cqe || r->n_ready ||
	    r->sqe_head != r->sqe_tail) {
		drop_hidden(c, r, deadline_ns);
		return;
	}
	pthread_mutex_lock(&c->pool_lock);
	r->next_idle = c->idle;
	c->idle = r;
	pthread_cond_signal(&c->pool_cond);
	pthread_mutex_unlock(&c->pool_lock);
}

/* Under pool_lock: until a ring comes back. Return: 0, -ETIME. */
static int wait_idle(struct kvc_client *c, uint64_t deadline_ns)
{
	const struct timespec at = {
		.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u),
	};

	if (deadline_ns)
		return -pthread_cond_timedwait(&c->pool_cond, &c->pool_lock, &at);
	return -pthread_cond_wait(&c->pool_cond, &c->pool_lock);
}

/* Open one where none was of use. Return: 0; -EAGAIN: look into the pool again. */
static int open_hidden(struct kvc_client *c, uint64_t in, uint64_t out,
		       uint64_t deadline_ns, struct kvc_ring **ret)
{
	int rc;

	rc = ring_open(c, ret, HIDDEN_SQ, HIDDEN_CQ, in, out, deadline_ns);
	if (rc >= 0)
		return 0;
	pthread_mutex_lock(&c->pool_lock);
	c->n_hidden--;
	if (rc != KVD_E_QUOTA || c->n_hidden == 0)
		/* Another call may have been waiting for this place. */
		pthread_cond_broadcast(&c->pool_cond);
	else if (!c->idle && wait_idle(c, deadline_ns) == -ETIMEDOUT)
		rc = kvc_fail(-ETIME, "no ring came free in time");
	else
		rc = -EAGAIN;
	pthread_mutex_unlock(&c->pool_lock);
	return rc;
}

/* A ring for a call that needs that much arena. Return: 0 or the error. */
static int get_hidden(struct kvc_client *c, uint64_t in, uint64_t out,
		      uint64_t deadline_ns, struct kvc_ring **ret)
{
	uint64_t max_in, max_out;
	struct kvc_ring *r;
	int rc;

	client_max_arenas(c, &max_in, &max_out);
	if (in > max_in || out > max_out)
		return kvc_fail(-E2BIG,
				"the request needs %llu bytes; this daemon grants %llu "
				"at most ([daemon] max_arena_per_ring)",
				(unsigned long long)(in > max_in ? in : out),
				(unsigned long long)(in > max_in ? max_in : max_out));
	do {
		drop_left(c, deadline_ns);
		pthread_mutex_lock(&c->pool_lock);
		r = take_idle(c, in, out);
		if (!r)
			c->n_hidden++;
		pthread_mutex_unlock(&c->pool_lock);
		if (r && r->in.size >= in && r->out.size >= out) {
			*ret = r;
			return 0;
		}
		/* None, or one too small: its place goes to a larger one. */
		if (r && ring_close(r, deadline_ns) < 0) {
			put_hidden(c, r, deadline_ns);
			return kvc_fail(-ETIME, "kvd does not answer");
		}
		rc = open_hidden(c, hidden_size(in, max_in), hidden_size(out, max_out),
				 deadline_ns, ret);
	} while (rc == -EAGAIN);
	return rc;
}

/* One request with one CQE. Return: its res, or why there is none. */
static int call_simple(struct kvc_client *c, const struct kvc_sqe *sqe,
		       uint64_t deadline_ns, struct kvd_cqe_usage *ret_usage)
{
	const struct kvd_cqe *cqe;
	struct kvc_ring *r;
	uint64_t detail;
	int rc;

	rc = client_check(c);
	if (rc >= 0) {
		rc = entry_check(sqe, &detail);
		if (ret_usage)
			ret_usage->detail = detail;
	}
	if (rc >= 0)
		rc = get_hidden(c, input_bytes(sqe), output_bytes(sqe), deadline_ns, &r);
	if (rc < 0)
		return rc;

	*kvc_ring_get_sqe(r) = *sqe;
	rc = kvc_ring_submit(r);
	if (rc >= 0 || rc == -EAGAIN) /* waiting submits the rest */
		rc = ring_wait_until(r, &cqe, deadline_ns);
	if (rc >= 0) {
		rc = cqe->res;
		if (ret_usage)
			*ret_usage = cqe->u.usage;
		if (rc < 0)
			kvc_fail_usage(rc, &cqe->u.usage);
		kvc_ring_cqe_seen(r);
	}
	put_hidden(c, r, deadline_ns);
	return rc;
}

int kvc_ping(struct kvc_client *c, int64_t timeout_ns)
{
	struct kvc_sqe sqe = {.opcode = KVD_OP_NOP};
	int rc;

	rc = call_simple(c, &sqe, deadline_after(timeout_ns), NULL);
	if (rc == -ETIME)
		return kvc_fail(rc, "kvd does not answer");
	return rc;
}

int kvc_score(struct kvc_client *c, const struct kvc_input *input, uint32_t flags,
	      uint32_t *tokens, float *logprobs, size_t cap,
	      struct kvd_cqe_usage *ret_usage)
{
	struct kvd_cqe_usage usage = {0};
	struct kvc_sqe sqe = {0};
	int rc;

	kvc_prep_score(&sqe, input, flags, tokens, logprobs, cap);
	rc = call_simple(c, &sqe, 0, &usage);
	if (ret_usage)
		*ret_usage = usage;
	return rc == -ENOBUFS && usage.detail ? (int)(usage.detail / 8) : rc;
}

/* What only the daemon can know. The line about the rest stays as it is. */
static int fail_score(struct kvc_client *c, const struct kvc_sqe *sqe)
{
	struct kvd_model_info model = {0};
	struct kvc_score_opts o;

	if (score_opts_of(sqe, &o) < 0 || !o.top)
		return -EINVAL;
	(void)kvc_get_model_info(c, &model);
	if (o.top != KVD_TOP_ALL && o.top > model.n_vocab)
		return kvc_fail(-EINVAL, "top is %u; the vocabulary has %u tokens", o.top,
				model.n_vocab);
	return kvc_fail(-EINVAL, "first is %u; the input has no such position", o.first);
}

int kvc_score_top(struct kvc_client *c, const struct kvc_input *input,
		  const struct kvc_score_opts *opts, struct kvd_cqe_usage *ret_usage)
{
	struct kvd_cqe_usage usage = {0};
	struct kvc_sqe sqe = {0};
	int rc;

	kvc_prep_score_top(&sqe, input, opts);
	rc = call_simple(c, &sqe, 0, &usage);
	if (ret_usage)
		*ret_usage = usage;
	return rc == -EINVAL ? fail_score(c, &sqe) : rc;
}

int kvc_tokenize(struct kvc_client *c, const struct kvc_input *input, uint32_t flags,
		 uint32_t *tokens, size_t cap)
{
	struct kvd_cqe_usage usage = {0};
	struct kvc_sqe sqe = {0};
	int rc;

	kvc_prep_tokenize(&sqe, input, flags, tokens, cap);
	rc = call_simple(c, &sqe, 0, &usage);
	return rc == -ENOBUFS && usage.detail ? (int)(usage.detail / 4) : rc;
}

int kvc_detokenize(struct kvc_client *c, const uint32_t *tokens, size_t n, uint32_t flags,
		   char *text, size_t cap)
{
	struct kvd_cqe_usage usage = {0};
	struct kvc_sqe sqe = {0};
	int rc;

	kvc_prep_detokenize(&sqe, tokens, n, flags, text, cap);
	rc = call_simple(c, &sqe, 0, &usage);
	return rc == -ENOBUFS && usage.detail ? (int)usage.detail : rc;
}

int kvc_prefix_lookup(struct kvc_client *c, const struct kvc_input *input, uint32_t flags,
		      uint64_t *ret_id, uint32_t *ret_n_tokens)
{
	struct kvd_cqe_usage usage = {0};
	struct kvc_sqe sqe = {0};
	int rc;

	kvc_prep_prefix_lookup(&sqe, input, flags);
	rc = call_simple(c, &sqe, 0, &usage);
	*ret_id = rc > 0 ? usage.detail : 0;
	if (ret_n_tokens)
		*ret_n_tokens = usage.prompt_tokens;
	return rc;
}

/* A streamed answer being gathered. */
struct collector {
	struct kvc_result result;
	size_t text_cap;
	size_t token_cap;
	bool logprobs;
	kvc_piece_fn fn;
	void *userdata;
};

static int grow(void **p, size_t *cap, size_t need, size_t each)
{
	size_t n = *cap ? *cap : 64;
	void *q;

	if (need <= *cap)
		return 0;
	while (n < need)
		n *= 2;
	q = reallocarray(*p, n, each);
	if (!q)
		return -ENOMEM;
	*p = q;
	*cap = n;
	return 0;
}

static int collect_text(struct collector *k, const uint8_t *bytes, size_t len)
{
	struct kvc_result *res = &k->result;
	int rc;

	rc = grow((void **)&res->text, &k->text_cap, res->text_len + len + 1, 1);
	if (rc < 0)
		return rc;
	if (len > 0)
		memcpy(res->text + res->text_len, bytes, len);
	res->text_len += len;
	res->text[res->text_len] = 0;
	return 0;
}

static int collect_token(struct collector *k, const struct kvd_cqe_token *t)
{
	struct kvc_result *res = &k->result;
	size_t cap = k->token_cap;
	int rc;

	rc = grow((void **)&res->tokens, &k->token_cap, res->n_tokens + 1,
		  sizeof(*res->tokens));
	if (rc >= 0 && k->logprobs)
		rc = grow((void **)&res->logprobs, &cap, res->n_tokens + 1,
			  sizeof(*res->logprobs));
	if (rc < 0)
		return rc;
	res->tokens[res->n_tokens] = (uint32_t)t->token;
	if (k->logprobs)
		res->logprobs[res->n_tokens] = t->logprob;
	res->n_tokens++;
	return 0;
}

/*
 * One streamed CQE, whose text is whole characters: into the result, and to the callback.
 * Return: 0; -ECANCELED if the callback wants no more; -ENOMEM.
 */
static int collect(struct collector *k, const struct kvd_cqe *cqe)
{
	const struct kvd_cqe_token *t = &cqe->u.token;
	bool has_token = !(cqe->flags & KVD_CQE_PIECE);
	struct kvc_piece piece;
	int rc;

	rc = collect_text(k, t->bytes, t->n_bytes);
	if (rc >= 0 && has_token)
		rc = collect_token(k, t);
	if (rc < 0 || !k->fn)
		return rc;

	piece.token = has_token ? t->token : -1;
	piece.logprob = t->logprob;
	piece.text = (const char *)t->bytes;
	piece.text_len = t->n_bytes;
	return k->fn(k->userdata, &piece) ? -ECANCELED : 0;
}

/* Gather until the final CQE. After a failure here, cancel and let it end. */
static int run_stream(struct kvc_ring *r, struct collector *k, uint64_t deadline_ns)
{
	const struct kvd_cqe *cqe;
	struct kvc_sqe *sqe;
	bool cancelled = false, more;
	int rc, fail = 0;

	while (r->in_flight > 0 || r->sqe_head != r->sqe_tail) {
		rc = ring_wait_until(r, &cqe, deadline_ns);
		if (rc == -ETIME)
			return kvc_fail(KVD_E_DEADLINE, "%s, and kvd does not answer",
					kvc_strerror(KVD_E_DEADLINE));
		if (rc < 0)
			return rc;
		if (cqe->user_data == 1) { /* the CANCEL's own */
			kvc_ring_cqe_seen(r);
			continue;
		}
		more = cqe->flags & KVD_CQE_MORE;
		if (more) {
			if (!fail)
				fail = collect(k, cqe);
		} else {
			k->result.usage = cqe->u.usage;
			if (!fail && cqe->res < 0)
				fail = kvc_fail_usage(cqe->res, &cqe->u.usage);
		}
		kvc_ring_cqe_seen(r);
		if (fail && more && !cancelled) {
			cancelled = true;
			sqe = kvc_ring_get_sqe(r);
			kvc_prep_cancel(sqe, 0);
			kvc_sqe_set_data64(sqe, 1);
			(void)kvc_ring_submit(r);
		}
	}
	return fail;
}

int kvc_generate_input(struct kvc_client *c, const struct kvc_input *input,
		       const struct kvc_gen_opts *opts, kvc_piece_fn fn, void *userdata,
		       struct kvc_result *ret_result)
{
	struct collector k = {.fn = fn, .userdata = userdata};
	struct kvc_sqe sqe = {0};
	struct kvc_gen_opts o;
	uint64_t deadline_ns = 0;
	struct kvc_ring *r;
	int rc;

	if (ret_result)
		memset(ret_result, 0, sizeof(*ret_result));
	rc = client_check(c);
	if (rc < 0)
		return rc;
	kvc_prep_generate(&sqe, input, opts);
	rc = entry_check(&sqe, &k.result.usage.detail);
	if (rc >= 0)
		rc = gen_opts_read(&o, opts);
	if (rc >= 0 && o.n > 1)
		rc = kvc_fail(-EINVAL,
			      "n is %u; several sequences of one request need a "
			      "ring of your own",
			      o.n);
	if (rc < 0) {
		if (ret_result)
			*ret_result = k.result;
		return rc;
	}
	k.logprobs = o.gen_flags & KVD_GEN_LOGPROBS;
	if (o.timeout_ms)
		deadline_ns = deadline_after(o.timeout_ms * INT64_C(1000000) +
					     DEADLINE_GRACE_NS);
	rc = get_hidden(c, input_bytes(&sqe), 0, deadline_ns, &r);
	if (rc < 0)
		return rc;

	*kvc_ring_get_sqe(r) = sqe;
	rc = kvc_ring_submit(r);
	if (rc >= 0 || rc == -EAGAIN)
		rc = collect_text(&k, NULL, 0);
	if (rc >= 0)
		rc = run_stream(r, &k, deadline_ns);
	put_hidden(c, r, deadline_ns);
	if (rc == -ECANCELED || rc == -ENOMEM)
		kvc_fail_status(rc, 0);

	if (ret_result)
		*ret_result = k.result;
	else
		kvc_result_clear(&k.result);
	return rc < 0 ? rc : 0;
}

void kvc_result_clear(struct kvc_result *result)
{
	free(result->text);
	free(result->tokens);
	free(result->logprobs);
	memset(result, 0, sizeof(*result));
}

int kvc_generate_stream(struct kvc_client *c, const char *prompt,
			const struct kvc_gen_opts *opts, kvc_piece_fn fn, void *userdata,
			struct kvc_result *ret_result)
{
	struct kvc_input in = kvc_text(prompt, strlen(prompt));

	return kvc_generate_input(c, &in, opts, fn, userdata, ret_result);
}

int kvc_generate(struct kvc_client *c, const char *prompt,
		 const struct kvc_gen_opts *opts, struct kvc_result *ret_result)
{
	return kvc_generate_stream(c, prompt, opts, NULL, NULL, ret_result);
}

int kvc_chat_stream(struct kvc_client *c, const struct kvc_message *messages, size_t n,
		    const struct kvc_gen_opts *opts, kvc_piece_fn fn, void *userdata,
		    struct kvc_result *ret_result)
{
	struct kvc_input in = kvc_messages(messages, n);

	return kvc_generate_input(c, &in, opts, fn, userdata, ret_result);
}

int kvc_chat(struct kvc_client *c, const struct kvc_message *messages, size_t n,
	     const struct kvc_gen_opts *opts, struct kvc_result *ret_result)
{
	return kvc_chat_stream(c, messages, n, opts, NULL, NULL, ret_result);
}
