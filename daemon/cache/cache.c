/* SPDX-License-Identifier: MIT */
#include "daemon/cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int cache_init(struct cache *cache, const struct cache_config *config)
{
	int r;

	*cache = (struct cache){0};
	if (!config->block_bytes)
		return -EINVAL;
	r = block_pool_init(&cache->pool, config->n_blocks, config->evict);
	if (!r)
		r = prefix_init(&cache->index, &cache->pool, config->identity,
				config->key_bits ? config->key_bits : 256);
	if (r) {
		block_pool_deinit(&cache->pool);
		return r;
	}
	cache->block_bytes = config->block_bytes;
	return 0;
}

void cache_deinit(struct cache *cache)
{
	if (!cache_is_open(cache))
		return;
	image_deinit(&cache->image);
	prefix_deinit(&cache->index);
	block_pool_deinit(&cache->pool);
	cache->block_bytes = 0;
}

struct image_model cache_image_model(const struct cache *cache,
				     const struct prefix_model *identity)
{
	struct image_model model = {
		.base = cache->index.keyer.base,
		.k_format = identity->k_format,
		.v_format = identity->v_format,
		.backend = identity->backend,
		.block_bytes = cache->block_bytes,
		.n_blocks = cache->pool.n_blocks,
		.block_tokens = cache->index.block_tokens,
	};

	memcpy(model.fingerprint, identity->fingerprint, sizeof(model.fingerprint));
	return model;
}

int cache_keep(struct cache *cache, void *map, const struct image_model *model,
	       const void *blocks)
{
	int r = image_init(&cache->image, map, model, blocks);

	if (r)
		image_deinit(&cache->image);
	else
		cache->index.image = &cache->image;
	return r;
}

int cache_restore(struct cache *cache, void *map, const struct image_model *model,
		  const void *blocks, struct prefix_restored *ret_result)
{
	int r = image_init(&cache->image, map, model, blocks);

	if (!r)
		r = prefix_restore(&cache->index, &cache->image, ret_result);
	if (r)
		image_deinit(&cache->image);
	return r;
}

uint32_t cache_save(struct cache *cache, size_t max_bytes)
{
	return cache_is_open(cache) ? prefix_save(&cache->index, max_bytes) : 0;
}

static uint64_t cache_id(const struct cache *cache, uint32_t block)
{
	return (uint64_t)block_pool_get(&cache->pool, block)->generation << 32 | block;
}

/* Return: false: it has gone. */
static bool cache_find(const struct cache *cache, uint64_t id, uint32_t *ret_block)
{
	uint32_t block = (uint32_t)id;

	if (!cache_is_open(cache) || block >= cache->pool.n_blocks ||
	    !block_pool_get(&cache->pool, block)->indexed || cache_id(cache, block) != id)
		return false;
	*ret_block = block;
	return true;
}

int32_t cache_lookup(struct cache *cache, const struct cache_query *query,
		     uint64_t *ret_id)
{
	uint32_t n, bt = cache->index.block_tokens, block = BLOCK_NONE;
	struct prefix_chain chain = {
		.domain = query->domain,
		.reads_public = query->reads_public,
	};
	int32_t found = 0;

	*ret_id = 0;
	if (!cache_is_open(cache) || query->n_tokens < bt)
		return 0;
	chain.cap_keys = query->n_tokens / bt;
	chain.keys = calloc(chain.cap_keys, sizeof(*chain.keys));
	if (!chain.keys)
		return -ENOMEM;
	if (prefix_key_root(&cache->index.keyer, query->domain, NULL, 0, query->salt,
			    query->salt_len, &chain.root) < 0)
		found = -ENOMEM;
	for (n = 0; !found && n < chain.cap_keys; n++) {
		uint32_t next =
			prefix_find(&cache->index, &chain, query->tokens, n, block);

		if (next == BLOCK_NONE)
			break;
		block = next;
	}
	if (block != BLOCK_NONE) {
		*ret_id = cache_id(cache, block);
		found = (int32_t)(n * bt);
	}
	free(chain.keys);
	return found;
}

