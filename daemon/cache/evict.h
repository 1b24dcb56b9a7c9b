/* SPDX-License-Identifier: MIT */
/*
 * Which cached block goes first when the pool is full.
 *
 * Owns: the order of the candidates, by block id. Lives on the loop thread, knows no
 * tokens, keys or domains, and never frees anything itself: block_pool_ and prefix_ call
 * it. A candidate is a block that is cached (in the index, nobody holds it) and unpinned.
 *
 *   pool: refs 1 -> 0 or last unpin     evict_insert(id)
 *   pool: refs 0 -> 1, pin or unlink    evict_remove(id)
 *   prefix: a block is needed           evict_pick()  ->  id, then evict_remove(id)
 *
 * Leaf first: the victim must have no children in the index. LRU gets that for free from
 * the order in which callers release: a sequence gives its blocks back last to first, and
 * holds every parent of a block that it holds. So
 *
 *   for each candidate c whose parent p is a candidate:  c stands before p
 *
 *   head (oldest)                                              tail (newest)
 *   [ b2 of request 1 ] [ b1 of request 1 ] [ b3 of request 2 ] [ b0 of both ]
 *
 * and the head of the list is always a leaf; every call costs O(1). prefix_evict() asserts
 * it. A policy with another order is given is_leaf() to find one.
 */
#ifndef KVD_CACHE_EVICT_H
#define KVD_CACHE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#define EVICT_NONE UINT32_MAX

struct evict;

/**
 * struct evict_policy - one way to choose
 * @name: as in the configuration
 * @insert: @id became a candidate; it is none now
 * @remove: @id stops being a candidate; it is one now
 * @pick: the next victim, a childless candidate; EVICT_NONE when there is none
 * @contains: whether @id is a candidate
 */
struct evict_policy {
	const char *name;
	void (*insert)(struct evict *evict, uint32_t id);
	void (*remove)(struct evict *evict, uint32_t id);
	uint32_t (*pick)(struct evict *evict);
	bool (*contains)(const struct evict *evict, uint32_t id);
};

extern const struct evict_policy evict_lru;

/* Links of one block; prev == id of itself means: not in the list. */
struct evict_link {
	uint32_t prev;
	uint32_t next;
};

/**
 * struct evict - candidates of one pool
 * @policy: how the order is kept
 * @links: [n_blocks + 1]; the last one is the list's head
 * @n_blocks: size of the pool
 * @n_candidates: how many stand in the order
 * @is_leaf: whether the block has no children; set by prefix_init()
 * @leaf_data: first argument of @is_leaf
 */
struct evict {
	const struct evict_policy *policy;
	struct evict_link *links;
	uint32_t n_blocks;
	uint32_t n_candidates;
	bool (*is_leaf)(const void *leaf_data, uint32_t id);
	const void *leaf_data;
};

/* Return: 0 or -ENOMEM. */
int evict_init(struct evict *evict, const struct evict_policy *policy, uint32_t n_blocks);
void evict_deinit(struct evict *evict);

static inline void evict_insert(struct evict *evict, uint32_t id)
{
	evict->policy->insert(evict, id);
}

static inline void evict_remove(struct evict *evict, uint32_t id)
{
	evict->policy->remove(evict, id);
}

static inline uint32_t evict_pick(struct evict *evict)
{
	return evict->policy->pick(evict);
}

static inline bool evict_contains(const struct evict *evict, uint32_t id)
{
	return evict->policy->contains(evict, id);
}

#endif
