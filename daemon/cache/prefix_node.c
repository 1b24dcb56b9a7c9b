/* SPDX-License-Identifier: MIT */
/* Nodes, the tree and the tables. See prefix_node.h. */
#include "daemon/cache/prefix_node.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/prefix_walk.h"

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
	/* a partial block has the key of the block before it */
	return node_is_partial(index, id)
		       ? mix_tokens(bits, node_tokens(index, id), node->n_rows)
		       : bits;
}

static uint32_t memo_place(uint32_t domain, const struct prefix_key *parent,
			   const int32_t *tokens, uint32_t n)
{
	uint64_t h;

	memcpy(&h, parent->bytes, sizeof(h));
	return (uint32_t)(mix_tokens(mix(h, domain), tokens, n) >> 32) % PREFIX_MEMO_KEYS;
}

int node_key_next(struct prefix_index *index, uint32_t space, uint32_t domain,
		  const struct prefix_key *parent, const int32_t *tokens,
		  struct prefix_key *ret_key)
{
	uint32_t n = index->spaces[space].block_tokens,
		 place = memo_place(domain, parent, tokens, n);
	struct prefix_memo *memo = &index->memo[place];
	int32_t *memo_tokens = index->memo_tokens + (size_t)place * index->max_tokens;
	struct prefix_key key;

	/* what is before it says which space it is, so that as many tokens are compared */
	if (memo->used && memo->domain == domain &&
	    !memcmp(&memo->parent, parent, sizeof(*parent)) &&
	    !memcmp(memo_tokens, tokens, n * sizeof(*tokens))) {
		*ret_key = memo->key;
		return 0;
	}
	if (prefix_key_next(&index->keyer, parent, tokens, n, &key) < 0)
		return -ENOMEM;
	*memo = (struct prefix_memo){
		.parent = *parent, .key = key, .domain = domain, .used = true};
	memcpy(memo_tokens, tokens, n * sizeof(*tokens));
	*ret_key = key;
	return 0;
}

static void wipe_memo_at(struct prefix_index *index, uint32_t place)
{
	if (!index->memo[place].used)
		return;
	index->memo[place] = (struct prefix_memo){0};
	explicit_bzero(index->memo_tokens + (size_t)place * index->max_tokens,
		       index->max_tokens * sizeof(*index->memo_tokens));
}

void node_wipe_memo(struct prefix_index *index, bool all, uint32_t domain)
{
	for (uint32_t i = 0; i < PREFIX_MEMO_KEYS; i++)
		if (all || index->memo[i].domain == domain)
			wipe_memo_at(index, i);
}

/* What is left of a prompt when its block goes. Behind a public block the memo may have it in other
 * places as well; prompts that come push those out. */
static void wipe_tokens(struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];
	const struct prefix_key *before = &node->root;
	int32_t *tokens = node_tokens(index, id);
	uint32_t place;

	if (!tokens)
		return;
	if (node->parent != NODE_NONE &&
	    !memcmp(&node->root, &index->nodes[node->parent].root, sizeof(node->root)))
		before = &index->nodes[node->parent].key;
	place = memo_place(node->domain, before, tokens,
			   node_space(index, id)->block_tokens);
	if (!memcmp(&index->memo[place].key, &node->key, sizeof(node->key)))
		wipe_memo_at(index, place);
	explicit_bzero(tokens, index->max_tokens * sizeof(*tokens));
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
	if (node_space(index, id)->keys_only)
		return NULL;
	return index->tokens + (size_t)id * index->max_tokens;
}

uint32_t *node_heads(const struct prefix_index *index, const struct prefix_key *root,
		     uint32_t parent, int32_t token)
{
	uint64_t h;

	memcpy(&h, root->bytes, sizeof(h));
	h = mix(mix(h, parent), (uint32_t)token);
	return &index->heads[(uint32_t)(h >> 32) & (index->n_buckets - 1)];
}

uint32_t *node_publics(struct prefix_index *index, uint32_t space, uint32_t parent)
{
	return parent == NODE_NONE ? &index->spaces[space].first_public
				   : &index->nodes[parent].first_public;
}

/* Where the list begins that the node stands in, or has to; NULL: in none. */
static uint32_t *table_bucket(struct prefix_index *index, enum prefix_table table,
			      uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];

	if (table == PREFIX_BY_KEY)
		return node_is_partial(index, id) ? NULL : node_bucket(index, &node->key);
	if (table == PREFIX_BY_PARENT)
		return node_is_public(index, id)
			       ? node_publics(index, node->space, node->parent)
			       : NULL;
	return node_tokens(index, id) ? node_heads(index, &node->root, node->parent,
						   *node_tokens(index, id))
				      : NULL;
}

