/* SPDX-License-Identifier: MIT */
/*
 * An honest client with many requests in flight, which tells every bit of their answers:
 *
 *   mix SEED KINDS N WINDOW VOCAB MAX_PROMPT ORDER CANCELS
 *
 * Sends N requests, at most WINDOW at a time, and prints a line for each of them:
 *
 *   KIND RES CACHED TOKEN:LOGPROB ...     the logprob as the eight hex digits of its float
 *
 * What a request asks for depends on SEED and its kind, 0 .. KINDS - 1, only: prompts of
 * token ids below VOCAB that share their beginnings, of up to MAX_PROMPT tokens; greedy,
 * sampled or scored. ORDER says which kinds come when, and CANCELS which per cent of them
 * are cancelled after some of their tokens. So runs against daemons with other settings
 * compare line by line. Exit status 1 when the daemon failed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvclient.h>

#define MAX_TOKENS 24
#define FAMILIES   6

struct request {
	uint32_t kind;
	uint32_t n_prompt, n_seen;
	uint32_t cancel_after; /* tokens; UINT32_MAX: never */
	bool score, cancelled;
	uint32_t *prompt, *scored;
	float *logprobs;
	uint32_t seen[MAX_TOKENS];
	float seen_logprobs[MAX_TOKENS];
	struct kvc_gen_opts opts;
	struct request *next_free;
};

struct mix {
	uint64_t seed, order;
	uint32_t n_kinds, n, n_vocab, max_prompt, cancels;
	struct kvc_ring *ring;
	struct request *requests, *free;
};

