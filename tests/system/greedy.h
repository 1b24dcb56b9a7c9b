/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_SYSTEM_GREEDY_H
#define KVD_TESTS_SYSTEM_GREEDY_H

/*
 * What the verbs of greedy share: until when they play, and as many connections and rings
 * as the daemon lets one user have. One thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/system/raw.h"

#define MAX_CLIENTS 512
#define MAX_RINGS   2048

extern double deadline;

struct crowd {
	struct raw_client clients[MAX_CLIENTS];
	size_t n_clients;
	struct raw_ring rings[MAX_RINGS];
	size_t n_rings;
};

extern struct crowd crowd;

/* The sizes of a ring. */
struct ring_want {
	uint32_t sq, cq;
	uint64_t in, out;
};

double now(void);
void nap_us(unsigned int us);

/* Once all is in hand: says so to the test, which begins to measure. */
void ready(void);

/* As many connections as there are to be had, at most @max. */
void crowd_connect(size_t max);

/* As many rings as there are to be had on those, @each on one at most. */
void crowd_open(const struct ring_want *want, size_t each, size_t max);

/*
 * Keeps @depth entries of each ring in the queue until the time is up: copies of what
 * @prep, called once for each ring, made of it. Return: answers.
 */
unsigned long crowd_submit(void (*prep)(struct raw_ring *ring, struct kvd_sqe *sqe),
			   unsigned int depth);

/* Waits until @ring answers finally. Return: res, or -ETIME at the end of the time. */
int wait_final(struct raw_ring *ring, struct kvd_cqe *ret);

/* Verbs of greedy_memory.c. Return: how often each did what it does. */
unsigned long play_keeps(void);
unsigned long play_queues(void);
unsigned long play_closes(void);
unsigned long play_waits(void);
unsigned long play_scores(void);
unsigned long play_unread(void);
unsigned long play_silent(void);
unsigned long play_waiters(void);

#endif
