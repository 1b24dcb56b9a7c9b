/* SPDX-License-Identifier: MIT */
/*
 * Clients that keep to the contract and take all they can get, one kind a verb. Each opens
 * what it needs, prints "ready", plays until its time is up and prints how often.
 *
 *   greedy VERB SECONDS
 */
#include "tests/system/greedy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <kvd/proto_admin.h>

#include "ipc/base.h"

double deadline;
struct crowd crowd;

double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void nap_us(unsigned int us)
{
	struct timespec ts = {.tv_nsec = (long)us * 1000};

	nanosleep(&ts, NULL);
}

void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

void crowd_connect(size_t max)
{
	while (crowd.n_clients < max && crowd.n_clients < MAX_CLIENTS &&
	       raw_connect(&crowd.clients[crowd.n_clients], "greedy") == 0)
		crowd.n_clients++;
}

void crowd_open(const struct ring_want *want, size_t each, size_t max)
{
	for (size_t i = 0; i < crowd.n_clients; i++)
		for (size_t k = 0;
		     k < each && crowd.n_rings < max && crowd.n_rings < MAX_RINGS; k++) {
			struct raw_ring *ring = &crowd.rings[crowd.n_rings];

			if (raw_ring_open(&crowd.clients[i], ring, want->sq, want->cq,
					  want->in, want->out))
				break;
			crowd.n_rings++;
		}
}

unsigned long crowd_submit(void (*prep)(struct raw_ring *ring, struct kvd_sqe *sqe),
			   unsigned int depth)
{
	struct kvd_sqe *sqes = calloc(crowd.n_rings + 1, sizeof(*sqes));
	struct kvd_cqe cqe;
	unsigned long n = 0, before;

	if (!sqes)
		return 0;
	for (size_t i = 0; i < crowd.n_rings; i++)
		prep(&crowd.rings[i], &sqes[i]);
	ready();
	while (crowd.n_rings && now() < deadline) {
		before = n;
		for (size_t i = 0; i < crowd.n_rings; i++) {
			struct raw_ring *ring = &crowd.rings[i];

			while (raw_pop(ring, &cqe))
				n++;
			while (raw_space(ring) > ring->geometry.sq_entries - depth)
				raw_submit(ring, &sqes[i]);
			raw_ring_kick(ring);
		}
		if (n == before)
			nap_us(200);
	}
	free(sqes);
	return n;
}

int wait_final(struct raw_ring *ring, struct kvd_cqe *ret)
{
	while (now() < deadline) {
		if (!raw_pop(ring, ret))
			nap_us(200);
		else if (!(ret->flags & KVD_CQE_MORE))
			return ret->res;
	}
	return -ETIME;
}

static void prep_nop(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	*sqe = (struct kvd_sqe){.opcode = KVD_OP_NOP};
}

/* The cheapest entries, as many as the rings hold. */
static unsigned long play_nops(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){64, 64, 4096, 4096}, KVD_MAX_RINGS, MAX_RINGS);
	return crowd_submit(prep_nop, 64);
}

enum { SHORT_TEXT = 16 << 10 };

static void prep_text(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	uint32_t len = ring->geometry.in_bytes < KVD_MAX_TEXT_BYTES ? SHORT_TEXT
								    : KVD_MAX_TEXT_BYTES;

	/* The dearest text to tokenize that is known, byte for byte. */
	memset(ring->c2d + ring->geometry.in_off, '\t', len);
	*sqe = (struct kvd_sqe){
		.opcode = KVD_OP_TOKENIZE,
		.input = KVD_INPUT_TEXT,
		.in_len = len,
		.out_len = (uint32_t)ring->geometry.out_bytes,
	};
}

static unsigned long play_texts(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){64, 64, SHORT_TEXT, 65536}, KVD_MAX_RINGS,
		   MAX_RINGS);
	return crowd_submit(prep_text, 4);
}

static unsigned long play_longtexts(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){4, 16, KVD_MAX_TEXT_BYTES, 8 << 20}, KVD_MAX_RINGS,
		   32);
	return crowd_submit(prep_text, 4);
}

static void prep_ids(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	uint8_t *ids = ring->c2d + ring->geometry.in_off;

	for (uint32_t i = 0; i < KVD_MAX_DETOKENIZE; i++)
		memcpy(ids + 4 * i, &(uint32_t){30000}, 4);
	*sqe = (struct kvd_sqe){
		.opcode = KVD_OP_DETOKENIZE,
		.input = KVD_INPUT_TOKENS,
		.in_len = 4 * KVD_MAX_DETOKENIZE,
		.out_len = 4096,
	};
}

