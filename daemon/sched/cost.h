/* SPDX-License-Identifier: MIT */
/*
 * What a step costs, learned from the steps that ran: their time as a sum over what was in
 * them. Part of the scheduler: it reads no clock, and the same steps give the same estimate.
 * Thread: loop.
 */
#ifndef KVD_SCHED_COST_H
#define KVD_SCHED_COST_H

#include <stdint.h>

/**
 * enum cost_part - what takes time in a step
 * @COST_STEP: the step itself: weights are read once, however many rows there are
 * @COST_ROW: a row
 * @COST_CONTEXT: a position that a single row reads
 * @COST_PAIR: a position that a row of a chunk reads: cheaper, as its neighbours read it too
 * @COST_OUTPUT: a row of logits
 * @COST_VOCAB: one of those that all of the vocabulary is looked at for: a draw, a distribution
 */
enum cost_part {
	COST_STEP,
	COST_ROW,
	COST_CONTEXT,
	COST_PAIR,
	COST_OUTPUT,
	COST_VOCAB,
	COST_N_PARTS,
};

/* How much of each there is. */
struct cost_count {
	double n[COST_N_PARTS];
};

/* @ns: of one of each part, never below 0. @seen, @seen_time: what former steps had in common, the
 * latest weigh most */
struct cost {
	double ns[COST_N_PARTS];
	double seen[COST_N_PARTS][COST_N_PARTS];
	double seen_time[COST_N_PARTS];
	uint32_t n_seen;
};

void cost_init(struct cost *cost);

/* A step with @count in it took @elapsed_ns; 0: nobody knows. */
void cost_learn(struct cost *cost, const struct cost_count *count, uint64_t elapsed_ns);

/* Nanoseconds. */
double cost_of(const struct cost *cost, const struct cost_count *count);

#endif
