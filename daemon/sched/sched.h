/* SPDX-License-Identifier: MIT */
/*
 * The scheduler: which rows the next step runs.
 *
 * Owns: every request from sched_add() to its SCHED_FINISHED event, and the block tables of
 * all. Runs on the loop thread. Deterministic: it reads no clock, draws no random numbers
 * and takes all it knows from its callers, so a run is replayed by replaying the calls.
 * Relies on daemon/cache; the pool and the index outlive it. Knows no sockets, models or
 * devices.
 *
 *   sched_add()  sched_cancel()  sched_pause()      any time, also during a step
 *        |            |               |
 *        v            v               v
 *      [ requests ] -- sched_plan() --> struct plan --> worker
 *           ^                                             |
 *           +-------- sched_complete() <-- struct plan_result
 *                          |
 *                          v   sched_events(): TOKEN, SCORED, FINISHED
 *
 * One plan is in flight at a time.
 *
 * A plan holds one row for each request that decodes, then prefill chunks: uids take
 * turns over rows (step.c, policy.c), waiting requests are admitted and adopt what is
 * published (admit.c). Quotas are checked where the cost arises; who is at a limit
 * waits for itself and for nobody else.
 *
 * Deadlines: a request that is past its own ends with SCHED_REASON_DEADLINE at the next
 * sched_plan() or sched_expire(); the step in flight is not cut short.
 *
 * When blocks run out, cached ones are evicted, then paused and younger requests lose theirs and
 * are computed again later. Older requests never lose blocks to younger ones.
 */
#ifndef KVD_SCHED_SCHED_H
#define KVD_SCHED_SCHED_H

#include "daemon/cache/cache.h"
#include "daemon/sched/plan.h"
#include "daemon/sched/request.h"

#include <stdbool.h>
#include <stdint.h>

#define SCHED_MAX_EOS 16

/**
 * struct sched_config - limits
 * @max_num_seqs: requests that run at once, 1 .. 4096
 * @max_num_batched_tokens: rows of a step, >= max_num_seqs
 * @max_model_len: tokens of a sequence, prompt and generated
 * @max_waiting: requests beyond the running ones that may queue; the sum of both is at most
 *	65,535
 * @block_tokens: tokens per block; as in the prefix index
 * @max_dist_words: words of distributions that one step may yield; 0: none are asked for
 * @enable_prefix_caching: look for and publish prefixes
 * @copy_rows: the rows of a block can be copied one by one, as the KV format stores them: a
 *	fork inside a block copies it; else it computes the block's rows again
 * @eos, @n_eos: tokens that end a sequence
 */
struct sched_config {
	uint32_t max_num_seqs;
	uint32_t max_num_batched_tokens;
	uint32_t max_model_len;
	uint32_t max_waiting;
	uint32_t block_tokens;
	uint32_t max_dist_words;
	bool enable_prefix_caching;
	bool copy_rows;
	int32_t eos[SCHED_MAX_EOS];
	uint32_t n_eos;
};

/* Named conditions of sched_add(). */
enum {
	SCHED_PROMPT_TOO_LONG = 1, /* n_tokens > limit, by max_model_len */
	SCHED_CANNOT_EVER_FIT = 2, /* needs more blocks than the pool has */
	SCHED_QUEUE_FULL = 3,      /* limit requests wait already */
	SCHED_INVALID = 4,         /* no tokens, a negative token, unknown kind */
	SCHED_QUOTA_BLOCKS = 5,    /* needs more blocks than its uid may hold */
	SCHED_QUOTA_WAITING = 6,   /* its uid has limit requests waiting already */
	SCHED_NO_PARENT = 7,       /* sched_fork(): nothing to branch from */
};

/* The numbers behind a condition of sched_add(): tokens, blocks, requests or the index of the bad
 * token, and what would have been allowed. */
struct sched_refusal {
	uint64_t wanted;
	uint64_t limit;
};

enum sched_event_kind {
	SCHED_TOKEN,    /* a token was sampled */
	SCHED_SCORED,   /* the logprob of a prompt token is known */
	SCHED_FINISHED, /* the request is gone; the last event of its id */
};

enum sched_reason {
	SCHED_REASON_NONE,
	SCHED_REASON_STOP,      /* end-of-sequence token, or SCORE complete */
	SCHED_REASON_LENGTH,    /* max_tokens, max_model_len or the pool's size reached */
	SCHED_REASON_CANCELLED, /* sched_cancel() */
	SCHED_REASON_ERROR, /* `status` says which: -ENOSPC pool, -EDQUOT quota, device */
	SCHED_REASON_DEADLINE, /* its time was up */
};

/**
 * struct sched_event - one thing that happened to a request
 * @kind: enum sched_event_kind
 * @reason: FINISHED: enum sched_reason
 * @is_eos: TOKEN: it is an end-of-sequence token, not part of the text; FINISHED with STOP
 *	follows unless ignore_eos. It counts as generated
 * @id, @cookie: which request
 * @token, @logprob: TOKEN, SCORED
 * @position: absolute position of @token in the sequence
 * @dist: SCORED: what was wanted of the distribution that @token was drawn from; its words
 *	are in plan_result.dist until the next step. After the last position @token is -1
 * @status: FINISHED with ERROR: -errno
 * @n_prompt, @n_cached, @n_generated: FINISHED: usage in tokens
 */
