/* SPDX-License-Identifier: MIT */
/*
 * What a step works on, in the words that scheduler and backend share: runs of rows, copies of
 * blocks, and how tokens are drawn. Plain data, any thread; relies on libc only and knows no
 * device.
 */
#ifndef KVD_KERNELS_BATCH_H
#define KVD_KERNELS_BATCH_H

#include <stdint.h>

/**
 * struct kv_batch_entry - a run of rows of one sequence inside a batch
 * @row0: the first of its rows in the batch
 * @n_rows: >= 1
 * @pos0: absolute position of the first row; row row0 + i stands at pos0 + i and sees positions
 *	0 .. pos0 + i of its sequence
 * @block_off: first element of the batch's block ids that belongs to this entry: block of
 *	position p is blocks[block_off + p / block_tokens]
 * @n_blocks: blocks that cover positions 0 .. pos0 + n_rows - 1
 * @tail: slot of the sequence's partial block where kv_layout_needs_tail(); else not looked at
 * @seq_id: the scheduler's name for the sequence; backends do not look at it
 *
 * A decode is an entry with n_rows = 1; nothing else tells it from a chunk of a prefill. No two
 * entries write the same (block, token); they may share blocks that both only read.
 *
 * No two entries of a batch name one slot. Between steps a slot holds the rows of the block that
 * position pos0 stands in, up to pos0: a sequence keeps its slot while pos0 advances without
 * gaps, and may take any slot, whatever it holds, where pos0 is a multiple of block_tokens. In
 * such a layout a block of the pool holds something only once all its positions are written.
 */
struct kv_batch_entry {
	uint32_t row0;
	uint32_t n_rows;
	uint32_t pos0;
	uint32_t block_off;
	uint32_t n_blocks;
	uint32_t tail;
	uint32_t seq_id;
};

/**
 * struct kv_sample_params - how a token is drawn from the logits of one row
 * @temperature: 0 is greedy (largest logit, lowest id on a tie); else > 0 and finite
 * @top_p: nucleus, in (0, 1]; 1 keeps all
 * @min_p: floor relative to the likeliest token, in [0, 1]; 0 keeps all
 * @top_k: how many of the likeliest tokens stay; 0 keeps all
 * @seed: seed of the stateless generator; the draw depends on (seed, position) alone
 */
struct kv_sample_params {
	float temperature;
	float top_p;
	float min_p;
	uint32_t top_k;
	uint64_t seed;
};

/* Copy all bytes of block src to block dst. */
struct kv_block_copy {
	uint32_t src;
	uint32_t dst;
};

#endif
