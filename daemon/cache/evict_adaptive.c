/* SPDX-License-Identifier: MIT */
/*
 * This is ARC (Megiddo and Modha, FAST 2003) for trees, chosen by measurement: `./dev bench evict`,
 * table in docs/architecture.md. Two lists for each domain, each from the block released longest
 * ago to the latest:
 *
 *   recent    [ b2 of request 1 ][ b1 of request 1 ]   computed, and not asked for again
 *   frequent  [ b7 ][ b3 ][ b0 ]                       found by another request since, or
 *                                                      computed again soon after it went
 *
 * A flood of one-off prompts runs through `recent` and leaves `frequent` alone. How many blocks
 * `recent` may keep is learned: @target rises when a block that went from `recent` is computed
 * again (it went too early), and falls when one that went from `frequent` is. What went is
 * remembered by 32 bits of its key, as long as the pool has blocks; a false memory costs a wrong
 * guess, nothing more.
 *
 * Why the victim is always a leaf. A holder of a block holds its parents, gives blocks back last to
 * first, and finds a child only by its parent. So of a candidate and its parent:
 *
 *   1. in one list the child stands before the parent: it was released earlier;
 *   2. parent in `recent` => child in `recent`: every touch of a child touches the parent, and
 *      insert raises the parent of a child that is in `frequent` by memory alone.
 *
 * By both, the head of `recent` is a leaf. If the head of `frequent` is none, its children are in
 * `recent`, which so is not empty, and its head goes instead. prefix_evict() asserts it.
 *
 * A child of another domain than its parent's hangs below a public block. Such a parent may be the
 * head of its domain's lists; then evict_pick() takes from another domain, whose head is a leaf.
 */
#include "daemon/cache/evict.h"

#include <assert.h>

static struct evict_ghost *ghost_place(struct evict *evict, uint64_t key)
{
	return &evict->ghosts[(uint32_t)(key >> 32) & (evict->n_ghosts - 1)];
}

/* Whether it is one of the last n_blocks that went. */
static bool ghost_valid(const struct evict *evict, const struct evict_ghost *ghost)
{
	return ghost->when && evict->n_evicted - ghost->when < evict->n_blocks;
}

static void adaptive_insert(struct evict *evict, uint32_t id)
{
	uint32_t parent;

	if (evict->blocks[id].list == EVICT_FREQUENT && evict->parent_of) {
		parent = evict->parent_of(evict->index, id);
		if (parent != EVICT_NONE && !evict_contains(evict, parent))
			evict->blocks[parent].list = EVICT_FREQUENT;
	}
	evict_list_append(evict, evict->blocks[id].list, id);
}

/* Whether `recent` has more than its part of the domain's candidates: the target's of all. */
static bool recent_is_long(const struct evict *evict, uint32_t group)
{
	const struct evict_group *g = &evict->groups[group];

	return (uint64_t)g->n_listed[EVICT_RECENT] * evict->n_candidates >
	       (uint64_t)evict->target * g->n;
}

static uint32_t adaptive_pick(struct evict *evict, uint32_t group)
{
	uint32_t recent = evict_list_first(evict, group, EVICT_RECENT);
	uint32_t frequent = evict_list_first(evict, group, EVICT_FREQUENT);

	if (frequent == EVICT_NONE)
		return recent;
	if (recent != EVICT_NONE &&
	    (recent_is_long(evict, group) || !evict->is_leaf(evict->index, frequent)))
		return recent;
	return frequent;
}

/*
 * How far one mistake moves the target. Where `recent` has lost more blocks than `frequent`, a
 * mistake with one of the few of `frequent` weighs more, and the other way round.
 */
static uint32_t step_of(uint32_t other, uint32_t own)
{
	return own && other > own ? other / own : 1;
}

static void adaptive_admit(struct evict *evict, uint32_t id, uint64_t key)
{
	struct evict_ghost *ghost = ghost_place(evict, key);
	uint32_t recent = evict->n_ghosts_of[EVICT_RECENT];
	uint32_t frequent = evict->n_ghosts_of[EVICT_FREQUENT];
	uint32_t step;

	evict->blocks[id] = (struct evict_block){.list = EVICT_RECENT};
	if (ghost->key != (uint32_t)key || !ghost_valid(evict, ghost))
		return;
	evict->blocks[id].list = EVICT_FREQUENT;
	if (ghost->list == EVICT_RECENT) {
		step = step_of(frequent, recent);
		evict->target = evict->n_blocks - evict->target > step
					? evict->target + step
					: evict->n_blocks;
	} else {
		step = step_of(recent, frequent);
		evict->target = evict->target > step ? evict->target - step : 0;
	}
	ghost->when = 0;
}

static void adaptive_touch(struct evict *evict, uint32_t id)
{
	assert(!evict_contains(evict, id));
	evict->blocks[id].list = EVICT_FREQUENT;
}

static void adaptive_forget(struct evict *evict, uint32_t id, uint64_t key)
{
	uint8_t list = evict->blocks[id].list;

	if (!++evict->n_evicted)
		evict->n_evicted = 1;
	/* a share that fades with the pool's size is as good as an exact count */
	if (++evict->n_ghosts_of[list] > evict->n_blocks / 2) {
		evict->n_ghosts_of[EVICT_RECENT] /= 2;
		evict->n_ghosts_of[EVICT_FREQUENT] /= 2;
	}
	*ghost_place(evict, key) = (struct evict_ghost){
		.key = (uint32_t)key,
		.when = evict->n_evicted,
		.list = list,
	};
}

const struct evict_policy evict_adaptive = {
	.name = "adaptive",
	.insert = adaptive_insert,
	.remove = evict_list_remove,
	.pick = adaptive_pick,
	.admit = adaptive_admit,
	.touch = adaptive_touch,
	.forget = adaptive_forget,
};
