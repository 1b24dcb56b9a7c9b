/* SPDX-License-Identifier: MIT */
#include "daemon/cache/prefix_node.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Any spread will do for these: a collision costs a comparison, nothing more. */
static uint64_t mix(uint64_t h, uint32_t word)
{
	return (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t mix_tokens(uint64_t h, const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		h = mix(h, (uint32_t)tokens[i]);
	return h;
}

uint64_t node_bits(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];
	uint64_t bits;

	memcpy(&bits, node->key.bytes + 8, sizeof(bits));
	/* an open block has the key of the block before it */
	return node_is_open(index, id)
		       ? mix_tokens(bits, node_tokens(index, id), node->n_rows)
		       : bits;
}

static uint32_t memo_place(const struct prefix_key *parent, const int32_t *tokens,
			   uint32_t n)
{
	uint64_t h;

	memcpy(&h, parent->bytes, sizeof(h));
	return (uint32_t)(mix_tokens(h, tokens, n) >> 32) % PREFIX_MEMO_KEYS;
}

int node_key_next(struct prefix_index *index, const struct prefix_key *parent,
		  const int32_t *tokens, struct prefix_key *ret_key)
{
	uint32_t n = index->block_tokens, place = memo_place(parent, tokens, n);
	struct prefix_memo *memo = &index->memo[place];
	int32_t *memo_tokens = index->memo_tokens + (size_t)place * n;
	struct prefix_key key;

	if (memo->used && !memcmp(&memo->parent, parent, sizeof(*parent)) &&
	    !memcmp(memo_tokens, tokens, n * sizeof(*tokens))) {
		*ret_key = memo->key;
		return 0;
	}
	if (prefix_key_next(&index->keyer, parent, tokens, &key) < 0)
		return -ENOMEM;
	*memo = (struct prefix_memo){.parent = *parent, .key = key, .used = true};
	memcpy(memo_tokens, tokens, n * sizeof(*tokens));
	*ret_key = key;
	return 0;
}

uint32_t *node_bucket(const struct prefix_index *index, const struct prefix_key *key)
{
	uint32_t hash;

	/* the leading bits are the ones that a cut key keeps */
	memcpy(&hash, key->bytes, sizeof(hash));
	return &index->buckets[hash & (index->n_buckets - 1)];
}

int32_t *node_tokens(const struct prefix_index *index, uint32_t id)
{
	return index->tokens + (size_t)id * index->block_tokens;
}

uint32_t *node_heads(const struct prefix_index *index, const struct prefix_key *root,
		     uint32_t parent, int32_t token)
{
	uint64_t h;

	memcpy(&h, root->bytes, sizeof(h));
	h = mix(mix(h, parent), (uint32_t)token);
	return &index->heads[(uint32_t)(h >> 32) & (index->n_buckets - 1)];
}

static uint32_t *node_head(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];

	return node_heads(index, &node->root, node->parent, *node_tokens(index, id));
}

/* Where the list begins that the node stands in, or has to. */
static uint32_t *table_bucket(const struct prefix_index *index, enum prefix_table table,
			      uint32_t id)
{
	return table == PREFIX_BY_KEY ? node_bucket(index, &index->nodes[id].key)
				      : node_head(index, id);
}

static void table_add(struct prefix_index *index, enum prefix_table table, uint32_t id)
{
	uint32_t *first = table_bucket(index, table, id);

	index->nodes[id].links[table] = (struct prefix_link){*first, BLOCK_NONE};
	if (*first != BLOCK_NONE)
		index->nodes[*first].links[table].prev = id;
	*first = id;
}

static void table_remove(struct prefix_index *index, enum prefix_table table, uint32_t id)
{
	const struct prefix_link *link = &index->nodes[id].links[table];

	if (link->prev != BLOCK_NONE)
		index->nodes[link->prev].links[table].next = link->next;
	else
		*table_bucket(index, table, id) = link->next;
	if (link->next != BLOCK_NONE)
		index->nodes[link->next].links[table].prev = link->prev;
}

void node_extend(struct prefix_index *index, uint32_t id, const int32_t *tokens,
		 uint32_t i, uint32_t n_rows)
{
	memcpy(node_tokens(index, id), tokens + (size_t)i * index->block_tokens,
	       n_rows * sizeof(*tokens));
	index->nodes[id].n_rows = n_rows;
}

void node_complete(struct prefix_index *index, uint32_t id, const struct prefix_key *key,
		   const int32_t *tokens, uint32_t i)
{
	node_extend(index, id, tokens, i, index->block_tokens);
	index->nodes[id].key = *key;
	table_add(index, PREFIX_BY_KEY, id);
}

void node_add(struct prefix_index *index, const struct prefix_chain *chain,
	      const struct prefix_key *key, const int32_t *tokens, uint32_t i,
	      uint32_t parent, uint32_t id, uint32_t n_rows)
{
	assert(block_pool_get(index->pool, id)->domain == chain->domain);
	assert(!block_pool_get(index->pool, id)->tainted);
	block_pool_set_indexed(index->pool, id);
	index->nodes[id] = (struct prefix_node){
		.key = *key,
		.root = chain->root,
		.parent = parent,
	};
	node_extend(index, id, tokens, i, n_rows);
	if (!node_is_open(index, id))
		table_add(index, PREFIX_BY_KEY, id);
	table_add(index, PREFIX_BY_HEAD, id);
	if (parent != BLOCK_NONE)
		index->nodes[parent].n_children++;
	index->n_nodes++;
}

