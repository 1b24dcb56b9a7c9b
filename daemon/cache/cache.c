/* SPDX-License-Identifier: MIT */
#include "daemon/cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/prefix_node.h"

int cache_init(struct cache *cache, const struct cache_config *config)
{
	int r;

	*cache = (struct cache){0};
	if (!config->block_bytes)
		return -EINVAL;
	r = block_pool_init(&cache->pool, config->n_blocks, config->evict);
	if (!r)
		r = prefix_init(&cache->index, &cache->pool, config->identity,
				&config->secret, config->n_nodes,
				config->key_bits ? config->key_bits : 256);
	if (r) {
		block_pool_deinit(&cache->pool);
		return r;
	}
	cache->block_bytes = config->block_bytes;
	r = ids_derive(&cache->ids, &cache->index.keyer);
	if (r)
		cache_deinit(cache);
	return r;
}

void cache_deinit(struct cache *cache)
{
	if (!cache_is_open(cache))
		return;
	prefix_flush_end(&cache->drop);
	image_deinit(&cache->image);
	prefix_deinit(&cache->index);
	block_pool_deinit(&cache->pool);
	cache->block_bytes = 0;
}

struct image_model cache_image_model(const struct cache *cache,
				     const struct prefix_model *identity)
{
	struct image_model model = {
		.base = cache->index.spaces[0].base,
		.secret = cache->index.keyer.secret,
		.k_format = identity->k_format,
		.v_format = identity->v_format,
		.backend = identity->backend,
		.block_bytes = cache->block_bytes,
		.n_blocks = cache->pool.n_blocks,
		.block_tokens = cache->index.spaces[0].block_tokens,
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
	struct prefix_keyer keyer = {0};
	struct ids ids;

	/* of the secret that comes back, before anything changes */
	if (!r)
		r = prefix_keyer_init(&keyer, image_secret(&cache->image), 256);
	if (!r)
		r = ids_derive(&ids, &keyer);
	prefix_keyer_deinit(&keyer);
	if (!r)
		r = prefix_restore(&cache->index, &cache->image, ret_result);
	if (r)
		image_deinit(&cache->image);
	else
		cache->ids = ids;
	return r;
}

uint32_t cache_save(struct cache *cache, size_t max_bytes)
{
	return cache_is_open(cache) ? prefix_save(&cache->index, max_bytes) : 0;
}

static uint64_t name_of(const struct cache *cache, uint32_t node)
{
	return (uint64_t)cache->index.nodes[node].life << 32 | node;
}

/* What clients know it by. */
static uint64_t cache_id(const struct cache *cache, uint32_t node)
{
	return ids_hide(&cache->ids, name_of(cache, node));
}

/* Return: false: it has gone. */
static bool find_name(const struct cache *cache, uint64_t name, uint32_t *ret_node)
{
	uint32_t node = (uint32_t)name;

	if (!cache_is_open(cache) || node >= cache->index.cap_nodes ||
	    !node_in_use(&cache->index, node) || name_of(cache, node) != name)
		return false;
	*ret_node = node;
	return true;
}

static bool cache_find(const struct cache *cache, uint64_t id, uint32_t *ret_node)
{
	return find_name(cache, ids_show(&cache->ids, id), ret_node);
}

int32_t cache_lookup(struct cache *cache, const struct cache_query *query,
		     uint64_t *ret_id)
{
	uint32_t n, bt = cache->index.spaces[0].block_tokens, block = BLOCK_NONE;
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
	if (prefix_key_root(&cache->index.keyer, &cache->index.spaces[0].base,
			    query->domain, NULL, 0, query->salt, query->salt_len,
			    &chain.root) < 0)
		found = -ENOMEM;
	for (n = 0; !found && n < chain.cap_keys; n++) {
		uint32_t next =
			prefix_find(&cache->index, &chain, query->tokens, n, block);

		if (next == BLOCK_NONE)
			break;
		block = next;
	}
	if (block != BLOCK_NONE) {
		*ret_id = cache_id(cache, cache->index.node_of[block]);
		found = (int32_t)(n * bt);
	}
	free(chain.keys);
	return found;
}

/* Whether who looks may know what becomes of it. */
static bool is_seen(const struct prefix_node *node, const struct cache_view *view)
{
	return view->all || node->domain == view->domain;
}

static void describe(const struct cache *cache, uint32_t id,
		     const struct cache_view *view, struct cache_prefix_info *ret_info)
{
	const struct prefix_index *index = &cache->index;
	const struct prefix_node *node = &index->nodes[id];

	*ret_info = (struct cache_prefix_info){
		.id = cache_id(cache, id),
		.tokens = node->n_tokens,
		.domain = node->domain,
		.pins = node_pins(index, id),
	};
	/* others read what is public as well */
	if (!is_seen(node, view))
		return;
	ret_info->readers = node_refs(index, id);
	ret_info->frequent = node_is_resident(index, id) &&
			     evict_is_frequent(&cache->pool.evict, node->block);
}

bool cache_describe(const struct cache *cache, uint64_t id,
		    struct cache_prefix_info *ret_info)
{
	uint32_t node;

	if (!cache_find(cache, id, &node))
		return false;
	describe(cache, node, &(struct cache_view){.all = true}, ret_info);
	return true;
}

static bool is_listed(const struct prefix_node *node, const struct cache_view *view)
{
	if (!node->n_rows)
		return false;
	if (is_seen(node, view))
		return !node->n_children || node->pinned;
	/* a child of somebody would take it out of the list */
	return node->domain == PREFIX_DOMAIN_PUBLIC && node->pinned;
}

/* Whether a prefix that ends at @end, alone, has @id. */
static bool is_own(const struct prefix_node *node, bool is_end)
{
	return is_end ? !node->n_children : node->n_children < 2 && !node->pinned;
}

void cache_list_begin(const struct cache *cache, struct cache_list *list,
		      const struct cache_view *view, uint64_t after)
{
	uint64_t next = ids_show(&cache->ids, after);

	*list = (struct cache_list){
		.view = *view,
		.next = next < UINT32_MAX ? (uint32_t)next : UINT32_MAX,
	};
}

uint64_t cache_list_place(const struct cache *cache, const struct cache_list *list)
{
	return ids_hide(&cache->ids, list->next);
}

int cache_list_next(const struct cache *cache, struct cache_list *list, uint32_t *work,
		    struct cache_prefix_info *ret_info)
{
	const struct prefix_index *index = &cache->index;
	uint32_t end, at;

	for (; *work >= PREFIX_LOOK_COST; *work -= PREFIX_LOOK_COST) {
		/* between two turns an entry may have gone, and its chain may have moved */
		if (list->end && !find_name(cache, list->end, &end))
			list->end = 0;
		if (list->end && find_name(cache, list->at, &at)) {
			const struct prefix_node *node = &index->nodes[at];

			if (is_seen(node, &list->view) && is_own(node, at == end)) {
				list->own_blocks++;
				if (node->parent != NODE_NONE) {
					list->at = name_of(cache, node->parent);
					continue;
				}
			}
		}
		if (list->end) {
			describe(cache, end, &list->view, ret_info);
			ret_info->own_blocks = list->own_blocks;
			list->end = 0;
			return CACHE_LIST_ENTRY;
		}
		if (list->next >= index->cap_nodes)
			return CACHE_LIST_END;
		at = list->next++;
		if (is_listed(&index->nodes[at], &list->view)) {
			list->end = list->at = name_of(cache, at);
			list->own_blocks = 0;
		}
	}
	return CACHE_LIST_MORE;
}

/* The last whole block of a prefix. Return: 0, -ENOENT, -EINVAL. */
static int find_whole(const struct cache *cache, uint64_t id, uint32_t *ret_node,
		      uint64_t *ret_tokens)
{
	uint32_t node;

	if (!cache_find(cache, id, &node) || !node_is_resident(&cache->index, node))
		return -ENOENT;
	if (node_is_partial(&cache->index, node))
		node = cache->index.nodes[node].parent;
	if (node == NODE_NONE)
		return -EINVAL;
	*ret_node = node;
	*ret_tokens = cache->index.nodes[node].n_tokens;
	return 0;
}

int cache_pin(struct cache *cache, uint64_t id, bool make_public, uint32_t max_pinned,
	      uint64_t *ret_tokens)
{
	uint32_t node;
	int r = find_whole(cache, id, &node, ret_tokens);

	return r ? r : prefix_pin(&cache->index, node, make_public, max_pinned);
}

int cache_unpin(struct cache *cache, uint64_t id, uint64_t *ret_tokens)
{
	uint32_t node;
	int r = find_whole(cache, id, &node, ret_tokens);

	return r ? r : prefix_unpin(&cache->index, node);
}

int cache_flush(struct cache *cache, const struct cache_flush_what *what,
		struct prefix_flush *ret_flush)
{
	uint32_t node;

	if (what->id && !cache_find(cache, what->id, &node))
		return -ENOENT;
	if (what->all)
		prefix_flush_all(&cache->index, ret_flush);
	else if (!what->id)
		prefix_flush_domain(&cache->index, ret_flush, what->domain);
	else
		prefix_flush_chain(&cache->index, ret_flush, node, what->tree);
	return 0;
}

bool cache_work(struct cache *cache, uint32_t work)
{
	return cache_is_open(cache) &&
	       prefix_drop_step(&cache->index, &cache->drop, work);
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
