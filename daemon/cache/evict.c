/* SPDX-License-Identifier: MIT */
#include "daemon/cache/evict.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int evict_init(struct evict *evict, const struct evict_policy *policy, uint32_t n_blocks)
{
	memset(evict, 0, sizeof(*evict));
	evict->n_ghosts = 1;
	/* half full when it remembers as many as the pool has blocks */
	while (evict->n_ghosts < 2 * (uint64_t)n_blocks && evict->n_ghosts < 1u << 31)
		evict->n_ghosts *= 2;
	/* each group has a candidate; what is never used is never touched */
	evict->links =
		calloc((size_t)n_blocks * (1 + EVICT_N_LISTS), sizeof(*evict->links));
	evict->blocks = calloc(n_blocks, sizeof(*evict->blocks));
	evict->groups = calloc(n_blocks, sizeof(*evict->groups));
	evict->heap = calloc(n_blocks, sizeof(*evict->heap));
	evict->ghosts = calloc(evict->n_ghosts, sizeof(*evict->ghosts));
	if (!evict->links || !evict->blocks || !evict->groups || !evict->heap ||
	    !evict->ghosts) {
		evict_deinit(evict);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_blocks; i++)
		evict->links[i] = (struct evict_link){i, i};
	for (uint32_t i = 0; i < EVICT_DOMAIN_BUCKETS; i++)
		evict->domains[i] = EVICT_NONE;
	evict->free_group = EVICT_NONE;
	evict->policy = policy;
	evict->n_blocks = n_blocks;
	evict->target = n_blocks / 2;
	return 0;
}

void evict_deinit(struct evict *evict)
{
	free(evict->links);
	free(evict->blocks);
	free(evict->groups);
	free(evict->heap);
	free(evict->ghosts);
	memset(evict, 0, sizeof(*evict));
}

/* --- groups, and a heap of them --------------------------------------------------------- */

static uint32_t charge(const struct evict *evict, uint32_t place)
{
	return evict->groups[evict->heap[place]].n;
}

static void heap_set(struct evict *evict, uint32_t place, uint32_t group)
{
	evict->heap[place] = group;
	evict->groups[group].place = place;
}

static void heap_up(struct evict *evict, uint32_t place)
{
	uint32_t group = evict->heap[place];

	for (; place && charge(evict, (place - 1) / 2) < evict->groups[group].n;
	     place = (place - 1) / 2)
		heap_set(evict, place, evict->heap[(place - 1) / 2]);
	heap_set(evict, place, group);
}

static void heap_down(struct evict *evict, uint32_t place)
{
	uint32_t group = evict->heap[place];

	for (;;) {
		uint32_t child = 2 * place + 1;

		if (child >= evict->n_groups)
			break;
		if (child + 1 < evict->n_groups &&
		    charge(evict, child + 1) > charge(evict, child))
			child++;
		if (charge(evict, child) <= evict->groups[group].n)
			break;
		heap_set(evict, place, evict->heap[child]);
		place = child;
	}
	heap_set(evict, place, group);
}

static uint32_t *domain_bucket(struct evict *evict, uint32_t domain)
{
	/* Knuth's multiplicative hash: uids of one machine tend to be neighbours */
	return &evict->domains[domain * UINT32_C(2654435761) >> 24];
}

static uint32_t group_head(const struct evict *evict, uint32_t group,
			   enum evict_list list)
{
	return evict->n_blocks + group * EVICT_N_LISTS + list;
}

static uint32_t group_find(struct evict *evict, uint32_t domain)
{
	uint32_t *bucket = domain_bucket(evict, domain), id = *bucket;

	while (id != EVICT_NONE && evict->groups[id].domain != domain)
		id = evict->groups[id].next;
	if (id != EVICT_NONE)
		return id;
	if (evict->free_group != EVICT_NONE) {
		id = evict->free_group;
		evict->free_group = evict->groups[id].next;
	} else {
		id = evict->n_used++;
	}
	assert(id < evict->n_blocks);
	evict->groups[id] = (struct evict_group){.domain = domain, .next = *bucket};
	*bucket = id;
	for (enum evict_list list = 0; list < EVICT_N_LISTS; list++) {
		uint32_t head = group_head(evict, id, list);

		evict->links[head] = (struct evict_link){head, head};
	}
	heap_set(evict, evict->n_groups++, id);
	return id;
}

