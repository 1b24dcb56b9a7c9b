/* SPDX-License-Identifier: MIT */
/*
 * What one step of the model runs, and what came out of it.
 *
 * Owns: the arrays inside struct plan and struct plan_result, nothing else. Both are plain
 * data: ids, tokens and numbers, no pointer to a sequence, session or block. The scheduler
 * fills a plan on the loop thread, the plan is handed to the device's worker, the worker
 * fills a result and hands both back; the one that holds them may touch them, nobody else. No
 * locks, no atomics: the hand-over is the barrier.
 *
 * Relies on: kernels/batch.h, so that a backend takes entries and copies as they are.
 * This is the only header of daemon/sched that daemon/model includes.
 *
 * Rows are the unit of work: row r is one token of one sequence at one position, and all
 * rows of a step go through the layers as one batch. An entry is a run of rows of one
 * sequence, positions without gaps; each sequence has at most one entry in a plan, and
 * entry rows follow one another:
 *
 *   tokens     [n_rows]       | a0 a1 a2 a3 | b9 | c4 c5 |
 *   entries    [n_entries]    | row0 0, n 4 | row0 4, n 1 | row0 5, n 2 |
 *   block_ids  [n_block_ids]  | blocks of a | blocks of b | blocks of c |
 *   outputs    [n_outputs]    | row 3 sample | row 4 sample | row 6 sample |
 *
 *   entries[0].row0 = 0;  entries[e + 1].row0 = entries[e].row0 + entries[e].n_rows
 *   sum of n_rows over entries = n_rows
 *   position of row row0 + i = pos0 + i
 *   block of position p of entry e = block_ids[e.block_off + p / block_tokens]
 *   e.n_blocks = ceil((e.pos0 + e.n_rows) / block_tokens)
 *   context length seen by row i of e = e.pos0 + i + 1
 *
 * Order inside a step, which the runner keeps: zero the blocks in `zero`, run the copies,
 * write K and V of all rows of a layer, then let attention of that layer read the pool.
 * No row reads a position that another entry of the same plan writes: a block is shared
 * only after the step that filled it has completed.
 */
#ifndef KVD_SCHED_PLAN_H
#define KVD_SCHED_PLAN_H

#include <stdint.h>

#include "kernels/batch.h"

enum plan_output_kind {
	PLAN_SAMPLE, /* draw a token by `sample`; result: the token and its logprob */
	PLAN_SCORE,  /* result: `target` itself and its logprob under the row's logits */
	PLAN_DIST,   /* only `dist`; result: token -1, logprob 0 */
};

#define PLAN_DIST_ALL UINT32_MAX

/**
 * struct plan_dist - what else is wanted of a row's distribution
 * @top: 0: nothing; PLAN_DIST_ALL: f32 logprobs of the whole vocabulary; else the likeliest
 *	tokens, likeliest first, lower ids first among equals: u32 ids[top], f32 logprobs[top]
 * @words: 32-bit words that this takes: n_vocab or 2 * top; 0 with top 0
 * @off: where it goes in plan_result.dist, in words
 */
struct plan_dist {
	uint32_t top;
	uint32_t words;
	uint32_t off;
};

/**
 * struct plan_output - one row whose logits are wanted
 * @row: row index in the plan; rows ascend over outputs[]
 * @entry: index of the entry that the row belongs to
 * @kind: enum plan_output_kind
 * @target: PLAN_SCORE: the token whose logprob is wanted, >= 0; otherwise -1
 * @sample: PLAN_SAMPLE only
 * @dist: not with PLAN_SAMPLE
 * @position: absolute position that the wanted token takes (position of the row + 1);
 *	with sample.seed the key of the random draw, so that preemption, chunking and
 *	batching never change what is drawn
 *
 * Logprobs are natural logarithms of the softmax over the whole vocabulary at temperature
 * 1, before top_k, top_p and min_p.
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

/**
 * struct plan_caps - how much a plan can hold; fixed by plan_init()
 * @rows: token budget of a step (max_num_batched_tokens)
 * @entries: max_num_seqs, and as many tail slots
 * @outputs: at most rows
 * @block_ids: entries times the blocks of the longest sequence
 * @copies: block copies
 * @zeros: blocks to zero
 * @dist_words: words of distributions
 */
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
 * @step: number of the step, from 1, never reused
 * @caps: capacities of the arrays below
 * @tokens: [n_rows] token ids, >= 0
 * @entries: [n_entries]; tail is a slot below caps.entries, which stays with the sequence for as
 *	long as it has blocks, and no other sequence has it meanwhile. What it holds is what the
 *	sequence itself has written: positions from pos0 rounded down to a block, up to pos0 - 1.
 *	A sequence that is new or begins again begins at a block boundary
 * @block_ids: [n_block_ids] pool ids, cut into slices by the entries
 * @outputs: [n_outputs], rows ascending
 * @copies: [n_copies] run before the step, after `zero`, in order; no dst is the src of a later
 *	one. For copy-on-write of forked sequences
 * @zero: [n_zero] ids of blocks that held another domain's data: every byte is set to
 *	zero before the step; no id repeats
 * @n_dist_words: words that the outputs' distributions take, without gaps or overlap
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

/**
 * struct plan_output_result - what one output of the plan came to
 * @token: the drawn token, or the target
 * @logprob: its natural-log probability, finite; or NaN when the row's logits are not, which
 *	ends the request of this row and no other
 */
struct plan_output_result {
	int32_t token;
	float logprob;
};

/**
 * struct plan_result - what the worker hands back
 * @step: step of the plan
 * @status: 0, or -errno: then no output is valid and the pool's bytes of the blocks that
 *	the step wrote are undefined
 * @elapsed_ns: how long the step took on the worker
 * @cap_outputs: capacity of @outputs
 * @n_outputs: equals n_outputs of the plan when status is 0
 * @outputs: [n_outputs], same order as the plan's
 * @dist: [cap_dist_words] distributions, where the plan's outputs put them
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

/**
 * plan_init() - allocate the arrays
 * @plan: caller's memory, any content
 * @caps: capacities; zero is allowed for each
 *
 * Return: 0, or -ENOMEM with @plan zeroed.
 */
int plan_init(struct plan *plan, const struct plan_caps *caps);

/* Frees the arrays and zeroes the plan; a zeroed plan is fine. */
void plan_deinit(struct plan *plan);

/* Empties the plan (all n_ and step become 0); capacities and arrays stay. */
void plan_reset(struct plan *plan);

/**
 * plan_check() - whether the equations at the head of this file hold
 * @plan: a filled plan
 * @block_tokens: tokens per block, > 0
 * @n_blocks: size of the pool; every id is below it
 * @n_vocab: every token is below it; 0 leaves tokens unchecked
 *
 * For tests and for the worker's assert; costs O(rows + blocks).
 *
 * Return: 0, or -EINVAL.
 */
int plan_check(const struct plan *plan, uint32_t block_tokens, uint32_t n_blocks,
	       uint32_t n_vocab);

/* Same pattern as plan_init(), with the plan's capacities. */
int plan_result_init(struct plan_result *result, const struct plan_caps *caps);
void plan_result_deinit(struct plan_result *result);

/* step, status, elapsed_ns and n_outputs become 0. */
void plan_result_reset(struct plan_result *result);

#endif
