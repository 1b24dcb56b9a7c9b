/* SPDX-License-Identifier: MIT */
/*
 * One request as the scheduler sees it. Owns its tokens, keys and block table, all sized when it is
 * added, so that no step runs out of memory half way. Others name it by id, and it names them by
 * cookie. It ends with one SCHED_FINISHED; paused it is not planned, and keeps its blocks until
 * others need them. Thread: loop.
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
 * @min_blocks: that its requests do not lose to other uids, and may take from them
 * @max_blocks: that its requests hold; one that several of them read counts for each
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
 * @tokens: [n_tokens] the prompt, >= 1 token, each >= 0; borrowed during sched_add()
 * @max_tokens: GENERATE: 0: until EOS or the context is full
 * @dist: SCORE: what is wanted of the rows from @dist_first on; off is not used
 * @client: which of the clients of this uid asks, for fairness among them
 * @quota: of the uid from now on; NULL: as it was
 * @priority: lower runs earlier, within the uid; up to SCHED_MAX_PRIORITY each way
 * @deadline_ns: on the clock of sched_plan(); 0: never
 * @owner: label of the client's process, for shared_hit_tokens
 * @salt: [salt_len] narrows sharing
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
 * @turn: place among requests of its uid and priority, before @arrival
 * @n_computed: rows; @n_cached: of the prompt, hits before any preemption
 * @n_scored: SCORE: positions 1 .. n_scored are reported
 * @max_total: n_tokens at which it ends; @n_let_in: when it left the queue last
 * @planned: step that it has an entry in
 * @tail: tail buffer of its partial block while it runs, else REQUEST_NO_TAIL
 * @cancelled, @expired: ends when the step in flight completes
 * @cow: the last block is another's: copied before its next row is written
 * @cow_src: block that the step in flight copies from, with a ref; BLOCK_NONE
 * @charged: blocks that its user is charged for; table.n_blocks between calls
 * @uncached: neither looks for nor publishes prefixes
 * @prev_run, @next_run: PREFILL and DECODE, oldest first
 * @prev, @next: WAITING, PREFILL: list of the uid by priority, turn, arrival
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
	uint32_t n_let_in;
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

/* @desc: valid; @max_total: >= desc->n_tokens. WAITING, with id 0. Return: 0 or -ENOMEM. */
int request_new(const struct request_desc *desc, uint32_t max_total,
		uint32_t block_tokens, struct request **ret_request);

/* What request_new() allocates, in bytes. */
uint64_t request_bytes(uint32_t max_total, uint32_t block_tokens);

/* The table must be empty; free(NULL) is fine. */
void request_free(struct request *request);

#endif
