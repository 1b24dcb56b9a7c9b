/* SPDX-License-Identifier: MIT */
/*
 * The inside of struct sched, for the files of this folder only. A live request stands in one slot;
 * while WAITING in its user's waiting list, else in the run list, and for PREFILL also in its
 * user's prefill list. The run list is by arrival, those of a user by priority, turn, arrival.
 *
 *   sched.c     life of requests, events      policy.c    users, lists, shares, victims
 *   step.c      builds a plan                 admit.c     who gets into it
 *   complete.c  applies a result              claims.c    who computes which block in it
 *   deadline.c  who must end when             fork.c      blocks of a branch
 *   share.c     the time of a step by user    cost.c      what a step costs
 *   check.c     the equations, counted again
 */
#ifndef KVD_SCHED_STATE_H
#define KVD_SCHED_STATE_H

#include "daemon/sched/cost.h"
#include "daemon/sched/sched.h"

#include <stdbool.h>
#include <stdint.h>

#define SCHED_USER_BUCKETS   256
#define SCHED_CLIENT_BUCKETS 1024

/* Plans in which who has gone is expected back. */
#define SCHED_REMEMBERED_PLANS 4

/* Plans in which somebody starves before the only request of another user gives way to it. */
#define SCHED_STARVED_PLANS 64

struct request_list {
	struct request *head;
	struct request *tail;
};

/**
 * struct sched_user - one uid with live requests
 * @deficit: rows it may have before others have caught up; < 0: had more than its turn
 * @allowance: rows of the plan being built that are its by right
 * @rows_left: of its prompts, that its time in the plan being built has room for
 * @turns: by priority: the highest turn that was let in from the queue
 * @cursor, @cursor_waiting: next of @prefill and @waiting to look at while a plan is built
 * @rank: candidates it has in the plan being built
 * @credit: time of the plan being built that is left to it; < 0: owed by former plans
 * @reserve: of the credit, for prompts
 * @want, @want_rows: what it could use of the plan; undefined unless @shares_step is its step
 * @next_sharer: of those that share it
 * @turn_last: arrival of the one that decoded last; @turn_from: before this plan
 * @prev_work, @next_work: work ring, while one of its two lists is not empty; else NULL
 */
struct sched_user {
	uint32_t uid;
	uint32_t n_live;
	uint32_t n_running;
	uint32_t n_waiting;
	uint32_t n_blocks;
	struct sched_quota quota;
	int64_t deficit;
	uint32_t allowance;
	uint32_t rows_left;
	uint64_t turns[2 * SCHED_MAX_PRIORITY + 1];
	struct request_list waiting;
	struct request_list prefill;
	struct request *cursor;
	struct request *cursor_waiting;
	uint32_t rank;
	double credit;
	double reserve;
	double want;
	uint32_t want_rows;
	uint64_t shares_step;
	struct sched_user *next_sharer;
	uint64_t turn_last;
	uint64_t turn_from;
	struct sched_user *prev_work;
	struct sched_user *next_work;
	struct sched_user *next_hash;
};

/* Of one client and priority. @last: turn of the one that waits last; undefined if none does */
struct sched_turns {
	uint64_t last;
	uint32_t n_waiting;
};

struct sched_client {
	uint64_t id;
	struct sched_user *user;
	uint32_t n_live;
	struct sched_turns turns[2 * SCHED_MAX_PRIORITY + 1];
	struct sched_client *next_hash;
};

struct sched_slot {
	struct request *request;
	uint16_t generation;
	uint32_t next_free;
};

/* A block that a request computes in the plan of @step; any other step: an empty place. */
struct sched_claim {
	uint64_t step;
	struct request *request;
	uint32_t block;
};

/* @rank: of the same user before it; @want: rows of its prompt; @quota: rows granted */
struct sched_candidate {
	struct request *request;
	uint32_t rank;
	uint32_t want;
	uint32_t quota;
};

