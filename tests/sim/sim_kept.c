/* SPDX-License-Identifier: MIT */
/*
 * The cache over restarts, and what administrators do to it, by seed: see sim.h.
 *
 * Prefixes are held, made public, released and flushed at any time; the process dies, also
 * when the device has run a part of a step, and a later one takes back what the image has.
 * Some bytes of blocks and records were damaged meanwhile. Whatever is found then gives each
 * request the tokens that it gets alone. What was written down and is whole comes back, with
 * its holds.
 */
#include "daemon/cache/prefix_node.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the header of an image ends; what comes before is image_check()'s to compare. */
#define HEADER_BYTES 4096

struct kept {
	struct image_model model;
	void *map;
	size_t map_bytes;
	bool sound; /* no byte was ever damaged */
};

static struct kept_totals {
	uint64_t deaths, deaths_in_step, restored, damaged, lost;
	uint64_t holds, held_again, public, busy, flushes;
} totals;

static void kept_open(struct sim *sim)
{
	struct kept *kept;

	/* one of four has no image, and lives on */
	if (!rnd(sim, 4))
		return;
	kept = calloc(1, sizeof(*kept));
	ck_assert(kept);
	kept->model = cache_image_model(&sim->cache, &sim->model);
	kept->map_bytes = image_bytes(&kept->model);
	kept->map = calloc(1, kept->map_bytes);
	ck_assert(kept->map);
	image_format(kept->map, &kept->model, 5);
	ck_assert_int_eq(cache_keep(&sim->cache, kept->map, &kept->model, sim->mem), 0);
	kept->sound = true;
	sim->more = kept;
	sim->mortal = true;
}

static void kept_close(struct sim *sim)
{
	struct kept *kept = sim->more;

	if (!kept)
		return;
	free(kept->map);
	free(kept);
}

/* What happens to memory while nobody looks. */
static void damage(struct sim *sim, struct kept *kept)
{
	uint32_t off = (uint32_t)(kept->map_bytes - HEADER_BYTES);

	if (rnd(sim, 2))
		sim->mem[rnd(sim, sim->n_blocks * sim->bt)] ^= UINT64_C(1)
							       << rnd(sim, 64);
	else
		((uint8_t *)kept->map)[HEADER_BYTES + rnd(sim, off)] ^=
			(uint8_t)(1u << rnd(sim, 8));
	kept->sound = false;
	totals.damaged++;
}

/* Whether a block and all before it have their records, so that it comes back. */
static bool is_written(const struct sim *sim, uint32_t id)
{
	const struct prefix_index *index = &sim->cache.index;

	if (!block_pool_get(&sim->cache.pool, id)->indexed)
		return false;
	for (uint32_t n = index->node_of[id]; n != NODE_NONE; n = index->nodes[n].parent)
		if (!image_is_committed(&sim->cache.image, index->nodes[n].block))
			return false;
	return true;
}

/* The next process: everything but the fake's memory and the image is new. */
static void kept_dies(struct sim *sim, bool in_step)
{
	struct kept *kept = sim->more;
	struct prefix_restored restored;
	uint32_t n_written = 0, n_held = 0, n_held_again = 0;

	sim->die_after = UINT32_MAX;
	totals.deaths++;
	totals.deaths_in_step += in_step;
	for (uint32_t i = 0; i < sim->n_requests; i++) {
		sim->requests[i].finished = true;
		sim->requests[i].id = 0;
	}
	sim->n_pinned = 0;
	totals.lost += sim->cache.image.n_lost;
	/* an end in good order writes all down */
	if (!in_step && !rnd(sim, 3))
		(void)cache_save(&sim->cache, SIZE_MAX);
	for (uint32_t i = 0; i < sim->n_blocks; i++) {
		if (!is_written(sim, i))
			continue;
		n_written++;
		n_held += sim->cache.index.nodes[sim->cache.index.node_of[i]].pinned;
	}
	prefix_flush_end(&sim->flush);
	sched_clear_events(sim->sched);
	sched_free(sim->sched);
	cache_deinit(&sim->cache);
	if (!rnd(sim, 6))
		damage(sim, kept);

	sim_open_index(sim);
	ck_assert_int_eq(image_check(kept->map, kept->map_bytes, &kept->model), 0);
	ck_assert_int_eq(
		cache_restore(&sim->cache, kept->map, &kept->model, sim->mem, &restored),
		0);
	sim_open_sched(sim);
	sim_check(sim, !sched_check(sim->sched));
	for (uint32_t i = 0; i < sim->n_blocks; i++)
		n_held_again +=
			block_pool_get(&sim->cache.pool, i)->indexed &&
			sim->cache.index.nodes[sim->cache.index.node_of[i]].pinned;
	/* different blocks may have one short key, and only one of them comes back */
	if (kept->sound && sim->key_bits == 256)
		sim_check(sim, restored.restored == n_written && n_held_again == n_held);
	totals.restored += restored.restored;
	totals.held_again += n_held_again;
}

