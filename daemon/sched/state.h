/* SPDX-License-Identifier: MIT */
/*
 * The inside of struct sched, shared by the files of this folder and nobody else.
 *
 * Owns: the lists that requests stand in. A live request stands in exactly one slot, and in
 *
 *   WAITING   its user's waiting list
 *   PREFILL   the run list and its user's prefill list
 *   DECODE    the run list
 *
 * The run list is ordered by arrival, oldest first, the lists of a user by priority, then
 * by turn, then by arrival. A user is in the work ring while one of its two lists holds
 * anything, so a step looks only at users that want prefill.
 *
 * Turns are the round robin among the clients of a user, as the order of one list: the
 * requests of a client have rising turns, and the first one of a client that had none
 * waiting takes the turn after the one that was let in last. So the i-th requests of all
 * clients stand together, however many one of them has queued. (Start-time fair queueing
 * with each request of size one; source: Goyal, Vin, Cheng, SIGCOMM 1996.)
 *
 *   sched.c     life of requests, events      policy.c    users, lists, shares, victims
 *   step.c      builds a plan                 admit.c     who gets into it
 *   complete.c  applies a result              claims.c    who computes which block in it
 *   deadline.c  who must end when             fork.c      blocks of a branch
 *   check.c     the equations, counted again
 */
#ifndef KVD_SCHED_STATE_H
#define KVD_SCHED_STATE_H

#include "daemon/sched/sched.h"

#include <stdbool.h>
#include <stdint.h>

#define SCHED_USER_BUCKETS   256
#define SCHED_CLIENT_BUCKETS 1024

struct request_list {
	struct request *head;
	struct request *tail;
};

/**
 * struct sched_user - one uid with live requests
 * @n_live, @n_running, @n_waiting: its requests in any state, not waiting, waiting
 * @n_blocks: blocks that its requests are charged for
 * @quota: its limits
 * @deficit: rows it may have before others have caught up; below 0 it had more than its turn
 * @allowance: rows of the plan being built that are its by right
 * @turns: by priority: the highest turn of those that were let in from the queue
 * @cursor: next of @prefill to look at while a plan is built
 * @cursor_waiting: next of @waiting
 * @rank: candidates it has in the plan being built
 * @prev_work, @next_work: work ring; NULL outside
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
	uint64_t turns[2 * SCHED_MAX_PRIORITY + 1];
	struct request_list waiting;
	struct request_list prefill;
	struct request *cursor;
	struct request *cursor_waiting;
	uint32_t rank;
	struct sched_user *prev_work;
	struct sched_user *next_work;
	struct sched_user *next_hash;
};

/**
 * struct sched_turns - requests of one client and priority
 * @last: turn of the one that waits last; anything while none does
 */
struct sched_turns {
	uint64_t last;
	uint32_t n_waiting;
};

/* One client of a user, while it has live requests. */
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

/**
 * struct sched_claim - a block that a request computes in the plan being built
 * @step: plan that it belongs to; any other means an empty place
 */
struct sched_claim {
	uint64_t step;
	struct request *request;
	uint32_t block;
};

/**
 * struct sched_candidate - a request that could get a prefill chunk
 * @rank: how many of its user came before it
 * @want: rows until its prompt is computed
 * @quota: rows granted
 */
struct sched_candidate {
	struct request *request;
	uint32_t rank;
	uint32_t want;
	uint32_t quota;
};

/**
 * struct sched - the scheduler
 * @step: number of the plan in flight, or of the last one
 * @n_slots: max_num_seqs + max_waiting
 * @run, @n_running: PREFILL and DECODE, paused ones too
 * @n_paused: requests with the flag, in any state
 * @n_paused_running: those in the run list
 * @first: user that goes first in the next plan; any member of the work ring
 * @stalled: a request found no block in the plan built last
 * @stalled_before: or in the one before
 * @tails: [max_num_seqs] tail buffers of partial blocks; those that no running request has come
 *	first, n_free_tails of them
 * @capped: a request found its user at max_blocks in the plan built last
 * @spare: blocks that nobody who runs will need, as far as one can tell, in the plan being
 *	built
 * @starved: a user without running requests was not let in for want of places or blocks
 * @heap: [n_slots] requests with a deadline, a binary heap, the earliest first
 * @claims: [n_claims] open hash, n_claims a power of two
 * @candidates: [max_num_seqs]; @deferred: [max_num_seqs]
 * @events: [cap_events]
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
	uint64_t spare;
	uint32_t n_users;

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

/* sched.c */

/* Borrowed; NULL if the id is gone. */
struct request *sched_request(const struct sched *sched, uint32_t id);

/* Appends an event of @request to the list; there is always room. */
struct sched_event *sched_emit(struct sched *sched, const struct request *request,
			       enum sched_event_kind kind);

/* Releases the request with its blocks; one FINISHED event. */
void sched_finish(struct sched *sched, struct request *request, enum sched_reason reason,
		  int status);

/* deadline.c */