/**
 * struct sched - the scheduler
 * @step: of the plan in flight, or of the last one
 * @run_head, @n_running: PREFILL and DECODE, paused ones too
 * @n_paused: in any state; @n_paused_running: in the run list
 * @first: user that goes first in the next plan; any member of the work ring
 * @stalled, @stalled_before: a request found no block in the plan built last, in the one before
 * @capped: a request found its user at max_blocks in the plan built last
 * @starved: a user without running requests was kept out for want of places or blocks;
 * @n_starved: in so many plans one after the other
 * @cost: what steps cost; @planned: what is in the plan being built, or in flight
 * @sharers: users that could use the plan being built
 * @remembered: what the least demanding user took while there were several, for @n_remembered more
 * plans
 * @shared: it is too short for all that they want; @throttled: one had no credit left
 * @spare: blocks that no running request is likely to need, in the plan being built
 * @tails: [max_num_seqs] tail buffers, the n_free_tails free ones first
 * @heap: [n_slots] n_heap requests with a deadline, the earliest first
 * @claims: [n_claims] open hash, n_claims a power of two
 * @candidates, @deferred: [max_num_seqs]; @events: [cap_events]
 */
struct sched {
	struct sched_config config;
	struct plan_caps caps;
	struct block_pool *pool;
	struct prefix_index *index;

	uint64_t step;
	uint64_t now_ns;
	bool in_flight;
	bool stalled;
	bool stalled_before;
	bool capped;
	bool starved;
	uint32_t n_starved;
	uint64_t spare;
	uint32_t n_users;

	struct cost cost;
	struct cost_count planned;
	struct sched_user *sharers;
	double remembered;
	uint32_t n_remembered;
	bool shared;
	bool throttled;

	struct request **heap;
	uint32_t n_heap;

	struct sched_slot *slots;
	uint32_t n_slots;
	uint32_t free_slot;
	uint32_t n_live;
	uint64_t n_arrivals;

	struct request *run_head;
	struct request *run_tail;
	uint32_t n_running;
	uint32_t n_waiting;
	uint32_t n_paused;
	uint32_t n_paused_running;

	struct sched_user *users[SCHED_USER_BUCKETS];
	struct sched_client *clients[SCHED_CLIENT_BUCKETS];
	struct sched_user *first;

	uint32_t *tails;
	uint32_t n_free_tails;

	struct sched_claim *claims;
	uint32_t n_claims;
	struct sched_candidate *candidates;
	uint32_t n_candidates;
	struct request **deferred;
	uint32_t n_deferred;

	struct sched_event *events;
	uint32_t n_events;
	uint32_t cap_events;
	uint32_t n_output_events;
	uint32_t n_finished_events;

	struct sched_counters counters;
};

/* sched.c. Borrowed; NULL if the id is gone. */
struct request *sched_request(const struct sched *sched, uint32_t id);

/* Appends an event of @request; there is always room. */
struct sched_event *sched_emit(struct sched *sched, const struct request *request,
			       enum sched_event_kind kind);

/* Releases the request with its blocks; one FINISHED event. */
void sched_finish(struct sched *sched, struct request *request, enum sched_reason reason,
		  int status);

/* deadline.c. Into the heap if it has a deadline, and out of it. */
void deadline_link(struct sched *sched, struct request *request);
void deadline_unlink(struct sched *sched, struct request *request);

bool deadline_check(const struct sched *sched);

/* policy.c. Charges the user of @request for what the table holds now. */
void policy_charge(struct request *request);

uint32_t policy_blocks_left(const struct sched_user *user);

/* NULL: no requests. */
struct sched_user *policy_user_find(const struct sched *sched, uint32_t uid);

/* Makes the user and client if need be; policy_leave() undoes it. Return: 0 or -ENOMEM. */
int policy_join(struct sched *sched, struct request *request, uint32_t uid,
		uint64_t client);
void policy_leave(struct sched *sched, struct request *request);

/* Gives a new request its turn: after its client's last one that waits, or the next. */
void policy_take_turn(struct request *request);

/* Whether its client counts a request that waits, and none of a later turn than it knows. */
bool policy_turn_valid(const struct request *request);

/* @request, which waits, is let in: newcomers come after its turn. */
void policy_let_in(struct request *request);

/* Into the lists of its state, and out of them. */
void policy_link(struct sched *sched, struct request *request);
void policy_unlink(struct sched *sched, struct request *request);

