/* SPDX-License-Identifier: MIT */
/*
 * What a user learns about another one from the time that PREFIX_LOOKUP takes.
 *
 *   spy TRIALS CPU
 *
 * As root. Pins a public prefix, then acts as a victim, uid 61002, and as a spy, uid 61001, each
 * with a connection and a ring. In each trial the victim asks for a prompt that the spy will look
 * up, or for another one; then the spy looks up, once, with its eyes on the clock. Prints for each
 * kind of trial a line of JSON with the AUC: the chance that the spy takes longer in a trial of the
 * one half than of the other, where 0.5 is to learn nothing. In the last kind both are one user.
 * One thread, bound to @CPU; the daemon's loop belongs onto another.
 */
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <kvd/proto_admin.h>

#include "tests/system/raw.h"

#include "ipc/base.h"

#define VICTIM 61002
#define SPY    61001

#define BLOCK      16
#define N_PUBLIC   (4 * BLOCK)
#define MAX_TOKENS (48 * BLOCK)
/* Lookups of the spy's own, before each that counts: whatever the victim did, the path is warm. */
#define N_WARM 24

struct peer {
	struct raw_client client;
	struct raw_ring ring;
	uint64_t head;
	uint32_t n_vocab;
};

struct kind {
	const char *name;
	bool generates;     /* the victim does, or else it looks up */
	bool behind_public; /* the prompt goes on from the public prefix */
	bool same_user;
	uint32_t n_blocks; /* of its own */
};

static const struct kind kinds[] = {
	{"lookup", false, false, false, 1},
	{"lookup behind a public prefix", false, true, false, 1},
	{"generate", true, false, false, 1},
	{"generate behind a public prefix", true, true, false, 1},
	{"one user", true, true, true, 32},
};

static void must(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "spy: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The kernel notes who connects. */
static void peer_open(struct peer *peer, uid_t uid, const char *name)
{
	must(!setegid(uid) && !seteuid(uid), "cannot become another user");
	must(!raw_connect(&peer->client, name), "cannot connect");
	must(!seteuid(0) && !setegid(0), "cannot become root again");
	must(!raw_ring_open(&peer->client, &peer->ring, 16, 64, 1 << 16, 4096),
	     "no ring");
	peer->n_vocab = peer->client.welcome.model.n_vocab;
	peer->head = 0;
}

static void submit(struct peer *peer, const struct kvd_sqe *sqe)
{
	const struct kvd_daemon_page *page = (const void *)peer->ring.d2c;

	raw_submit(&peer->ring, sqe);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&page->flags, __ATOMIC_RELAXED) & KVD_DAEMON_NEED_WAKEUP)
		raw_ring_bell(&peer->ring);
}

static void take_final(struct peer *peer, struct kvd_cqe *ret_cqe)
{
	const struct kvd_cqe *queue =
		(const void *)(peer->ring.d2c + peer->ring.geometry.cq_off);
	const struct kvd_cqe *slot;

	do {
		slot = queue + (peer->head & (peer->ring.geometry.cq_entries - 1));
		while (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != peer->head + 1)
			;
		*ret_cqe = *slot;
		peer->head++;
		__atomic_store_n((uint64_t *)(void *)peer->ring.c2d, peer->head,
				 __ATOMIC_RELEASE);
	} while (ret_cqe->flags & KVD_CQE_MORE);
}

/* The public prefix, if so, and blocks that follow from @seed. Return: tokens. */
static uint32_t put_prompt(struct peer *peer, bool behind_public, uint32_t n_blocks,
			   uint32_t seed)
{
	uint32_t state = 4242, n = behind_public ? N_PUBLIC : 0, i = 0;
	uint8_t *at = peer->ring.c2d + peer->ring.geometry.in_off;
	uint32_t end = n + n_blocks * BLOCK;

	for (; i < end; i++) {
		uint32_t id;

		if (i == n)
			state = seed * 2654435761u | 1;
		id = raw_random(&state) % peer->n_vocab;
		memcpy(at + 4 * i, &id, sizeof(id));
	}
	return end;
}

/* Looks up the tokens that stand in the arena. Return: ns. */
static uint64_t look(struct peer *peer, uint32_t n_tokens, struct kvd_cqe *ret_cqe)
{
	const struct kvd_sqe sqe = {.opcode = KVD_OP_PREFIX_LOOKUP,
				    .input = KVD_INPUT_TOKENS,
				    .in_len = 4 * n_tokens};
	uint64_t from = now_ns();

	submit(peer, &sqe);
	take_final(peer, ret_cqe);
	must(ret_cqe->res >= 0, "a lookup failed");
	return now_ns() - from;
}

