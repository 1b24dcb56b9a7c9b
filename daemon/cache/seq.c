/* SPDX-License-Identifier: MIT */
/*
 *   [ shared ][ shared ][ own, full ][ own, partial ]
 *    0 ........ n_published           .............. n_blocks
 *
 * A block is written only by the one sequence that took it, until it is full. The partial one may
 * be published before: its rows behind those that are published are still written, those are not. A
 * fork shares all full blocks by reference and copies the partial one (struct kv_block_copy); the
 * table needs nothing more for it than seq_append() of a referenced id.
 */
#include "daemon/cache/seq.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int seq_init(struct seq_table *seq, uint32_t cap_blocks)
{
	memset(seq, 0, sizeof(*seq));
	seq->ids = calloc((size_t)cap_blocks + 1, sizeof(*seq->ids));
	if (!seq->ids)
		return -ENOMEM;
	seq->cap_blocks = cap_blocks;
	return 0;
}

void seq_deinit(struct seq_table *seq)
{
	assert(!seq->n_blocks);
	free(seq->ids);
	memset(seq, 0, sizeof(*seq));
}

void seq_append(struct seq_table *seq, uint32_t id)
{
	assert(seq->n_blocks < seq->cap_blocks);
	seq->ids[seq->n_blocks++] = id;
}

void seq_append_published(struct seq_table *seq, uint32_t id)
{
	assert(seq->n_published == seq->n_blocks);
	seq_append(seq, id);
	seq->n_published++;
}

void seq_truncate(struct seq_table *seq, struct block_pool *pool, uint32_t n_blocks)
{
	while (seq->n_blocks > n_blocks)
		block_pool_unref(pool, seq->ids[--seq->n_blocks]);
	if (seq->n_published > n_blocks)
		seq->n_published = n_blocks;
	if (seq->partial_published > n_blocks)
		seq->partial_published = 0;
}

void seq_release(struct seq_table *seq, struct block_pool *pool)
{
	seq_truncate(seq, pool, 0);
}

uint32_t seq_publish(struct seq_table *seq, struct prefix_index *index,
		     struct prefix_chain *chain, const int32_t *tokens,
		     uint32_t n_computed)
{
	uint32_t n_full = n_computed / index->spaces[chain->space].block_tokens;
	uint32_t n0 = seq->n_published;

	assert(n_full <= seq->n_blocks);
	while (seq->n_published < n_full) {
		uint32_t i = seq->n_published;
		uint32_t parent = i ? seq->ids[i - 1] : BLOCK_NONE;
		uint32_t same;
		int r;

		r = prefix_publish(index, chain, tokens, i, parent, seq->ids[i], &same);
		if (r == PREFIX_EXISTS) {
			block_pool_ref(index->pool, same);
			block_pool_unref(index->pool, seq->ids[i]);
			seq->ids[i] = same;
		} else if (r) {
			break;
		}
		seq->n_published++;
	}
	return seq->n_published - n0;
}

void seq_copy(const struct seq_table *seq, uint32_t n_blocks, uint32_t *ids)
{
	assert(n_blocks <= seq->n_blocks);
	memcpy(ids, seq->ids, (size_t)n_blocks * sizeof(*ids));
}
