/* SPDX-License-Identifier: MIT */
/*
 * Which cached block goes first when the pool is full. Loop thread.
 *
 * Owns the order of the candidates, by block id, and what is remembered of blocks that went.
 * Knows no tokens, and never frees anything itself. A candidate is a block that is cached (in the
 * index, nobody holds it) and unpinned. Each is charged to its domain, and the victim is of the
 * domain that is charged most, so that nobody loses any of an even share while somebody has more;
 * the policy says which of the domain's. Every call costs O(1), or O(log n) for n domains with
 * candidates. The victim has no resident children.
 *
 *   pool: refs 1 -> 0 or last unpin     evict_insert(id, domain)
 *   pool: refs 0 -> 1, pin or unlink    evict_remove(id)
 *   prefix: published                   evict_admit(id, key)
 *   prefix: found by a request          evict_touch(id)
 *   prefix: a block is needed           evict_pick()  ->  id, evict_forget(id, key)
 */
#ifndef KVD_CACHE_EVICT_H
#define KVD_CACHE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#define EVICT_NONE UINT32_MAX

struct evict;

/* @insert, @remove: a block becomes a candidate, or stops being one. @pick: the next victim of a
 * domain that has candidates; childless, unless others hang theirs below it. Or NULL: @admit:
 * published under a key with these 64 bits; @touch: found by a request and held; @forget: picked,
 * not removed yet, leaves the index */
struct evict_policy {
	const char *name;
	void (*insert)(struct evict *evict, uint32_t id);
	void (*remove)(struct evict *evict, uint32_t id);
	uint32_t (*pick)(struct evict *evict, uint32_t group);
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

/* What a policy knows of a block: the list it goes to, or stands in. @group: of a candidate. */
struct evict_block {
	uint8_t list;
	uint8_t uses;
	uint32_t group;
};

/* A domain with @n candidates, @n_listed in each list. @place: in the heap. @next: of those with
 * equal hash, or of the free ones. */
struct evict_group {
	uint32_t domain;
	uint32_t n;
	uint32_t n_listed[EVICT_N_LISTS];
	uint32_t place;
	uint32_t next;
};

#define EVICT_DOMAIN_BUCKETS 256

/* A block that went: 32 bits of its key, number of the eviction (0: empty), where it stood. */
struct evict_ghost {
	uint32_t key;
	uint32_t when;
	uint8_t list;
};

/* @links: [n_blocks * (1 + EVICT_N_LISTS)], after those of the blocks the heads of each group's
 * lists. @blocks: [n_blocks]. @groups: [n_blocks]: @free_group, those after it, and those from
 * @n_used on are free; @heap: [n_groups] the others, the one that is charged most first; @domains:
 * the same by domain. @ghosts: [n_ghosts] by key, a power of two. @n_listed: candidates in each
 * list. @target: those that `recent` may keep while others would have to go. @n_evicted: from 1;
 * @n_ghosts_of: recent ones of each list. @is_leaf, @parent_of: of a block in @index, which sets
 * them */
struct evict {
	const struct evict_policy *policy;
	struct evict_link *links;
	struct evict_block *blocks;
	struct evict_group *groups;
	uint32_t *heap;
	uint32_t n_groups;
	uint32_t n_used;
	uint32_t free_group;
	uint32_t domains[EVICT_DOMAIN_BUCKETS];
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

void evict_insert(struct evict *evict, uint32_t id, uint32_t domain);
void evict_remove(struct evict *evict, uint32_t id);

/* Return: the next victim, or EVICT_NONE. */
uint32_t evict_pick(struct evict *evict);

/* Whether charges and order of the domains hold; O(n_blocks). @domain_of: of block id. */
bool evict_check(const struct evict *evict,
		 uint32_t (*domain_of)(const void *arg, uint32_t id), const void *arg);

/* For policies: the end of a list of the block's group, out of it, and its first or EVICT_NONE. */
void evict_list_append(struct evict *evict, enum evict_list list, uint32_t id);
void evict_list_remove(struct evict *evict, uint32_t id);
uint32_t evict_list_first(const struct evict *evict, uint32_t group,
			  enum evict_list list);

static inline bool evict_contains(const struct evict *evict, uint32_t id)
{
	return evict->links[id].prev != id;
}

/* Whether a later request has found the block. */
static inline bool evict_is_frequent(const struct evict *evict, uint32_t id)
{
	return evict->blocks[id].list == EVICT_FREQUENT;
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
