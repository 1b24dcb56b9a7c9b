/* SPDX-License-Identifier: MIT */
/*
 * Branches: every fork gives the tokens and logprobs that the same tokens give when they
 * are sent as a prompt of their own, with a salt that finds nothing in the cache.
 *
 *   branch          forks of running and of ended sequences at many offsets, and n > 1
 *   branch keep     memory of what is kept for forks: charged, limited, given back
 *
 * Prints what it did; ends with 1 at the first difference.
 */
#include <kvclient.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TOKENS 512
#define N_ANSWER   24
#define MAX_ACTIVE 64
#define N_ALONE    8 /* cold sequences at a time */
#define N_OWN      3

static const uint32_t own[N_OWN] = {11, 22, 33};

/* One sequence as it comes. */
struct answer {
	uint32_t tokens[MAX_TOKENS];
	float logprobs[MAX_TOKENS];
	uint32_t n;
	uint32_t n_prompt;
	uint32_t n_cached;
	int res;
	int done;
};

static struct answer answers[MAX_ACTIVE][KVD_MAX_N];
static struct kvc_client *client;
static struct kvc_ring *ring;
static uint64_t next_salt = 1;

static void check(int ok, const char *what, long a, long b)
{
	if (ok)
		return;
	printf("branch: %s (%ld, %ld): %s\n", what, a, b, kvc_errmsg());
	exit(1);
}

static struct kvc_gen_opts options(void)
{
	struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts);

	o.max_tokens = N_ANSWER;
	o.gen_flags = KVD_GEN_LOGPROBS | KVD_GEN_IGNORE_EOS;
	return o;
}

/* The next completion into answers[user_data]. Return: its user_data. */
static uint64_t take(void)
{
	const struct kvd_cqe *cqe;
	struct answer *a;
	uint64_t data;
	int r;

	r = kvc_ring_wait_cqe(ring, &cqe, INT64_C(60000000000));
	check(r == 0, "waiting for a completion", r, 0);
	data = cqe->user_data;
	a = &answers[data][KVD_CQE_INDEX(cqe->flags)];
	if (!(cqe->flags & KVD_CQE_MORE) || cqe->flags & KVD_CQE_END) {
		a->done = 1;
		a->res = cqe->res;
		a->n_prompt = cqe->u.usage.prompt_tokens;
		a->n_cached = cqe->u.usage.cached_tokens;
	} else if (!(cqe->flags & KVD_CQE_PIECE)) {
		check(a->n < MAX_TOKENS, "too many tokens", (long)a->n, 0);
		a->tokens[a->n] = (uint32_t)cqe->u.token.token;
		a->logprobs[a->n++] = cqe->u.token.logprob;
	}
	kvc_ring_cqe_seen(ring);
	return data;
}

static void begin(uint64_t data, const uint32_t *tokens, uint32_t n,
		  const struct kvc_gen_opts *o)
{
	struct kvc_input in = kvc_tokens(tokens, n);
	struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);

	memset(answers[data], 0, sizeof(answers[data]));
	kvc_sqe_set_data64(sqe, data);
	kvc_prep_generate(sqe, &in, o);
	check(kvc_ring_submit(ring) == 1, "submitting", (long)data, 0);
}

static void fork_at(uint64_t data, uint64_t target, uint32_t at, const uint32_t *more,
		    uint32_t n_more, struct kvc_gen_opts o)
{
	struct kvc_input in = kvc_tokens(more, n_more);
	struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);

	o.fork_at = at;
	memset(answers[data], 0, sizeof(answers[data]));
	kvc_sqe_set_data64(sqe, data);
	kvc_prep_fork(sqe, target, n_more ? &in : NULL, &o);
	check(kvc_ring_submit(ring) == 1, "submitting a fork", (long)data, 0);
}

static void finish(uint64_t data)
{
	while (!answers[data][0].done)
		take();
}

/* What @tokens give by themselves, cold, is asked for; several may be at a time. */
static void compare_begin(uint32_t slot, const uint32_t *tokens, uint32_t n,
			  struct kvc_gen_opts o)
{
	o.salt = next_salt++;
	o.n = 0;
	begin(MAX_ACTIVE - 1 - slot, tokens, n, &o);
}

