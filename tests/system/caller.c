/* SPDX-License-Identifier: MIT */
/*
 * A client that does everything once:
 *
 *   caller [STEP]...
 *
 * Prints for each step "STEP ok WHAT" or "STEP ERROR: MESSAGE"; WHAT follows from the model
 * alone, so that two runs can be compared. Goes on after an error as far as it can. Exit
 * status 0 when all was well.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include <kvclient.h>

#define TEXT "abc abcabc, a cab"

static struct kvc_client *client;
static int argc_;
static char **argv_;
static bool failed;

static bool wanted(const char *step)
{
	for (int i = 1; i < argc_; i++)
		if (!strcmp(argv_[i], step))
			return true;
	return argc_ == 1;
}

static void tell_as(const char *step, int r, const char *message, const void *data,
		    size_t len)
{
	const uint8_t *bytes = data;
	uint32_t hash = 2166136261u;

	if (r < 0) {
		printf("%s %s: %s\n", step, kvc_errname(r), message);
		failed = true;
		return;
	}
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	printf("%s ok %d %08x\n", step, r, hash);
}

static void tell(const char *step, int r, const void *data, size_t len)
{
	tell_as(step, r, kvc_errmsg(), data, len);
}

/* Of what a completion says, the library knows the name only. */
static void tell_cqe(const char *step, int r, const void *data, size_t len)
{
	tell_as(step, r, kvc_strerror(r), data, len);
}

static void generate(const char *step, const struct kvc_input *input)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_result result = {0};
	static const char *const stop[] = {"never there"};
	int r;

	opts.max_tokens = 6;
	opts.gen_flags = KVD_GEN_LOGPROBS | KVD_GEN_IGNORE_EOS;
	opts.stop = stop;
	opts.n_stop = 1;
	r = kvc_generate_input(client, input, &opts, NULL, NULL, &result);
	tell(step, r, result.tokens, result.n_tokens * sizeof(result.tokens[0]));
	kvc_result_clear(&result);
}

static void do_generate(void)
{
	static const struct kvc_message messages[] = {{.role = "user", .content = TEXT}};
	static const uint32_t ids[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
				       11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
	struct kvc_input input = kvc_text(TEXT, strlen(TEXT));

	generate("generate-text", &input);
	input = kvc_messages(messages, 1);
	generate("generate-chat", &input);
	input = kvc_tokens(ids, 20);
	generate("generate-ids", &input);
	generate("generate-hit", &input);
}

static void do_text(void)
{
	struct kvc_input input = kvc_text(TEXT, strlen(TEXT));
	uint32_t ids[64] = {0};
	char text[128] = {0};
	int r, n;

	n = kvc_tokenize(client, &input, 0, ids, 64);
	tell("tokenize", n, ids, n > 0 ? (size_t)n * 4 : 0);
	if (n <= 0)
		return;
	r = kvc_detokenize(client, ids, (size_t)n, 0, text, sizeof(text));
	tell("detokenize", r, text, strlen(text));
}

static void do_score(void)
{
	struct kvc_input input = kvc_text(TEXT, strlen(TEXT));
	uint32_t ids[64] = {0};
	float logprobs[64] = {0};
	int r;

	r = kvc_score(client, &input, 0, ids, logprobs, 64, NULL);
	tell("score", r, logprobs, sizeof(logprobs));
}

static int collect(struct kvc_ring *ring, unsigned n_ends, uint32_t *hash)
{
	const struct kvd_cqe *cqe;
	int worst = 0, r;

	while (n_ends) {
		r = kvc_ring_wait_cqe(ring, &cqe, -1);
		if (r < 0)
			return r;
		if (cqe->flags & KVD_CQE_MORE && !(cqe->flags & KVD_CQE_END)) {
			*hash = *hash * 31 + (uint32_t)cqe->u.token.token;
		} else {
			n_ends -= !(cqe->flags & KVD_CQE_MORE);
			if (cqe->res < 0 && cqe->res != -ECANCELED)
				worst = cqe->res;
		}
		kvc_ring_cqe_seen(ring);
	}
	return worst;
}

static void do_ring(void)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_input input = kvc_text(TEXT, strlen(TEXT));
	struct kvc_input none = kvc_tokens(NULL, 0);
	struct kvc_ring *ring = NULL;
	struct kvc_sqe *sqe;
	uint32_t hash = 0, cancelled = 0;
	int r;

	r = kvc_ring_open(client, &ring, NULL);
	tell("ring-open", r, NULL, 0);
	if (r < 0)
		return;
	kvc_prep_nop(kvc_ring_get_sqe(ring));
	r = kvc_ring_submit(ring);
	if (r >= 0)
		r = collect(ring, 1, &hash);
	tell_cqe("ring-nop", r, &hash, sizeof(hash));
	opts.max_tokens = 5;
	opts.gen_flags = KVD_GEN_IGNORE_EOS | KVD_GEN_KEEP;
	if (r >= 0) {
		sqe = kvc_ring_get_sqe(ring);
		kvc_prep_generate(sqe, &input, &opts);
		kvc_sqe_set_data64(sqe, 7);
		r = kvc_ring_submit(ring);
		if (r >= 0)
			r = collect(ring, 1, &hash);
		tell_cqe("ring-generate", r, &hash, sizeof(hash));
	}
	if (r >= 0) {
		sqe = kvc_ring_get_sqe(ring);
		kvc_prep_fork(sqe, 7, &none, &opts);
		kvc_sqe_set_data64(sqe, 8);
		r = kvc_ring_submit(ring);
		if (r >= 0)
			r = collect(ring, 1, &hash);
		tell_cqe("ring-fork", r, &hash, sizeof(hash));
	}
	if (r >= 0) {
		opts.max_tokens = 600;
		sqe = kvc_ring_get_sqe(ring);
		kvc_prep_generate(sqe, &input, &opts);
		kvc_sqe_set_data64(sqe, 9);
		sqe = kvc_ring_get_sqe(ring);
		kvc_prep_cancel(sqe, 9);
		r = kvc_ring_submit(ring);
		if (r >= 0)
			r = collect(ring, 2, &cancelled);
		tell_cqe("ring-cancel", r, NULL, 0);
	}
	kvc_ring_close(ring);
}