/* As many ids as an entry takes, for whose text there is no room. */
static unsigned long play_ids(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){4, 16, 4 << 20, 4096}, KVD_MAX_RINGS, 64);
	return crowd_submit(prep_ids, 4);
}

/* An odd entry and then a full queue: the answer waits for room. The entry is taken back
 * before there is room, and the client looks on. */
static unsigned long play_takesback(void)
{
	struct kvd_sqe nop = {.opcode = KVD_OP_NOP};
	struct kvd_cqe cqe;
	struct kvd_sqe *slots;
	unsigned long n = 0;

	crowd_connect(1);
	crowd_open(&(struct ring_want){4, 1, 4096, 4096}, 1, 1);
	if (!crowd.n_rings)
		return 0;
	raw_submit(crowd.rings, &nop);
	raw_submit(crowd.rings, &nop);
	raw_ring_bell(crowd.rings);
	nap_us(100000);
	slots = (void *)(crowd.rings->c2d + crowd.rings->geometry.sq_off);
	__atomic_store_n(&slots[1].seq, 0, __ATOMIC_RELEASE);
	n += raw_pop(crowd.rings, &cqe);
	ready();
	while (now() < deadline)
		nap_us(100000);
	return n;
}

enum { KEPT_TOKENS = 2000 };

static void prep_fork(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	struct kvd_cqe cqe;

	raw_prep_generate(ring, sqe, 0, KEPT_TOKENS, 1, 1);
	((struct kvd_gen_params *)(ring->c2d + ring->geometry.in_off))->flags |=
		KVD_GEN_KEEP;
	sqe->user_data = 1;
	raw_submit(ring, sqe);
	raw_ring_bell(ring);
	(void)wait_final(ring, &cqe);
	*sqe = (struct kvd_sqe){
		.opcode = KVD_OP_FORK,
		.user_data = 2,
		.arg = 1,
		.params_len = sizeof(struct kvd_gen_params),
	};
}

/* Sequences that go on from a long one that was kept. */
static unsigned long play_forks(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){64, 256, 65536, 4096}, KVD_MAX_RINGS, 32);
	return crowd_submit(prep_fork, 64);
}

static float temperature, top_p;

static void prep_endless(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	struct kvd_gen_params *params = (void *)(ring->c2d + ring->geometry.in_off);
	static uint32_t seed;

	raw_prep_generate(ring, sqe, 0, 20, 0, ++seed);
	params->temperature = temperature;
	params->top_p = top_p;
}

/* As many sequences as run at one time, without an end. */
static unsigned long play_decodes(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){4, 1024, 4096, 4096}, KVD_MAX_RINGS, 32);
	return crowd_submit(prep_endless, 4);
}

/* The same, with parameters that keep nearly all of the vocabulary. */
static unsigned long play_draws(void)
{
	temperature = 100;
	top_p = 0.9999f;
	return play_decodes();
}

static void prep_cold(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	static uint32_t seed;

	raw_prep_generate(ring, sqe, 0, 500, 1, ++seed);
}

/* Prompts that nobody asks again, two for each ring in turn, until the pool is full. */
static unsigned long play_floods(void)
{
	unsigned long n = 0;
	struct kvd_cqe cqe;
	struct kvd_sqe sqe;

	crowd_connect(1);
	crowd_open(&(struct ring_want){16, 64, 1 << 16, 4096}, 1, 1);
	ready();
	while (crowd.n_rings && now() < deadline) {
		prep_cold(crowd.rings, &sqe);
		for (int twice = 0; twice < 2; twice++) {
			raw_submit(crowd.rings, &sqe);
			raw_ring_bell(crowd.rings);
			n += wait_final(crowd.rings, &cqe) >= 0;
		}
	}
	return n;
}

/* Nobody reads what comes back, but there is always room for it. */
static void drain(int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(KVD_RING_N_FDS * sizeof(int))];
	} control;
	static char buf[KVD_MSG_MAX];
	struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
	int fds[KVD_RING_N_FDS];

	for (;;) {
		struct msghdr msg = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};
		struct cmsghdr *cmsg;

		if (recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
			return;
		cmsg = CMSG_FIRSTHDR(&msg);
		if (!cmsg || cmsg->cmsg_len != CMSG_LEN(sizeof(fds)))
			continue;
		memcpy(fds, CMSG_DATA(cmsg), sizeof(fds));
		for (int i = 0; i < KVD_RING_N_FDS; i++)
			close(fds[i]);
	}
}