struct sched_event {
	uint8_t kind;
	uint8_t reason;
	bool is_eos;
	uint32_t id;
	uint64_t cookie;
	int32_t token;
	float logprob;
	uint32_t position;
	struct plan_dist dist;
	int status;
	uint32_t n_prompt;
	uint32_t n_cached;
	uint32_t n_generated;
};

/**
 * struct sched_counters - since start, never reset
 * @prompt_tokens: of requests that left the queue for the first time; @cached_tokens: hits of them
 * @computed_rows: rows of completed plans
 * @deferrals: times a request left its next block to another in the same step
 * @reliefs: preemptions for the sake of a uid that had nothing running
 */
struct sched_counters {
	uint64_t steps;
	uint64_t prompt_tokens;
	uint64_t cached_tokens;
	uint64_t computed_rows;
	uint64_t generated_tokens;
	uint64_t completed;
	uint64_t failed;
	uint64_t cancelled;
	uint64_t preemptions;
	uint64_t deferrals;
	uint64_t stalls;
	uint64_t expired;
	uint64_t reliefs;
	uint64_t forks;
	uint64_t copied_blocks;
};

struct sched;

/* An empty scheduler over @cache, of the same block_tokens, which outlives it. Return: 0, -EINVAL,
 * -ENOMEM. */
int sched_new(const struct sched_config *config, struct cache *cache,
	      struct sched **ret_sched);

/* Drops every request without events. No plan may be in flight on a worker. */
void sched_free(struct sched *sched);

/* Capacities for plan_init(): a plan of this scheduler always fits into them. */
void sched_plan_caps(const struct sched *sched, struct plan_caps *ret_caps);

/**
 * sched_add() - take a request into the queue
 * @ret_id: never 0; ids of finished requests come back only after 65,535 reuses of their place
 * @ret_refusal: with a condition: its numbers; may be NULL
 *
 * A max_tokens beyond max_model_len or the pool's size is cut to it and ends with LENGTH.
 *
 * Return: 0, a condition, or -ENOMEM.
 */
int sched_add(struct sched *sched, const struct request_desc *desc, uint64_t now_ns,
	      uint32_t *ret_id, struct sched_refusal *ret_refusal);

/**
 * sched_fork() - branch a live sequence at any of its tokens
 * @id: the parent; it never changes by this, and may end before or after its children
 * @n_tokens: how many of the parent's tokens the child begins with, 1 .. what it has
 * @desc: a GENERATE; its tokens, perhaps none, follow those of the parent, whose domain, salt and
 *	owner it has
 *
 * Return: as sched_add(); SCHED_NO_PARENT: @id is gone or has fewer tokens.
 */
int sched_fork(struct sched *sched, uint32_t id, uint32_t n_tokens,
	       const struct request_desc *desc, uint64_t now_ns, uint32_t *ret_id,
	       struct sched_refusal *ret_refusal);

/* Ends a request early, if it is there: its blocks return at once, or when the step in flight that
 * has rows of it has completed. One FINISHED event follows, and no TOKEN of that step. */
void sched_cancel(struct sched *sched, uint32_t id);

/* Stops or resumes planning a request, if it is there. A step in flight is still reported. */
void sched_pause(struct sched *sched, uint32_t id, bool paused);

/**
 * sched_plan() - the next step
 * @plan: initialized with at least sched_plan_caps(); in flight until sched_complete()
 *
 * Events may appear also without rows. Return: number of rows; 0: nothing can run until
 * something is added, resumed or cancelled.
 */
uint32_t sched_plan(struct sched *sched, uint64_t now_ns, struct plan *plan);

/* Applies what the step in flight has brought; with a negative status all its requests fail. Events
 * of the last one must have been cleared. */
void sched_complete(struct sched *sched, const struct plan *plan,
		    const struct plan_result *result);

/* Ends what is past its deadline, for a caller that has nothing to plan. */
void sched_expire(struct sched *sched, uint64_t now_ns);

/* The earliest deadline of all requests, or 0 if there is none. */
uint64_t sched_next_deadline(const struct sched *sched);

/* New limits for a uid; nothing is taken away at once. Unknown uids are ignored. */
void sched_set_quota(struct sched *sched, uint32_t uid, const struct sched_quota *quota);

/* What a uid has now: see struct sched_quota. */
struct sched_usage {
	uint32_t running;
	uint32_t waiting;
	uint32_t blocks;
};

/* All zero for a uid without requests. */
void sched_usage(const struct sched *sched, uint32_t uid, struct sched_usage *ret_usage);

/* What happened since sched_clear_events(), in order: borrowed until the next call that is not
 * sched_get() or sched_stats(). */
const struct sched_event *sched_events(const struct sched *sched, uint32_t *ret_n);
void sched_clear_events(struct sched *sched);

/* Borrowed; NULL if the id is gone. */
const struct request *sched_get(const struct sched *sched, uint32_t id);

/* Now; @running: all that do not wait, paused ones among them. */
struct sched_stats {
	uint32_t running;
	uint32_t waiting;
	uint32_t paused;
	struct sched_counters counters;
};

void sched_stats(const struct sched *sched, struct sched_stats *ret_stats);

/* Whether tables, lists, pool and index agree; O(everything). Return: 0, or -EINVAL. */
int sched_check(const struct sched *sched);

#endif
