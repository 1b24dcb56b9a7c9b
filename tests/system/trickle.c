/* SPDX-License-Identifier: MIT */
/*
 * A client that keeps the contract and makes the least of it: queues of few entries,
 * completions read one at a time, requests on two rings of one connection, and a third
 * ring that is closed with requests in flight. Every request must end with all its tokens.
 *
 *   trickle CQ_ENTRIES ROUNDS
 *
 * Exit status 0 when all did; 1 with a line that says what is missing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "tests/system/raw.h"

#define N_REQUESTS 6
#define N_TOKENS   5
#define PATIENCE_S 120

struct stream {
	struct raw_ring ring;
	uint64_t seen;
	unsigned submitted, ended, tokens;
};

static void nap(void)
{
	struct timespec ts = {.tv_nsec = 20000};

	nanosleep(&ts, NULL);
}

static void submit_what_fits(struct stream *s)
{
	const struct kvd_daemon_page *page = (const void *)s->ring.d2c;

	while (s->submitted < N_REQUESTS &&
	       s->ring.sq_tail - __atomic_load_n(&page->sq_pos, __ATOMIC_ACQUIRE) <
		       s->ring.geometry.sq_entries) {
		struct kvd_sqe sqe;

		raw_prep_generate(&s->ring, &sqe, 512 * s->submitted, 20, N_TOKENS,
				  7 + s->submitted);
		raw_submit(&s->ring, &sqe);
		s->submitted++;
	}
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&page->flags, __ATOMIC_RELAXED) & KVD_DAEMON_NEED_WAKEUP)
		raw_ring_bell(&s->ring);
}

/* At most one completion. Return: 0, or -1 when it says that a request failed. */
static int read_one(struct stream *s)
{
	const struct kvd_daemon_page *page = (const void *)s->ring.d2c;
	const struct kvd_cqe *slot =
		(const void *)(s->ring.d2c + s->ring.geometry.cq_off);
	struct kvd_client_page *mine = (void *)s->ring.c2d;

	slot += s->seen & (s->ring.geometry.cq_entries - 1);
	if (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != s->seen + 1)
		return 0;
	if (!(slot->flags & KVD_CQE_MORE)) {
		s->ended++;
		if (slot->res != N_TOKENS) {
			printf("a request ended with %d\n", slot->res);
			return -1;
		}
	} else if (!(slot->flags & KVD_CQE_PIECE)) {
		s->tokens++;
	}
	__atomic_store_n(&mine->cq_pos, ++s->seen, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&page->flags, __ATOMIC_RELAXED) & KVD_DAEMON_CQ_FULL)
		raw_ring_bell(&s->ring);
	return 0;
}

/* A ring that ends while its requests run. */
static int open_and_close(struct raw_client *client)
{
	struct kvd_msg_ring_close msg = {
		.hdr = {.len = sizeof(msg), .type = KVD_MSG_RING_CLOSE, .tag = 3},
		.ring_id = 3,
	};
	struct kvd_msg_hdr reply;
	struct stream s = {0};
	int r = raw_ring_open(client, &s.ring, 8, 1, 1 << 16, 4096);

	if (r < 0)
		return r;
	submit_what_fits(&s);
	nap();
	if (send(client->fd, &msg, sizeof(msg), MSG_NOSIGNAL) < 0 ||
	    recv(client->fd, &reply, sizeof(reply), 0) < (ssize_t)sizeof(reply) ||
	    reply.type != KVD_MSG_RING_CLOSED)
		r = -EPROTO;
	raw_ring_close(&s.ring);
	return r;
}

static int play(uint32_t cq_entries)
{
	time_t end = time(NULL) + PATIENCE_S;
	struct raw_client client;
	struct stream s[2] = {0};
	unsigned ended = 0;
	int r = raw_connect(&client, "trickle");

	for (int i = 0; !r && i < 2; i++)
		r = raw_ring_open(&client, &s[i].ring, 2, cq_entries, 1 << 16, 4096);
	if (!r)
		r = open_and_close(&client);
	if (r < 0) {
		printf("cannot open: %s\n", strerror(-r));
		return r;
	}
	while (!r && ended < 2 * N_REQUESTS) {
		ended = 0;
		for (int i = 0; !r && i < 2; i++) {
			submit_what_fits(&s[i]);
			r = read_one(&s[i]);
			ended += s[i].ended;
		}
		if (!r && time(NULL) > end) {
			printf("%u of %u requests ended\n", ended, 2 * N_REQUESTS);
			r = -ETIMEDOUT;
		}
		nap();
	}
	for (int i = 0; i < 2; i++) {
		if (!r && s[i].tokens != N_REQUESTS * N_TOKENS) {
			printf("%u tokens came\n", s[i].tokens);
			r = -EPROTO;
		}
		raw_ring_close(&s[i].ring);
	}
	raw_close(&client);
	return r;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	for (int i = atoi(argv[2]); i > 0; i--)
		if (play((uint32_t)atoi(argv[1])))
			return 1;
	return 0;
}
