/* SPDX-License-Identifier: MIT */
#include "daemon/cache/evict.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int evict_init(struct evict *evict, const struct evict_policy *policy, uint32_t n_blocks)
{
	memset(evict, 0, sizeof(*evict));
	evict->links = calloc((size_t)n_blocks + 1, sizeof(*evict->links));
	if (!evict->links)
		return -ENOMEM;
	for (uint32_t i = 0; i <= n_blocks; i++)
		evict->links[i] = (struct evict_link){i, i};
	evict->policy = policy;
	evict->n_blocks = n_blocks;
	return 0;
}

void evict_deinit(struct evict *evict)
{
	free(evict->links);
	memset(evict, 0, sizeof(*evict));
}

static bool lru_contains(const struct evict *evict, uint32_t id)
{
	return evict->links[id].prev != id;
}

static void lru_insert(struct evict *evict, uint32_t id)
{
	struct evict_link *links = evict->links;
	uint32_t head = evict->n_blocks;
	uint32_t tail = links[head].prev;

	assert(id < evict->n_blocks && !lru_contains(evict, id));
	links[id] = (struct evict_link){.prev = tail, .next = head};
	links[tail].next = id;
	links[head].prev = id;
	evict->n_candidates++;
}

static void lru_remove(struct evict *evict, uint32_t id)
{
	struct evict_link *links = evict->links;

	assert(id < evict->n_blocks && lru_contains(evict, id));
	links[links[id].prev].next = links[id].next;
	links[links[id].next].prev = links[id].prev;
	links[id] = (struct evict_link){id, id};
	evict->n_candidates--;
}

static uint32_t lru_pick(struct evict *evict)
{
	uint32_t id = evict->links[evict->n_blocks].next;

	return id == evict->n_blocks ? EVICT_NONE : id;
}

const struct evict_policy evict_lru = {
	.name = "lru",
	.insert = lru_insert,
	.remove = lru_remove,
	.pick = lru_pick,
	.contains = lru_contains,
};
