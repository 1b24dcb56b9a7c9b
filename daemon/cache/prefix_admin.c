/* SPDX-License-Identifier: MIT */
/* What people do to the prefix index: pins, held and public prefixes, flushes. */
#include "daemon/cache/prefix_node.h"

#include <assert.h>
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

/* One block becomes public, below @parent, which is public or none. */
static int make_block_public(struct prefix_index *index, uint32_t id, uint32_t parent)
{
	struct prefix_key key;
	int r;

	r = node_key_next(index,
			  parent == BLOCK_NONE ? &index->public_root
					       : &index->nodes[parent].key,
			  node_tokens(index, id), &key);
	if (r < 0)
		return r;
	node_move(index, id, parent, &index->public_root, &key);
	block_pool_set_domain(index->pool, id, PREFIX_DOMAIN_PUBLIC);
	index->n_public++;
	node_rewrite(index, id);
	return 0;
}

/**
 * struct way - a chain on its way to be public
 * @ids: [n] its blocks that are not, those near the root first
 * @n_same: of so many an equal one is public
 * @at: the last of those, or the public block before the chain, or BLOCK_NONE
 */
struct way {
	uint32_t *ids;
	uint32_t n;
	uint32_t n_same;
	uint32_t at;
};

/* Return: 0 or -ENOMEM. */
static int way_find(struct prefix_index *index, uint32_t id, struct way *way)
{
	uint32_t found;
	int r;

	*way = (struct way){.at = id};
	for (; way->at != BLOCK_NONE && !node_is_public(index, way->at);
	     way->at = index->nodes[way->at].parent)
		way->n++;
	way->ids = calloc((size_t)way->n + 1, sizeof(*way->ids));
	if (!way->ids)
		return -ENOMEM;
	for (uint32_t i = way->n; i > 0; i--, id = index->nodes[id].parent)
		way->ids[i - 1] = id;
	while (way->n_same < way->n) {
		r = node_find_public(index, node_tokens(index, way->ids[way->n_same]),
				     way->at, &found);
		if (r < 0)
			return r;
		if (found == BLOCK_NONE)
			break;
		way->at = found;
		way->n_same++;
	}
	return 0;
}

/* Where the chain ends when it is public. */
static uint32_t way_end(const struct way *way)
{
	return way->n_same < way->n ? way->ids[way->n - 1] : way->at;
}

/* Blocks of the public chain that no pin keeps yet. */
static uint32_t way_unpinned(const struct prefix_index *index, const struct way *way)
{
	uint32_t n = 0;

	for (uint32_t i = way->n_same; i < way->n; i++)
		n += !block_pool_get(index->pool, way->ids[i])->pins;
	for (uint32_t i = way->at; i != BLOCK_NONE; i = index->nodes[i].parent)
		n += !block_pool_get(index->pool, i)->pins;
	return n;
}

/* The rest of the chain, from the root on, since a key follows from the one before. */
static int way_go(struct prefix_index *index, const struct way *way)
{
	int r = 0;

	for (uint32_t i = way->n_same; i < way->n && !r; i++)
		r = make_block_public(index, way->ids[i],
				      i == way->n_same ? way->at : way->ids[i - 1]);
	return r;
}

static void hold(struct prefix_index *index, uint32_t id)
{
	if (index->nodes[id].held)
		return;
	index->nodes[id].held = true;
	prefix_pin(index, id);
	node_rewrite(index, id);
}

static void release(struct prefix_index *index, uint32_t id)
{
	index->nodes[id].held = false;
	prefix_unpin(index, id);
	node_rewrite(index, id);
}

int prefix_hold(struct prefix_index *index, uint32_t id, bool make_public,
		uint32_t max_pinned)
{
	struct way way = {.at = id};
	uint32_t end = id, n;
	int r = 0;

	assert(!node_is_open(index, id));
	if (make_public) {
		r = way_find(index, id, &way);
		end = r ? id : way_end(&way);
	}
	/* who reads a block holds what is before it, which would be another */
	if (!r && way.n_same && way.n_same < way.n &&
	    block_pool_get(index->pool, way.ids[way.n_same])->refs)
		r = -EBUSY;
	n = r ? 0 : way_unpinned(index, &way);
	if (n && (uint64_t)index->pool->n_pinned + n > max_pinned)
		r = -EDQUOT;
	if (!r)
		r = way_go(index, &way);
	if (!r) {
		hold(index, end);
		if (end != id && index->nodes[id].held)
			release(index, id);
	}
	free(way.ids);
	return r;
}

int prefix_release(struct prefix_index *index, uint32_t id)
{
	struct way way = {0};

	/* the equal public one may have been held in its place */
	if (!index->nodes[id].held) {
		int r = way_find(index, id, &way);

		free(way.ids);
		if (r < 0)
			return r;
		if (way.n_same < way.n)
			return -ENOENT;
		id = way.at;
	}
	if (!index->nodes[id].held)
		return -ENOENT;
	release(index, id);
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
			release(index, i);
	flush(index, &below, &r);
	return r.flushed + r.kept_active + r.kept_pinned;
}
