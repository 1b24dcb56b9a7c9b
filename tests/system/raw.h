/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_SYSTEM_RAW_H
#define KVD_TESTS_SYSTEM_RAW_H

/*
 * A client without libkvclient and without manners: socket, messages and mapped ring
 * files as <kvd/abi.h> and <kvd/proto.h> lay them out, for tests that break the rules.
 * It checks nothing that it sends. One thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

struct raw_ring {
	struct kvd_ring_geometry geometry;
	uint32_t id;
	int fds[KVD_RING_N_FDS];
	uint8_t *c2d;
	const uint8_t *d2c;
	uint64_t sq_tail, cq_head;
};

struct raw_client {
	int fd;
	struct kvd_msg_welcome welcome;
};

/* Connects to $KVD_SOCKET and says HELLO. Return: 0 or -errno, -EPROTO after REJECT. */
int raw_connect(struct raw_client *client, const char *name);
void raw_close(struct raw_client *client);

/* The bare socket, without HELLO. Return: its descriptor or -errno. */
int raw_socket(void);

/* -errno, the status of an ERROR, or 0. */
int raw_ring_open(struct raw_client *client, struct raw_ring *ring, uint32_t sq_entries,
		  uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes);
void raw_ring_close(struct raw_ring *ring);

/* Publishes a copy of @sqe as the next entry, whether there is room or not. */
void raw_submit(struct raw_ring *ring, const struct kvd_sqe *sqe);
void raw_ring_bell(struct raw_ring *ring);

/* Entries that the daemon has taken may be overwritten. Return: how many fit now. */
uint64_t raw_space(const struct raw_ring *ring);

/* Wakes the daemon if it says that it does not look by itself. */
void raw_ring_kick(struct raw_ring *ring);

/* Return: whether there was a completion, which is in @ret and off the queue. */
bool raw_pop(struct raw_ring *ring, struct kvd_cqe *ret);

/*
 * Fills @sqe for a GENERATE of @n_tokens prompt tokens that follow from @seed, written to
 * the arena at @in_off; its parameters (never ends by itself) stand before them.
 */
void raw_prep_generate(struct raw_ring *ring, struct kvd_sqe *sqe, uint64_t in_off,
		       uint32_t n_tokens, uint32_t max_tokens, uint32_t seed);

/* xorshift; the state must not be 0. */
uint32_t raw_random(uint32_t *state);

#endif