/* @a must be what was asked for in @slot, of @n tokens. */
static void compare_end(uint32_t slot, const struct answer *a, uint32_t n,
			const char *what)
{
	const uint64_t data = MAX_ACTIVE - 1 - slot;
	const struct answer *alone = &answers[data][0];

	check(a->res == (int)a->n && a->n, what, a->res, (long)a->n);
	check(a->n_prompt == n, "prompt tokens of a branch", (long)a->n_prompt, (long)n);
	finish(data);
	check(alone->n_cached == 0, "a hit across salts", (long)alone->n_cached, 0);
	check(alone->n == a->n, what, (long)alone->n, (long)a->n);
	check(!memcmp(alone->tokens, a->tokens, a->n * sizeof(a->tokens[0])), what,
	      (long)n, -1);
	check(!memcmp(alone->logprobs, a->logprobs, a->n * sizeof(a->logprobs[0])), what,
	      (long)n, -2);
}

static void compare(const struct answer *a, const uint32_t *tokens, uint32_t n,
		    struct kvc_gen_opts o, const char *what)
{
	compare_begin(0, tokens, n, o);
	compare_end(0, a, n, what);
}

/* How many tokens a branch at @at begins with, in @whole: every other one has some of its own. */
static uint32_t branch_tokens(uint32_t *whole, const uint32_t *tokens, uint32_t at)
{
	memcpy(whole, tokens, at * sizeof(whole[0]));
	if (at % 2 == 0)
		return at;
	memcpy(whole + at, own, sizeof(own));
	return at + N_OWN;
}

/* Branches of sequence 0, whose prompt is @tokens, when it has ended or while it runs. */
static void branches(uint32_t *tokens, uint32_t n, int running)
{
	struct kvc_gen_opts o = options();
	struct answer *parent = &answers[0][0];
	uint32_t n_forks = 0, ats[40], from = n - 18;

	o.max_tokens = running ? 60 : N_ANSWER;
	o.gen_flags |= running ? 0 : KVD_GEN_KEEP;
	begin(0, tokens, n, &o);
	while (running ? parent->n < 20 : !parent->done)
		take();
	o = options();
	for (uint32_t at = from; at <= n + 18; at += running ? 3 : 1) {
		ats[++n_forks] = at;
		fork_at(n_forks, 0, at, own, at % 2 ? N_OWN : 0, o);
	}
	for (uint32_t i = 1; i <= n_forks; i++)
		finish(i);
	finish(0);
	memcpy(tokens + n, parent->tokens, parent->n * sizeof(tokens[0]));
	for (uint32_t first = 1; first <= n_forks; first += N_ALONE) {
		uint32_t whole[MAX_TOKENS], len;

		for (uint32_t i = first; i < first + N_ALONE && i <= n_forks; i++) {
			len = branch_tokens(whole, tokens, ats[i]);
			compare_begin(i - first, whole, len, o);
		}
		for (uint32_t i = first; i < first + N_ALONE && i <= n_forks; i++) {
			len = branch_tokens(whole, tokens, ats[i]);
			compare_end(i - first, &answers[i][0], len, "a branch differs");
		}
	}
	o.max_tokens = running ? 60 : N_ANSWER;
	compare(parent, tokens, n, o, "the parent changed");
	printf("branch: %u forks of %s sequence\n", n_forks,
	       running ? "a running" : "an ended");
}

static void several(const uint32_t *tokens, uint32_t n)
{
	struct kvc_gen_opts o = options();

	o.n = 5;
	o.temperature = 1;
	o.seed = 7;
	begin(0, tokens, n, &o);
	finish(0);
	for (uint32_t i = 0; i < o.n; i++) {
		while (!answers[0][i].done)
			take();
	}
	check(kvc_ring_in_flight(ring) == 0, "a request after its final CQE",
	      kvc_ring_in_flight(ring), 0);
	for (uint32_t i = 0; i < o.n; i++) {
		struct answer one = answers[0][i];

		o.seed = 7 + i;
		compare(&one, tokens, n, o, "a sequence of several differs");
	}
	printf("branch: 5 sequences of one request\n");
}

