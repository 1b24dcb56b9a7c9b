/* SPDX-License-Identifier: MIT */
/*
 * The image of the pool: an index is rebuilt from what a process left, and from what was damaged
 * since. What is found then is right, or is not found.
 */
#include "tests/unit/cache/kept_world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Private, salted, public, below public, held: a bit of all. */
static void populate(struct world *w)
{
	struct holder u;

	world_ask(w, &u, ALICE, "", true, 0, 2, 4);
	ck_assert_int_eq(prefix_pin(&w->index, w->index.node_of[u.table.ids[1]], true, 8),
			 0);
	holder_deinit(&w->index, &u);
	visit(w, BOB, "", true, 1, 2, 5);
	visit(w, BOB, "", true, 2, 2, 3);
	visit(w, BOB, "salt", false, 3, 1, 3);
	world_ask(w, &u, BOB, "named", false, 4, 0, 3);
	ck_assert_int_eq(
		prefix_pin(&w->index, w->index.node_of[u.table.ids[2]], false, 8), 0);
	holder_deinit(&w->index, &u);
	save_all(w);
}

START_TEST(everything_comes_back)
{
	struct world a, b;
	struct prefix_restored r;
	uint32_t id;

	world_new(&a, 32);
	populate(&a);
	r = world_restart(&b, &a);
	ck_assert_uint_eq(r.restored, a.index.n_nodes);
	ck_assert_uint_eq(r.dropped, 0);
	ck_assert_uint_eq(b.index.n_public, 2);
	ck_assert_uint_eq(b.pool.n_pinned, a.pool.n_pinned);
	/* the keys stay, and so does the secret that they follow from */
	ck_assert_mem_ne(&b.model.secret, &a.model.secret, sizeof(b.model.secret));
	ck_assert_mem_eq(&b.index.keyer.secret, &a.model.secret, sizeof(b.model.secret));
	for (uint32_t i = 0; i < 32; i++) {
		ck_assert_uint_eq(b.pool.blocks[i].indexed, a.pool.blocks[i].indexed);
		if (a.pool.blocks[i].indexed) {
			uint32_t node = a.index.node_of[i];

			/* a name stays */
			ck_assert_uint_eq(b.index.node_of[i], node);
			ck_assert_uint_eq(b.index.nodes[node].life,
					  a.index.nodes[node].life);
			ck_assert_uint_eq(b.index.nodes[node].n_tokens,
					  a.index.nodes[node].n_tokens);
			ck_assert_uint_eq(b.pool.blocks[i].domain,
					  a.pool.blocks[i].domain);
			ck_assert_uint_eq(b.index.nodes[b.index.node_of[i]].pinned,
					  a.index.nodes[a.index.node_of[i]].pinned);
		}
	}
	/* and is not given again */
	ck_assert_uint_eq(b.index.lives, a.index.lives);
	/* to each his own */
	ck_assert_uint_eq(visit(&b, ALICE, "", true, 0, 2, 4), 4);
	ck_assert_uint_eq(visit(&b, BOB, "", true, 1, 2, 5), 5);
	ck_assert_uint_eq(visit(&b, BOB, "salt", false, 3, 1, 3), 3);
	ck_assert_uint_eq(visit(&b, BOB, "named", false, 4, 0, 3), 3);
	ck_assert_uint_eq(visit(&b, ALICE, "", true, 1, 2, 5), 2);
	ck_assert_uint_eq(visit(&b, BOB, "", false, 4, 0, 3), 0);
	ck_assert_uint_eq(b.image.n_bad, 0);
	world_close(&b, true);
	/* what a former process had is zeroed for anybody, and what was free then too */
	world_restart(&b, &a);
	for (uint32_t i = 0; i < 32; i++)
		if (block_pool_get(&b.pool, i)->indexed &&
		    b.index.nodes[b.index.node_of[i]].pinned)
			ck_assert_int_eq(prefix_unpin(&b.index, b.index.node_of[i]), 0);
	for (uint32_t i = 0; i < 32; i++)
		ck_assert_int_eq(prefix_take(&b.index, i % 2 ? ALICE : BOB, 1, &id),
				 BLOCK_NEEDS_ZERO);
	for (uint32_t i = 0; i < 32; i++)
		block_pool_unref(&b.pool, i);
	/* and once only */
	ck_assert_int_eq(prefix_take(&b.index, b.pool.blocks[31].domain, 1, &id), 0);
	block_pool_unref(&b.pool, id);
	world_close(&b, true);
	world_close(&a, false);
}
END_TEST

