/* SPDX-License-Identifier: MIT */
/*
 * What the simulations by seed have in common: the world of one seed, its requests, the fake
 * device and the checks after every step (sim.c), and the course of a seed (sim_run.c).
 *
 * The fake keeps for every position of every block a number that depends on the token
 * there and on all numbers before it, read through the block table of the plan. A token
 * is sampled from the last such number. So a block that is reused in the wrong place, too
 * early, after it was given away, or across domains gives other tokens than the request
 * gets alone, which are computed here without scheduler and blocks. With half of the seeds
 * the fake keeps the block that a sequence is filling in its tail slot, and the block holds
 * nonsense until it is full, as quantized pools do; a slot that changes hands too early
 * shows as well.
 *
 * The clock is a number that the simulation moves. After every step it asks: do tables,
 * lists, pool and index agree (sched_check()), is every uid within its quota, did each
 * request get the tokens it gets alone, and nobody else's?
 *
 * A kind of simulation adds to that what it disturbs a seed with. One without a kind draws
 * the same numbers whatever other kinds do, so that its seeds stay what they are.
 */
#ifndef KVD_SIM_SIM_H
#define KVD_SIM_SIM_H

#include "daemon/sched/sched.h"

#include <check.h>
#include <stdint.h>

#define MAX_REQUESTS 64
#define MAX_TOKENS   160
#define N_VOCAB      7
#define EOS          6
#define N_DOMAINS    3

struct sim;

/**
 * struct sim_kind - what a simulation does besides; all but @name may be NULL
 * @name: of the program
 * @n_seeds: how many by default
 * @open: the world is there; @close: it goes
 * @disturb: between any two things that happen
 * @settle: all requests have ended: lets go of what it has pinned
 * @dies: the process dies, if the world is mortal, with a plan in flight if @in_step, after
 *	die_after of its entries; and is born again, when nothing runs
 */
struct sim_kind {
	const char *name;
	uint64_t n_seeds;
	void (*open)(struct sim *sim);
	void (*close)(struct sim *sim);
	void (*disturb)(struct sim *sim);
	void (*settle)(struct sim *sim);
	void (*dies)(struct sim *sim, bool in_step);
};

struct sim_request {
	int32_t tokens[MAX_TOKENS];
	struct request_desc desc;
	uint32_t id;
	uint32_t n_seen;
	uint32_t limit;
	bool accepted;
	bool finished;
	bool paused;
	bool forked;
	bool cancelled;
	uint64_t state[MAX_TOKENS + 1];
};

struct sim {
	uint64_t seed;
	uint64_t rng;
	uint32_t bt;
	uint32_t n_blocks;
	struct sched_config config;
	struct sched_quota quota[N_DOMAINS];
	bool quota_lowered;
	uint64_t now;
	uint64_t elapsed_ns[2]; /* of a step, and of each row in it */
	struct cache cache;
	struct sched *sched;
	struct plan plan;
	struct plan_result result;
	uint64_t *mem;
	uint64_t *tails; /* [max_num_seqs * bt], NULL: blocks are written in place */
	uint32_t *mem_domain;
	struct sim_request requests[MAX_REQUESTS];
	uint32_t n_requests;
	struct prefix_flush flush; /* in hand, if it has an index */
	uint32_t pinned[4];
	uint32_t n_pinned;
	bool ever_pinned;
	bool failing;
	uint64_t n_row_hits; /* requests that found some rows of a block */

	const struct sim_kind *kind;
	void *more; /* of the kind */
	struct prefix_model model;
	const struct evict_policy *policy;
	uint32_t key_bits;
	uint32_t die_after; /* entries that the device runs before the process dies */
	bool mortal;
	bool have_public; /* some prefix was made public */
};

#define sim_check(sim, expr)                                                             \
	do {                                                                             \
		if (!(expr))                                                             \
			ck_abort_msg("KVD_SIM_SEED=%llu step %llu: %s",                  \
				     (unsigned long long)(sim)->seed,                    \
				     (unsigned long long)(sim)->plan.step, #expr);       \
	} while (0)

uint64_t mix(uint64_t x);

/* 0 .. @n - 1. */
uint32_t rnd(struct sim *sim, uint32_t n);

void sim_init(struct sim *sim, const struct sim_kind *kind, uint64_t seed);
void sim_deinit(struct sim *sim);

/* Pool and index, empty, and the scheduler over them. */
void sim_open_index(struct sim *sim);
void sim_open_sched(struct sim *sim);

void sim_add(struct sim *sim);

/* Branches a live request at any token that it has. */
void sim_fork(struct sim *sim, const struct sim_request *parent);

/* Does a piece of the flush in hand. What it was to flush is gone at its end. */
void sim_flush_step(struct sim *sim, uint32_t work);

/* Takes the events and compares them; then everything else. */
void sim_events(struct sim *sim);

/* Runs the plan; @domains: of its entries. */
void sim_run(struct sim *sim, const uint32_t *domains);

struct sim_totals {
	struct sched_counters sched;
	struct prefix_counters prefix;
	uint64_t n_row_hits;
};

/*
 * Runs the seeds: KVD_SIM_SEEDS=n sets how many, KVD_SIM_SEED=s runs only that one, the argument
 * 2/4 is the second quarter of them. @check says whether @n seeds came near to what the simulation
 * is for. Return: exit code.
 */
int sim_main(int argc, char **argv, const struct sim_kind *kind,
	     void (*check)(uint64_t n, const struct sim_totals *totals));

#endif