/* The finalizer of splitmix64. */
static uint64_t hash(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint32_t draw(uint64_t *state, uint32_t n)
{
	*state = hash(*state);
	return (uint32_t)((*state >> 16) % n);
}

/* A family's tokens go on for ever; a request takes some of them, then its own. */
static void fill(const struct mix *mix, struct request *r)
{
	uint64_t state = hash(mix->seed * 1000003 + r->kind);
	uint64_t family = hash(mix->seed ^ (draw(&state, FAMILIES) + 77));
	uint32_t n_common;

	/* half of the prompts are short, as half of the world's are */
	r->n_prompt =
		1 + draw(&state, draw(&state, 2) ? mix->max_prompt : mix->max_prompt / 8);
	n_common = draw(&state, 4) ? draw(&state, r->n_prompt + 1) : r->n_prompt;
	for (uint32_t i = 0; i < r->n_prompt; i++)
		r->prompt[i] = i < n_common ? (uint32_t)(hash(family + i) % mix->n_vocab)
					    : draw(&state, mix->n_vocab);
	r->score = r->n_prompt > 1 && !draw(&state, 6);
	r->opts = (struct kvc_gen_opts)KVC_OPTS_INIT(struct kvc_gen_opts);
	r->opts.max_tokens = 1 + draw(&state, MAX_TOKENS);
	r->opts.temperature = draw(&state, 2) ? 0.9f : 0.0f;
	r->opts.seed = draw(&state, 1000);
	r->opts.gen_flags = KVD_GEN_LOGPROBS | KVD_GEN_IGNORE_EOS;
}

static bool start(struct mix *mix, uint32_t i)
{
	uint64_t state = hash(mix->order * 7919 + i);
	struct request *r = mix->free;
	struct kvc_sqe *sqe = r ? kvc_ring_get_sqe(mix->ring) : NULL;
	struct kvc_input input;

	if (!sqe)
		return false;
	mix->free = r->next_free;
	/* each kind in its turn, or, in another order, at random */
	r->kind = mix->order ? draw(&state, mix->n_kinds) : i % mix->n_kinds;
	r->n_seen = 0;
	r->cancelled = false;
	fill(mix, r);
	r->cancel_after = UINT32_MAX;
	if (!r->score && draw(&state, 100) < mix->cancels)
		r->cancel_after = 1 + draw(&state, r->opts.max_tokens);
	input = kvc_tokens(r->prompt, r->n_prompt);
	if (r->score)
		kvc_prep_score(sqe, &input, 0, r->scored, r->logprobs, mix->max_prompt);
	else
		kvc_prep_generate(sqe, &input, &r->opts);
	kvc_sqe_set_data(sqe, r);
	return true;
}

static void print_token(uint32_t token, float logprob)
{
	uint32_t bits;

	memcpy(&bits, &logprob, sizeof(bits));
	printf(" %" PRIu32 ":%08" PRIx32, token, bits);
}

static void finish(struct mix *mix, struct request *r, const struct kvd_cqe *cqe)
{
	printf("%" PRIu32 " %" PRId32 " %" PRIu32, r->kind, cqe->res,
	       cqe->u.usage.cached_tokens);
	for (uint32_t i = 0; r->score && cqe->res >= 0 && i < r->n_prompt; i++)
		print_token(r->prompt[i], r->logprobs[i]);
	for (uint32_t i = 0; i < r->n_seen; i++)
		print_token(r->seen[i], r->seen_logprobs[i]);
	putchar('\n');
	r->next_free = mix->free;
	mix->free = r;
}

/* Return: 1 when a request has ended, else 0. */
static int on_cqe(struct mix *mix, const struct kvd_cqe *cqe)
{
	struct request *r = kvc_cqe_get_data(cqe);
	struct kvc_sqe *sqe;

	if (!r)
		return 0; /* a CANCEL's own end */
	if (!(cqe->flags & KVD_CQE_MORE)) {
		finish(mix, r, cqe);
		return 1;
	}
	if (cqe->flags & KVD_CQE_PIECE || r->n_seen == MAX_TOKENS)
		return 0;
	r->seen[r->n_seen] = (uint32_t)cqe->u.token.token;
	r->seen_logprobs[r->n_seen++] = cqe->u.token.logprob;
	if (r->n_seen >= r->cancel_after && !r->cancelled &&
	    (sqe = kvc_ring_get_sqe(mix->ring))) {
		r->cancelled = true;
		kvc_prep_cancel(sqe, (uint64_t)(uintptr_t)r);
		kvc_sqe_set_data(sqe, NULL);
	}
	return 0;
}

static int run(struct mix *mix)
{
	uint32_t next = 0, done = 0;
	const struct kvd_cqe *cqe;
	int r;

	while (done < mix->n) {
		while (next < mix->n && start(mix, next))
			next++;
		r = kvc_ring_submit(mix->ring);
		if (r < 0 && r != -EAGAIN && r != -ENOBUFS)
			return r;
		r = kvc_ring_wait_cqe(mix->ring, &cqe, -1);
		if (r < 0)
			return r;
		do {
			done += (uint32_t)on_cqe(mix, cqe);
			kvc_ring_cqe_seen(mix->ring);
		} while (kvc_ring_peek_cqe(mix->ring, &cqe) == 0);
	}
	return 0;
}

static int make_requests(struct mix *mix, uint32_t window)
{
	mix->requests = calloc(window, sizeof(*mix->requests));
	for (uint32_t i = 0; mix->requests && i < window; i++) {
		struct request *r = &mix->requests[i];

		r->prompt = calloc(mix->max_prompt, sizeof(*r->prompt));
		r->scored = calloc(mix->max_prompt, sizeof(*r->scored));
		r->logprobs = calloc(mix->max_prompt, sizeof(*r->logprobs));
		if (!r->prompt || !r->scored || !r->logprobs)
			return -ENOMEM;
		r->next_free = mix->free;
		mix->free = r;
	}
	return mix->requests ? 0 : -ENOMEM;
}

static uint32_t number(const char *text)
{
	return (uint32_t)strtoul(text, NULL, 10);
}

/* Memory goes with the process. */
int main(int argc, char **argv)
{
	struct kvc_client *client = NULL;
	struct mix mix = {0};
	int r;

	if (argc != 9) {
		fputs("usage: mix SEED KINDS N WINDOW VOCAB MAX_PROMPT ORDER CANCELS\n",
		      stderr);
		return 2;
	}
	mix.seed = number(argv[1]);
	mix.n_kinds = number(argv[2]);
	mix.n = number(argv[3]);
	mix.n_vocab = number(argv[5]);
	mix.max_prompt = number(argv[6]);
	mix.order = number(argv[7]);
	mix.cancels = number(argv[8]);
	r = make_requests(&mix, number(argv[4]));
	if (!r)
		r = kvc_connect(&client, NULL);
	if (!r)
		r = kvc_ring_open(client, &mix.ring, NULL);
	if (!r)
		r = run(&mix);
	if (r < 0)
		fprintf(stderr, "mix: %s\n", kvc_strerror(r));
	kvc_ring_close(mix.ring);
	kvc_close(client);
	return r < 0;
}
