/* SPDX-License-Identifier: MIT */
/* The block table of one sequence: where its positions live in the pool. Owns one reference to each
 * block it lists. Loop thread. Knows ids only: not the tokens, nor who the sequence belongs to. */
#ifndef KVD_CACHE_SEQ_H
#define KVD_CACHE_SEQ_H

#include "daemon/cache/prefix.h"

#include <stdint.h>

/* @ids: [n_blocks of cap_blocks] position p is row p % block_tokens of block ids[p / block_tokens].
 * @n_published: leading blocks that are in the prefix index, or were, until a flush: full, and
 * never written again. @partial_published: number of the partial block of which others may copy
 * rows, plus 1; 0: none. Until its rows are copied it speaks of the block they come from */
struct seq_table {
	uint32_t *ids;
	uint32_t n_blocks;
	uint32_t cap_blocks;
	uint32_t n_published;
	uint32_t partial_published;
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

void seq_release(struct seq_table *seq, struct block_pool *pool);

/* Publishes every full block of @n_computed positions, those that exist already swapped for the
 * published ones. Return: how many became published; the rest, after a flush or without memory,
 * stays private. */
uint32_t seq_publish(struct seq_table *seq, struct prefix_index *index,
		     struct prefix_chain *chain, const int32_t *tokens,
		     uint32_t n_computed);

/* Copies the first @n_blocks ids to a slice of a plan. */
void seq_copy(const struct seq_table *seq, uint32_t n_blocks, uint32_t *ids);

#endif