/* A branch of a salted sequence, also of an ended one, does not open it to those without. */
static void salted(const uint32_t *tokens, uint32_t n)
{
	struct kvc_gen_opts o = options();
	uint32_t back[MAX_TOKENS];

	for (uint32_t i = 0; i < n; i++)
		back[i] = tokens[n - 1 - i];
	o.salt = UINT64_C(0x5a17) << 32;
	o.gen_flags |= KVD_GEN_KEEP;
	begin(0, back, n, &o);
	finish(0);
	fork_at(1, 0, 0, NULL, 0, options());
	finish(1);
	check(answers[1][0].res > 0, "a branch of a salted sequence", answers[1][0].res,
	      0);
	o = options();
	begin(2, back, n, &o);
	finish(2);
	check(answers[2][0].n_cached == 0, "a hit on a salted sequence",
	      (long)answers[2][0].n_cached, 0);
	printf("branch: salted\n");
}

static void refusals(const uint32_t *tokens, uint32_t n)
{
	struct kvc_gen_opts o = options();

	fork_at(1, 50, 0, NULL, 0, o);
	finish(1);
	check(answers[1][0].res == -2, "a fork of nothing", answers[1][0].res, -2);
	o.timeout_ms = 1;
	o.max_tokens = 400;
	begin(2, tokens, n, &o);
	finish(2);
	check(answers[2][0].res == KVD_E_DEADLINE, "a deadline", answers[2][0].res, 0);
	o.timeout_ms = 60000;
	o.max_tokens = 1;
	begin(2, tokens, n, &o);
	finish(2);
	check(answers[2][0].res == 1, "a deadline that is far", answers[2][0].res, 1);
	printf("branch: refusals and deadlines\n");
}

/* Bytes that this user is charged for. */
static uint64_t charged(void)
{
	struct kvd_quota_info users[8];
	int n = kvc_quota_list(client, users, 8);

	for (int i = 0; i < n && i < 8; i++)
		if (users[i].uid == getuid())
			return users[i].arena;
	check(0, "use of this user", n, 0);
	return 0;
}

static void forget(uint64_t data)
{
	struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);

	kvc_prep_cancel(sqe, data);
	kvc_sqe_set_data64(sqe, MAX_ACTIVE - 2);
	memset(answers[MAX_ACTIVE - 2], 0, sizeof(answers[0]));
	check(kvc_ring_submit(ring) == 1, "submitting", (long)data, 0);
	finish(MAX_ACTIVE - 2);
	check(answers[MAX_ACTIVE - 2][0].res == 1, "forgetting", (long)data,
	      answers[MAX_ACTIVE - 2][0].res);
}

/* As often as sequences are kept, so that each that is kept shows: 1 and 2 would be gone. */
static void refused(const uint32_t *tokens, uint32_t n, const struct kvd_quota *quota,
		    const struct kvc_gen_opts *o)
{
	const struct kvd_quota none = {0};

	check(!kvc_quota_set(client, getuid(), KVD_QUOTA_BLOCKS, quota), "a limit", 0, 0);
	for (uint32_t i = 0; i < KVD_MAX_KEPT; i++) {
		begin(3, tokens, n, o);
		finish(3);
		check(answers[3][0].res == KVD_E_QUOTA, "beyond a limit",
		      answers[3][0].res, i);
	}
	check(!kvc_quota_set(client, getuid(), KVD_QUOTA_BLOCKS, &none), "no limit", 0,
	      0);
	check(kvc_drain(client, KVD_DRAIN_ON, NULL) == 1, "draining", 0, 0);
	for (uint32_t i = 0; i < KVD_MAX_KEPT; i++) {
		begin(3, tokens, n, o);
		finish(3);
		check(answers[3][0].res == KVD_E_DRAINING, "a drain", answers[3][0].res,
		      i);
	}
	check(kvc_drain(client, KVD_DRAIN_OFF, NULL) == 0, "no drain", 0, 0);
}

