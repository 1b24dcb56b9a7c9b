/* SPDX-License-Identifier: MIT */
/*
 * What one step of the model runs, and what came out of it: ids, tokens and numbers, no pointers to
 * sequences or blocks. The scheduler fills a plan on the loop thread, the worker fills a result and
 * hands both back. Only the holder touches them; the hand-over is the barrier.
 *
 * Row r is one token of one sequence at one position; all rows of a step go through the layers as
 * one batch. An entry is a run of rows of one sequence, which has at most one in a plan:
 *
 *   tokens     [n_rows]       | a0 a1 a2 a3 | b9 | c4 c5 |
 *   entries    [n_entries]    | row0 0, n 4 | row0 4, n 1 | row0 5, n 2 |
 *   block_ids  [n_block_ids]  | blocks of a | blocks of b | blocks of c |
 *   outputs    [n_outputs]    | row 3 sample | row 4 sample | row 6 sample |
 *
 * The runner zeroes `zero`, runs the copies, then writes K and V of all rows of a layer before
 * attention of it reads the pool. No row reads a position that another entry of the plan writes.
 */
#ifndef KVD_SCHED_PLAN_H
#define KVD_SCHED_PLAN_H

#include <stdint.h>

#include "kernels/batch.h"

/* SAMPLE draws a token; SCORE: the logprob of `target`; DIST: `dist`, token -1 and logprob 0. */
enum plan_output_kind {
	PLAN_SAMPLE,
	PLAN_SCORE,
	PLAN_DIST,
};

#define PLAN_DIST_ALL UINT32_MAX

/**
 * struct plan_dist - what else is wanted of a row's distribution
 * @top: 0: nothing; PLAN_DIST_ALL: f32 logprobs of the vocabulary; else the likeliest tokens, lower
 *	ids first among equals: u32 ids[top], f32 logprobs[top]
 * @words: 32-bit words that this takes, @off: where in plan_result.dist
 */
struct plan_dist {
	uint32_t top;
	uint32_t words;
	uint32_t off;
};

/**
 * struct plan_output - one row whose logits are wanted
 * @row: ascends over outputs[]; it belongs to @entry
 * @target: PLAN_SCORE: a token, >= 0; else -1
 * @sample: PLAN_SAMPLE only; @dist: not with it
 * @position: that the wanted token takes (position of the row + 1); with sample.seed the key of the
 *	random draw, so that batching, chunking and preemption never change it
 *
 * Logprobs are natural logarithms of the softmax over the whole vocabulary at temperature 1, before
 * top_k, top_p and min_p.
 */
struct plan_output {
	uint32_t row;
	uint32_t entry;
	uint8_t kind;
	uint8_t reserved[3];
	int32_t target;
	struct kv_sample_params sample;
	struct plan_dist dist;
	uint64_t position;
};

/* How much a plan can hold; @block_ids: entries times the blocks of the longest sequence. */
struct plan_caps {
	uint32_t rows;
	uint32_t entries;
	uint32_t outputs;
	uint32_t block_ids;
	uint32_t copies;
	uint32_t zeros;
	uint32_t dist_words;
};

/**
 * struct plan - one step
 * @step: from 1, never reused
 * @entries: [n_entries]; a tail < caps.entries is one sequence's for as long as it has blocks, and
 *	holds its rows from pos0 rounded down to a block to pos0 - 1. A sequence that is new or
 *	begins again begins at a block boundary
 * @block_ids: [n_block_ids] pool ids, cut into slices by the entries
 * @copies: [n_copies] in order, after @zero; no dst is the src of a later one
 * @zero: [n_zero] blocks that held another domain's data; no id repeats
 * @n_dist_words: that the outputs' distributions take, without gaps or overlap
 */
struct plan {
	uint64_t step;
	struct plan_caps caps;
	uint32_t n_rows;
	uint32_t n_entries;
	uint32_t n_block_ids;
	uint32_t n_outputs;
	uint32_t n_copies;
	uint32_t n_zero;
	uint32_t n_dist_words;
	int32_t *tokens;
	struct kv_batch_entry *entries;
	uint32_t *block_ids;
	struct plan_output *outputs;
	struct kv_block_copy *copies;
	uint32_t *zero;
};

/* @logprob: NaN when the row's logits are not finite, which ends this row's request only. */
struct plan_output_result {
	int32_t token;
	float logprob;
};

/*
 * What the worker hands back. @status: 0; -errno: no output is valid, and blocks that the step
 * wrote are undefined. @outputs: [n_outputs] those of the plan, in order. @dist: [cap_dist_words].
 */
struct plan_result {
	uint64_t step;
	int status;
	uint64_t elapsed_ns;
	uint32_t cap_outputs;
	uint32_t n_outputs;
	struct plan_output_result *outputs;
	uint32_t cap_dist_words;
	uint32_t *dist;
};

/* @caps: zero is allowed for each. Return: 0, or -ENOMEM with @plan zeroed. */
int plan_init(struct plan *plan, const struct plan_caps *caps);

/* Frees the arrays and zeroes the plan; a zeroed plan is fine. */
void plan_deinit(struct plan *plan);

/* Capacities and arrays stay. */
void plan_reset(struct plan *plan);

/*
 * Whether the equations in plan.c hold, in O(rows + blocks). @n_blocks: above every id; @n_vocab:
 * above every token, 0: unchecked. Return: 0, or -EINVAL.
 */
int plan_check(const struct plan *plan, uint32_t block_tokens, uint32_t n_blocks,
	       uint32_t n_vocab);

int plan_result_init(struct plan_result *result, const struct plan_caps *caps);
void plan_result_deinit(struct plan_result *result);

void plan_result_reset(struct plan_result *result);

#endif