static void hold(struct sim *sim, uint32_t id)
{
	bool public = rnd(sim, 2);
	uint32_t max = rnd(sim, 2) ? sim->n_blocks : sim->n_blocks / 2 + 1;
	int r;

	if (node_is_partial(&sim->cache.index, sim->cache.index.node_of[id]))
		return;
	r = prefix_pin(&sim->cache.index, sim->cache.index.node_of[id], public, max);
	sim_check(sim, !r || r == -EDQUOT || (r == -EBUSY && public) || r == -ENOENT);
	totals.busy += r == -EBUSY;
	if (r)
		return;
	totals.holds++;
	totals.public += public;
	sim->ever_pinned = true;
	sim->have_public |= public;
}

static void release_one(struct sim *sim, uint32_t id)
{
	const struct prefix_index *index = &sim->cache.index;
	int r;

	for (uint32_t i = 0; i < sim->n_blocks; i++, id = (id + 1) % sim->n_blocks) {
		if (!block_pool_get(&sim->cache.pool, id)->indexed ||
		    !index->nodes[index->node_of[id]].pinned)
			continue;
		r = prefix_unpin(&sim->cache.index, index->node_of[id]);
		sim_check(sim, !r || (r == -ENOENT && index->doomed != NODE_NONE));
		return;
	}
}

static void kept_disturb(struct sim *sim)
{
	uint32_t id = rnd(sim, sim->n_blocks);
	bool indexed = block_pool_get(&sim->cache.pool, id)->indexed;

	switch (rnd(sim, 40)) {
	case 0:
	case 1:
		if (indexed && sim->seed % 4 == 1)
			hold(sim, id);
		break;
	case 2:
	case 3:
		release_one(sim, id);
		break;
	case 4:
	case 5:
		if (!indexed)
			break;
		if (sim->flush.index)
			break;
		prefix_flush_chain(&sim->cache.index, &sim->flush,
				   sim->cache.index.node_of[id], rnd(sim, 2));
		totals.flushes++;
		break;
	case 6:
		if (!sim->flush.index)
			prefix_flush_domain(&sim->cache.index, &sim->flush,
					    PREFIX_DOMAIN_PUBLIC);
		break;
	case 10:
	case 11:
	case 12:
		(void)cache_work(&sim->cache, 1 + rnd(sim, 60));
		break;
	case 7:
	case 8:
	case 9:
		(void)cache_save(&sim->cache, rnd(sim, 8) * sim->bt * sizeof(*sim->mem));
		break;
	}
}

static void kept_settle(struct sim *sim)
{
	while (cache_work(&sim->cache, 1))
		;
	for (uint32_t i = 0; i < sim->n_blocks; i++)
		if (block_pool_get(&sim->cache.pool, i)->indexed &&
		    sim->cache.index.nodes[sim->cache.index.node_of[i]].pinned)
			sim_check(sim, !prefix_unpin(&sim->cache.index,
						     sim->cache.index.node_of[i]));
}

static void check_totals(uint64_t n, const struct sim_totals *t)
{
	printf("%llu deaths, %llu of them in a step, %llu blocks restored, %llu damaged, "
	       "%llu blocks lost, %llu holds, %llu held again, %llu public, %llu busy, "
	       "%llu prefixes flushed\n",
	       (unsigned long long)totals.deaths,
	       (unsigned long long)totals.deaths_in_step,
	       (unsigned long long)totals.restored, (unsigned long long)totals.damaged,
	       (unsigned long long)totals.lost, (unsigned long long)totals.holds,
	       (unsigned long long)totals.held_again, (unsigned long long)totals.public,
	       (unsigned long long)totals.busy, (unsigned long long)totals.flushes);
	/* a simulation that never gets near these proves nothing about them */
	ck_assert(n < 2000 || (t->sched.copied_blocks && t->prefix.hit_tokens &&
			       totals.deaths_in_step && totals.restored && totals.lost &&
			       totals.held_again && totals.public && totals.flushes));
}

int main(int argc, char **argv)
{
	static const struct sim_kind kind = {
		.name = "sim-kept",
		.n_seeds = 12000,
		.open = kept_open,
		.close = kept_close,
		.disturb = kept_disturb,
		.settle = kept_settle,
		.dies = kept_dies,
	};

	return sim_main(argc, argv, &kind, check_totals);
}
