/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_RING_MODEL_H
#define KVD_TESTS_RING_MODEL_H

/*
 * Both sides of a ring over a memory of a few words, where each access is a step. A call in
 * progress is the struct as it was when it began and what its accesses returned so far; the next
 * step runs it again from there. Stores wait in a buffer of their side, as on x86, so that a
 * missing barrier shows as well; what weaker machines may do besides is not modelled.
 */

#include <stdbool.h>
#include <stdint.h>

#include "ipc/ring.h"

#define MAX_ENTRIES 2
#define MAX_LOG     12
#define MAX_BUFFER  3
#define GARBAGE     0xff

/* All that the two sides share: seq words, positions, flags, doorbells. */
enum word {
	SQ_SEQ,
	CQ_SEQ = SQ_SEQ + MAX_ENTRIES,
	CQ_POS = CQ_SEQ + MAX_ENTRIES,
	CLIENT_FLAGS,
	SQ_POS,
	DAEMON_FLAGS,
	SUBMIT,
	COMPLETE,
	N_WORDS,
};

enum op {
	NONE,
	D_TAKE,
	D_POST,
	D_NOTIFY,
	D_ARM,
	D_DISARM,
	C_PUT,
	C_KICK,
	C_TAKE,
	C_ARM,
	C_LOOK,
	C_SPACE,
	C_WAKE,
	C_STAY,
};

/* One side's call in progress, and its stores that the other one does not see yet. */
struct side {
	uint8_t op, n_log, n_buffer;
	uint8_t log[MAX_LOG];
	struct {
		uint8_t word, value;
	} buffer[MAX_BUFFER];
};

/* @d_at ... @got: test_ring_model.c's. */
struct state {
	struct ring_daemon d;
	struct ring_client c;
	struct side sides[2];
	uint8_t words[N_WORDS];
	uint8_t d_at, d_next, c_at;
	uint8_t busy, late, blocked, dirty, worked, was_full;
	uint8_t full, sent, got;
};

/* A new ring. */
struct state model_first(uint32_t sq_entries, uint32_t cq_entries);

/* A word of 255 stands for one that is no position at all. */
uint64_t model_widen(uint8_t value);

/* One access of @op, which @side (0: the daemon, 1: the client) begins or goes on with. Return:
 * whether it has returned, @ret_result. */
bool model_step(struct state *s, unsigned side, enum op op, uint32_t *ret_result);

/* All of a call of the daemon's, without anybody in between. Return: its result. */
uint32_t model_call(struct state *s, enum op op);

/* The oldest store of a side reaches the other one. */
void model_flush(struct state *s, unsigned side);

#endif
