/* SPDX-License-Identifier: MIT */
/*
 * Which cached block goes first when the pool is full.
 *
 * Owns: the order of the candidates, by block id, and what is remembered of blocks that
 * went. Lives on the loop thread, knows no tokens or domains, and never frees anything
 * itself: block_pool_ and prefix_ call it. A candidate is a block that is cached (in the
 * index, nobody holds it) and unpinned.
 *
 *   pool: refs 1 -> 0 or last unpin     evict_insert(id)
 *   pool: refs 0 -> 1, pin or unlink    evict_remove(id)
 *   prefix: published                   evict_admit(id, key)
 *   prefix: found by a request          evict_touch(id)
 *   prefix: a block is needed           evict_pick()  ->  id, evict_forget(id, key)
 *
 * Every call costs O(1). The victim has no children in the index: a prefix goes leaf first.
 *
 * evict_adaptive, which kvd uses, is ARC (Megiddo and Modha, FAST 2003) for trees. Two
 * lists, each from the block released longest ago to the latest:
 *
 *   recent    [ b2 of request 1 ][ b1 of request 1 ]   computed, and not asked for again
 *   frequent  [ b7 ][ b3 ][ b0 ]                       found by another request since, or
 *                                                      computed again soon after it went
 *
 * A flood of one-off prompts runs through `recent` and leaves `frequent` alone. How many blocks
 * `recent` may keep is learned: @target rises when a block that went from `recent` is computed
 * again (it went too early), and falls when one that went from `frequent` is.
 * What went is remembered by 32 bits of its key, as long as the pool has blocks; a false
 * memory costs a wrong guess, nothing more.
 *
 * Why the victim is always a leaf. A holder of a block holds its parents, gives blocks back
 * last to first, and finds a child only by its parent. So of a candidate and its parent:
 *
 *   1. in one list the child stands before the parent: it was released earlier;
 *   2. parent in `recent` => child in `recent`: every touch of a child touches the parent, and
 *      insert raises the parent of a child that is in `frequent` by memory alone.
 *
 * By both, the head of `recent` is a leaf. If the head of `frequent` is none, its children are in
 * `recent`, which so is not empty, and its head goes instead. prefix_evict() asserts it.
 *
 * Chosen by measurement: `./dev bench evict`, table in docs/architecture.md.
 */
#ifndef KVD_CACHE_EVICT_H
#define KVD_CACHE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#define EVICT_NONE UINT32_MAX

struct evict;

/**
 * struct evict_policy - one way to choose
 * @name: for people
 * @insert: @id became a candidate; it is none now
 * @remove: @id stops being a candidate; it is one now
 * @pick: the next victim, a childless candidate; EVICT_NONE when there is none
 * @admit: @id was published under a key with these 64 bits; it is no candidate; or NULL
 * @touch: @id was found by a request and is held; or NULL
 * @forget: @id, picked and not removed yet, leaves the index; or NULL
 */
struct evict_policy {
	const char *name;
	void (*insert)(struct evict *evict, uint32_t id);
	void (*remove)(struct evict *evict, uint32_t id);
	uint32_t (*pick)(struct evict *evict);
	void (*admit)(struct evict *evict, uint32_t id, uint64_t key);
	void (*touch)(struct evict *evict, uint32_t id);
	void (*forget)(struct evict *evict, uint32_t id, uint64_t key);
};

extern const struct evict_policy evict_lru;
extern const struct evict_policy evict_adaptive;

/* Links of one block; prev == id of itself means: in no list. */
struct evict_link {
	uint32_t prev;
	uint32_t next;
};

enum evict_list { EVICT_RECENT, EVICT_FREQUENT, EVICT_N_LISTS };

/**
 * struct evict_block - what a policy knows of a block
 * @list: enum evict_list that it goes to, or stands in
 * @uses: free for the policy
 */
struct evict_block {
	uint8_t list;
	uint8_t uses;
};

/**
 * struct evict_ghost - a block that went
 * @key: 32 bits of its key
 * @when: number of the eviction; 0: empty
 * @list: where it stood
 */
struct evict_ghost {
	uint32_t key;
	uint32_t when;
	uint8_t list;
};

/**
 * struct evict - candidates of one pool
 * @policy: how the order is kept
 * @links: [n_blocks + EVICT_N_LISTS]; the last ones are the heads of the lists
 * @blocks: [n_blocks]
 * @ghosts: [n_ghosts] by key, a power of two
 * @n_blocks: size of the pool
 * @n_candidates: how many stand in the lists; @n_listed: in each
 * @target: candidates that `recent` may keep while others would have to go
 * @n_evicted: evictions so far, from 1
 * @n_ghosts_of: how many of the last n_blocks evictions were of each list
 * @is_leaf: whether the block has no children; by the index, of blocks that it knows
 * @parent_of: its parent or EVICT_NONE; likewise
 * @index: first argument of both
 */
struct evict {
	const struct evict_policy *policy;
	struct evict_link *links;
	struct evict_block *blocks;
	struct evict_ghost *ghosts;
	uint32_t n_ghosts;
	uint32_t n_blocks;
	uint32_t n_candidates;
	uint32_t n_listed[EVICT_N_LISTS];
	uint32_t target;
	uint32_t n_evicted;
	uint32_t n_ghosts_of[EVICT_N_LISTS];
	bool (*is_leaf)(const void *index, uint32_t id);
	uint32_t (*parent_of)(const void *index, uint32_t id);
	const void *index;
};

/* Return: 0 or -ENOMEM. */
int evict_init(struct evict *evict, const struct evict_policy *policy, uint32_t n_blocks);
void evict_deinit(struct evict *evict);

/* For policies: the end of a list, out of it, and its first block or EVICT_NONE. */
void evict_list_append(struct evict *evict, enum evict_list list, uint32_t id);
void evict_list_remove(struct evict *evict, uint32_t id);
uint32_t evict_list_first(const struct evict *evict, enum evict_list list);

/* Whether @id is a candidate. */
static inline bool evict_contains(const struct evict *evict, uint32_t id)
{
	return evict->links[id].prev != id;
}

/* Whether a later request has found the block. */
static inline bool evict_is_frequent(const struct evict *evict, uint32_t id)
{
	return evict->blocks[id].list == EVICT_FREQUENT;
}

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

static inline void evict_admit(struct evict *evict, uint32_t id, uint64_t key)
{
	if (evict->policy->admit)
		evict->policy->admit(evict, id, key);
}

static inline void evict_touch(struct evict *evict, uint32_t id)
{
	if (evict->policy->touch)
		evict->policy->touch(evict, id);
}

static inline void evict_forget(struct evict *evict, uint32_t id, uint64_t key)
{
	if (evict->policy->forget)
		evict->policy->forget(evict, id, key);
}

#endif