void policy_move(struct sched *sched, struct request *request, enum request_state state);

/* Takes all blocks from a running request and sends it back to the queue. */
void policy_preempt(struct sched *sched, struct request *request);

/* The latest paused one of @user (NULL: of all) that runs and holds blocks (or @any). */
struct request *policy_paused_victim(const struct sched *sched,
				     const struct sched_user *user, bool any);

/* Whose blocks @request may have: no rows in plan @step; @own: of the same user; or NULL */
struct request *policy_victim(const struct sched *sched, const struct request *request,
			      uint64_t step, bool own);

/* If a user starves, sends one request of the user that has most back to the queue. */
void policy_relieve(struct sched *sched);

/* Divides @budget rows among sched->candidates: sets their quotas. */
void policy_share(struct sched *sched, uint32_t budget);

void policy_served(struct sched *sched, struct request *request, uint32_t n_rows);

/* share.c. Divides the time of the plan to be built; @forgive: nobody owes anything. */
void share_open(struct sched *sched, bool forgive);

/* Whether one more request of @user may decode; if not, sched->throttled. */
bool share_decodes(struct sched *sched, const struct sched_user *user);

/* How many rows of prompts the user of @request may have, up to @max, of which one costs what the
 * next rows of @request do. */
uint32_t share_rows(struct sched *sched, const struct request *request, uint32_t max);

/* @request has @n rows from @pos on in the plan. */
void share_charge(struct sched *sched, struct request *request, uint32_t pos, uint32_t n);

/* admit.c. Fills sched->candidates and sched->deferred, for plan @step with @budget rows left. */
void admit_gather(struct sched *sched, uint64_t step, uint32_t budget);

/* Whether a fork may run at once: a place is free and its user within its limits. */
bool admit_allowed(const struct sched *sched, const struct request *request);

/* fork.c. @child, new, gets @parent's blocks for @n_tokens and runs, if it may; else nothing. */
void fork_share(struct sched *sched, struct request *child, const struct request *parent,
		uint32_t n_tokens);

/* Its own copy of the block that it writes into. @id: the copy, taken, in no table yet */
void fork_copy(struct sched *sched, struct plan *plan, struct request *request,
	       uint32_t id);

/* The last block of the table is to be a copy of @src, with its ref till it is made. */
void fork_plan_copy(struct sched *sched, struct plan *plan, struct request *request,
		    uint32_t src);

/* No block for a copy: computes the rows again. */
void fork_recompute(struct sched *sched, struct request *request);

void fork_copied(struct sched *sched, struct request *request);

/* The copy is made, or will not be: drops the ref of the source. */
void fork_release(struct sched *sched, struct request *request);

/* claims.c. Leading blocks of a waiting request that are cached, @ret_n_idle of them idle. */
uint32_t claims_cached(struct sched *sched, struct request *request,
		       uint32_t *ret_n_idle);

/* Another request that claimed the next block of @request in plan @step, or NULL. */
struct request *claims_by(struct sched *sched, uint64_t step, struct request *request);

/* @request computes all full blocks that begin in [from, to); replaces equal claims. */
void claims_add(struct sched *sched, uint64_t step, struct request *request,
		uint32_t from, uint32_t to);

/* Cuts rows n_computed .. end - 1 where a block begins that another computes now. */
uint32_t claims_end(struct sched *sched, uint64_t step, struct request *request,
		    uint32_t end);

static inline uint32_t sched_blocks_for(const struct sched *sched, uint32_t n_tokens)
{
	uint32_t bt = sched->config.block_tokens;

	return n_tokens / bt + !!(n_tokens % bt);
}

/* Rows below this position may come out of the cache: nobody wants their logits. */
static inline uint32_t request_adoptable(const struct request *r)
{
	return r->kind == REQUEST_SCORE ? r->n_scored : r->n_tokens - 1;
}

/* Whether the next thing to compute is a block that the index may hold or get. */
static inline bool request_at_shareable(const struct sched *sched,
					const struct request *r)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t n = r->table.n_blocks;

	return !r->uncached && r->table.n_published == n && r->n_computed == n * bt &&
	       (n + 1) * (uint64_t)bt <= request_adoptable(r);
}

#endif