/* Puts a request with a deadline into the heap, or takes it out. */
void deadline_link(struct sched *sched, struct request *request);
void deadline_unlink(struct sched *sched, struct request *request);

/* Whether the heap is one. */
bool deadline_check(const struct sched *sched);

/* policy.c */

/* Charges the user of @request for what the table holds now. */
void policy_charge(struct request *request);

/* Blocks that @user may still take. */
uint32_t policy_blocks_left(const struct sched_user *user);

/* The user of @uid if it has requests, else NULL. */
struct sched_user *policy_user_find(const struct sched *sched, uint32_t uid);

/**
 * policy_join() - make a request one of its user and client, made if need be
 *
 * Return: 0 or -ENOMEM. policy_leave() undoes it, and may free both.
 */
int policy_join(struct sched *sched, struct request *request, uint32_t uid,
		uint64_t client);
void policy_leave(struct sched *sched, struct request *request);

/* Gives a new request its turn: after its client's last one that waits, or the next. */
void policy_take_turn(struct request *request);

/* Whether its client counts a request that waits, and none of a later turn than it knows. */
bool policy_turn_valid(const struct request *request);

/* @request, which waits, is let in: newcomers come after its turn. */
void policy_let_in(const struct request *request);

/* Puts a request with a new state into the lists of that state, or takes it out. */
void policy_link(struct sched *sched, struct request *request);
void policy_unlink(struct sched *sched, struct request *request);

/* Moves a request to another state and its lists. */
void policy_move(struct sched *sched, struct request *request, enum request_state state);

/* Takes all blocks from a running request and sends it back to the queue. */
void policy_preempt(struct sched *sched, struct request *request);

/* The latest paused request of @user (NULL: of all) that runs and holds blocks (or @any). */
struct request *policy_paused_victim(const struct sched *sched,
				     const struct sched_user *user, bool any);

/**
 * policy_victim() - whose blocks @request may have
 * @own: look among the requests of the same user only
 *
 * Return: a request without rows in plan @step that holds blocks: the latest paused one,
 * else the least important of the user that holds most beyond its guarantee, among those
 * younger than @request, or of any age while the user of @request is below its own; NULL if
 * there is none.
 */
struct request *policy_victim(const struct sched *sched, const struct request *request,
			      uint64_t step, bool own);

/* If somebody starves, sends one request of the user that has most back to the queue. */
void policy_relieve(struct sched *sched);

/* Divides @budget rows among sched->candidates: sets their quotas. */
void policy_share(struct sched *sched, uint32_t budget);

/* @request got @n_rows rows in the plan being built. */
void policy_served(struct sched *sched, struct request *request, uint32_t n_rows);

/* admit.c */

/**
 * admit_gather() - who could use @budget rows for prefill in plan @step
 *
 * Users in turn, each one's requests by age; waiting ones are admitted on the way, blocks
 * that were published meanwhile are adopted. Fills sched->candidates, and sched->deferred
 * with those whose next block a candidate is about to compute.
 */
void admit_gather(struct sched *sched, uint64_t step, uint32_t budget);

/**
 * admit_allowed() - whether a fork may run at once: a place is free and its user within its
 * limits
 */
bool admit_allowed(const struct sched *sched, const struct request *request);

/* fork.c */

/**
 * fork_share() - let a new request begin with the blocks of another
 * @child: just added, waiting; runs at once if it may, else nothing happens
 * @n_tokens: leading tokens that both have in common
 */
void fork_share(struct sched *sched, struct request *child, const struct request *parent,
		uint32_t n_tokens);

/**
 * fork_copy() - give a fork its own copy of the block that it writes into
 * @id: the copy, taken, not yet in any table
 */
void fork_copy(struct sched *sched, struct plan *plan, struct request *request,
	       uint32_t id);

/* The last block of the table is to be a copy of @src, with its reference till it is made. */
void fork_plan_copy(struct sched *sched, struct plan *plan, struct request *request,
		    uint32_t src);

/* No block for a copy: computes the rows again instead. */
void fork_recompute(struct sched *sched, struct request *request);

/* The step has ended. A copy of rows that a flush took meanwhile, or before a fork, is not
 * published: what the table says of them stays. Any other is the request's own. */
void fork_copied(struct sched *sched, struct request *request);

/* The copy is made, or will not be: lets go of the source. */
void fork_release(struct sched *sched, struct request *request);

/* claims.c */

/* Another request that has claimed the next block of @request in plan @step, or NULL. */
struct request *claims_by(struct sched *sched, uint64_t step, struct request *request);

/* @request computes all full blocks that begin in [from, to); replaces equal claims. */
void claims_add(struct sched *sched, uint64_t step, struct request *request,
		uint32_t from, uint32_t to);

/* Cuts rows n_computed .. end - 1 where a block begins that another computes now. */
uint32_t claims_end(struct sched *sched, uint64_t step, struct request *request,
		    uint32_t end);

/* Blocks that hold @n_tokens tokens. */
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
