/* SPDX-License-Identifier: MIT */
#include "daemon/cache/prefix_node.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Blocks that prefix_find_rows() looks at. */
#define PREFIX_MAX_HEADS 32

static bool node_is_leaf(const void *data, uint32_t id)
{
	const struct prefix_index *index = data;

	return !index->nodes[id].n_children;
}

static uint32_t node_parent(const void *data, uint32_t id)
{
	const struct prefix_index *index = data;

	return index->nodes[id].parent;
}

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

/* Bits by which the eviction remembers a block. */
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

int prefix_init(struct prefix_index *index, struct block_pool *pool,
		const struct prefix_model *model, uint32_t n_key_bits)
{
	size_t n_tokens;
	int r;

	memset(index, 0, sizeof(*index));
	if (!model->block_tokens ||
	    __builtin_mul_overflow((size_t)pool->n_blocks, model->block_tokens,
				   &n_tokens))
		return -EINVAL;
	r = prefix_keyer_init(&index->keyer, model, n_key_bits);
	if (r < 0)
		return r;
	index->pool = pool;
	index->block_tokens = model->block_tokens;
	index->n_buckets = 1;
	while (index->n_buckets < pool->n_blocks)
		index->n_buckets *= 2;
	index->nodes = calloc(pool->n_blocks, sizeof(*index->nodes));
	index->tokens = calloc(n_tokens, sizeof(*index->tokens));
	index->buckets = calloc(index->n_buckets, sizeof(*index->buckets));
	index->heads = calloc(index->n_buckets, sizeof(*index->heads));
	index->memo = calloc(PREFIX_MEMO_KEYS, sizeof(*index->memo));
	index->memo_tokens =
		calloc(PREFIX_MEMO_KEYS, index->block_tokens * sizeof(*index->tokens));
	if (!index->nodes || !index->tokens || !index->buckets || !index->heads ||
	    !index->memo || !index->memo_tokens) {
		prefix_deinit(index);
		return -ENOMEM;
	}
	r = prefix_key_root(&index->keyer, PREFIX_DOMAIN_PUBLIC, NULL, 0, NULL, 0,
			    &index->public_root);
	if (r < 0) {
		prefix_deinit(index);
		return r;
	}
	for (uint32_t i = 0; i < index->n_buckets; i++)
		index->buckets[i] = index->heads[i] = BLOCK_NONE;
	pool->evict.is_leaf = node_is_leaf;
	pool->evict.parent_of = node_parent;
	pool->evict.index = index;
	return 0;
}

void prefix_deinit(struct prefix_index *index)
{
	if (index->pool) {
		index->pool->evict.is_leaf = NULL;
		index->pool->evict.parent_of = NULL;
		index->pool->evict.index = NULL;
	}
	prefix_keyer_deinit(&index->keyer);
	free(index->nodes);
	free(index->tokens);
	free(index->buckets);
	free(index->heads);
	free(index->memo);
	free(index->memo_tokens);
	memset(index, 0, sizeof(*index));
}

static uint32_t memo_place(const struct prefix_key *parent, const int32_t *tokens,
			   uint32_t n)
{
	uint64_t h;

	memcpy(&h, parent->bytes, sizeof(h));
	return (uint32_t)(mix_tokens(h, tokens, n) >> 32) % PREFIX_MEMO_KEYS;
}

/* prefix_key_next(), or the same key from the memo. @ret_key may be @parent. */
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

const struct prefix_key *prefix_chain_key(struct prefix_index *index,
					  struct prefix_chain *chain,
					  const int32_t *tokens, uint32_t i)
{
	assert(i < chain->cap_keys);
	while (chain->n_keys <= i) {
		uint32_t n = chain->n_keys;
		const struct prefix_key *parent = n ? &chain->keys[n - 1] : &chain->root;

		if (node_key_next(index, parent, tokens + (size_t)n * index->block_tokens,
				  &chain->keys[n]) < 0)
			return NULL;
		chain->n_keys++;
	}
	return &chain->keys[i];
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

/* Blocks that follow the same one, or begin the same root, with the same token. */
static uint32_t *head_bucket(const struct prefix_index *index,
			     const struct prefix_key *root, uint32_t parent,
			     int32_t token)
{
	uint64_t h;

	memcpy(&h, root->bytes, sizeof(h));
	h = mix(mix(h, parent), (uint32_t)token);
	return &index->heads[(uint32_t)(h >> 32) & (index->n_buckets - 1)];
}

static uint32_t *node_head(const struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];

	return head_bucket(index, &node->root, node->parent, *node_tokens(index, id));
}