static void list_add(struct prefix_index *index, uint32_t *first, enum prefix_table table,
		     uint32_t id)
{
	if (!first)
		return;
	index->nodes[id].links[table] = (struct prefix_link){*first, NODE_NONE};
	if (*first != NODE_NONE)
		index->nodes[*first].links[table].prev = id;
	*first = id;
}

static void list_remove(struct prefix_index *index, uint32_t *first,
			enum prefix_table table, uint32_t id)
{
	const struct prefix_link *link = &index->nodes[id].links[table];

	if (!first)
		return;
	if (link->prev != NODE_NONE)
		index->nodes[link->prev].links[table].next = link->next;
	else
		*first = link->next;
	if (link->next != NODE_NONE)
		index->nodes[link->next].links[table].prev = link->prev;
}

static void tables_add(struct prefix_index *index, uint32_t id)
{
	for (enum prefix_table t = 0; t < PREFIX_N_TABLES; t++)
		list_add(index, table_bucket(index, t, id), t, id);
}

static void tables_remove(struct prefix_index *index, uint32_t id)
{
	for (enum prefix_table t = 0; t < PREFIX_N_TABLES; t++)
		list_remove(index, table_bucket(index, t, id), t, id);
}

/* Into the list of its parent's children, the first of them. */
static void tree_add(struct prefix_index *index, uint32_t id)
{
	struct prefix_node *node = &index->nodes[id], *parent;

	node->siblings = (struct prefix_link){NODE_NONE, NODE_NONE};
	node->n_tokens = node->n_rows;
	if (node->parent == NODE_NONE)
		return;
	parent = &index->nodes[node->parent];
	node->n_tokens += parent->n_tokens;
	node->siblings.next = parent->first_child;
	if (parent->first_child != NODE_NONE)
		index->nodes[parent->first_child].siblings.prev = id;
	parent->first_child = id;
	parent->n_children++;
	parent->n_resident += node_is_resident(index, id);
}

static void tree_remove(struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];
	struct prefix_node *parent;

	if (node->parent == NODE_NONE)
		return;
	parent = &index->nodes[node->parent];
	assert(parent->n_children);
	if (node->siblings.prev != NODE_NONE)
		index->nodes[node->siblings.prev].siblings.next = node->siblings.next;
	else
		parent->first_child = node->siblings.next;
	if (node->siblings.next != NODE_NONE)
		index->nodes[node->siblings.next].siblings.prev = node->siblings.prev;
	parent->n_children--;
	parent->n_resident -= node_is_resident(index, id);
}

void node_free_all(struct prefix_index *index)
{
	for (uint32_t i = 0; i < index->cap_nodes; i++)
		index->nodes[i] = (struct prefix_node){
			.block = BLOCK_NONE,
			.parent = i + 1 < index->cap_nodes ? i + 1 : NODE_NONE,
		};
	for (uint32_t i = 0; i < index->n_buckets; i++)
		index->buckets[i] = index->heads[i] = NODE_NONE;
	for (uint32_t i = 0; i < index->n_spaces; i++)
		index->spaces[i].first_public = NODE_NONE;
	index->free_node = 0;
	index->doomed = NODE_NONE;
	index->n_nodes = index->n_public = 0;
}

void node_extend(struct prefix_index *index, uint32_t id, const int32_t *tokens,
		 uint32_t i, uint32_t n_rows)
{
	struct prefix_node *node = &index->nodes[id];
	uint32_t bt = node_space(index, id)->block_tokens;

	if (node_tokens(index, id))
		memcpy(node_tokens(index, id), tokens + (size_t)i * bt,
		       n_rows * sizeof(*tokens));
	node->n_tokens += n_rows - node->n_rows;
	node->n_rows = n_rows;
}

void node_complete(struct prefix_index *index, uint32_t id, const struct prefix_key *key,
		   const int32_t *tokens, uint32_t i)
{
	node_extend(index, id, tokens, i, node_space(index, id)->block_tokens);
	index->nodes[id].key = *key;
	list_add(index, node_bucket(index, key), PREFIX_BY_KEY, id);
}

