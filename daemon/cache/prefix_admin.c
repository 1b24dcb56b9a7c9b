/* SPDX-License-Identifier: MIT */
/* What people do to the prefix index: pins, held and public prefixes, flushes. */
#include "daemon/cache/prefix_node.h"

#include <errno.h>
#include <stdlib.h>

void prefix_pin(struct prefix_index *index, uint32_t id)
{
	for (; id != BLOCK_NONE; id = index->nodes[id].parent)
		block_pool_pin(index->pool, id);
}

void prefix_unpin(struct prefix_index *index, uint32_t id)
{
	/* leaf to root: a child stands before its parent in the order of eviction */
	for (; id != BLOCK_NONE; id = index->nodes[id].parent)
		block_pool_unpin(index->pool, id);
}

/* One block, whose parent is public. */
static int make_block_public(struct prefix_index *index, uint32_t id)
{
	uint32_t parent = index->nodes[id].parent;
	struct prefix_key key;
	int r;

	/* nobody finds it by key, and its writer has not done with it */
	if (node_is_open(index, id))
		return 0;
	r = node_key_next(index,
			  parent == BLOCK_NONE ? &index->public_root
					       : &index->nodes[parent].key,
			  node_tokens(index, id), &key);
	if (r < 0)
		return r;
	node_set_key(index, id, &index->public_root, &key);
	block_pool_set_domain(index->pool, id, PREFIX_DOMAIN_PUBLIC);
	index->n_public++;
	node_rewrite(index, id);
	return 0;
}