/* Two users' equal prefixes, both pinned for all: what is pinned comes back pinned. */
START_TEST(public_twins_come_back)
{
	struct world a, b;
	struct holder u, v;
	uint32_t end;

	world_new(&a, 32);
	world_ask(&a, &u, ALICE, "", true, 0, 2, 3);
	world_ask(&a, &v, BOB, "", true, 0, 2, 5);
	end = v.table.ids[4];
	save_all(&a);
	ck_assert_int_eq(prefix_pin(&a.index, a.index.node_of[u.table.ids[2]], true, 30),
			 0);
	ck_assert_int_eq(prefix_pin(&a.index, a.index.node_of[v.table.ids[2]], true, 30),
			 0);
	ck_assert_uint_eq(a.pool.n_pinned, 3);
	for (uint32_t n = 3; n <= 5; n += 2) {
		struct prefix_restored r = world_restart(&b, &a);

		ck_assert_uint_eq(r.restored, a.index.n_nodes);
		ck_assert_uint_eq(r.dropped, 0);
		ck_assert_uint_eq(b.pool.n_pinned, n);
		ck_assert_uint_eq(b.index.n_public, n);
		ck_assert_uint_eq(visit(&b, 3000, "", true, 0, 2, 5), n);
		ck_assert_uint_eq(b.image.n_bad, 0);
		world_close(&b, true);
		if (n == 5)
			break;
		holder_deinit(&a.index, &u);
		holder_deinit(&a.index, &v);
		ck_assert_int_eq(prefix_pin(&a.index, a.index.node_of[end], true, 30), 0);
	}
	world_close(&a, false);
}
END_TEST

START_TEST(what_was_not_written_down_is_a_miss)
{
	struct world a, b;
	struct holder u;

	world_new(&a, 16);
	world_ask(&a, &u, ALICE, "", false, 0, 0, 6);
	/* parents first, as many as may be read; one at least */
	ck_assert_uint_eq(prefix_save(&a.index, 0), 5);
	ck_assert_uint_eq(prefix_save(&a.index, 2 * BYTES - 1), 4);
	ck_assert_uint_eq(world_restart(&b, &a).restored, 2);
	ck_assert_uint_eq(visit(&b, ALICE, "", false, 0, 0, 6), 2);
	world_close(&b, true);
	ck_assert_uint_eq(prefix_save(&a.index, 3 * BYTES), 1);
	save_all(&a);
	holder_deinit(&a.index, &u);
	ck_assert_uint_eq(world_restart(&b, &a).restored, 6);
	world_close(&b, true);
	/* gone while it waited, and its place taken by another */
	visit(&a, BOB, "", false, 1, 0, 4);
	while (prefix_evict(&a.index, 1))
		;
	visit(&a, BOB, "", false, 2, 0, 4);
	save_all(&a);
	ck_assert_uint_eq(world_restart(&b, &a).restored, 4);
	ck_assert_uint_eq(visit(&b, BOB, "", false, 2, 0, 4), 4);
	world_close(&b, true);
	world_close(&a, false);
}
END_TEST

/* A block that was written down once is so again when it has other tokens, or a hold. */
START_TEST(what_changes_is_written_again)
{
	struct world a, b;
	struct holder u;

	world_new(&a, 4);
	visit(&a, BOB, "", false, 1, 0, 4);
	save_all(&a);
	while (prefix_evict(&a.index, 1))
		;
	ck_assert_uint_eq(world_restart(&b, &a).restored, 0);
	world_close(&b, true);
	world_ask(&a, &u, BOB, "", false, 2, 0, 4);
	save_all(&a);
	ck_assert_int_eq(prefix_pin(&a.index, a.index.node_of[u.table.ids[1]], false, 4),
			 0);
	holder_deinit(&a.index, &u);
	ck_assert_uint_eq(world_restart(&b, &a).restored, 4);
	ck_assert_uint_eq(b.pool.n_pinned, 2);
	ck_assert_uint_eq(visit(&b, BOB, "", false, 2, 0, 4), 4);
	world_close(&b, true);
	world_close(&a, false);
}
END_TEST