/* The chain that ends at @block. */
static void describe(const struct cache *cache, uint32_t block,
		     struct cache_prefix_info *ret_info)
{
	const struct prefix_node *nodes = cache->index.nodes;
	const struct block *b = block_pool_get(&cache->pool, block);
	bool own = !nodes[block].n_children;
	struct cache_prefix_info info = {
		.id = cache_id(cache, block),
		.domain = b->domain,
		.readers = b->refs,
		.pins = b->pins,
		.frequent = evict_is_frequent(&cache->pool.evict, block),
	};

	for (uint32_t id = block; id != BLOCK_NONE; id = nodes[id].parent) {
		info.tokens += nodes[id].n_rows;
		own &= nodes[id].n_children < 2 && (id == block || !nodes[id].held);
		info.own_blocks += own;
	}
	*ret_info = info;
}

bool cache_describe(const struct cache *cache, uint64_t id,
		    struct cache_prefix_info *ret_info)
{
	uint32_t block;

	if (!cache_find(cache, id, &block))
		return false;
	describe(cache, block, ret_info);
	return true;
}

static bool may_see(const struct cache_view *view, const struct block *block)
{
	return view->all || block->domain == view->domain ||
	       block->domain == PREFIX_DOMAIN_PUBLIC;
}

bool cache_list_next(const struct cache *cache, const struct cache_view *view,
		     uint64_t *cursor, struct cache_prefix_info *ret_info)
{
	const struct prefix_node *nodes = cache->index.nodes;

	while (*cursor < cache->pool.n_blocks) {
		uint32_t id = (uint32_t)(*cursor)++;
		const struct block *b = block_pool_get(&cache->pool, id);

		if (!b->indexed || (nodes[id].n_children && !nodes[id].held) ||
		    !may_see(view, b))
			continue;
		describe(cache, id, ret_info);
		return true;
	}
	return false;
}

/* The last whole block of a prefix. Return: 0, -ENOENT, -EINVAL. */
static int find_whole(const struct cache *cache, uint64_t id, uint32_t *ret_block,
		      uint64_t *ret_tokens)
{
	const struct prefix_node *nodes = cache->index.nodes;
	uint64_t tokens = 0;
	uint32_t block;

	if (!cache_find(cache, id, &block))
		return -ENOENT;
	if (nodes[block].n_rows < cache->index.block_tokens)
		block = nodes[block].parent;
	if (block == BLOCK_NONE)
		return -EINVAL;
	for (uint32_t i = block; i != BLOCK_NONE; i = nodes[i].parent)
		tokens += nodes[i].n_rows;
	*ret_block = block;
	*ret_tokens = tokens;
	return 0;
}

int cache_pin(struct cache *cache, uint64_t id, bool make_public, uint32_t max_pinned,
	      uint64_t *ret_tokens)
{
	uint32_t block;
	int r = find_whole(cache, id, &block, ret_tokens);

	return r ? r : prefix_hold(&cache->index, block, make_public, max_pinned);
}

int cache_unpin(struct cache *cache, uint64_t id, uint64_t *ret_tokens)
{
	uint32_t block;
	int r = find_whole(cache, id, &block, ret_tokens);

	return r ? r : prefix_release(&cache->index, block);
}

int cache_flush(struct cache *cache, const struct cache_flush_what *what,
		struct prefix_flush_result *ret_result)
{
	uint32_t block;

	*ret_result = (struct prefix_flush_result){0};
	if (!cache_is_open(cache))
		return what->id ? -ENOENT : 0;
	if (what->all) {
		prefix_flush_all(&cache->index, ret_result);
	} else if (!what->id) {
		prefix_flush(&cache->index, what->domain, ret_result);
	} else {
		if (!cache_find(cache, what->id, &block))
			return -ENOENT;
		prefix_flush_chain(&cache->index, block, what->tree, ret_result);
	}
	return 0;
}

void cache_stats(const struct cache *cache, struct cache_stats *ret_stats)
{
	const struct block_pool *pool = &cache->pool;

	*ret_stats = (struct cache_stats){
		.counters = cache->index.counters,
		.n_blocks = pool->n_blocks,
		.n_free = pool->n_free,
		.n_cached = pool->n_cached - pool->n_cached_pinned,
		.n_active = pool->n_active + pool->n_cached_pinned,
		.n_pinned = pool->n_pinned,
	};
}