/* One token after those in the arena and one more, so that all of their blocks are full. */
static void generate(struct peer *peer, uint32_t n_tokens)
{
	const struct kvd_gen_params params = {
		.size = sizeof(params), .flags = KVD_GEN_IGNORE_EOS, .max_tokens = 1};
	const struct kvd_sqe sqe = {.opcode = KVD_OP_GENERATE,
				    .input = KVD_INPUT_TOKENS,
				    .in_len = 4 * (n_tokens + 1),
				    .params_off = 4 * (MAX_TOKENS + 16),
				    .params_len = sizeof(params)};
	uint8_t *at = peer->ring.c2d + peer->ring.geometry.in_off;
	const uint32_t last = 1;
	struct kvd_cqe cqe;

	memcpy(at + 4 * n_tokens, &last, sizeof(last));
	memcpy(at + sqe.params_off, &params, sizeof(params));
	submit(peer, &sqe);
	take_final(peer, &cqe);
	must(cqe.res == 1, "a request failed");
}

static void control(struct peer *root, uint32_t action, uint32_t flags, uint64_t id)
{
	const struct kvd_msg_prefix_control ask = {
		.hdr = {.len = sizeof(ask), .type = KVD_MSG_PREFIX_CONTROL, .tag = 3},
		.action = action,
		.flags = flags,
		.id = id,
	};
	struct kvd_msg_hdr reply;

	must(send(root->client.fd, &ask, sizeof(ask), MSG_NOSIGNAL) == sizeof(ask),
	     "send");
	must(recv(root->client.fd, &reply, sizeof(reply), MSG_TRUNC) > 0 && !reply.status,
	     "cannot pin or unpin");
}

/* Return: its id. */
static uint64_t make_public(struct peer *root)
{
	uint32_t n = put_prompt(root, true, 0, 0);
	struct kvd_cqe cqe;

	generate(root, n);
	(void)look(root, n, &cqe);
	control(root, KVD_PREFIX_PIN, KVD_PREFIX_PUBLIC, cqe.u.usage.detail);
	(void)look(root, n, &cqe);
	return cqe.u.usage.detail;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Mann and Whitney. Both sorted. */
static double auc(const uint64_t *x, size_t n, const uint64_t *y, size_t m)
{
	double sum = 0;

	for (size_t i = 0, below = 0, up_to = 0; i < n; i++) {
		while (below < m && y[below] < x[i])
			below++;
		while (up_to < m && y[up_to] <= x[i])
			up_to++;
		sum += (double)below + 0.5 * (double)(up_to - below);
	}
	return sum / ((double)n * (double)m);
}

static void watch(const struct kind *kind, struct peer *spy, struct peer *victim,
		  size_t n_trials, uint32_t *seed)
{
	uint64_t *times[2] = {calloc(n_trials, sizeof(uint64_t)),
			      calloc(n_trials, sizeof(uint64_t))};
	size_t n[2] = {0};
	uint32_t coin = 12345;
	struct kvd_cqe cqe;

	must(times[0] && times[1], "calloc");
	while (n[0] + n[1] < n_trials) {
		uint32_t asked = (*seed)++, other = (*seed)++, len;
		bool same = raw_random(&coin) >> 16 & 1;

		len = put_prompt(victim, kind->behind_public, kind->n_blocks, asked);
		if (kind->generates)
			generate(victim, len);
		else
			(void)look(victim, len, &cqe);
		for (int i = 0; i < N_WARM; i++) {
			len = put_prompt(spy, kind->behind_public, 1, (*seed)++);
			(void)look(spy, len, &cqe);
		}
		len = put_prompt(spy, kind->behind_public, kind->n_blocks,
				 same ? asked : other);
		times[same][n[same]++] = look(spy, len, &cqe);
	}
	for (int i = 0; i < 2; i++)
		qsort(times[i], n[i], sizeof(uint64_t), by_value);
	printf("{\"kind\": \"%s\", \"same_user\": %s, \"trials\": %zu, \"auc\": %.4f, "
	       "\"asked_ns\": %llu, \"other_ns\": %llu}\n",
	       kind->name, kind->same_user ? "true" : "false", n_trials,
	       auc(times[1], n[1], times[0], n[0]),
	       (unsigned long long)times[1][n[1] / 2],
	       (unsigned long long)times[0][n[0] / 2]);
	fflush(stdout);
	free(times[0]);
	free(times[1]);
}

int main(int argc, char **argv)
{
	struct peer root, spy, victim, friend;
	uint32_t seed = 1;
	uint64_t id;
	cpu_set_t cpus;

	if (argc != 3) {
		fprintf(stderr, "usage: spy TRIALS CPU\n");
		return 2;
	}
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[2]), &cpus);
	must(!sched_setaffinity(0, sizeof(cpus), &cpus), "cannot be bound to a CPU");
	peer_open(&root, 0, "root");
	id = make_public(&root);
	peer_open(&spy, SPY, "spy");
	peer_open(&victim, VICTIM, "victim");
	peer_open(&friend, SPY, "friend");
	for (size_t i = 0; i < KVD_ARRAY_LEN(kinds); i++)
		watch(&kinds[i], &spy, kinds[i].same_user ? &friend : &victim,
		      strtoul(argv[1], NULL, 10), &seed);
	control(&root, KVD_PREFIX_UNPIN, 0, id);
	return 0;
}
