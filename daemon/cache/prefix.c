/* SPDX-License-Identifier: MIT */
/*
 * What sequences do to the prefix index: find, publish, evict.
 *
 * Full blocks are found by key and shared. Where the next block of a chain is not there,
 * another child of the same parent may begin with the same tokens: prefix_find_rows() finds
 * the one with most of them, and the caller copies that block and goes on behind those rows.
 * So a sequence publishes its partial block as well, with as many rows as are computed; it goes
 * on writing behind them, and nobody but its writer holds the block for longer than a copy.
 *
 * Equal blocks: two sequences may compute the same block in the same step. The second to
 * publish gets PREFIX_EXISTS with the block that is there; it takes a reference to that
 * one, gives its own back and goes on with the shared one. The bytes are equal, because a
 * block's bytes depend on its tokens and those before them only. This keeps the equation of refs
 * and halves the memory.
 *
 * A chain that reads public blocks looks there first, block by block, as long as all before it
 * were public too, and goes on in its own domain: what hangs below a public block belongs to who
 * computed it, and nobody else finds it.
 */
#include "daemon/cache/prefix.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/prefix_node.h"

/* Nodes that prefix_find_rows() looks at. */
#define PREFIX_MAX_HEADS 32

/* Public nodes that are compared one by one, before they are looked up by key. */
#define PREFIX_MAX_PUBLIC 16

static bool block_is_leaf(const void *data, uint32_t block)
{
	const struct prefix_index *index = data;

	return !index->nodes[index->node_of[block]].n_resident;
}

static uint32_t block_parent(const void *data, uint32_t block)
{
	const struct prefix_index *index = data;
	uint32_t parent = index->nodes[index->node_of[block]].parent;

	return parent == NODE_NONE ? EVICT_NONE : index->nodes[parent].block;
}

static int allocate(struct prefix_index *index)
{
	size_t n_tokens;

	if (__builtin_mul_overflow((size_t)index->cap_nodes, index->max_tokens,
				   &n_tokens))
		return -EINVAL;
	index->n_buckets = 1;
	while (index->n_buckets < index->cap_nodes)
		index->n_buckets *= 2;
	index->nodes = calloc(index->cap_nodes, sizeof(*index->nodes));
	index->node_of = calloc(index->pool->n_blocks, sizeof(*index->node_of));
	index->buckets = calloc(index->n_buckets, sizeof(*index->buckets));
	index->heads = calloc(index->n_buckets, sizeof(*index->heads));
	index->memo = calloc(PREFIX_MEMO_KEYS, sizeof(*index->memo));
	if (!index->nodes || !index->node_of || !index->buckets || !index->heads ||
	    !index->memo)
		return -ENOMEM;
	if (!index->max_tokens)
		return 0;
	index->tokens = calloc(n_tokens, sizeof(*index->tokens));
	index->memo_tokens =
		calloc(PREFIX_MEMO_KEYS, index->max_tokens * sizeof(*index->tokens));
	return index->tokens && index->memo_tokens ? 0 : -ENOMEM;
}

int prefix_init(struct prefix_index *index, struct block_pool *pool,
		const struct prefix_model *model, const struct prefix_secret *secret,
		uint32_t n_nodes, uint32_t key_bits)
{
	uint32_t space;
	int r;

	memset(index, 0, sizeof(*index));
	if (n_nodes > INT32_MAX)
		return -EINVAL;
	r = prefix_keyer_init(&index->keyer, secret, key_bits);
	if (r < 0)
		return r;
	index->pool = pool;
	index->cap_nodes = n_nodes ? n_nodes : pool->n_blocks;
	index->max_tokens = model->keys_only ? 0 : model->block_tokens;
	r = allocate(index);
	if (!r)
		r = prefix_add_space(index, model, &space);
	if (r < 0) {
		prefix_deinit(index);
		return r;
	}
	node_free_all(index);
	pool->evict.is_leaf = block_is_leaf;
	pool->evict.parent_of = block_parent;
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
	if (index->memo && index->memo_tokens)
		node_wipe_memo(index, true, 0);
	for (uint32_t id = 0; index->tokens && id < index->cap_nodes; id++)
		if (node_in_use(index, id) && node_tokens(index, id))
			explicit_bzero(node_tokens(index, id),
				       index->max_tokens * sizeof(*index->tokens));
	free(index->nodes);
	free(index->node_of);
	free(index->tokens);
	free(index->buckets);
	free(index->heads);
	free(index->memo);
	free(index->memo_tokens);
	memset(index, 0, sizeof(*index));
}

