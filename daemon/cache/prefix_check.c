/* SPDX-License-Identifier: MIT */
/*
 * The equations of the index:
 *
 *   node in use <=> n_rows > 0;  resident <=> block != BLOCK_NONE
 *   resident <=> its block is indexed and names it, in its domain  =>  so is its parent, or none
 *   n_rows = block_tokens in the table of keys, any with tokens in that of heads, unless doomed
 *   n_rows < block_tokens  =>  no children;  n_tokens = n_rows + n_tokens(parent)
 *   parent is in use or none, of the same space, and its list and counts of children agree
 *   refs(child) > 0  =>  refs(parent) > 0     (a holder of a block holds its chain)
 *   pins(child) > 0  =>  pins(parent) > 0     (a pin is on the whole chain)
 *   domain(child) = domain(parent), or the parent is public, of which there are n_public
 *   => all cached, unpinned blocks can be evicted, leaves first
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/prefix_node.h"

static bool block_valid(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];
	const struct block *b;

	if (node->block == BLOCK_NONE)
		return !node->pinned && !node->unverified && !node->doomed;
	if (node->block >= index->pool->n_blocks)
		return false;
	b = node_block(index, id);
	return b->indexed && index->node_of[node->block] == id &&
	       b->domain == node->domain && !(node->pinned && !b->pins) &&
	       !(node->unverified && b->refs) && !(node->doomed && !node->unverified);
}

static bool parent_valid(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id], *parent;

	if (node->parent == NODE_NONE)
		return node->n_tokens == node->n_rows;
	if (node->parent >= index->cap_nodes || !node_in_use(index, node->parent))
		return false;
	parent = &index->nodes[node->parent];
	return node->n_tokens == node->n_rows + parent->n_tokens &&
	       node->space == parent->space &&
	       !(node_is_resident(index, id) && parent->block == BLOCK_NONE) &&
	       !(node_refs(index, id) && !node_refs(index, node->parent)) &&
	       !(node_pins(index, id) && !node_pins(index, node->parent)) &&
	       (node_is_public(index, node->parent) ||
		(parent->domain == node->domain &&
		 !memcmp(&node->root, &parent->root, sizeof(node->root))));
}

static bool children_valid(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];
	uint32_t n = 0, n_resident = 0, prev = NODE_NONE;

	for (uint32_t child = node->first_child; child != NODE_NONE;
	     prev = child, child = index->nodes[child].siblings.next) {
		if (child >= index->cap_nodes || index->nodes[child].parent != id ||
		    index->nodes[child].siblings.prev != prev || n++ > node->n_children)
			return false;
		n_resident += node_is_resident(index, child);
	}
	return n == node->n_children && n_resident == node->n_resident;
}

static bool node_valid(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];

	return node->space < index->n_spaces &&
	       node->n_rows <= node_space(index, id)->block_tokens &&
	       !(node_is_partial(index, id) && node->n_children) &&
	       block_valid(index, id) && parent_valid(index, id) &&
	       children_valid(index, id);
}

/* Counts the nodes of a list of table @table. Return: false where a link is wrong. */
static bool list_valid(const struct prefix_index *index, const uint32_t *first,
		       enum prefix_table table, bool doomed, uint32_t *n)
{
	uint32_t prev = NODE_NONE;

	for (uint32_t id = *first; id != NODE_NONE;
	     prev = id, id = index->nodes[id].links[table].next) {
		const struct prefix_node *node;

		if (id >= index->cap_nodes || !node_in_use(index, id))
			return false;
		node = &index->nodes[id];
		if (node->links[table].prev != prev || node->doomed != doomed ||
		    (*n)++ > index->cap_nodes)
			return false;
		if (doomed)
			continue;
		if (table == PREFIX_BY_KEY) {
			if (node_is_partial(index, id) ||
			    node_bucket(index, &node->key) != first)
				return false;
		} else if (table == PREFIX_BY_PARENT) {
			if (!node_is_public(index, id) ||
			    first != (node->parent == NODE_NONE
					      ? &node_space(index, id)->first_public
					      : &index->nodes[node->parent].first_public))
				return false;
		} else if (!node_tokens(index, id) ||
			   node_heads(index, &node->root, node->parent,
				      *node_tokens(index, id)) != first) {
			return false;
		}
	}
	return true;
}

static bool tables_valid(const struct prefix_index *index, uint32_t want_keys,
			 uint32_t want_heads, uint32_t want_doomed)
{
	uint32_t n_keys = 0, n_heads = 0, n_doomed = 0;

	for (uint32_t i = 0; i < index->n_buckets; i++)
		if (!list_valid(index, &index->buckets[i], PREFIX_BY_KEY, false,
				&n_keys) ||
		    !list_valid(index, &index->heads[i], PREFIX_BY_HEAD, false, &n_heads))
			return false;
	return list_valid(index, &index->doomed, PREFIX_BY_KEY, true, &n_doomed) &&
	       n_keys == want_keys && n_heads == want_heads && n_doomed == want_doomed;
}

/* Each public node stands in the list of what is before it. */
static bool publics_valid(const struct prefix_index *index, uint32_t want)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < index->n_spaces; i++)
		if (!list_valid(index, &index->spaces[i].first_public, PREFIX_BY_PARENT,
				false, &n))
			return false;
	for (uint32_t i = 0; i < index->cap_nodes; i++)
		if (node_in_use(index, i) &&
		    !list_valid(index, &index->nodes[i].first_public, PREFIX_BY_PARENT,
				false, &n))
			return false;
	return n == want;
}

/* Whether the free list has all nodes that are not in use. */
static bool free_list_valid(const struct prefix_index *index)
{
	uint32_t n = 0;

	for (uint32_t id = index->free_node; id != NODE_NONE;
	     id = index->nodes[id].parent, n++)
		if (id >= index->cap_nodes || node_in_use(index, id) ||
		    n > index->cap_nodes)
			return false;
	return n + index->n_nodes == index->cap_nodes;
}

int prefix_check(const struct prefix_index *index)
{
	uint32_t n_used = 0, n_resident = 0, n_indexed = 0, n_public = 0;
	uint32_t n_keys = 0, n_heads = 0, n_doomed = 0, n_listed = 0;

	for (uint32_t i = 0; i < index->cap_nodes; i++) {
		const struct prefix_node *node = &index->nodes[i];

		if (!node_in_use(index, i))
			continue;
		if (!node_valid(index, i))
			return -EINVAL;
		n_used++;
		n_resident += node_is_resident(index, i);
		n_public += node_is_public(index, i);
		n_doomed += node->doomed;
		n_listed += !node->doomed && node_is_public(index, i);
		n_keys += !node->doomed && !node_is_partial(index, i);
		n_heads += !node->doomed && node_tokens(index, i);
	}
	for (uint32_t i = 0; i < index->pool->n_blocks; i++)
		n_indexed += block_pool_get(index->pool, i)->indexed;
	if (n_used != index->n_nodes || n_resident != n_indexed ||
	    n_public != index->n_public || !free_list_valid(index) ||
	    !tables_valid(index, n_keys, n_heads, n_doomed) ||
	    !publics_valid(index, n_listed))
		return -EINVAL;
	return 0;
}