/* As many of one message as fit the sockets, on all connections. */
static unsigned long flood(const void *first, const void *second, size_t len)
{
	unsigned long n = 0;

	crowd_connect(MAX_CLIENTS);
	ready();
	while (crowd.n_clients && now() < deadline) {
		unsigned long before = n;

		for (size_t i = 0; i < crowd.n_clients; i++) {
			int fd = crowd.clients[i].fd;

			for (int k = 0; k < 32; k++)
				n += send(fd, k % 2 ? second : first, len,
					  MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
			drain(fd);
		}
		if (n == before)
			nap_us(200);
	}
	return n;
}

static unsigned long play_stats(void)
{
	struct kvd_msg_hdr hdr = {.len = sizeof(hdr), .type = KVD_MSG_STATS, .tag = 9};

	return flood(&hdr, &hdr, sizeof(hdr));
}

static unsigned long play_lists(void)
{
	struct kvd_msg_cache_list list = {
		.hdr = {.len = sizeof(list), .type = KVD_MSG_CACHE_LIST, .tag = 9},
	};

	return flood(&list, &list, sizeof(list));
}

static unsigned long play_flushes(void)
{
	struct kvd_msg_cache_flush flush = {
		.hdr = {.len = sizeof(flush), .type = KVD_MSG_CACHE_FLUSH, .tag = 9},
	};

	return flood(&flush, &flush, sizeof(flush));
}

/* Rings that are opened and closed at once, with the longest queues. */
static unsigned long play_opens(void)
{
	static struct raw_ring ring;
	unsigned long n = 0;

	crowd_connect(MAX_CLIENTS);
	ready();
	while (crowd.n_clients && now() < deadline)
		for (size_t i = 0; i < crowd.n_clients && now() < deadline; i++) {
			struct kvd_msg_ring_close end = {
				.hdr = {.len = sizeof(end),
					.type = KVD_MSG_RING_CLOSE,
					.tag = 9},
			};
			struct kvd_msg_hdr closed;

			if (raw_ring_open(&crowd.clients[i], &ring, 4096, 16384, 0, 0))
				continue;
			end.ring_id = ring.id;
			raw_ring_close(&ring);
			n += send(crowd.clients[i].fd, &end, sizeof(end), MSG_NOSIGNAL) >
				     0 &&
			     recv(crowd.clients[i].fd, &closed, sizeof(closed), 0) > 0;
		}
	return n;
}

static const struct verb {
	const char *name;
	unsigned long (*play)(void);
} verbs[] = {
	{"nops", play_nops},       {"texts", play_texts},   {"longtexts", play_longtexts},
	{"ids", play_ids},         {"forks", play_forks},   {"takesback", play_takesback},
	{"decodes", play_decodes}, {"draws", play_draws},   {"floods", play_floods},
	{"stats", play_stats},     {"lists", play_lists},   {"flushes", play_flushes},
	{"opens", play_opens},     {"keeps", play_keeps},   {"queues", play_queues},
	{"closes", play_closes},   {"waits", play_waits},   {"scores", play_scores},
	{"unread", play_unread},   {"silent", play_silent}, {"waiters", play_waiters},
};

#define N_VERBS KVD_ARRAY_LEN(verbs)

int main(int argc, char **argv)
{
	struct rlimit files;
	unsigned long count;
	size_t i = 0;

	while (argc == 3 && i < N_VERBS && strcmp(argv[1], verbs[i].name))
		i++;
	if (argc != 3 || i == N_VERBS) {
		fprintf(stderr, "usage: greedy VERB SECONDS\nverbs:");
		for (i = 0; i < N_VERBS; i++)
			fprintf(stderr, " %s", verbs[i].name);
		fprintf(stderr, "\n");
		return 2;
	}
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	deadline = now() + atof(argv[2]);
	count = verbs[i].play();
	printf("%s: %lu, with %zu connections, %zu rings\n", argv[1], count,
	       crowd.n_clients, crowd.n_rings);
	return count ? 0 : 1;
}