/* All that was asked for is over, and each block is accounted for. */
static void do_rest(void)
{
	static const struct timespec pause = {.tv_nsec = 5000000};
	struct kvd_stats s;
	int r;

	for (int i = 0; i < 1000; i++) {
		s = (struct kvd_stats){.size = sizeof(s)};
		r = kvc_stats(client, &s);
		if (r < 0)
			break;
		r = s.blocks_free + s.blocks_cached + s.blocks_active == s.blocks_total
			    ? 0
			    : -EBADMSG;
		if (r == 0 && s.requests_running + s.requests_waiting + s.blocks_active)
			r = -EBUSY;
		if (r == 0)
			break;
		nanosleep(&pause, NULL);
	}
	tell("rest", r, NULL, 0);
}

static void do_control(void)
{
	struct kvd_stats stats = {.size = sizeof(stats)};
	struct kvd_client_info clients[4] = {0};
	struct kvd_quota_info users[4] = {0};
	struct kvc_input input = kvc_text(TEXT, strlen(TEXT));
	uint64_t id = 0;
	int r;

	tell("ping", kvc_ping(client, -1), NULL, 0);
	tell("stats", kvc_stats(client, &stats), NULL, 0);
	r = kvc_clients(client, clients, 4);
	tell("clients", r < 0 ? r : 0, NULL, 0);
	r = kvc_quota_list(client, users, 4);
	tell("quotas", r < 0 ? r : 0, NULL, 0);
	r = kvc_prefix_lookup(client, &input, 0, &id, NULL);
	tell("prefix-find", r < 0 ? r : 0, NULL, 0);
}

int main(int argc, char **argv)
{
	struct kvc_connect_opts opts = KVC_OPTS_INIT(struct kvc_connect_opts);
	int r;

	/* Says failcall and failalloc where to begin. */
	prctl(PR_SET_DUMPABLE, 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	argc_ = argc;
	argv_ = argv;
	r = kvc_connect(&client, &opts);
	tell("connect", r, NULL, 0);
	if (r < 0)
		return 1;
	if (wanted("control"))
		do_control();
	if (wanted("text"))
		do_text();
	if (wanted("generate"))
		do_generate();
	if (wanted("score"))
		do_score();
	if (wanted("ring"))
		do_ring();
	if (wanted("rest"))
		do_rest();
	kvc_close(client);
	return failed;
}
