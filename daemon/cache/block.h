/* SPDX-License-Identifier: MIT */
/*
 * The block pool: who holds which of the blocks 0 .. n_blocks - 1. Loop thread.
 *
 * Owns the book-keeping of every block, not its bytes, which the backend finds at base + id *
 * block_bytes. Relies on evict.h for the order of cached blocks. Does not know keys or tokens
 * (prefix.h) nor sequences (seq.h).
 *
 *                   take                    refs >= 1
 *      +------+ ----------------------> +--------+ <--- ref, unref while refs > 1
 *      | free |                         | active |
 *      +------+ <---------------------- +--------+
 *         ^      last unref, not in        |   ^
 *         |      the index        last     |   | ref (a hit)
 *         |                       unref,   v   |
 *         |                       in the  +--------+
 *         +---------------------- index   | cached |  refs = 0, in the index
 *            drop from the index          +--------+
 *            (evicted or flushed)
 */
#ifndef KVD_CACHE_BLOCK_H
#define KVD_CACHE_BLOCK_H

#include "daemon/cache/evict.h"

#include <stdbool.h>
#include <stdint.h>

#define BLOCK_NONE UINT32_MAX

/* The bytes are all zero: nobody's. Not a uid: (uid_t)-1 is none. */
#define BLOCK_DOMAIN_ZERO UINT32_MAX

enum block_state { BLOCK_FREE, BLOCK_ACTIVE, BLOCK_CACHED };

/* Named conditions of block_pool_take() and prefix_take(). */
enum {
	BLOCK_NEEDS_ZERO = 1, /* taken, but it holds another domain's bytes */
	BLOCK_POOL_DRY = 2,   /* no block is free */
};

/* @refs: sequences that hold it; @pins: reasons not to evict it. @domain: whose bytes it holds,
 * also while it is free, or BLOCK_DOMAIN_ZERO. @owner: label of the process whose request computed
 * it. @indexed: the prefix index can find it. @used: it was taken before, or by a former process.
 * Zeroed before use: @tainted: its bytes are unknown, since a step failed; @kept: they are older
 * than this process, to which domains may have other numbers */
struct block {
	uint32_t refs;
	uint32_t pins;
	uint32_t domain;
	uint64_t owner;
	uint32_t next_free;
	uint8_t state;
	bool indexed;
	bool used;
	bool tainted;
	bool kept;
};

struct block_pool {
	struct block *blocks;
	struct evict evict;
	uint32_t n_blocks;
	uint32_t n_free;
	uint32_t n_active;
	uint32_t n_cached;
	uint32_t n_pinned;
	uint32_t n_cached_pinned;
	uint32_t free_head;
};

/* All of 1 .. 2^31 - 1 blocks free, their bytes taken for zero. Return: 0, -EINVAL, -ENOMEM. */
int block_pool_init(struct block_pool *pool, uint32_t n_blocks,
		    const struct evict_policy *policy);
void block_pool_deinit(struct block_pool *pool);

/* A free block becomes active with one reference. Return: 0; BLOCK_NEEDS_ZERO: taken too, and the
 * caller has the bytes zeroed before anything else touches them; BLOCK_POOL_DRY. */
int block_pool_take(struct block_pool *pool, uint32_t domain, uint64_t owner,
		    uint32_t *ret_id);

/* One reference more to an active or cached block, or less: the last unref leaves it cached if it
 * is indexed, else free. */
void block_pool_ref(struct block_pool *pool, uint32_t id);

void block_pool_unref(struct block_pool *pool, uint32_t id);

/* Only an indexed block can be pinned; prefix_pin() pins the chain above it as well. */
void block_pool_pin(struct block_pool *pool, uint32_t id);
void block_pool_unpin(struct block_pool *pool, uint32_t id);

/* The index finds an active block, or forgets an unpinned one; a cached one becomes free. */
void block_pool_set_indexed(struct block_pool *pool, uint32_t id);
void block_pool_clear_indexed(struct block_pool *pool, uint32_t id);
void block_pool_set_domain(struct block_pool *pool, uint32_t id, uint32_t domain);

/* Blocks of a former process, a child before its parent: one becomes cached, with its domain, or
 * stays free with bytes of anybody. Then the free list is made again. For prefix_image.c. */
void block_pool_revive(struct block_pool *pool, uint32_t id, uint32_t domain);
void block_pool_distrust(struct block_pool *pool, uint32_t id, bool used);
void block_pool_relist(struct block_pool *pool);

/* The step that was to write it failed: its bytes count as another domain's. */
void block_pool_taint(struct block_pool *pool, uint32_t id);

static inline const struct block *block_pool_get(const struct block_pool *pool,
						 uint32_t id)
{
	return &pool->blocks[id];
}

/* Blocks that eviction can free, one after the other. */
static inline uint32_t block_pool_n_evictable(const struct block_pool *pool)
{
	return pool->n_cached - pool->n_cached_pinned;
}

/* Blocks that can be handed out without taking any from a sequence. */
static inline uint32_t block_pool_n_available(const struct block_pool *pool)
{
	return pool->n_free + block_pool_n_evictable(pool);
}

/* Whether every equation holds; O(n_blocks). Return: 0, or -EINVAL. */
int block_pool_check(const struct block_pool *pool);

#endif
