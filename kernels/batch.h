/* SPDX-License-Identifier: MIT */
/* What scheduler and backend say to each other about a step. Plain data, any thread; relies on
 * libc only and knows no device. */
#ifndef KVD_KERNELS_BATCH_H
#define KVD_KERNELS_BATCH_H

#include <stdint.h>

/**
 * struct kv_batch_entry - n_rows >= 1 rows of one sequence; a decode has one
 * @pos0: row row0 + i is at position pos0 + i and sees positions 0 .. pos0 + i
 * @block_off: block of position p is the batch's blocks[block_off + p / block_tokens]
 * @n_blocks: blocks that cover positions 0 .. pos0 + n_rows - 1
 * @tail: slot of the sequence's partial block where kv_layout_needs_tail(), else ignored
 * @seq_id: for the scheduler; backends ignore it
 *
 * No two entries write the same (block, token) or name the same slot; blocks that are only read
 * may be shared. A sequence keeps its slot while pos0 advances without gaps, and may take any
 * slot, whatever it holds, where pos0 is a multiple of block_tokens. With tails, a block of the
 * pool is written only once all its positions are known.
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

/* A draw: temperature is finite, 0 is greedy (largest logit, lowest id among equals); top_p in (0,
 * 1] (1 keeps all); min_p in [0, 1], relative to the likeliest token (0: all); top_k (0: all). It
 * depends on (seed, position) alone. */
struct kv_sample_params {
	float temperature;
	float top_p;
	float min_p;
	uint32_t top_k;
	uint64_t seed;
};

struct kv_block_copy {
	uint32_t src;
	uint32_t dst;
};

#endif
