/* SPDX-License-Identifier: MIT */
/* The verbs that hold memory and descriptors. See greedy.h. */
#include "tests/system/greedy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned long hold_still(unsigned long n)
{
	ready();
	while (now() < deadline)
		nap_us(100000);
	return n;
}

/* One token into the end of the output arena, so that all of it seems used. */
static int touch_end(struct raw_ring *ring)
{
	struct kvd_sqe sqe = {
		.opcode = KVD_OP_TOKENIZE,
		.input = KVD_INPUT_TEXT,
		.in_len = 1,
		.out_off = ring->geometry.out_bytes - 4096,
		.out_len = 4096,
	};
	struct kvd_cqe cqe;

	ring->c2d[ring->geometry.in_off] = 'a';
	raw_submit(ring, &sqe);
	raw_ring_bell(ring);
	return wait_final(ring, &cqe);
}

static int close_ring(struct raw_client *client, struct raw_ring *ring)
{
	struct kvd_msg_ring_close end = {
		.hdr = {.len = sizeof(end), .type = KVD_MSG_RING_CLOSE, .tag = 9},
		.ring_id = ring->id,
	};
	struct kvd_msg_hdr closed;

	return send(client->fd, &end, sizeof(end), MSG_NOSIGNAL) > 0 &&
	       recv(client->fd, &closed, sizeof(closed), 0) > 0;
}

/* Rings that are closed, and whose output file is kept. */
unsigned long play_keeps(void)
{
	struct raw_ring ring;
	unsigned long n = 0;
	int misses = 0;

	crowd_connect(1);
	ready();
	while (crowd.n_clients && now() < deadline) {
		/* Once its share is used up it asks again and again. */
		if (raw_ring_open(crowd.clients, &ring, 4, 4, 4096, 60 << 20)) {
			nap_us(10000);
			misses++;
			continue;
		}
		n += touch_end(&ring) > 0;
		if (!close_ring(crowd.clients, &ring))
			break;
		munmap(ring.c2d, ring.geometry.c2d_bytes);
		munmap((void *)ring.d2c, ring.geometry.d2c_bytes);
		close(ring.fds[KVD_RING_FD_C2D]);
		close(ring.fds[KVD_RING_FD_SUBMIT]);
		close(ring.fds[KVD_RING_FD_COMPLETE]);
	}
	return n;
}

static void prep_nop(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	*sqe = (struct kvd_sqe){.opcode = KVD_OP_NOP};
}

/* The longest queues, and no arenas. */
unsigned long play_queues(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){KVD_MAX_SQ_ENTRIES, KVD_MAX_CQ_ENTRIES, 0, 0},
		   KVD_MAX_RINGS, MAX_RINGS);
	return crowd_submit(prep_nop, KVD_MAX_SQ_ENTRIES);
}

/* Connections that end with the largest output arenas touched at their end. */
unsigned long play_closes(void)
{
	unsigned long n = 0;

	ready();
	while (now() < deadline) {
		crowd.n_clients = crowd.n_rings = 0;
		crowd_connect(1);
		crowd_open(&(struct ring_want){4, 4, 4096, 60 << 20}, KVD_MAX_RINGS,
			   KVD_MAX_RINGS);
		for (size_t i = 0; i < crowd.n_rings; i++)
			n += touch_end(&crowd.rings[i]) > 0;
		for (size_t i = 0; i < crowd.n_rings; i++)
			raw_ring_close(&crowd.rings[i]);
		if (crowd.n_clients)
			raw_close(crowd.clients);
		else
			nap_us(1000);
	}
	return n;
}

enum { LONG_PROMPT = 8000 };

static void prep_long(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	raw_prep_generate(ring, sqe, 0, LONG_PROMPT, 1, 1);
}

static void prep_score(struct raw_ring *ring, struct kvd_sqe *sqe)
{
	prep_long(ring, sqe);
	sqe->opcode = KVD_OP_SCORE;
	sqe->params_len = 0;
	sqe->params_off = 0;
	sqe->out_len = 8 * LONG_PROMPT;
}

/* The longest prompts, as many as may wait. */
unsigned long play_waits(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){4096, 4096, 65536, 65536}, KVD_MAX_RINGS, 4);
	return crowd_submit(prep_long, 4096);
}

unsigned long play_scores(void)
{
	crowd_connect(MAX_CLIENTS);
	crowd_open(&(struct ring_want){4096, 4096, 65536, 65536}, KVD_MAX_RINGS, 4);
	return crowd_submit(prep_score, 4096);
}

/* Answers with descriptors that nobody fetches; they stay after the daemon hung up. */
unsigned long play_unread(void)
{
	struct kvd_msg_ring_open open = {
		.hdr = {.len = sizeof(open), .type = KVD_MSG_RING_OPEN, .tag = 9},
		.sq_entries = 1,
		.cq_entries = 1,
	};
	struct kvd_msg_ring_close end = {
		.hdr = {.len = sizeof(end), .type = KVD_MSG_RING_CLOSE, .tag = 9},
	};
	unsigned long n = 0;

	crowd_connect(MAX_CLIENTS);
	for (uint32_t id = 1; id <= 128 && now() < deadline - 1; id++) {
		end.ring_id = id;
		for (size_t i = 0; i < crowd.n_clients; i++) {
			n += send(crowd.clients[i].fd, &open, sizeof(open),
				  MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
			(void)send(crowd.clients[i].fd, &end, sizeof(end),
				   MSG_NOSIGNAL | MSG_DONTWAIT);
		}
		nap_us(1000);
	}
	return hold_still(n);
}

/* Connections that say nothing. */
unsigned long play_silent(void)
{
	static int fds[MAX_CLIENTS];
	size_t n = 0;

	while (n < MAX_CLIENTS && (fds[n] = raw_socket()) >= 0)
		n++;
	return hold_still(n);
}

enum { WAITERS = 100000, COPIES = 900 };

/* A doorbell that a hundred thousand entries of epoll sets wait for. */
unsigned long play_waiters(void)
{
	unsigned long n = 0;
	int ep = -1;

	crowd_connect(1);
	crowd_open(&(struct ring_want){64, 64, 4096, 4096}, 1, 1);
	if (!crowd.n_rings)
		return 0;
	for (int i = 0; i < WAITERS / COPIES; i++) {
		ep = epoll_create1(EPOLL_CLOEXEC);
		for (int k = 0; ep >= 0 && k < COPIES; k++) {
			struct epoll_event event = {.events = EPOLLIN};
			static int copies[COPIES];

			if (!copies[k])
				copies[k] = dup(crowd.rings->fds[KVD_RING_FD_COMPLETE]);
			if (copies[k] > 0)
				n += epoll_ctl(ep, EPOLL_CTL_ADD, copies[k], &event) == 0;
		}
	}
	ready();
	while (now() < deadline) {
		struct kvd_client_page *page = (void *)crowd.rings->c2d;
		struct kvd_sqe nop = {.opcode = KVD_OP_NOP};
		char junk[64];
		struct kvd_cqe cqe;

		__atomic_store_n(&page->flags, KVD_CLIENT_NEED_WAKEUP, __ATOMIC_RELEASE);
		if (raw_space(crowd.rings))
			raw_submit(crowd.rings, &nop);
		raw_ring_bell(crowd.rings);
		nap_us(500);
		while (raw_pop(crowd.rings, &cqe))
			;
		if (read(crowd.rings->fds[KVD_RING_FD_COMPLETE], junk, sizeof(junk)) < 0)
			continue;
	}
	return n;
}
