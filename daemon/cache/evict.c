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
	evict->links = calloc((size_t)n_blocks + EVICT_N_LISTS, sizeof(*evict->links));
	evict->blocks = calloc(n_blocks, sizeof(*evict->blocks));
	evict->ghosts = calloc(evict->n_ghosts, sizeof(*evict->ghosts));
	if (!evict->links || !evict->blocks || !evict->ghosts) {
		evict_deinit(evict);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_blocks + EVICT_N_LISTS; i++)
		evict->links[i] = (struct evict_link){i, i};
	evict->policy = policy;
	evict->n_blocks = n_blocks;
	evict->target = n_blocks / 2;
	return 0;
}

void evict_deinit(struct evict *evict)
{
	free(evict->links);
	free(evict->blocks);
	free(evict->ghosts);
	memset(evict, 0, sizeof(*evict));
}

void evict_list_append(struct evict *evict, enum evict_list list, uint32_t id)
{
	struct evict_link *links = evict->links;
	uint32_t head = evict->n_blocks + list;
	uint32_t tail = links[head].prev;

	assert(id < evict->n_blocks && !evict_contains(evict, id));
	links[id] = (struct evict_link){.prev = tail, .next = head};
	links[tail].next = id;
	links[head].prev = id;
	evict->blocks[id].list = (uint8_t)list;
	evict->n_listed[list]++;
	evict->n_candidates++;
}

void evict_list_remove(struct evict *evict, uint32_t id)
{
	struct evict_link *links = evict->links;

	assert(id < evict->n_blocks && evict_contains(evict, id));
	links[links[id].prev].next = links[id].next;
	links[links[id].next].prev = links[id].prev;
	links[id] = (struct evict_link){id, id};
	evict->n_listed[evict->blocks[id].list]--;
	evict->n_candidates--;
}

uint32_t evict_list_first(const struct evict *evict, enum evict_list list)
{
	uint32_t head = evict->n_blocks + list;
	uint32_t id = evict->links[head].next;

	return id == head ? EVICT_NONE : id;
}

static void lru_insert(struct evict *evict, uint32_t id)
{
	evict_list_append(evict, EVICT_RECENT, id);
}

static uint32_t lru_pick(struct evict *evict)
{
	return evict_list_first(evict, EVICT_RECENT);
}

/* Plain least recently used; the measure of others. */
const struct evict_policy evict_lru = {
	.name = "lru",
	.insert = lru_insert,
	.remove = evict_list_remove,
	.pick = lru_pick,
};
