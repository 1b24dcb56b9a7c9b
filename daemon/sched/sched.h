/* SPDX-License-Identifier: MIT */
/*
 * The scheduler: which rows the next step runs. Owns every request from sched_add() to its
 * SCHED_FINISHED event, and all block tables. Deterministic: clock and random numbers come from
 * its callers. Relies on daemon/cache, which outlives it. Knows no sockets, models or devices.
 * Thread: loop. One plan is in flight at a time.
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
 * @max_waiting: beyond the running ones; both together at most 65,535
 * @max_dist_words: words of distributions that one step may yield; 0: none are asked for
 * @copy_rows: rows of a block can be copied one by one; else a fork inside it computes them again
 * @eos: [n_eos] tokens that end a sequence
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

/* Named conditions of sched_add(); INVALID: no tokens, a negative token, an unknown kind. */
enum {
	SCHED_PROMPT_TOO_LONG = 1,
	SCHED_CANNOT_EVER_FIT = 2,
	SCHED_QUEUE_FULL = 3,
	SCHED_INVALID = 4,
	SCHED_QUOTA_BLOCKS = 5,
	SCHED_QUOTA_WAITING = 6,
	SCHED_NO_PARENT = 7,
};

/* Of a condition: tokens, blocks, requests or the index of a bad token; and what is allowed. */
struct sched_refusal {
	uint64_t wanted;
	uint64_t limit;
};

/* SCORED: the logprob of a prompt token is known. FINISHED: the last event of its id. */
enum sched_event_kind {
	SCHED_TOKEN,
	SCHED_SCORED,
	SCHED_FINISHED,
};

/* STOP: EOS, or SCORE complete. LENGTH: of max_tokens, max_model_len or the pool. */
enum sched_reason {
	SCHED_REASON_NONE,
	SCHED_REASON_STOP,
	SCHED_REASON_LENGTH,
	SCHED_REASON_CANCELLED,
	SCHED_REASON_ERROR,
	SCHED_REASON_DEADLINE,
};

/**
 * struct sched_event - one thing that happened to the request of @id and @cookie
 * @reason: FINISHED: enum sched_reason
 * @is_eos: TOKEN: not part of the text, but counts as generated; ends it unless ignore_eos
 * @token, @logprob: TOKEN, SCORED; -1 after the last position of a SCORE
 * @position: absolute position of @token in the sequence
 * @dist: SCORED: what was wanted of its distribution, in plan_result.dist until the next step
 * @status: FINISHED with ERROR: -ENOSPC pool, -EDQUOT quota, -EDOM logits, else the device
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

/*
 * Since start. @prompt_tokens, @cached_tokens: of requests that left the queue for the first time.
 * @deferrals: times a request left its next block to another in the same step. @reliefs:
 * preemptions for a uid that had nothing running.
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

/* @cache: of the same block_tokens; outlives it. Return: 0, -EINVAL, -ENOMEM. */
int sched_new(const struct sched_config *config, struct cache *cache,
	      struct sched **ret_sched);

/* Drops every request without events. No plan may be in flight on a worker. */
void sched_free(struct sched *sched);

/* Capacities for plan_init() that every plan of this scheduler fits into. */
void sched_plan_caps(const struct sched *sched, struct plan_caps *ret_caps);

/* Whether sched_add() would take a request of that many tokens, which are not looked at. Return: 0
 * or a condition. */
int sched_may_add(const struct sched *sched, const struct request_desc *desc,
		  struct sched_refusal *ret_refusal);

/**
 * sched_add() - take a request into the queue
 * @ret_id: never 0; reused only after 65,535 other requests in its slot
 *
 * A max_tokens beyond max_model_len or the pool's size is cut to it and ends with LENGTH.
 * Return: 0, a condition with *@ret_refusal (or NULL), or -ENOMEM.
 */
int sched_add(struct sched *sched, const struct request_desc *desc, uint64_t now_ns,
	      uint32_t *ret_id, struct sched_refusal *ret_refusal);

/* What sched_add() allocates for a request, in bytes; of a branch @desc has all tokens. */
uint64_t sched_request_bytes(const struct sched *sched, const struct request_desc *desc);

/**
 * sched_fork() - branch a live sequence at any of its tokens
 * @id: the parent; it never changes by this, and may end before or after its children
 * @n_tokens: leading tokens of the parent that the child has, >= 1
 * @desc: a GENERATE; its tokens, perhaps none, follow; domain, salt and owner are the parent's
 *
 * Return: as sched_add(); SCHED_NO_PARENT: @id is gone or has fewer tokens.
 */
int sched_fork(struct sched *sched, uint32_t id, uint32_t n_tokens,
	       const struct request_desc *desc, uint64_t now_ns, uint32_t *ret_id,
	       struct sched_refusal *ret_refusal);

/*
 * Ends a request early, with one FINISHED: at once, or when the step that has rows of it completes,
 * without a TOKEN of it. Here and for sched_pause() an id that is gone is fine.
 */
void sched_cancel(struct sched *sched, uint32_t id);

/* Stops or resumes planning a request. A step in flight is still reported. */
void sched_pause(struct sched *sched, uint32_t id, bool paused);

/*
 * The next step. @plan: of at least sched_plan_caps(); in flight until sched_complete().
 * Return: rows; 0: nothing can run until something is added, resumed or cancelled. There may be
 * events without rows.
 */
uint32_t sched_plan(struct sched *sched, uint64_t now_ns, struct plan *plan);

/* A negative status fails all requests of the step. Earlier output events must be cleared. */
void sched_complete(struct sched *sched, const struct plan *plan,
		    const struct plan_result *result);

/* Ends what is past its deadline, for a caller that has nothing to plan. */
void sched_expire(struct sched *sched, uint64_t now_ns);

/* The earliest deadline; 0: none. */
uint64_t sched_next_deadline(const struct sched *sched);

/* Nothing is taken away at once. Unknown uids are ignored. */
void sched_set_quota(struct sched *sched, uint32_t uid, const struct sched_quota *quota);

struct sched_usage {
	uint32_t running;
	uint32_t waiting;
	uint32_t blocks;
};

/* As struct sched_quota counts; all zero for a uid without requests. */
void sched_usage(const struct sched *sched, uint32_t uid, struct sched_usage *ret_usage);

/* In order, since sched_clear_events(); borrowed until a call that changes something. */
const struct sched_event *sched_events(const struct sched *sched, uint32_t *ret_n);
void sched_clear_events(struct sched *sched);

const struct request *sched_get(const struct sched *sched, uint32_t id);

/* @running: all that do not wait, paused ones too. */
struct sched_stats {
	uint32_t running;
	uint32_t waiting;
	uint32_t paused;
	struct sched_counters counters;
};

void sched_stats(const struct sched *sched, struct sched_stats *ret_stats);

/* Whether tables, lists, pool and index agree; O(everything). Return: 0, -EINVAL, -ENOMEM. */
int sched_check(const struct sched *sched);

#endif