/* It has no candidates left: it is the last one of the heap, or changes places with that. */
static void group_free(struct evict *evict, uint32_t id)
{
	struct evict_group *group = &evict->groups[id];
	uint32_t *link = domain_bucket(evict, group->domain);
	uint32_t last = evict->heap[--evict->n_groups];

	while (*link != id)
		link = &evict->groups[*link].next;
	*link = group->next;
	if (last != id) {
		heap_set(evict, group->place, last);
		heap_up(evict, evict->groups[last].place);
	}
	group->next = evict->free_group;
	evict->free_group = id;
}

void evict_insert(struct evict *evict, uint32_t id, uint32_t domain)
{
	evict->blocks[id].group = group_find(evict, domain);
	evict->policy->insert(evict, id);
}

void evict_remove(struct evict *evict, uint32_t id)
{
	uint32_t group = evict->blocks[id].group;

	evict->policy->remove(evict, id);
	if (!evict->groups[group].n)
		group_free(evict, group);
}

uint32_t evict_pick(struct evict *evict)
{
	uint32_t id, next = 1;

	if (!evict->n_groups)
		return EVICT_NONE;
	id = evict->policy->pick(evict, evict->heap[0]);
	if (evict->n_groups == 1 || !evict->is_leaf || evict->is_leaf(evict->index, id))
		return id;
	/* others have blocks below it: the one of them that is charged most */
	if (evict->n_groups > 2 && charge(evict, 2) > charge(evict, 1))
		next = 2;
	return evict->policy->pick(evict, evict->heap[next]);
}

bool evict_check(const struct evict *evict,
		 uint32_t (*domain_of)(const void *arg, uint32_t id), const void *arg)
{
	uint32_t n_candidates = 0, n_sum = 0;

	for (uint32_t i = 0; i < evict->n_blocks; i++) {
		const struct evict_group *group = &evict->groups[evict->blocks[i].group];

		if (!evict_contains(evict, i))
			continue;
		n_candidates++;
		if (group->domain != domain_of(arg, i) ||
		    group->place >= evict->n_groups ||
		    evict->heap[group->place] != evict->blocks[i].group)
			return false;
	}
	for (uint32_t i = 0; i < evict->n_groups; i++) {
		const struct evict_group *group = &evict->groups[evict->heap[i]];
		uint32_t n_listed = 0;

		for (enum evict_list list = 0; list < EVICT_N_LISTS; list++)
			n_listed += group->n_listed[list];
		if (!group->n || n_listed != group->n || group->place != i ||
		    group->n > charge(evict, i ? (i - 1) / 2 : 0))
			return false;
		n_sum += group->n;
	}
	return n_sum == n_candidates && n_candidates == evict->n_candidates;
}

/* --- lists ------------------------------------------------------------------------------ */

void evict_list_append(struct evict *evict, enum evict_list list, uint32_t id)
{
	struct evict_block *block = &evict->blocks[id];
	struct evict_link *links = evict->links;
	uint32_t head = group_head(evict, block->group, list);
	uint32_t tail = links[head].prev;

	assert(id < evict->n_blocks && !evict_contains(evict, id));
	links[id] = (struct evict_link){.prev = tail, .next = head};
	links[tail].next = id;
	links[head].prev = id;
	block->list = (uint8_t)list;
	evict->n_listed[list]++;
	evict->n_candidates++;
	evict->groups[block->group].n_listed[list]++;
	evict->groups[block->group].n++;
	heap_up(evict, evict->groups[block->group].place);
}

void evict_list_remove(struct evict *evict, uint32_t id)
{
	struct evict_block *block = &evict->blocks[id];
	struct evict_link *links = evict->links;

	assert(id < evict->n_blocks && evict_contains(evict, id));
	links[links[id].prev].next = links[id].next;
	links[links[id].next].prev = links[id].prev;
	links[id] = (struct evict_link){id, id};
	evict->n_listed[block->list]--;
	evict->n_candidates--;
	evict->groups[block->group].n_listed[block->list]--;
	evict->groups[block->group].n--;
	heap_down(evict, evict->groups[block->group].place);
}

uint32_t evict_list_first(const struct evict *evict, uint32_t group, enum evict_list list)
{
	uint32_t head = group_head(evict, group, list);
	uint32_t id = evict->links[head].next;

	return id == head ? EVICT_NONE : id;
}

static void lru_insert(struct evict *evict, uint32_t id)
{
	evict_list_append(evict, EVICT_RECENT, id);
}

static uint32_t lru_pick(struct evict *evict, uint32_t group)
{
	return evict_list_first(evict, group, EVICT_RECENT);
}

/* Plain least recently used; the measure of others. */
const struct evict_policy evict_lru = {
	.name = "lru",
	.insert = lru_insert,
	.remove = evict_list_remove,
	.pick = lru_pick,
};
