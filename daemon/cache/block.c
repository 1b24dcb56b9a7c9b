/* SPDX-License-Identifier: MIT */
#include "daemon/cache/block.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int block_pool_init(struct block_pool *pool, uint32_t n_blocks,
		    const struct evict_policy *policy)
{
	int r;

	memset(pool, 0, sizeof(*pool));
	if (!n_blocks || n_blocks > INT32_MAX)
		return -EINVAL;
	pool->blocks = calloc(n_blocks, sizeof(*pool->blocks));
	if (!pool->blocks)
		return -ENOMEM;
	r = evict_init(&pool->evict, policy, n_blocks);
	if (r < 0) {
		free(pool->blocks);
		pool->blocks = NULL;
		return r;
	}
	for (uint32_t i = 0; i < n_blocks; i++) {
		pool->blocks[i].domain = BLOCK_DOMAIN_ZERO;
		pool->blocks[i].next_free = i + 1 < n_blocks ? i + 1 : BLOCK_NONE;
	}
	pool->n_blocks = n_blocks;
	pool->n_free = n_blocks;
	return 0;
}

void block_pool_deinit(struct block_pool *pool)
{
	if (pool->blocks)
		evict_deinit(&pool->evict);
	free(pool->blocks);
	memset(pool, 0, sizeof(*pool));
}

static struct block *pool_block(struct block_pool *pool, uint32_t id)
{
	assert(id < pool->n_blocks);
	return &pool->blocks[id];
}

static void pool_put_free(struct block_pool *pool, uint32_t id)
{
	struct block *b = &pool->blocks[id];

	assert(!b->refs && !b->pins && !b->indexed);
	b->state = BLOCK_FREE;
	b->next_free = pool->free_head;
	pool->free_head = id;
	pool->n_free++;
}

int block_pool_take(struct block_pool *pool, uint32_t domain, uint64_t owner,
		    uint32_t *ret_id)
{
	uint32_t id = pool->free_head;
	struct block *b;
	bool zero;

	if (!pool->n_free)
		return BLOCK_POOL_DRY;
	b = pool_block(pool, id);
	assert(b->state == BLOCK_FREE && !b->refs && !b->pins && !b->indexed);
	pool->free_head = b->next_free;
	pool->n_free--;
	pool->n_active++;

	zero = b->tainted || b->kept ||
	       (b->domain != domain && b->domain != BLOCK_DOMAIN_ZERO);
	b->state = BLOCK_ACTIVE;
	b->refs = 1;
	b->used = true;
	b->domain = domain;
	b->owner = owner;
	b->tainted = false;
	b->kept = false;
	*ret_id = id;
	return zero ? BLOCK_NEEDS_ZERO : 0;
}

void block_pool_ref(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(b->state != BLOCK_FREE && b->refs < UINT32_MAX);
	if (b->refs++)
		return;
	if (b->pins)
		pool->n_cached_pinned--;
	else
		evict_remove(&pool->evict, id);
	b->state = BLOCK_ACTIVE;
	pool->n_cached--;
	pool->n_active++;
}

void block_pool_unref(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(b->state == BLOCK_ACTIVE && b->refs);
	if (--b->refs)
		return;
	pool->n_active--;
	if (!b->indexed) {
		pool_put_free(pool, id);
		return;
	}
	b->state = BLOCK_CACHED;
	pool->n_cached++;
	if (b->pins)
		pool->n_cached_pinned++;
	else
		evict_insert(&pool->evict, id, b->domain);
}

void block_pool_pin(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(b->indexed && b->pins < UINT32_MAX);
	if (b->pins++)
		return;
	pool->n_pinned++;
	if (b->state == BLOCK_CACHED) {
		evict_remove(&pool->evict, id);
		pool->n_cached_pinned++;
	}
}

void block_pool_unpin(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(b->indexed && b->pins);
	if (--b->pins)
		return;
	pool->n_pinned--;
	if (b->state == BLOCK_CACHED) {
		pool->n_cached_pinned--;
		evict_insert(&pool->evict, id, b->domain);
	}
}

void block_pool_set_indexed(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(b->state == BLOCK_ACTIVE && !b->indexed);
	b->indexed = true;
}

void block_pool_clear_indexed(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(b->indexed && !b->pins);
	b->indexed = false;
	if (b->state == BLOCK_CACHED) {
		evict_remove(&pool->evict, id);
		pool->n_cached--;
		pool_put_free(pool, id);
	}
}