/* Nor are the rows that another would copy out of such a block. */
START_TEST(rows_of_wrong_bytes_are_a_miss)
{
	struct world a, b;
	struct holder u;

	world_new(&a, 8);
	world_ask(&a, &u, ALICE, "", false, 0, 0, 2);
	save_all(&a);
	for (uint32_t hurt = 0; hurt < 2; hurt++) {
		uint32_t id = u.table.ids[1], n_rows;

		a.blocks[id * BYTES + 5] ^= (uint8_t)hurt;
		world_restart(&b, &a);
		ck_assert_uint_eq(
			prefix_find(&b.index, &u.chain, u.tokens, 0, BLOCK_NONE),
			u.table.ids[0]);
		id = prefix_find_rows(&b.index, &u.chain, u.tokens, 1, u.table.ids[0],
				      BT - 1, &n_rows);
		ck_assert_uint_eq(id, hurt ? BLOCK_NONE : u.table.ids[1]);
		ck_assert_uint_eq(n_rows, hurt ? 0 : BT - 1);
		ck_assert_uint_eq(b.image.n_bad, hurt);
		/* found no more, and gone soon */
		ck_assert_uint_eq(b.index.n_nodes, 2);
		ck_assert_int_eq(prefix_check(&b.index), 0);
		drop_all(&b.index);
		ck_assert_uint_eq(b.index.n_nodes, 2 - hurt);
		world_close(&b, true);
	}
	holder_deinit(&a.index, &u);
	world_close(&a, false);
}
END_TEST

START_TEST(wrong_bytes_are_a_miss)
{
	struct world a, b;

	world_new(&a, 32);
	populate(&a);
	for (uint32_t i = 0; i < 32; i++) {
		bool was = block_pool_get(&a.pool, i)->indexed;

		a.blocks[i * BYTES + i] ^= 1;
		world_restart(&b, &a);
		believe_all(&b);
		ck_assert_uint_eq(b.image.n_bad, was);
		ck_assert(b.image.n_lost >= b.image.n_bad);
		visit(&b, ALICE, "", true, 0, 2, 4);
		visit(&b, BOB, "", true, 1, 2, 5);
		visit(&b, BOB, "named", false, 4, 0, 3);
		world_close(&b, true);
		a.blocks[i * BYTES + i] ^= 1;
	}
	world_close(&a, false);
}
END_TEST

START_TEST(the_least_used_goes_first)
{
	static const uint32_t left[] = {4, 2, 4};
	struct world a, b;

	world_new(&a, 12);
	for (uint32_t seed = 0; seed < 3; seed++)
		visit(&a, ALICE, "", false, seed, 0, 4);
	ck_assert_uint_eq(visit(&a, ALICE, "", false, 0, 0, 4), 4);
	save_all(&a);
	ck_assert_uint_eq(world_restart(&b, &a).restored, 12);
	ck_assert_uint_eq(b.pool.evict.n_listed[EVICT_FREQUENT], 4);
	/* leaf first, of the one asked for longest ago */
	ck_assert_uint_eq(prefix_evict(&b.index, 2), 2);
	for (uint32_t seed = 0; seed < 3; seed++)
		ck_assert_uint_eq(visit(&b, ALICE, "", false, seed, 0, left[seed]),
				  left[seed]);
	ck_assert_uint_eq(visit(&b, ALICE, "", false, 1, 0, 3), 2);
	world_close(&b, true);
	world_close(&a, false);
}
END_TEST

START_TEST(another_model_is_refused)
{
	struct world w;
	struct image_model m;

	world_new(&w, 8);
	ck_assert_int_eq(image_check(w.map, w.map_bytes, &w.model), 0);
	ck_assert_uint_eq(image_generation(w.map), 77);
#define REFUSED(change, condition)                                                       \
	do {                                                                             \
		m = w.model;                                                             \
		change;                                                                  \
		ck_assert_int_eq(image_check(w.map, w.map_bytes, &m), condition);        \
		ck_assert_uint_gt(strlen(image_condition_text(condition)), 10);          \
	} while (0)
	REFUSED(m.fingerprint[3]++, IMAGE_OTHER_MODEL);
	REFUSED(m.base.bytes[31]++, IMAGE_OTHER_MODEL);
	REFUSED(m.k_format = "int4", IMAGE_OTHER_FORMAT);
	REFUSED(m.v_format = "int8", IMAGE_OTHER_FORMAT);
	REFUSED(m.backend = "cpu-2", IMAGE_OTHER_BACKEND);
	REFUSED(m.n_blocks = 9, IMAGE_OTHER_SIZE);
	REFUSED(m.block_tokens = 8, IMAGE_OTHER_SIZE);
	REFUSED(m.block_bytes = 128, IMAGE_OTHER_SIZE);
	ck_assert_int_eq(image_check(w.map, 100, &w.model), IMAGE_DAMAGED);
	ck_assert_int_eq(image_check(w.map, w.map_bytes - 64, &w.model),
			 IMAGE_OTHER_SIZE);
	memset(w.map, 0, 8);
	ck_assert_int_eq(image_check(w.map, w.map_bytes, &w.model), IMAGE_DAMAGED);
	world_close(&w, false);
}
END_TEST

