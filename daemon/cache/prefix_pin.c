/* SPDX-License-Identifier: MIT */
/*
 * Pinned and public prefixes.
 *
 * A pin keeps the blocks of a prefix, and may make it public. Public blocks have a domain and a
 * root of their own. Making a prefix public moves its nodes; no byte is computed again. Where an
 * equal one is public it serves, and the rest of the prefix moves below it, so that no two public
 * blocks are equal.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/cache/prefix_node.h"

/* One block becomes public, below @parent, which is public or none. */
static int make_public_one(struct prefix_index *index, uint32_t id, uint32_t parent)
{
	struct prefix_node *node = &index->nodes[id];
	struct prefix_key key;
	int r;

	r = node_public_key(index, node->space, node->domain, &node->key,
			    node_tokens(index, id), parent, &key);
	if (r < 0)
		return r;
	node_move_public(index, id, parent, &key);
	block_pool_set_domain(index->pool, node->block, PREFIX_DOMAIN_PUBLIC);
	index->n_public++;
	node_rewrite(index, id);
	return 0;
}

/**
 * struct way - a chain on its way to be public
 * @ids: [n] its blocks that are not, those near the root first
 * @n_same: of so many an equal one is public
 * @at: the last of those, or the public one before the chain, or NODE_NONE
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
	for (; way->at != NODE_NONE && !node_is_public(index, way->at);
	     way->at = index->nodes[way->at].parent)
		way->n++;
	way->ids = calloc((size_t)way->n + 1, sizeof(*way->ids));
	if (!way->ids)
		return -ENOMEM;
	for (uint32_t i = way->n; i > 0; i--, id = index->nodes[id].parent)
		way->ids[i - 1] = id;
	while (way->n_same < way->n) {
		uint32_t next = way->ids[way->n_same];

		r = node_find_public(index, index->nodes[next].space,
				     index->nodes[next].domain, &index->nodes[next].key,
				     node_tokens(index, next), way->at, &found);
		if (r < 0)
			return r;
		if (found == NODE_NONE || !node_is_resident(index, found))
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
		n += !node_pins(index, way->ids[i]);
	for (uint32_t i = way->at; i != NODE_NONE; i = index->nodes[i].parent)
		n += !node_pins(index, i);
	return n;
}

/* The rest of the chain, from the root on, since a key follows from the one before. */
static int way_go(struct prefix_index *index, const struct way *way)
{
	uint32_t i = way->n_same;
	int r = 0;

	for (; i < way->n; i++) {
		r = make_public_one(index, way->ids[i],
				    i == way->n_same ? way->at : way->ids[i - 1]);
		if (r)
			break;
	}
	/* for eviction those that changed their domain stand child first again */
	if (r && i > way->n_same) {
		node_pin_chain(index, way->ids[i - 1]);
		node_unpin_chain(index, way->ids[i - 1]);
	}
	return r;
}

static void pin(struct prefix_index *index, uint32_t id)
{
	if (index->nodes[id].pinned)
		return;
	index->nodes[id].pinned = true;
	node_pin_chain(index, id);
	node_rewrite(index, id);
}

/* Whether its bytes, or those of what is before it, were wrong. */
static bool is_doomed(const struct prefix_index *index, uint32_t id)
{
	if (index->doomed == NODE_NONE)
		return false;
	while (id != NODE_NONE && !index->nodes[id].doomed)
		id = index->nodes[id].parent;
	return id != NODE_NONE;
}

int prefix_pin(struct prefix_index *index, uint32_t id, bool make_public,
	       uint32_t max_pinned)
{
	struct way way = {.at = id};
	uint32_t end = id, n;
	int r = 0;

	assert(node_is_resident(index, id) && !node_is_partial(index, id));
	if (is_doomed(index, id))
		return -ENOENT;
	if (make_public) {
		r = way_find(index, id, &way);
		end = r ? id : way_end(&way);
	}
	/* who reads a block holds what is before it, which would be another */
	if (!r && way.n_same && way.n_same < way.n &&
	    node_refs(index, way.ids[way.n_same]))
		r = -EBUSY;
	n = r ? 0 : way_unpinned(index, &way);
	if (n && (uint64_t)index->pool->n_pinned + n > max_pinned)
		r = -EDQUOT;
	if (!r)
		r = way_go(index, &way);
	if (!r) {
		pin(index, end);
		if (end != id && index->nodes[id].pinned)
			node_unpin(index, id);
	}
	free(way.ids);
	return r;
}

int prefix_unpin(struct prefix_index *index, uint32_t id)
{
	struct way way = {0};

	if (is_doomed(index, id))
		return -ENOENT;
	/* the equal public one may have been pinned in its place */
	if (!index->nodes[id].pinned) {
		int r = way_find(index, id, &way);

		free(way.ids);
		if (r < 0)
			return r;
		if (way.n_same < way.n)
			return -ENOENT;
		id = way.at;
	}
	if (!index->nodes[id].pinned)
		return -ENOENT;
	node_unpin(index, id);
	return 0;
}
