/* SPDX-License-Identifier: MIT */
/*
 * One request as the scheduler sees it: its tokens, how far they are computed, its blocks.
 *
 * Owns: the token array, the key array and the block table of the request, all sized when
 * it is added, so that no step can run out of memory half way. Runs on the loop thread.
 * Knows no session, ring or text; others name it by id and it names them by cookie.
 *
 *   tokens   [ prompt ................ | generated ........ | room ........ ]
 *            0 ....... n_computed ..... n_prompt ... n_tokens .... max_total
 *
 *   n_computed <= n_tokens <= max_total;   table covers 0 .. n_computed - 1
 *   n_tokens = n_prompt + n_generated
 *   n_computed = n_tokens is never left standing: a GENERATE request then got its next
 *   token from the same step, a SCORE request is done
 *
 *               add                    first rows, or a hit
 *      ------------------> WAITING ---------------------------> PREFILL
 *                             ^  ^          preempted              |
 *                             |  +---------------------------------+ prompt computed,
 *                             |             preempted              v token sampled
 *                             +---------------------------------- DECODE
 *
 *   from each of them, at once or when the step in flight has completed: gone, with one
 *   SCHED_FINISHED event. PAUSED is a flag beside the state: not planned, blocks kept until
 *   somebody else needs them.
 */
#ifndef KVD_SCHED_REQUEST_H
#define KVD_SCHED_REQUEST_H

#include "daemon/cache/prefix.h"
#include "daemon/cache/seq.h"
#include "daemon/sched/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * struct sched_quota - what one uid may have at a time; 0 is no limit, but for min_blocks
 * @min_blocks: up to here its requests lose no blocks to those of other uids, and may take
 *	what others hold beyond their own
 * @max_blocks: blocks that its requests hold; one that several of them read counts for each
 * @max_running: requests that are not waiting
 * @max_waiting: requests in the queue
 */
struct sched_quota {
	uint32_t min_blocks;
	uint32_t max_blocks;
	uint32_t max_running;
	uint32_t max_waiting;
};

enum request_kind { REQUEST_GENERATE, REQUEST_SCORE };

#define REQUEST_NO_TAIL    UINT32_MAX
#define SCHED_MAX_PRIORITY 100

enum request_state { REQUEST_WAITING, REQUEST_PREFILL, REQUEST_DECODE };

/**
 * struct request_desc - what is asked for
 * @tokens, @n_tokens: the prompt, >= 1 token, each >= 0; borrowed during sched_add() only
 * @max_tokens: GENERATE: how many at most; 0 until EOS or the context is full
 * @dist: SCORE: what is wanted of the rows from @dist_first on; off is not used
 * @client: which of the clients of this uid asks, for fairness among them
 * @quota: limits of the uid, taken over by its other requests too; NULL: as they were
 * @priority: lower runs earlier, among requests of one uid; up to SCHED_MAX_PRIORITY each way
 * @deadline_ns: when it ends unfinished, on the clock of sched_plan(); 0: never
 * @owner: label of the client's process, for shared_hit_tokens
 * @salt, @salt_len: narrows sharing; may be empty
 * @cookie: comes back in every event
 */
struct request_desc {
	uint8_t kind;
	bool ignore_eos;
	const int32_t *tokens;
	uint32_t n_tokens;
	uint32_t max_tokens;
	struct kv_sample_params sample;
	struct plan_dist dist;
	uint32_t dist_first;
	uint32_t uid;
	uint64_t client;
	const struct sched_quota *quota;
	int32_t priority;
	uint64_t deadline_ns;
	uint32_t domain;
	bool reads_public;
	uint64_t owner;
	const void *salt;
	size_t salt_len;
	uint64_t cookie;
};

/**
 * struct request - one request
 * @id: the scheduler's id
 * @arrival: order of arrival; lower is older
 * @turn: its place among requests of its uid and priority; lower goes first
 * @n_cached: prompt tokens that were hits in its first life (before any preemption)
 * @n_scored: SCORE: positions 1 .. n_scored are reported
 * @max_total: n_tokens at which it ends with REQUEST_LENGTH
 * @planned: step that it has an entry in
 * @tail: tail buffer of its partial block while it is not WAITING, else REQUEST_NO_TAIL
 * @cancelled, @expired: ends when the step in flight completes
 * @cow: the last block of the table is another's, with rows that it needs and must copy
 *	before it writes the next one
 * @cow_src: block that the step in flight copies from, referenced till it ends; BLOCK_NONE
 * @charged: blocks that its user is charged for; equals table.n_blocks between calls
 * @heap_place: place in the heap of deadlines; meaningless without a deadline
 * @preempted: lost its blocks at least once
 * @uncached: neither looks for nor publishes prefixes
 * @started_ns: when it first left the queue
 * @prev_run, @next_run: all requests that are not WAITING, oldest first
 * @prev, @next: WAITING: queue of the uid; PREFILL: prefill list of the uid; by priority,
 *	then turn, then oldest first
 */
struct request {
	uint32_t id;
	uint8_t kind;
	uint8_t state;
	bool ignore_eos;
	bool paused;
	bool cancelled;
	bool expired;
	bool cow;
	bool preempted;
	bool uncached;
	uint32_t uid;
	int32_t priority;
	uint32_t charged;
	uint32_t cow_src;
	uint32_t heap_place;
	uint64_t deadline_ns;
	uint64_t cookie;
	uint64_t arrival;
	uint64_t turn;
	uint64_t arrived_ns;
	uint64_t started_ns;
	uint64_t planned;
	struct kv_sample_params sample;
	struct plan_dist dist;
	uint32_t dist_first;

	int32_t *tokens;
	uint32_t n_tokens;
	uint32_t n_prompt;
	uint32_t n_generated;
	uint32_t n_computed;
	uint32_t n_cached;
	uint32_t n_scored;
	uint32_t max_total;
	uint32_t tail;

	struct seq_table table;
	struct prefix_chain chain;

	struct sched_user *user;
	struct sched_client *client;
	struct request *prev_run;
	struct request *next_run;
	struct request *prev;
	struct request *next;
};

/**
 * request_new() - copy a description
 * @desc: valid by sched_add()'s rules
 * @max_total: tokens, prompt included; >= desc->n_tokens
 * @block_tokens: tokens per block
 * @ret_request: the request, WAITING, id 0
 *
 * Return: 0, or -ENOMEM.
 */
int request_new(const struct request_desc *desc, uint32_t max_total,
		uint32_t block_tokens, struct request **ret_request);

/* The table must be empty; free(NULL) is fine. */
void request_free(struct request *request);

#endif