START_TEST(starts_that_fail_are_counted)
{
	struct world w;

	world_new(&w, 8);
	image_succeed(w.map);
	for (int i = 0; i < IMAGE_MAX_ATTEMPTS; i++) {
		ck_assert_int_eq(image_check(w.map, w.map_bytes, &w.model), 0);
		image_begin(w.map, 78);
	}
	ck_assert_uint_eq(image_generation(w.map), 78);
	ck_assert_int_eq(image_check(w.map, w.map_bytes, &w.model), IMAGE_CRASHES);
	image_succeed(w.map);
	ck_assert_int_eq(image_check(w.map, w.map_bytes, &w.model), 0);
	world_close(&w, false);
}
END_TEST

START_TEST(only_the_same_file_is_recalled)
{
	const struct image_file file = {1, 2, 3, 4, 5};
	uint8_t got[32], *header;
	uint32_t n_recalled = 0;
	struct world w;

	world_new(&w, 8);
	image_succeed(w.map);
#define RECALLS(f) image_recall(w.map, w.map_bytes, f, got)
	ck_assert(!RECALLS(&file));
	ck_assert(!RECALLS(&(struct image_file){0}));
	image_note_file(w.map, &file);
	ck_assert(RECALLS(&file));
	ck_assert_mem_eq(got, common.fingerprint, 32);
	ck_assert(!RECALLS((&(struct image_file){0, 2, 3, 4, 5})));
	ck_assert(!RECALLS((&(struct image_file){1, 0, 3, 4, 5})));
	ck_assert(!RECALLS((&(struct image_file){1, 2, 0, 4, 5})));
	ck_assert(!RECALLS((&(struct image_file){1, 2, 3, 0, 5})));
	ck_assert(!RECALLS((&(struct image_file){1, 2, 3, 4, 0})));
	ck_assert(!image_recall(w.map, 100, &file, got));
	/* whatever the damage, no other fingerprint; all but two counters are covered */
	header = w.map;
	for (size_t i = 0; i < 256; i++) {
		header[i] ^= 2;
		if (RECALLS(&file)) {
			ck_assert_mem_eq(got, common.fingerprint, 32);
			n_recalled++;
		}
		header[i] ^= 2;
	}
	ck_assert_uint_le(n_recalled, 2 * 8 + 256 - 248);
	for (int i = 0; i < IMAGE_MAX_ATTEMPTS; i++) {
		ck_assert(RECALLS(&file));
		image_begin(w.map, 78);
	}
	ck_assert(!RECALLS(&file));
	image_succeed(w.map);
	ck_assert(RECALLS(&file));
	image_note_file(w.map, NULL);
	ck_assert(!RECALLS(&file));
	ck_assert(!RECALLS(&(struct image_file){0}));
	world_close(&w, false);
}
END_TEST

static uint64_t rng;

static uint32_t roll(uint32_t n)
{
	rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(rng >> 33) % n;
}

/* As who knows the format would: a commit word that is right for what the record says now. */
static void forge(struct world *w, uint32_t id)
{
	struct image_record *r = image_record(&w->image, id);

	r->commit = XXH3_64bits_withSeed((uint8_t *)r + 8, w->image.record_bytes - 8, id);
}