int node_set_public_root(struct prefix_index *index, uint32_t space)
{
	struct prefix_space *s = &index->spaces[space];

	return prefix_key_root(&index->keyer, &s->base, PREFIX_DOMAIN_PUBLIC, NULL, 0,
			       NULL, 0, &s->public_root);
}

int prefix_add_space(struct prefix_index *index, const struct prefix_model *model,
		     uint32_t *ret_space)
{
	struct prefix_space *space = &index->spaces[index->n_spaces];
	int r;

	if (index->n_spaces == PREFIX_MAX_SPACES)
		return -ENOSPC;
	if (!model->block_tokens ||
	    (!model->keys_only && model->block_tokens > index->max_tokens))
		return -EINVAL;
	space->block_tokens = model->block_tokens;
	space->keys_only = model->keys_only;
	space->first_public = NODE_NONE;
	r = prefix_key_base(&index->keyer, model, &space->base);
	if (!r)
		r = node_set_public_root(index, index->n_spaces);
	if (r)
		return r;
	*ret_space = index->n_spaces++;
	return 0;
}

static uint32_t block_tokens(const struct prefix_index *index,
			     const struct prefix_chain *chain)
{
	return index->spaces[chain->space].block_tokens;
}

/* Tokens of block @i; NULL in a space without. */
static const int32_t *tokens_at(const struct prefix_index *index,
				const struct prefix_chain *chain, const int32_t *tokens,
				uint32_t i)
{
	return tokens ? tokens + (size_t)i * block_tokens(index, chain) : NULL;
}