static bool node_matches(const struct prefix_index *index, uint32_t id,
			 const struct prefix_chain *chain, const struct prefix_key *key,
			 const int32_t *tokens, uint32_t parent)
{
	const struct prefix_node *node = &index->nodes[id];

	return node->parent == parent && !memcmp(&node->key, key, sizeof(*key)) &&
	       !memcmp(&node->root, &chain->root, sizeof(node->root)) &&
	       block_pool_get(index->pool, id)->domain == chain->domain &&
	       !memcmp(node_tokens(index, id), tokens,
		       (size_t)index->block_tokens * sizeof(*tokens));
}

int node_find_public(struct prefix_index *index, const int32_t *tokens, uint32_t parent,
		     uint32_t *ret_id)
{
	const struct prefix_chain chain = {.root = index->public_root,
					   .domain = PREFIX_DOMAIN_PUBLIC};
	struct prefix_key key;
	int r;

	*ret_id = BLOCK_NONE;
	r = node_key_next(index,
			  parent == BLOCK_NONE ? &index->public_root
					       : &index->nodes[parent].key,
			  tokens, &key);
	if (r < 0)
		return r;
	for (uint32_t id = *node_bucket(index, &key); id != BLOCK_NONE;
	     id = index->nodes[id].links[PREFIX_BY_KEY].next)
		if (node_matches(index, id, &chain, &key, tokens, parent)) {
			if (node_verify(index, id))
				*ret_id = id;
			break;
		}
	return 0;
}

uint32_t prefix_find(struct prefix_index *index, struct prefix_chain *chain,
		     const int32_t *tokens, uint32_t i, uint32_t parent)
{
	const struct prefix_key *key;

	if (chain->reads_public && index->n_public &&
	    (parent == BLOCK_NONE || node_is_public(index, parent))) {
		uint32_t id;

		if (node_find_public(index, tokens + (size_t)i * index->block_tokens,
				     parent, &id) == 0 &&
		    id != BLOCK_NONE)
			return id;
	}
	key = prefix_chain_key(index, chain, tokens, i);
	if (!key)
		return BLOCK_NONE;
	tokens += (size_t)i * index->block_tokens;
	for (uint32_t id = *node_bucket(index, key); id != BLOCK_NONE;
	     id = index->nodes[id].links[PREFIX_BY_KEY].next)
		if (node_matches(index, id, chain, key, tokens, parent))
			return node_verify(index, id) ? id : BLOCK_NONE;
	return BLOCK_NONE;
}

uint32_t prefix_acquire(struct prefix_index *index, struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent)
{
	uint32_t id = prefix_find(index, chain, tokens, i, parent);

	if (id == BLOCK_NONE)
		return id;
	block_pool_ref(index->pool, id);
	evict_touch(&index->pool->evict, id);
	if (index->image)
		image_use(index->image, id, true);
	index->counters.hit_tokens += index->block_tokens;
	if (block_pool_get(index->pool, id)->owner != chain->owner)
		index->counters.shared_hit_tokens += index->block_tokens;
	return id;
}

uint32_t prefix_lookup(struct prefix_index *index, struct prefix_chain *chain,
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

void node_link(struct prefix_index *index, uint32_t id)
{
	table_add(index, PREFIX_BY_KEY, id);
	table_add(index, PREFIX_BY_HEAD, id);
	if (index->nodes[id].parent != BLOCK_NONE)
		index->nodes[index->nodes[id].parent].n_children++;
	index->n_nodes++;
}

/* Leading tokens that two blocks have in common, of @n. */
static uint32_t n_common(const int32_t *a, const int32_t *b, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && a[i] == b[i])
		i++;
	return i;
}

uint32_t prefix_find_rows(struct prefix_index *index, const struct prefix_chain *chain,
			  const int32_t *tokens, uint32_t i, uint32_t parent,
			  uint32_t max_rows, uint32_t *ret_rows)
{
	uint32_t best = BLOCK_NONE, n_seen = 0;

	assert(max_rows && max_rows <= index->block_tokens);
	tokens += (size_t)i * index->block_tokens;
	*ret_rows = 0;
	for (uint32_t id = *head_bucket(index, &chain->root, parent, *tokens);
	     id != BLOCK_NONE && n_seen++ < PREFIX_MAX_HEADS && *ret_rows < max_rows;
	     id = index->nodes[id].links[PREFIX_BY_HEAD].next) {
		const struct prefix_node *node = &index->nodes[id];
		uint32_t n;

		if (node->parent != parent ||
		    memcmp(&node->root, &chain->root, sizeof(node->root)) ||
		    block_pool_get(index->pool, id)->domain != chain->domain)
			continue;
		n = n_common(node_tokens(index, id), tokens,
			     node->n_rows < max_rows ? node->n_rows : max_rows);
		if (n > *ret_rows) {
			*ret_rows = n;
			best = id;
		}
	}
	if (best != BLOCK_NONE && !node_verify(index, best)) {
		*ret_rows = 0;
		return BLOCK_NONE;
	}
	return best;
}