/* From the root on, since a key follows from the one before. */
static int make_chain_public(struct prefix_index *index, uint32_t id)
{
	uint32_t n = 0, *ids;
	int r = 0;

	for (uint32_t i = id; i != BLOCK_NONE && !node_is_public(index, i);
	     i = index->nodes[i].parent)
		n++;
	if (!n)
		return 0;
	ids = calloc(n, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	for (uint32_t i = n; i > 0; i--, id = index->nodes[id].parent)
		ids[i - 1] = id;
	for (uint32_t i = 0; i < n && !r; i++)
		r = make_block_public(index, ids[i]);
	free(ids);
	return r;
}

int prefix_hold(struct prefix_index *index, uint32_t id, bool make_public,
		uint32_t max_pinned)
{
	uint64_t n_pinned = index->pool->n_pinned;
	int r = 0;

	for (uint32_t i = id; i != BLOCK_NONE; i = index->nodes[i].parent)
		n_pinned += !block_pool_get(index->pool, i)->pins;
	if (!index->nodes[id].held && n_pinned > max_pinned)
		return -EDQUOT;
	if (make_public)
		r = make_chain_public(index, id);
	if (!r && !index->nodes[id].held) {
		index->nodes[id].held = true;
		prefix_pin(index, id);
		node_rewrite(index, id);
	}
	return r;
}

int prefix_release(struct prefix_index *index, uint32_t id)
{
	if (!index->nodes[id].held)
		return -ENOENT;
	index->nodes[id].held = false;
	prefix_unpin(index, id);
	node_rewrite(index, id);
	return 0;
}

/**
 * struct flush - which blocks
 * @all: all of them
 * @below: this block and all that hang below it; or BLOCK_NONE
 * @domain: else those of this domain
 */
struct flush {
	bool all;
	uint32_t below;
	uint32_t domain;
};

enum { MARK_NONE, MARK_KEEP, MARK_FLUSH };

/* Return: 1 when the flush takes the block, 0 when not, -1: whatever becomes of its parent. */
static int flush_decides(const struct prefix_index *index, const struct flush *flush,
			 uint32_t id)
{
	uint32_t parent = index->nodes[id].parent;

	if (flush->all)
		return 1;
	if (flush->below != BLOCK_NONE)
		return id == flush->below ? 1 : parent == BLOCK_NONE ? 0 : -1;
	if (block_pool_get(index->pool, id)->domain == flush->domain)
		return 1;
	if (flush->domain != PREFIX_DOMAIN_PUBLIC || parent == BLOCK_NONE)
		return 0;
	/* what others have below a block must not stay when the block goes */
	if (node_is_public(index, parent))
		return !block_pool_get(index->pool, parent)->pins;
	return -1;
}

/* Marks all indexed blocks before any is unlinked; each chain is walked once. */
static void flush_mark(struct prefix_index *index, const struct flush *flush)
{
	struct prefix_node *nodes = index->nodes;

	for (uint32_t i = 0; i < index->pool->n_blocks; i++)
		nodes[i].mark = MARK_NONE;
	for (uint32_t i = 0; i < index->pool->n_blocks; i++) {
		uint32_t at = i, mark;
		int wants = -1;

		if (!block_pool_get(index->pool, i)->indexed)
			continue;
		while (!nodes[at].mark && (wants = flush_decides(index, flush, at)) < 0)
			at = nodes[at].parent;
		mark = nodes[at].mark ? nodes[at].mark : wants ? MARK_FLUSH : MARK_KEEP;
		for (uint32_t j = i; j != at; j = nodes[j].parent)
			nodes[j].mark = (uint8_t)mark;
		nodes[at].mark = (uint8_t)mark;
	}
}

static void flush_block(struct prefix_index *index, uint32_t id,
			struct prefix_flush_result *result)
{
	const struct block *b = block_pool_get(index->pool, id);

	if (b->pins) {
		result->kept_pinned++;
		return;
	}
	if (b->refs)
		result->kept_active++;
	else
		result->flushed++;
	node_unlink(index, id);
}

static void flush(struct prefix_index *index, const struct flush *flush,
		  struct prefix_flush_result *ret_result)
{
	const struct block_pool *pool = index->pool;
	struct prefix_flush_result result = {0};

	flush_mark(index, flush);
	for (uint32_t i = 0; i < pool->n_blocks; i++)
		if (block_pool_get(pool, i)->indexed &&
		    index->nodes[i].mark == MARK_FLUSH)
			flush_block(index, i, &result);
	for (uint32_t i = 0; i < pool->n_blocks; i++) {
		const struct block *b = block_pool_get(pool, i);

		if (b->indexed && !b->pins && index->nodes[i].mark == MARK_FLUSH)
			result.remaining++;
	}
	*ret_result = result;
}

void prefix_flush(struct prefix_index *index, uint32_t domain,
		  struct prefix_flush_result *ret_result)
{
	flush(index, &(struct flush){.below = BLOCK_NONE, .domain = domain}, ret_result);
}

void prefix_flush_all(struct prefix_index *index, struct prefix_flush_result *ret_result)
{
	flush(index, &(struct flush){.all = true, .below = BLOCK_NONE}, ret_result);
}

/* The open blocks after @id are the odd ends of the same prefix, of whatever domain. */
static void flush_open(struct prefix_index *index, uint32_t id,
		       struct prefix_flush_result *result)
{
	for (uint32_t i = 0; i < index->pool->n_blocks; i++) {
		const struct block *b = block_pool_get(index->pool, i);

		if (b->indexed && index->nodes[i].parent == id && node_is_open(index, i))
			flush_block(index, i, result);
	}
}

void prefix_flush_chain(struct prefix_index *index, uint32_t id, bool tree,
			struct prefix_flush_result *ret_result)
{
	uint32_t domain = block_pool_get(index->pool, id)->domain;
	uint32_t parent = index->nodes[id].parent;

	*ret_result = (struct prefix_flush_result){0};
	if (tree) {
		flush(index, &(struct flush){.below = id}, ret_result);
		id = parent;
	} else {
		flush_open(index, id, ret_result);
	}
	while (id != BLOCK_NONE && !index->nodes[id].n_children &&
	       block_pool_get(index->pool, id)->domain == domain &&
	       block_pool_get(index->pool, id)->indexed) {
		bool pinned = block_pool_get(index->pool, id)->pins;

		parent = index->nodes[id].parent;
		flush_block(index, id, ret_result);
		if (pinned)
			break;
		id = parent;
	}
}

uint32_t prefix_drop(struct prefix_index *index, uint32_t id)
{
	const struct flush below = {.below = id};
	struct prefix_flush_result r;

	flush_mark(index, &below);
	for (uint32_t i = 0; i < index->pool->n_blocks; i++)
		if (block_pool_get(index->pool, i)->indexed && index->nodes[i].held &&
		    index->nodes[i].mark == MARK_FLUSH)
			(void)prefix_release(index, i);
	flush(index, &below, &r);
	return r.flushed + r.kept_active + r.kept_pinned;
}