const struct prefix_key *prefix_chain_key(struct prefix_index *index,
					  struct prefix_chain *chain,
					  const int32_t *tokens, uint32_t i)
{
	assert(i < chain->cap_keys);
	assert(i < chain->n_keys || !index->spaces[chain->space].keys_only);
	while (chain->n_keys <= i) {
		uint32_t n = chain->n_keys;
		const struct prefix_key *parent = n ? &chain->keys[n - 1] : &chain->root;

		if (node_key_next(index, chain->space, chain->domain, parent,
				  tokens_at(index, chain, tokens, n),
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

	return node->parent == parent && node->space == chain->space &&
	       !memcmp(&node->key, key, sizeof(*key)) &&
	       !memcmp(&node->root, &chain->root, sizeof(node->root)) &&
	       node->domain == chain->domain &&
	       (!node_tokens(index, id) ||
		!memcmp(node_tokens(index, id), tokens,
			(size_t)block_tokens(index, chain) * sizeof(*tokens)));
}

/* The one that is resident, and believed, before any other. */
static uint32_t find_by_key(struct prefix_index *index, const struct prefix_chain *chain,
			    const struct prefix_key *key, const int32_t *tokens,
			    uint32_t parent)
{
	uint32_t absent = NODE_NONE;

	for (uint32_t id = *node_bucket(index, key); id != NODE_NONE;
	     id = index->nodes[id].links[PREFIX_BY_KEY].next) {
		if (!node_matches(index, id, chain, key, tokens, parent))
			continue;
		if (node_is_resident(index, id))
			return node_verify(index, id) ? id : absent;
		absent = id;
	}
	return absent;
}

int node_public_key(struct prefix_index *index, uint32_t space, uint32_t domain,
		    const struct prefix_key *own, const int32_t *tokens, uint32_t parent,
		    struct prefix_key *ret_key)
{
	const struct prefix_space *s = &index->spaces[space];

	if (!s->keys_only)
		return node_key_next(index, space, domain,
				     parent == NODE_NONE ? &s->public_root
							 : &index->nodes[parent].key,
				     tokens, ret_key);
	*ret_key = *own;
	return 0;
}

/*
 * Mostly there are a few public nodes, so all of them are compared: each who looks touches the same
 * memory, whatever for. A table by key would have the line of the caches warm that another user
 * looked at last.
 */
int node_find_public(struct prefix_index *index, uint32_t space, uint32_t domain,
		     const struct prefix_key *own, const int32_t *tokens, uint32_t parent,
		     uint32_t *ret_id)
{
	const struct prefix_space *s = &index->spaces[space];
	const struct prefix_chain chain = {
		.root = s->public_root, .space = space, .domain = PREFIX_DOMAIN_PUBLIC};
	uint32_t id = *node_publics(index, space, parent);
	struct prefix_key key;
	int r;

	*ret_id = NODE_NONE;
	for (int n = 0; n < PREFIX_MAX_PUBLIC; n++) {
		if (id == NODE_NONE)
			return 0;
		if (node_matches(index, id, &chain,
				 s->keys_only ? own : &index->nodes[id].key, tokens,
				 parent)) {
			if (!node_is_resident(index, id)) {
				*ret_id = id;
			} else {
				if (node_verify(index, id))
					*ret_id = id;
				return 0;
			}
		}
		id = index->nodes[id].links[PREFIX_BY_PARENT].next;
	}
	r = node_public_key(index, space, domain, own, tokens, parent, &key);
	if (!r)
		*ret_id = find_by_key(index, &chain, &key, tokens, parent);
	return r;
}

/* The node of a parent that a caller names by its block. Return: false: it has none. */
static bool parent_node(const struct prefix_index *index, uint32_t block,
			uint32_t *ret_node)
{
	*ret_node = block == BLOCK_NONE ? NODE_NONE : node_of_block(index, block);
	return block == BLOCK_NONE || *ret_node != NODE_NONE;
}

/* Node of block @i after the node @parent; one that is resident where there are two. */
static uint32_t find_node(struct prefix_index *index, struct prefix_chain *chain,
			  const int32_t *tokens, uint32_t i, uint32_t parent)
{
	const int32_t *own = tokens_at(index, chain, tokens, i);
	bool keys_only = index->spaces[chain->space].keys_only;
	uint32_t id = NODE_NONE, public = NODE_NONE;
	const struct prefix_key *key;

	if (keys_only && i >= chain->n_keys)
		return NODE_NONE;
	if (chain->reads_public && index->n_public &&
	    (parent == NODE_NONE || node_is_public(index, parent)))
		(void)node_find_public(index, chain->space, chain->domain,
				       keys_only ? &chain->keys[i] : NULL, own, parent,
				       &public);
	if (public != NODE_NONE && node_is_resident(index, public))
		return public;
	key = prefix_chain_key(index, chain, tokens, i);
	if (key)
		id = find_by_key(index, chain, key, own, parent);
	return id != NODE_NONE ? id : public;
}

uint32_t prefix_find(struct prefix_index *index, struct prefix_chain *chain,
		     const int32_t *tokens, uint32_t i, uint32_t parent)
{
	uint32_t id;

	if (!parent_node(index, parent, &id))
		return BLOCK_NONE;
	id = find_node(index, chain, tokens, i, id);
	return id == NODE_NONE ? BLOCK_NONE : index->nodes[id].block;
}

/* A request holds @block from now on, for @n_rows of its rows. */
static void acquire(struct prefix_index *index, const struct prefix_chain *chain,
		    uint32_t block, uint32_t n_rows)
{
	block_pool_ref(index->pool, block);
	evict_touch(&index->pool->evict, block);
	if (index->image)
		image_use(index->image, block, true);
	index->counters.hit_tokens += n_rows;
	if (block_pool_get(index->pool, block)->owner != chain->owner)
		index->counters.shared_hit_tokens += n_rows;
}

uint32_t prefix_acquire(struct prefix_index *index, struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent)
{
	uint32_t block = prefix_find(index, chain, tokens, i, parent);

	if (block != BLOCK_NONE)
		acquire(index, chain, block, block_tokens(index, chain));
	return block;
}

void prefix_acquire_rows(struct prefix_index *index, const struct prefix_chain *chain,
			 uint32_t id, uint32_t n_rows)
{
	acquire(index, chain, id, n_rows);
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
	uint32_t best = NODE_NONE, n_seen = 0;

	assert(max_rows && max_rows <= block_tokens(index, chain));
	tokens = tokens_at(index, chain, tokens, i);
	*ret_rows = 0;
	if (!parent_node(index, parent, &parent))
		return BLOCK_NONE;
	for (uint32_t id = *node_heads(index, &chain->root, parent, *tokens);
	     id != NODE_NONE && n_seen++ < PREFIX_MAX_HEADS && *ret_rows < max_rows;
	     id = index->nodes[id].links[PREFIX_BY_HEAD].next) {
		const struct prefix_node *node = &index->nodes[id];
		uint32_t n;

		if (node->parent != parent || node->domain != chain->domain ||
		    node->block == BLOCK_NONE ||
		    memcmp(&node->root, &chain->root, sizeof(node->root)))
			continue;
		n = n_common(node_tokens(index, id), tokens,
			     node->n_rows < max_rows ? node->n_rows : max_rows);
		if (n > *ret_rows) {
			*ret_rows = n;
			best = id;
		}
	}
	if (best != NODE_NONE && node_verify(index, best))
		return index->nodes[best].block;
	*ret_rows = 0;
	return BLOCK_NONE;
}

/* The bytes of a full node are in @block from now on. */
static void index_block(struct prefix_index *index, uint32_t id)
{
	uint32_t block = index->nodes[id].block;

	evict_admit(&index->pool->evict, block, node_bits(index, id));
	index->counters.published_blocks++;
	if (!index->image || index->nodes[id].space)
		return;
	image_use(index->image, block, false);
	image_put_pending(index->image, block);
}

/* The partial node of a block that is another's now. While somebody copies its rows it stays: one
 * that went would look flushed. */
static void drop_partial(struct prefix_index *index, uint32_t block)
{
	const struct block *b = block_pool_get(index->pool, block);

	if (b->indexed && !b->pins && b->refs == 1)
		node_unlink(index, index->node_of[block]);
}

int prefix_publish(struct prefix_index *index, struct prefix_chain *chain,
		   const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
		   uint32_t *ret_id)
{
	const struct prefix_key *key = prefix_chain_key(index, chain, tokens, i);
	uint32_t found, node;
	int r;

	if (!key)
		return -ENOMEM;
	if (!parent_node(index, parent, &parent))
		return PREFIX_ORPHAN;
	found = find_node(index, chain, tokens, i, parent);
	if (found != NODE_NONE && node_is_resident(index, found)) {
		/* a fork shares it, and the other was first to publish it */
		*ret_id = index->nodes[found].block;
		index->counters.duplicate_blocks += *ret_id != id;
		if (*ret_id != id)
			drop_partial(index, id);
		return PREFIX_EXISTS;
	}
	node = node_of_block(index, id);
	if (found != NODE_NONE && index->nodes[found].domain == chain->domain) {
		if (node != NODE_NONE)
			node_unlink(index, node);
		node_attach(index, found, id);
		node = found;
	} else if (node != NODE_NONE) {
		assert(node_is_partial(index, node) &&
		       index->nodes[node].parent == parent);
		node_complete(index, node, key, tokens, i);
	} else {
		r = node_add(index, chain, key, tokens, i, parent, id,
			     block_tokens(index, chain));
		if (r)
			return r;
		node = index->node_of[id];
	}
	index_block(index, node);
	return 0;
}

int prefix_publish_rows(struct prefix_index *index, const struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
			uint32_t n_rows)
{
	uint32_t node = node_of_block(index, id), found, n_same, before;
	const struct block *b;
	int r;

	assert(n_rows && n_rows < block_tokens(index, chain));
	if (node != NODE_NONE) {
		assert(node_is_partial(index, node) &&
		       index->nodes[node].n_rows <= n_rows);
		node_extend(index, node, tokens, i, n_rows);
		return 0;
	}
	if (!parent_node(index, parent, &before))
		return PREFIX_ORPHAN;
	found = prefix_find_rows(index, chain, tokens, i, parent, n_rows, &n_same);
	if (found != BLOCK_NONE && n_same == n_rows)
		return PREFIX_EXISTS;
	b = found == BLOCK_NONE ? NULL : block_pool_get(index->pool, found);
	if (b && n_same == prefix_n_rows(index, found) && b->state == BLOCK_CACHED &&
	    !b->pins)
		node_unlink(index, index->node_of[found]);
	r = node_add(index, chain,
		     before != NODE_NONE ? &index->nodes[before].key : &chain->root,
		     tokens, i, before, id, n_rows);
	if (!r)
		evict_admit(&index->pool->evict, id,
			    node_bits(index, index->node_of[id]));
	return r;
}

uint32_t prefix_evict(struct prefix_index *index, uint32_t n)
{
	uint32_t done = 0;

	for (; done < n; done++) {
		uint32_t block = evict_pick(&index->pool->evict), id;

		if (block == EVICT_NONE)
			break;
		id = index->node_of[block];
		assert(block_pool_get(index->pool, block)->state == BLOCK_CACHED);
		assert(!index->nodes[id].n_resident);
		evict_forget(&index->pool->evict, block, node_bits(index, id));
		/* what is below, elsewhere, is found through it */
		if (index->nodes[id].n_children)
			node_detach(index, id);
		else
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