void node_link(struct prefix_index *index, uint32_t id)
{
	table_add(index, PREFIX_BY_KEY, id);
	table_add(index, PREFIX_BY_HEAD, id);
	if (index->nodes[id].parent != BLOCK_NONE)
		index->nodes[index->nodes[id].parent].n_children++;
	index->n_nodes++;
}

void node_move(struct prefix_index *index, uint32_t id, uint32_t parent,
	       const struct prefix_key *root, const struct prefix_key *key)
{
	struct prefix_node *node = &index->nodes[id];
	uint32_t from = node->parent, n_pins;

	assert(!node_is_open(index, id));
	if (parent != from) {
		/* its pins go on to what is before it now; one more, given back below, has
		 * that stand behind it in the order of eviction */
		assert(from != BLOCK_NONE && parent != BLOCK_NONE);
		assert(!block_pool_get(index->pool, id)->refs);
		prefix_pin(index, id);
		n_pins = block_pool_get(index->pool, id)->pins;
		for (uint32_t i = 0; i < n_pins; i++) {
			prefix_pin(index, parent);
			prefix_unpin(index, from);
		}
	}
	table_remove(index, PREFIX_BY_KEY, id);
	table_remove(index, PREFIX_BY_HEAD, id);
	node->root = *root;
	node->key = *key;
	node->parent = parent;
	table_add(index, PREFIX_BY_KEY, id);
	table_add(index, PREFIX_BY_HEAD, id);
	if (parent != from) {
		index->nodes[from].n_children--;
		index->nodes[parent].n_children++;
		prefix_unpin(index, id);
	}
}

/*
 * Takes a block out of the table. During a flush a parent may go before its children; its
 * node is not reused before the flush is over, so counting down in it stays harmless.
 */
void node_unlink(struct prefix_index *index, uint32_t id)
{
	struct prefix_node *node = &index->nodes[id];

	assert(!node->held);
	if (index->image)
		image_clear(index->image, id);
	if (!node_is_open(index, id))
		table_remove(index, PREFIX_BY_KEY, id);
	table_remove(index, PREFIX_BY_HEAD, id);
	index->n_public -= node_is_public(index, id);
	if (node->parent != BLOCK_NONE) {
		assert(index->nodes[node->parent].n_children);
		index->nodes[node->parent].n_children--;
	}
	index->n_nodes--;
	block_pool_clear_indexed(index->pool, id);
}

static bool node_valid(const struct prefix_index *index, uint32_t id,
		       uint32_t *n_children)
{
	const struct prefix_node *node = &index->nodes[id];
	const struct block *b = block_pool_get(index->pool, id);
	const struct block *parent;

	if (!b->indexed || (node->held && !b->pins) || !node->n_rows ||
	    (node->unverified && b->refs) || node->n_rows > index->block_tokens ||
	    (node_is_open(index, id) && node->n_children))
		return false;
	if (node->parent == BLOCK_NONE)
		return true;
	if (node->parent >= index->pool->n_blocks)
		return false;
	n_children[node->parent]++;
	parent = block_pool_get(index->pool, node->parent);
	return parent->indexed && !(b->refs && !parent->refs) &&
	       !(b->pins && !parent->pins) &&
	       (node_is_public(index, node->parent) ||
		(parent->domain == b->domain &&
		 !memcmp(&node->root, &index->nodes[node->parent].root,
			 sizeof(node->root))));
}

/* Counts the nodes of bucket @i of a table. Return: false where a link is wrong. */
static bool bucket_valid(const struct prefix_index *index, enum prefix_table table,
			 uint32_t i, uint32_t *n)
{
	const uint32_t *first = table == PREFIX_BY_KEY ? index->buckets : index->heads;
	uint32_t n_blocks = index->pool->n_blocks, prev = BLOCK_NONE;

	for (uint32_t id = first[i]; id != BLOCK_NONE;
	     prev = id, id = index->nodes[id].links[table].next)
		if (id >= n_blocks || index->nodes[id].links[table].prev != prev ||
		    (table == PREFIX_BY_KEY && node_is_open(index, id)) ||
		    table_bucket(index, table, id) != &first[i] || (*n)++ > n_blocks)
			return false;
	return true;
}

int prefix_check(const struct prefix_index *index)
{
	uint32_t n_blocks = index->pool->n_blocks, n_indexed = 0, n_keys = 0, n_heads = 0;
	uint32_t n_public = 0, n_open = 0;
	uint32_t *n_children = calloc(n_blocks, sizeof(*n_children));
	int r = -EINVAL;

	if (!n_children)
		return -ENOMEM;
	for (uint32_t i = 0; i < index->n_buckets; i++)
		if (!bucket_valid(index, PREFIX_BY_KEY, i, &n_keys) ||
		    !bucket_valid(index, PREFIX_BY_HEAD, i, &n_heads))
			goto out;
	for (uint32_t i = 0; i < n_blocks; i++)
		if (block_pool_get(index->pool, i)->indexed &&
		    !node_valid(index, i, n_children))
			goto out;
	for (uint32_t i = 0; i < n_blocks; i++) {
		if (!block_pool_get(index->pool, i)->indexed)
			continue;
		n_indexed++;
		n_open += node_is_open(index, i);
		n_public += node_is_public(index, i);
		if (index->nodes[i].n_children != n_children[i])
			goto out;
	}
	if (n_keys == n_indexed - n_open && n_heads == n_indexed &&
	    n_indexed == index->n_nodes && n_public == index->n_public)
		r = 0;
out:
	free(n_children);
	return r;
}