void prefix_acquire_rows(struct prefix_index *index, const struct prefix_chain *chain,
			 uint32_t id, uint32_t n_rows)
{
	block_pool_ref(index->pool, id);
	evict_touch(&index->pool->evict, id);
	if (index->image)
		image_use(index->image, id, true);
	index->counters.hit_tokens += n_rows;
	if (block_pool_get(index->pool, id)->owner != chain->owner)
		index->counters.shared_hit_tokens += n_rows;
}

/* Tokens of block @i of a sequence, of which the node has had the first ones. */
static void node_extend(struct prefix_index *index, uint32_t id, const int32_t *tokens,
			uint32_t i, uint32_t n_rows)
{
	memcpy(node_tokens(index, id), tokens + (size_t)i * index->block_tokens,
	       n_rows * sizeof(*tokens));
	index->nodes[id].n_rows = n_rows;
}

/* A node below @parent; its place in the table of keys is the caller's to give. */
static void node_add(struct prefix_index *index, const struct prefix_chain *chain,
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
	table_add(index, PREFIX_BY_HEAD, id);
	if (parent != BLOCK_NONE)
		index->nodes[parent].n_children++;
	index->n_nodes++;
}

int prefix_publish(struct prefix_index *index, struct prefix_chain *chain,
		   const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
		   uint32_t *ret_id)
{
	const struct prefix_key *key = prefix_chain_key(index, chain, tokens, i);
	struct prefix_node *node = &index->nodes[id];
	uint32_t found;

	if (!key)
		return -ENOMEM;
	if (parent != BLOCK_NONE && !block_pool_get(index->pool, parent)->indexed)
		return PREFIX_ORPHAN;
	found = prefix_find(index, chain, tokens, i, parent);
	if (found != BLOCK_NONE) {
		/* a fork shares it, and the other was first to publish it */
		index->counters.duplicate_blocks += found != id;
		if (found != id && block_pool_get(index->pool, id)->indexed &&
		    !block_pool_get(index->pool, id)->pins)
			node_unlink(index, id);
		*ret_id = found;
		return PREFIX_EXISTS;
	}
	if (block_pool_get(index->pool, id)->indexed) {
		assert(node_is_open(index, id) && node->parent == parent);
		node_extend(index, id, tokens, i, index->block_tokens);
		node->key = *key;
	} else {
		node_add(index, chain, key, tokens, i, parent, id, index->block_tokens);
	}
	table_add(index, PREFIX_BY_KEY, id);
	evict_admit(&index->pool->evict, id, node_bits(index, id));
	index->counters.published_blocks++;
	if (index->image) {
		image_use(index->image, id, false);
		image_put_pending(index->image, id);
	}
	return 0;
}

int prefix_publish_rows(struct prefix_index *index, const struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
			uint32_t n_rows)
{
	uint32_t found, n_same;

	assert(n_rows && n_rows < index->block_tokens);
	if (block_pool_get(index->pool, id)->indexed) {
		assert(node_is_open(index, id) && index->nodes[id].n_rows <= n_rows);
		node_extend(index, id, tokens, i, n_rows);
		return 0;
	}
	if (parent != BLOCK_NONE && !block_pool_get(index->pool, parent)->indexed)
		return PREFIX_ORPHAN;
	found = prefix_find_rows(index, chain, tokens, i, parent, n_rows, &n_same);
	if (found != BLOCK_NONE && n_same == n_rows)
		return PREFIX_EXISTS;
	if (found != BLOCK_NONE && n_same == index->nodes[found].n_rows &&
	    block_pool_get(index->pool, found)->state == BLOCK_CACHED &&
	    !block_pool_get(index->pool, found)->pins)
		node_unlink(index, found);
	node_add(index, chain,
		 parent != BLOCK_NONE ? &index->nodes[parent].key : &chain->root, tokens,
		 i, parent, id, n_rows);
	evict_admit(&index->pool->evict, id, node_bits(index, id));
	return 0;
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

uint32_t prefix_evict(struct prefix_index *index, uint32_t n)
{
	uint32_t done = 0;

	for (; done < n; done++) {
		uint32_t id = evict_pick(&index->pool->evict);

		if (id == EVICT_NONE)
			break;
		assert(block_pool_get(index->pool, id)->state == BLOCK_CACHED);
		assert(!index->nodes[id].n_children);
		evict_forget(&index->pool->evict, id, node_bits(index, id));
		node_unlink(index, id);
	}
	index->counters.evicted_blocks += done;
	return done;
}

int prefix_take(struct prefix_index *index, uint32_t domain, uint64_t owner,
		uint32_t *ret_id)
{
	if (!index->pool->n_free)
		prefix_evict(index, 1);
	return block_pool_take(index->pool, domain, owner, ret_id);
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
