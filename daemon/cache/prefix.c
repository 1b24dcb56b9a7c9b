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
	for (uint32_t id = *node_heads(index, &chain->root, parent, *tokens);
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

int prefix_publish(struct prefix_index *index, struct prefix_chain *chain,
		   const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
		   uint32_t *ret_id)
{
	const struct prefix_key *key = prefix_chain_key(index, chain, tokens, i);
	uint32_t found;

	if (!key)
		return -ENOMEM;
	if (parent != BLOCK_NONE && !block_pool_get(index->pool, parent)->indexed)
		return PREFIX_ORPHAN;
	found = prefix_find(index, chain, tokens, i, parent);
	if (found != BLOCK_NONE) {
		/* A fork shares it, and the other was first to publish it. While somebody copies
		 * its rows it stays: one that went would look flushed. */
		index->counters.duplicate_blocks += found != id;
		if (found != id && block_pool_get(index->pool, id)->indexed &&
		    !block_pool_get(index->pool, id)->pins &&
		    block_pool_get(index->pool, id)->refs == 1)
			node_unlink(index, id);
		*ret_id = found;
		return PREFIX_EXISTS;
	}
	if (block_pool_get(index->pool, id)->indexed) {
		assert(node_is_open(index, id) && index->nodes[id].parent == parent);
		node_complete(index, id, key, tokens, i);
	} else {
		node_add(index, chain, key, tokens, i, parent, id, index->block_tokens);
	}
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
