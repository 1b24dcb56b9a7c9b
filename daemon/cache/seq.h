/* SPDX-License-Identifier: MIT */
/*
 * The block table of one sequence: where its positions live in the pool.
 *
 * Owns: one reference to each block it lists. Runs on the loop thread. Knows ids only: not
 * the tokens, nor who the sequence belongs to.
 *
 *   position p is row p % block_tokens of block ids[p / block_tokens]
 *   [ shared ][ shared ][ own, full ][ own, open ]
 *    0 ........ n_published           ........... n_blocks
 *
 *   the first n_published blocks are in the prefix index (or were, until a flush), full,
 *   and so are never written again; n_published <= n_blocks <= cap_blocks
 *
 * A block is written only by the one sequence that took it, until it is full. The open one
 * may be offered in the index before (prefix.h): its rows behind those offered are still
 * written, those offered are not. A fork shares all full blocks by reference and copies the
 * open one (struct kv_block_copy); the table needs nothing more for it than seq_append() of a
 * referenced id.
 */
#ifndef KVD_CACHE_SEQ_H
#define KVD_CACHE_SEQ_H

#include "daemon/cache/prefix.h"

#include <stdint.h>

/**
 * struct seq_table - see above
 * @offered: number of the open block of which others may copy rows, plus 1; 0: none was.
 *	Of one that is not in the index any more none are offered again. While its rows are
 *	yet to be copied it speaks of the block that they come from
 */
struct seq_table {
	uint32_t *ids;
	uint32_t n_blocks;
	uint32_t cap_blocks;
	uint32_t n_published;
	uint32_t offered;
};

/* Room for @cap_blocks blocks; the table never grows. Return: 0 or -ENOMEM. */
int seq_init(struct seq_table *seq, uint32_t cap_blocks);

/* The table must be empty. */
void seq_deinit(struct seq_table *seq);

/* Lists @id next; the table takes over the caller's reference. */
void seq_append(struct seq_table *seq, uint32_t id);

/* As seq_append() for a block that came out of the index; the table is all published. */
void seq_append_published(struct seq_table *seq, uint32_t id);

/* Gives back all blocks from number @n_blocks on, last first: children before parents. */
void seq_truncate(struct seq_table *seq, struct block_pool *pool, uint32_t n_blocks);

/* seq_truncate() to nothing. */
void seq_release(struct seq_table *seq, struct block_pool *pool);

/**
 * seq_publish() - publish every full block that is not yet
 * @seq: table
 * @index: index
 * @chain: the sequence's chain
 * @tokens: the sequence's tokens
 * @n_computed: positions whose K and V are in the pool, by completed steps
 *
 * Blocks that exist already are swapped for the published ones. After PREFIX_ORPHAN the
 * rest of the table stays private until it is released.
 *
 * Return: number of blocks that became published.
 */
uint32_t seq_publish(struct seq_table *seq, struct prefix_index *index,
		     struct prefix_chain *chain, const int32_t *tokens,
		     uint32_t n_computed);

/* Copies the first @n_blocks ids to a slice of a plan. */
void seq_copy(const struct seq_table *seq, uint32_t n_blocks, uint32_t *ids);

#endif
