/* SPDX-License-Identifier: MIT */
/*
 * One user that takes all it can get, and says how much that is: connections and rings, of which
 * it ends some and keeps the memory; then, for a byte of standard input, requests, and bytes of
 * rings in place of some rings.
 *
 * usage: hoard N_ENDED. Prints a line of JSON each time; ends when its standard input does.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/system/raw.h"

#define MAX_CLIENTS 256
#define MAX_RINGS   256
#define N_ENTRIES   1024
#define N_PROMPT    1500
#define IN_BYTES    (2u << 20)
#define PAGE        4096u
#define MAX_ARENA   (64u << 20)

/* Rings with requests; rings that make room for larger ones. */
#define N_QUEUES 4
#define N_PLACES 24

static struct raw_client clients[MAX_CLIENTS];
static struct {
	struct raw_ring ring;
	unsigned client;
	uint32_t id;
} rings[MAX_RINGS];
static unsigned n_clients, n_rings, n_opened[MAX_CLIENTS];

static bool open_ring(unsigned client, uint32_t entries, uint64_t in, uint64_t out)
{
	if (n_rings == MAX_RINGS || raw_ring_open(&clients[client], &rings[n_rings].ring,
						  entries, entries, in, out) < 0)
		return false;
	rings[n_rings].client = client;
	rings[n_rings++].id = ++n_opened[client];
	return true;
}

static bool open_somewhere(uint64_t in)
{
	for (unsigned i = 5; i < n_clients; i++)
		if (open_ring(i, 1, in, 0))
			return true;
	return false;
}

/* The last one: waits for the reply, but keeps descriptors and mappings. */
static bool end_ring(void)
{
	const struct kvd_msg_ring_close msg = {
		.hdr = {.len = sizeof(msg), .type = KVD_MSG_RING_CLOSE, .tag = 9},
		.ring_id = rings[n_rings - 1].id,
	};
	int fd = clients[rings[n_rings - 1].client].fd;
	struct kvd_msg_hdr reply;

	return send(fd, &msg, sizeof(msg), MSG_NOSIGNAL) == sizeof(msg) &&
	       recv(fd, &reply, sizeof(reply), 0) == sizeof(reply) &&
	       reply.type == KVD_MSG_RING_CLOSED;
}

/* Reads completions that are there. Return: how many requests were refused. */
static unsigned n_refused(const struct raw_ring *ring, uint64_t *from)
{
	const struct kvd_cqe *cq = (const void *)(ring->d2c + ring->geometry.cq_off);
	unsigned n = 0;

	for (;; ++*from) {
		const struct kvd_cqe *cqe = &cq[*from & (ring->geometry.cq_entries - 1)];

		if (__atomic_load_n(&cqe->seq, __ATOMIC_ACQUIRE) != *from + 1)
			return n;
		n += cqe->res < 0;
	}
}

/* Return: requests that were taken, of as many as the queue holds. */
static unsigned fill_queue(struct raw_ring *ring)
{
	uint64_t from = 0;
	struct kvd_sqe sqe;
	unsigned bad = 0;

	raw_prep_generate(ring, &sqe, 0, N_PROMPT, 1, 7);
	for (unsigned i = 0; i < N_ENTRIES; i++)
		raw_submit(ring, &sqe);
	raw_ring_bell(ring);
	/* All were looked at when nothing more is refused for a while. */
	for (unsigned quiet = 0; quiet < 50; quiet++) {
		unsigned more = n_refused(ring, &from);

		bad += more;
		if (more)
			quiet = 0;
		usleep(20000);
	}
	return N_ENTRIES - bad;
}

/* Tells, and waits for the test to have looked. */
static void tell(unsigned taken)
{
	char byte;

	printf("{\"connections\": %u, \"rings\": %u, \"taken\": %u}\n", n_clients,
	       n_rings, taken);
	fflush(stdout);
	if (read(STDIN_FILENO, &byte, 1) != 1)
		exit(0);
}

int main(int argc, char **argv)
{
	unsigned n_ended = argc == 2 ? (unsigned)atoi(argv[1]) : 0, taken = 0;

	while (n_clients < MAX_CLIENTS && raw_connect(&clients[n_clients], "hoard") == 0)
		n_clients++;
	if (n_clients < 8)
		return 1;
	for (unsigned i = 0; i < n_ended; i++)
		if (!open_ring(0, 1, 0, PAGE) || !end_ring())
			return 1;
	/* the first are for requests, a full queue each, on connections of their own */
	for (unsigned i = 0; i < N_QUEUES; i++)
		if (!open_ring(i + 1, N_ENTRIES, IN_BYTES, PAGE))
			return 1;
	while (open_somewhere(0))
		;
	tell(0);
	for (unsigned i = 0; i < N_PLACES; i++) {
		if (!end_ring())
			return 1;
		raw_ring_close(&rings[--n_rings].ring);
	}
	for (unsigned i = 0; i < N_QUEUES; i++)
		taken += fill_queue(&rings[n_ended + i].ring);
	/* What is left of the memory, the largest pieces first. */
	for (uint64_t in = MAX_ARENA; in >= PAGE; in /= 2)
		while (open_somewhere(in))
			;
	tell(taken);
	return 0;
}