int node_add(struct prefix_index *index, const struct prefix_chain *chain,
	     const struct prefix_key *key, const int32_t *tokens, uint32_t i,
	     uint32_t parent, uint32_t block, uint32_t n_rows)
{
	uint32_t id = index->free_node;

	assert(block_pool_get(index->pool, block)->domain == chain->domain);
	assert(!block_pool_get(index->pool, block)->tainted);
	if (id == NODE_NONE)
		return PREFIX_FULL;
	index->free_node = index->nodes[id].parent;
	block_pool_set_indexed(index->pool, block);
	index->node_of[block] = id;
	index->nodes[id] = (struct prefix_node){
		.key = *key,
		.root = chain->root,
		.life = ++index->lives,
		.block = block,
		.domain = chain->domain,
		.parent = parent,
		.first_child = NODE_NONE,
		.first_public = NODE_NONE,
		.space = (uint8_t)chain->space,
	};
	if (index->image)
		image_set_lives(index->image, index->lives);
	node_extend(index, id, tokens, i, n_rows);
	node_link(index, id);
	return 0;
}

void node_link(struct prefix_index *index, uint32_t id)
{
	tables_add(index, id);
	tree_add(index, id);
	index->n_nodes++;
	index->n_public += node_is_public(index, id);
}

/* Its block leaves the index, and becomes free when nobody holds it. */
static void let_block_go(struct prefix_index *index, uint32_t id)
{
	uint32_t block = index->nodes[id].block;

	if (block == BLOCK_NONE)
		return;
	if (index->image)
		image_clear(index->image, block);
	block_pool_clear_indexed(index->pool, block);
}

void node_unlink(struct prefix_index *index, uint32_t id)
{
	struct prefix_node *node = &index->nodes[id];

	assert(!node->pinned && !node->n_children);
	walks_leave(index, id);
	if (node->doomed)
		list_remove(index, &index->doomed, PREFIX_BY_KEY, id);
	else
		tables_remove(index, id);
	index->n_public -= node_is_public(index, id);
	tree_remove(index, id);
	let_block_go(index, id);
	wipe_tokens(index, id);
	index->n_nodes--;
	*node = (struct prefix_node){.block = BLOCK_NONE, .parent = index->free_node};
	index->free_node = id;
}

void node_attach(struct prefix_index *index, uint32_t id, uint32_t block)
{
	struct prefix_node *node = &index->nodes[id];

	assert(node->block == BLOCK_NONE);
	assert(block_pool_get(index->pool, block)->domain == node->domain);
	assert(!block_pool_get(index->pool, block)->tainted);
	block_pool_set_indexed(index->pool, block);
	index->node_of[block] = id;
	node->block = block;
	node->unverified = false;
	if (node->parent != NODE_NONE)
		index->nodes[node->parent].n_resident++;
}

void node_detach(struct prefix_index *index, uint32_t id)
{
	struct prefix_node *node = &index->nodes[id];

	assert(!node->n_resident && node->block != BLOCK_NONE);
	let_block_go(index, id);
	node->block = BLOCK_NONE;
	if (node->parent != NODE_NONE)
		index->nodes[node->parent].n_resident--;
}

void node_doom(struct prefix_index *index, uint32_t id)
{
	assert(!node_refs(index, id) && !index->nodes[id].doomed);
	tables_remove(index, id);
	if (index->image)
		image_clear(index->image, index->nodes[id].block);
	index->nodes[id].doomed = true;
	list_add(index, &index->doomed, PREFIX_BY_KEY, id);
}

/* What hangs below a node whose chain has other blocks now has as many tokens as before. */
void node_move_public(struct prefix_index *index, uint32_t id, uint32_t parent,
		      const struct prefix_key *key)
{
	struct prefix_node *node = &index->nodes[id];
	uint32_t from = node->parent, n_pins;

	assert(!node_is_partial(index, id));
	tables_remove(index, id);
	if (parent != from) {
		/* its pins go on to what is before it now; one more, given back below, has
		 * that stand behind it in the order of eviction */
		assert(from != NODE_NONE && parent != NODE_NONE);
		assert(!node_refs(index, id));
		node_pin_chain(index, id);
		n_pins = node_pins(index, id);
		for (uint32_t i = 0; i < n_pins; i++) {
			node_pin_chain(index, parent);
			node_unpin_chain(index, from);
		}
		walks_lose(index, id);
		tree_remove(index, id);
	}
	node->root = node_space(index, id)->public_root;
	node->domain = PREFIX_DOMAIN_PUBLIC;
	node->key = *key;
	node->parent = parent;
	tables_add(index, id);
	if (parent != from) {
		tree_add(index, id);
		node_unpin_chain(index, id);
	}
}

void node_pin_chain(struct prefix_index *index, uint32_t id)
{
	for (; id != NODE_NONE; id = index->nodes[id].parent)
		block_pool_pin(index->pool, index->nodes[id].block);
}

void node_unpin_chain(struct prefix_index *index, uint32_t id)
{
	/* leaf to root: a child stands before its parent in the order of eviction */
	for (; id != NODE_NONE; id = index->nodes[id].parent)
		block_pool_unpin(index->pool, index->nodes[id].block);
}
