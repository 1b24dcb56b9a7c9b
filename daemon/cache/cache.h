/* SPDX-License-Identifier: MIT */
/*
 * The cache: a pool of blocks, the index of what they hold, and what of both outlives the process.
 *
 * Owns the book-keeping of one pool, made from a layout and an identity (that of a model, or of
 * whatever else fills blocks), not the bytes of the blocks, which belong to the backend. Pure
 * memory without I/O: the memory of an image is the caller's. Thread: loop.
 *
 * The scheduler works on @pool and @index by block.h and prefix.h. Everybody else names prefixes by
 * id, and asks here: the id of the prefix that ends at one block is valid while it is cached, also
 * over a warm restart, and is never given again.
 */
#ifndef KVD_CACHE_CACHE_H
#define KVD_CACHE_CACHE_H

#include "daemon/cache/block.h"
#include "daemon/cache/ids.h"
#include "daemon/cache/image.h"
#include "daemon/cache/prefix.h"
#include "daemon/cache/prefix_flush.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* @identity: everything besides tokens that makes the bytes of a block differ; borrowed. @n_nodes:
 * what may be known of, resident or not; 0: as much as there are blocks. @key_bits: 0: whole keys;
 * fewer bits in tests. @secret: of the keys, unless an image brings one */
struct cache_config {
	const struct prefix_model *identity;
	struct prefix_secret secret;
	size_t block_bytes;
	uint32_t n_blocks;
	const struct evict_policy *evict;
	uint32_t n_nodes;
	uint32_t key_bits;
};

/* @image: in use while index.image points here; @block_bytes: 0: the cache is not made. */
struct cache {
	struct block_pool pool;
	struct prefix_index index;
	struct image image;
	struct ids ids;
	struct prefix_flush drop;
	size_t block_bytes;
};

/* One prefix, by its end. @own_blocks: that no other prefix has; of a listing only. @readers:
 * running requests that hold its end. @pins: pinned prefixes that have its end, its own among them.
 * @frequent: a later request has found it */
struct cache_prefix_info {
	uint64_t id;
	uint64_t tokens;
	uint32_t domain;
	uint32_t own_blocks;
	uint32_t readers;
	uint32_t pins;
	bool frequent;
};

/* Who looks: @all, or @domain and what is pinned and public; of that who reads it, whether it was
 * found, and own_blocks are not told, since others do that. */
struct cache_view {
	bool all;
	uint32_t domain;
};

/* A prompt; the rest is as in the chain that a request would have. */
struct cache_query {
	const int32_t *tokens;
	uint32_t n_tokens;
	uint32_t domain;
	const void *salt;
	size_t salt_len;
	bool reads_public;
};

/* Blocks now, where a cached one that is pinned counts as active, and counters since start. */
struct cache_stats {
	struct prefix_counters counters;
	uint32_t n_blocks;
	uint32_t n_free;
	uint32_t n_cached;
	uint32_t n_active;
	uint32_t n_pinned;
};

/* All blocks free. Return: 0, -EINVAL, -ENOMEM. cache_deinit() is safe after failure. */
int cache_init(struct cache *cache, const struct cache_config *config);

/* Idempotent, and safe on all zeros. The memory of an image stays as it is. */
void cache_deinit(struct cache *cache);

static inline bool cache_is_open(const struct cache *cache)
{
	return cache->block_bytes > 0;
}

/* What an image of this cache would say. Strings are those of @identity, as in cache_init(). */
struct image_model cache_image_model(const struct cache *cache,
				     const struct prefix_model *identity);

/* Writes down from now on what is published, in @map, an image that was formatted; it and @blocks,
 * the pool's bytes, outlive the cache. Return: 0 or -ENOMEM. */
int cache_keep(struct cache *cache, void *map, const struct image_model *model,
	       const void *blocks);

/* As cache_keep(), and first takes back what the image, which was checked, says, its secret too. */
int cache_restore(struct cache *cache, void *map, const struct image_model *model,
		  const void *blocks, struct prefix_restored *ret_result);

/* Writes down what was published, @max_bytes of it. Return: blocks that are left. */
uint32_t cache_save(struct cache *cache, size_t max_bytes);

/* The longest cached prefix of a prompt. @ret_id: 0: none. Return: its tokens, or -ENOMEM. */
int32_t cache_lookup(struct cache *cache, const struct cache_query *query,
		     uint64_t *ret_id);

/* Return: false: there is no such prefix any more. */
bool cache_describe(const struct cache *cache, uint64_t id,
		    struct cache_prefix_info *ret_info);

/* A listing in hand, from cache_list_begin(). */
struct cache_list {
	struct cache_view view;
	uint32_t next;
	uint64_t end;
	uint64_t at;
	uint32_t own_blocks;
};

/* @after: 0, or from cache_list_place(). */
void cache_list_begin(const struct cache *cache, struct cache_list *list,
		      const struct cache_view *view, uint64_t after);

/* Where a later listing goes on, for clients. */
uint64_t cache_list_place(const struct cache *cache, const struct cache_list *list);

/* What cache_list_next() has: nothing more, an entry, or no more work to do it with. */
enum { CACHE_LIST_END, CACHE_LIST_ENTRY, CACHE_LIST_MORE };

/* The next prefix that nothing follows, or that is pinned, within @work, which is reduced. What is
 * published or goes meanwhile may be left out; all else is listed once. */
int cache_list_next(const struct cache *cache, struct cache_list *list, uint32_t *work,
		    struct cache_prefix_info *ret_info);

/* Keeps the whole blocks of a prefix until cache_unpin(). Return: 0; -ENOENT: it is no longer
 * cached; -EINVAL: it has no whole block; as prefix_pin(). */
int cache_pin(struct cache *cache, uint64_t id, bool make_public, uint32_t max_pinned,
	      uint64_t *ret_tokens);

/* Return: 0; -ENOENT: it is not pinned, or no longer cached; -EINVAL, -ENOMEM. */
int cache_unpin(struct cache *cache, uint64_t id, uint64_t *ret_tokens);

/* What is to be flushed: @all, else the prefix @id unless that is 0, else @domain. */
struct cache_flush_what {
	bool all;
	bool tree;
	uint64_t id;
	uint32_t domain;
};

/* Begins a flush: prefix_flush_step() does it. Return: 0; -ENOENT: no such prefix. */
int cache_flush(struct cache *cache, const struct cache_flush_what *what,
		struct prefix_flush *ret_flush);

/* Deferred work, @work of it. Return: whether there is more. */
bool cache_work(struct cache *cache, uint32_t work);

void cache_stats(const struct cache *cache, struct cache_stats *ret_stats);

#endif