void block_pool_set_domain(struct block_pool *pool, uint32_t id, uint32_t domain)
{
	struct block *b = pool_block(pool, id);

	assert(b->indexed);
	if (!evict_contains(&pool->evict, id)) {
		b->domain = domain;
		return;
	}
	evict_remove(&pool->evict, id);
	b->domain = domain;
	evict_insert(&pool->evict, id, domain);
}

void block_pool_taint(struct block_pool *pool, uint32_t id)
{
	struct block *b = pool_block(pool, id);

	assert(!b->indexed);
	b->tainted = true;
}

void block_pool_revive(struct block_pool *pool, uint32_t id, uint32_t domain)
{
	struct block *b = pool_block(pool, id);

	assert(b->state == BLOCK_FREE);
	b->state = BLOCK_CACHED;
	b->indexed = true;
	b->domain = domain;
	b->used = true;
	b->owner = 0;
	b->kept = true;
	pool->n_free--;
	pool->n_cached++;
	evict_insert(&pool->evict, id, b->domain);
}

void block_pool_distrust(struct block_pool *pool, uint32_t id, bool used)
{
	struct block *b = pool_block(pool, id);

	assert(b->state == BLOCK_FREE);
	b->used = used;
	b->kept = true;
}

void block_pool_relist(struct block_pool *pool)
{
	uint32_t *at = &pool->free_head;

	for (uint32_t i = 0; i < pool->n_blocks; i++) {
		if (pool->blocks[i].state != BLOCK_FREE)
			continue;
		*at = i;
		at = &pool->blocks[i].next_free;
	}
	*at = BLOCK_NONE;
}

static uint32_t domain_of(const void *arg, uint32_t id)
{
	const struct block_pool *pool = arg;

	return pool->blocks[id].domain;
}

static bool block_valid(const struct block_pool *pool, uint32_t id)
{
	const struct block *b = &pool->blocks[id];
	bool candidate = evict_contains(&pool->evict, id);

	if (b->pins && !b->indexed)
		return false;
	if (candidate != (b->state == BLOCK_CACHED && !b->pins))
		return false;
	switch (b->state) {
	case BLOCK_FREE:
		return !b->refs && !b->indexed;
	case BLOCK_ACTIVE:
		return b->refs;
	case BLOCK_CACHED:
		return !b->refs && b->indexed && !b->tainted;
	default:
		return false;
	}
}

/*
 * The equations:
 *
 *   n_free + n_cached + n_active = n_blocks
 *   state free   <=>  on the free list  =>  refs = 0, pins = 0, not indexed
 *   state cached <=>  refs = 0 and indexed
 *   state active <=>  refs > 0
 *   pins > 0      =>  indexed
 *   candidate of evict  <=>  cached and pins = 0
 *   n_evictable() = n_cached - n_cached_pinned = evict.n_candidates
 *   evict.n_candidates = sum over domains of the candidates that it is charged for
 */
int block_pool_check(const struct block_pool *pool)
{
	uint32_t n[3] = {0}, n_pinned = 0, n_cached_pinned = 0, n_listed = 0;

	for (uint32_t i = 0; i < pool->n_blocks; i++) {
		const struct block *b = &pool->blocks[i];

		if (!block_valid(pool, i))
			return -EINVAL;
		n[b->state]++;
		n_pinned += !!b->pins;
		n_cached_pinned += b->pins && b->state == BLOCK_CACHED;
	}
	for (uint32_t id = pool->free_head; n_listed < pool->n_free; n_listed++) {
		if (id >= pool->n_blocks || pool->blocks[id].state != BLOCK_FREE)
			return -EINVAL;
		id = pool->blocks[id].next_free;
	}
	if (n[BLOCK_FREE] != pool->n_free || n[BLOCK_ACTIVE] != pool->n_active ||
	    n[BLOCK_CACHED] != pool->n_cached)
		return -EINVAL;
	if (pool->n_free + pool->n_cached + pool->n_active != pool->n_blocks)
		return -EINVAL;
	if (n_pinned != pool->n_pinned || n_cached_pinned != pool->n_cached_pinned)
		return -EINVAL;
	if (pool->evict.n_candidates != block_pool_n_evictable(pool) ||
	    !evict_check(&pool->evict, domain_of, pool))
		return -EINVAL;
	return 0;
}
