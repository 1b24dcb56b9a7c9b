/* SPDX-License-Identifier: MIT */
/* For tests and benchmarks of the prefix index: flushes and lookups in one go. One thread. */
#ifndef KVD_TESTS_FLUSH_H
#define KVD_TESTS_FLUSH_H

#include "daemon/cache/prefix_flush.h"

/* To the end, @work of it at a time. */
static inline void flush_run(struct prefix_flush *flush, uint32_t work,
			     struct prefix_flush_result *ret_result)
{
	while (!prefix_flush_step(flush, work))
		;
	*ret_result = flush->result;
	prefix_flush_end(flush);
}

static inline void flush_domain(struct prefix_index *index, uint32_t domain,
				struct prefix_flush_result *ret_result)
{
	struct prefix_flush flush;

	prefix_flush_domain(index, &flush, domain);
	flush_run(&flush, 1, ret_result);
}

static inline void flush_all(struct prefix_index *index,
			     struct prefix_flush_result *ret_result)
{
	struct prefix_flush flush;

	prefix_flush_all(index, &flush);
	flush_run(&flush, 1, ret_result);
}

/* Of the prefix that ends at @block. */
static inline void flush_chain(struct prefix_index *index, uint32_t block, bool tree,
			       struct prefix_flush_result *ret_result)
{
	struct prefix_flush flush;

	prefix_flush_chain(index, &flush, index->node_of[block], tree);
	flush_run(&flush, 1, ret_result);
}

static inline void drop_all(struct prefix_index *index)
{
	struct prefix_flush drop = {0};

	while (prefix_drop_step(index, &drop, 1))
		;
	prefix_flush_end(&drop);
}

/* The longest published prefix, with a reference to each block. Return: number of blocks. */
static inline uint32_t lookup(struct prefix_index *index, struct prefix_chain *chain,
			      const int32_t *tokens, uint32_t max_blocks, uint32_t *ids)
{
	uint32_t n = 0;

	for (uint32_t parent = BLOCK_NONE; n < max_blocks; n++) {
		parent = prefix_acquire(index, chain, tokens, n, parent);
		if (parent == BLOCK_NONE)
			break;
		ids[n] = parent;
	}
	return n;
}

#endif