/* Damages one thing. Return: what it was, for the message. */
static const char *damage(struct world *w)
{
	uint32_t id = roll(w->n_blocks), other = roll(w->n_blocks);
	struct image_record *r = image_record(&w->image, id);
	uint8_t *all = w->map;

	switch (roll(12)) {
	case 0:
		all[roll((uint32_t)w->map_bytes)] ^= (uint8_t)(1 << roll(8));
		return "a bit";
	case 1:
		memset(all + roll((uint32_t)w->map_bytes - 64), (int)roll(256), 64);
		return "64 bytes";
	case 2:
		w->blocks[roll(w->n_blocks * BYTES)] ^= (uint8_t)(1 + roll(255));
		return "a block's bytes";
	case 3:
		memcpy(r, image_record(&w->image, other), w->image.record_bytes);
		return "a record copied over another";
	case 4:
		memcpy(r, image_record(&w->image, other), w->image.record_bytes);
		forge(w, id);
		return "a record copied and made right";
	case 5:
		r->parent = roll(4) ? roll(w->n_blocks + 2) : BLOCK_NONE;
		forge(w, id);
		return "a forged parent";
	case 6:
		r->domain = roll(2)   ? ALICE
			    : roll(2) ? PREFIX_DOMAIN_PUBLIC
				      : BLOCK_DOMAIN_ZERO;
		forge(w, id);
		return "a forged domain";
	case 7:
		r->tokens[roll(BT)] =
			(int32_t)(roll(3) ? roll(100000) : UINT32_MAX - roll(9));
		forge(w, id);
		return "forged tokens";
	case 8:
		r->flags ^= 1u << roll(32);
		forge(w, id);
		return "forged flags";
	case 9:
		memcpy(w->blocks + id * BYTES, w->blocks + other * BYTES, BYTES);
		return "bytes of another block";
	case 10:
		w->image.uses[id] = (uint64_t)roll(UINT32_MAX) << 33 | roll(UINT32_MAX);
		return "a use";
	default:
		((uint8_t *)&r->life)[roll(16)] ^= (uint8_t)(1 + roll(255));
		r->key.bytes[roll(32)] ^= (uint8_t)roll(2);
		forge(w, id);
		return "forged fields";
	}
}

START_TEST(damage_is_never_believed)
{
	const char *seed = getenv("KVD_IMAGE_SEED");
	uint64_t first = seed ? strtoull(seed, NULL, 0) : 1;
	uint32_t n = seed ? 1 : 3000;
	struct world a;

	world_new(&a, 32);
	populate(&a);
	for (uint32_t i = 0; i < n; i++) {
		struct world hurt = a, b;
		uint32_t n_hurts;

		seed_now = first + i;
		rng = seed_now * UINT64_C(0x9e3779b97f4a7c15);
		n_hurts = 1 + roll(4);
		hurt.map = malloc(a.map_bytes);
		hurt.blocks = malloc((size_t)a.n_blocks * BYTES);
		ck_assert(hurt.map && hurt.blocks);
		memcpy(hurt.map, a.map, a.map_bytes);
		memcpy(hurt.blocks, a.blocks, (size_t)a.n_blocks * BYTES);
		hurt.image.records =
			(uint8_t *)hurt.map + (a.image.records - (uint8_t *)a.map);
		hurt.image.uses = (void *)((uint8_t *)hurt.map +
					   ((uint8_t *)a.image.uses - (uint8_t *)a.map));
		while (n_hurts--)
			damage(&hurt);
		if (!image_check(hurt.map, hurt.map_bytes, &a.model)) {
			world_restart(&b, &hurt);
			ck_assert_msg(
				!block_pool_check(&b.pool) && !prefix_check(&b.index),
				"KVD_IMAGE_SEED=%llu", (unsigned long long)seed_now);
			if (roll(2))
				believe_all(&b);
			visit(&b, ALICE, "", true, 0, 2, 4);
			visit(&b, BOB, "", true, 1, 2, 5);
			visit(&b, BOB, "salt", false, 3, 1, 3);
			visit(&b, BOB, "named", false, 4, 0, 3);
			visit(&b, ALICE, "", false, 100 + i, 0, 8);
			believe_all(&b);
			world_close(&b, true);
		}
		free(hurt.map);
		free(hurt.blocks);
	}
	world_close(&a, false);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("image");

	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, everything_comes_back);
	tcase_add_test(tcase, public_twins_come_back);
	tcase_add_test(tcase, what_was_not_written_down_is_a_miss);
	tcase_add_test(tcase, what_changes_is_written_again);
	tcase_add_test(tcase, rows_of_wrong_bytes_are_a_miss);
	tcase_add_test(tcase, wrong_bytes_are_a_miss);
	tcase_add_test(tcase, the_least_used_goes_first);
	tcase_add_test(tcase, another_model_is_refused);
	tcase_add_test(tcase, starts_that_fail_are_counted);
	tcase_add_test(tcase, only_the_same_file_is_recalled);
	tcase_add_test(tcase, damage_is_never_believed);
	return run_case("image", tcase);
}