static void keep(const uint32_t *tokens, uint32_t n)
{
	struct kvc_gen_opts o = options();
	struct kvd_quota quota = {0};
	uint64_t rings = charged(), each = 4 * (uint64_t)(n + N_ANSWER);

	o.gen_flags |= KVD_GEN_KEEP;
	/* room for two, for half of a third, and for a request that runs */
	quota.max_arena = rings + 2 * each + each / 2 + 16384;
	check(!kvc_quota_set(client, getuid(), KVD_QUOTA_ARENA, &quota), "a limit", 0, 0);
	for (uint64_t i = 1; i <= 2; i++) {
		begin(i, tokens, n, &o);
		finish(i);
		check(answers[i][0].res == N_ANSWER, "keeping", answers[i][0].res, 0);
		check(charged() == rings + i * each, "the charge of what is kept",
		      (long)charged(), (long)(rings + i * each));
	}
	/* as long as the context, which is beyond the room for requests that run */
	o.max_tokens = 0;
	begin(3, tokens, n, &o);
	finish(3);
	o.max_tokens = N_ANSWER;
	check(answers[3][0].res == KVD_E_QUOTA, "keeping too much", answers[3][0].res, 0);
	quota.max_arena = 0;
	check(!kvc_quota_set(client, getuid(), KVD_QUOTA_ARENA, &quota), "no limit", 0,
	      0);
	/* neither is what the scheduler refuses, nor what a draining daemon does */
	quota.max_blocks = 1;
	refused(tokens, n, &quota, &o);
	check(charged() == rings + 2 * each, "the charge of what was refused",
	      (long)charged(), (long)(rings + 2 * each));
	o.gen_flags &= ~(uint32_t)KVD_GEN_KEEP;
	fork_at(4, 1, 0, NULL, 0, o);
	finish(4);
	check(answers[4][0].res == N_ANSWER, "a fork of what is kept", answers[4][0].res,
	      0);
	forget(1);
	check(charged() == rings + each, "the charge after forgetting", (long)charged(),
	      (long)(rings + each));
	/* a stop after one token gives back what was reserved for the others */
	o.gen_flags |= KVD_GEN_KEEP;
	o.max_tokens = N_ANSWER / 2;
	begin(5, tokens, n, &o);
	finish(5);
	check(answers[5][0].res == N_ANSWER / 2, "keeping again", answers[5][0].res, 0);
	kvc_ring_close(ring);
	/* its memory has just been let go, which the daemon learns in its next turn */
	for (int i = 0; i < 1000 && charged() > rings - (UINT64_C(5) << 20); i++)
		usleep(1000);
	/* 4 and 1 MiB of arenas where nothing else is said, and queues of less than one */
	check(charged() <= rings - (UINT64_C(5) << 20) &&
		      charged() + (UINT64_C(6) << 20) > rings,
	      "the charge without the ring", (long)charged(), (long)rings);
	quota.max_arena = 0;
	check(!kvc_quota_set(client, getuid(), KVD_QUOTA_ARENA, &quota), "no limit", 0,
	      0);
	ring = NULL;
	printf("branch: kept tokens are charged\n");
}

int main(int argc, char **argv)
{
	int only_keep = argc > 1 && !strcmp(argv[1], "keep");
	static const char prompt[] =
		"The harbour office keeps a list of every ship that came in since the "
		"year of the flood, and of the cargo that each of them carried. ";
	uint32_t tokens[MAX_TOKENS];
	struct kvc_input in = kvc_text(prompt, sizeof(prompt) - 1);
	struct kvd_stats stats = {.size = sizeof(stats)};
	int n;

	check(!kvc_connect(&client, NULL), "connecting", 0, 0);
	n = kvc_tokenize(client, &in, 0, tokens, MAX_TOKENS);
	check(n > 20, "tokenizing", n, 0);
	check(!kvc_ring_open(client, &ring, NULL), "opening a ring", 0, 0);
	if (only_keep) {
		keep(tokens, (uint32_t)n);
	} else {
		branches(tokens, (uint32_t)n, 0);
		branches(tokens, (uint32_t)n, 1);
		several(tokens, (uint32_t)n);
		salted(tokens, (uint32_t)n);
		refusals(tokens, (uint32_t)n);
	}
	check(!kvc_stats(client, &stats), "statistics", 0, 0);
	check(stats.blocks_active == 0, "blocks held at the end",
	      (long)stats.blocks_active, 0);
	kvc_ring_close(ring);
	kvc_close(client);
	return 0;
}
