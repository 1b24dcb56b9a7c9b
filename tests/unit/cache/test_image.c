/* SPDX-License-Identifier: MIT */
/*
 * The image of the pool: an index is rebuilt from what a process left that died at any
 * instruction, and from what was damaged since. What is found then is right, or is not found.
 *
 * The bytes of a block are a function of the tokens up to its end, as with a model, so that
 * each block that is believed can be compared with what it has to hold.
 */
#include "daemon/cache/image.h"
#include "daemon/cache/prefix_node.h"
#include "daemon/cache/seq.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#define BT         4
#define MAX_BLOCKS 8
#define BYTES      64
#define ALICE      1000
#define BOB        1001

/* Of the damage in hand; 0: none. */
static uint64_t seed_now;

struct world {
	struct block_pool pool;
	struct prefix_index index;
	struct image image;
	struct image_model model;
	uint32_t n_blocks;
	size_t map_bytes;
	void *map;
	uint8_t *blocks;
};

static const struct prefix_model common = {
	.fingerprint = {1, 2, 3},
	.k_format = "int8",
	.v_format = "fp16",
	.backend = "cpu-1",
	.rope = "neox 10000",
	.block_tokens = BT,
};

/* What block @i of these tokens holds. */
static void fill(const int32_t *tokens, uint32_t i, uint8_t *bytes)
{
	uint64_t x = XXH3_64bits(tokens, (i + 1) * BT * sizeof(*tokens));

	for (uint32_t k = 0; k < BYTES; k++) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		bytes[k] = (uint8_t)(x >> 56);
	}
}

/* Index and pool over memory that is there; the image is not touched yet. */
static void world_open(struct world *w, uint32_t n_blocks, void *map, uint8_t *blocks)
{
	memset(w, 0, sizeof(*w));
	w->n_blocks = n_blocks;
	ck_assert_int_eq(block_pool_init(&w->pool, n_blocks, &evict_adaptive), 0);
	ck_assert_int_eq(prefix_init(&w->index, &w->pool, &common, 256), 0);
	w->model = (struct image_model){
		.base = w->index.keyer.base,
		.k_format = common.k_format,
		.v_format = common.v_format,
		.backend = common.backend,
		.block_bytes = BYTES,
		.n_blocks = n_blocks,
		.block_tokens = BT,
	};
	memcpy(w->model.fingerprint, common.fingerprint, sizeof(common.fingerprint));
	w->map_bytes = image_bytes(&w->model);
	w->map = map;
	w->blocks = blocks;
}

static void *shared(size_t size)
{
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);

	ck_assert_ptr_ne(map, MAP_FAILED);
	return map;
}

/* As a first start does. */
static void world_new(struct world *w, uint32_t n_blocks)
{
	world_open(w, n_blocks, NULL, NULL);
	w->map = shared(w->map_bytes);
	w->blocks = shared((size_t)n_blocks * BYTES);
	image_format(w->map, &w->model, 77);
	ck_assert_int_eq(image_init(&w->image, w->map, &w->model, w->blocks), 0);
	w->index.image = &w->image;
}

/* As a later start does, over a copy of what @from left. */
static struct prefix_restored world_restart(struct world *w, const struct world *from)
{
	struct prefix_restored r;

	world_open(w, from->n_blocks, NULL, NULL);
	w->map = malloc(w->map_bytes);
	w->blocks = malloc((size_t)w->n_blocks * BYTES);
	ck_assert(w->map && w->blocks);
	memcpy(w->map, from->map, w->map_bytes);
	memcpy(w->blocks, from->blocks, (size_t)w->n_blocks * BYTES);
	ck_assert_int_eq(image_init(&w->image, w->map, &w->model, w->blocks), 0);
	ck_assert_int_eq(prefix_restore(&w->index, &w->image, &r), 0);
	return r;
}

static void world_close(struct world *w, bool heap)
{
	ck_assert_int_eq(block_pool_check(&w->pool), 0);
	ck_assert_int_eq(prefix_check(&w->index), 0);
	image_deinit(&w->image);
	prefix_deinit(&w->index);
	block_pool_deinit(&w->pool);
	if (heap) {
		free(w->map);
		free(w->blocks);
	} else {
		munmap(w->map, w->map_bytes);
		munmap(w->blocks, (size_t)w->n_blocks * BYTES);
	}
}

/* One sequence; computes what it does not find. */
struct user {
	int32_t tokens[BT * MAX_BLOCKS];
	struct prefix_key keys[MAX_BLOCKS];
	struct prefix_chain chain;
	struct seq_table table;
	uint32_t n_hits;
};

static void user_ask(struct world *w, struct user *u, uint32_t domain, const char *salt,
		     bool reads_public, uint32_t seed, uint32_t n_common, uint32_t n)
{
	uint32_t ids[MAX_BLOCKS], id;

	memset(u, 0, sizeof(*u));
	u->chain.keys = u->keys;
	u->chain.cap_keys = MAX_BLOCKS;
	u->chain.domain = domain;
	u->chain.reads_public = reads_public;
	u->chain.owner = 1 + seed;
	/* the first @n_common blocks are the same for all seeds */
	for (uint32_t i = 0; i < BT * MAX_BLOCKS; i++)
		u->tokens[i] = (int32_t)(i < n_common * BT ? i : 1000 * (seed + 1) + i);
	ck_assert_int_eq(prefix_key_root(&w->index.keyer, domain, NULL, 0, salt,
					 strlen(salt), &u->chain.root),
			 0);
	ck_assert_int_eq(seq_init(&u->table, MAX_BLOCKS), 0);
	u->n_hits = prefix_lookup(&w->index, &u->chain, u->tokens, n, ids);
	for (uint32_t i = 0; i < u->n_hits; i++)
		seq_append_published(&u->table, ids[i]);
	while (u->table.n_blocks < n) {
		int c = prefix_take(&w->index, domain, u->chain.owner, &id);

		ck_assert_int_ne(c, BLOCK_POOL_DRY);
		if (c == BLOCK_NEEDS_ZERO)
			memset(w->blocks + id * BYTES, 0, BYTES);
		fill(u->tokens, u->table.n_blocks, w->blocks + id * BYTES);
		seq_append(&u->table, id);
	}
	seq_publish(&u->table, &w->index, &u->chain, u->tokens, n * BT);
}

static void user_leave(struct world *w, struct user *u)
{
	seq_release(&u->table, &w->pool);
	seq_deinit(&u->table);
}

/* Asks and leaves. Return: blocks found. */
static uint32_t visit(struct world *w, uint32_t domain, const char *salt,
		      bool reads_public, uint32_t seed, uint32_t n_common, uint32_t n)
{
	struct user u;

	user_ask(w, &u, domain, salt, reads_public, seed, n_common, n);
	for (uint32_t i = 0; i < n; i++) {
		uint8_t want[BYTES];

		fill(u.tokens, i, want);
		ck_assert_msg(!memcmp(want, w->blocks + u.table.ids[i] * BYTES, BYTES),
			      "block %u of prompt %u is wrong; KVD_IMAGE_SEED=%llu", i,
			      seed, (unsigned long long)seed_now);
	}
	user_leave(w, &u);
	return u.n_hits;
}

/* Every block that the index believes has the right bytes. Return: how many. */
static uint32_t believe_all(struct world *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_blocks; i++) {
		int32_t tokens[BT * (MAX_BLOCKS + 1)];
		uint32_t path[MAX_BLOCKS + 1], depth = 0;
		uint8_t want[BYTES];
		bool good = true;

		if (!block_pool_get(&w->pool, i)->indexed)
			continue;
		for (uint32_t id = i; id != BLOCK_NONE; id = w->index.nodes[id].parent) {
			ck_assert_uint_le(depth, MAX_BLOCKS);
			path[depth++] = id;
		}
		for (uint32_t k = 0; k < depth; k++)
			memcpy(tokens + k * BT,
			       node_tokens(&w->index, path[depth - 1 - k]),
			       BT * sizeof(*tokens));
		/* from the root on, as a request goes */
		for (uint32_t k = depth; k-- > 0 && good;)
			good = node_verify(&w->index, path[k]);
		if (!good)
			continue;
		fill(tokens, depth - 1, want);
		ck_assert_msg(!memcmp(want, w->blocks + i * BYTES, BYTES),
			      "block %u is believed and wrong; KVD_IMAGE_SEED=%llu", i,
			      (unsigned long long)seed_now);
		n++;
	}
	ck_assert_int_eq(block_pool_check(&w->pool), 0);
	ck_assert_int_eq(prefix_check(&w->index), 0);
	return n;
}

static void save_all(struct world *w)
{
	ck_assert_uint_eq(prefix_save(&w->index, SIZE_MAX), 0);
}

/* Private, salted, public, below public, held: a bit of all. */
static void populate(struct world *w)
{
	struct user u;

	user_ask(w, &u, ALICE, "", true, 0, 2, 4);
	ck_assert_int_eq(prefix_hold(&w->index, u.table.ids[1], true, 8), 0);
	user_leave(w, &u);
	visit(w, BOB, "", true, 1, 2, 5);
	visit(w, BOB, "", true, 2, 2, 3);
	visit(w, BOB, "salt", false, 3, 1, 3);
	user_ask(w, &u, BOB, "named", false, 4, 0, 3);
	ck_assert_int_eq(prefix_hold(&w->index, u.table.ids[2], false, 8), 0);
	user_leave(w, &u);
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
	for (uint32_t i = 0; i < 32; i++) {
		ck_assert_uint_eq(b.pool.blocks[i].indexed, a.pool.blocks[i].indexed);
		if (a.pool.blocks[i].indexed) {
			ck_assert_uint_eq(b.pool.blocks[i].generation,
					  a.pool.blocks[i].generation);
			ck_assert_uint_eq(b.pool.blocks[i].domain,
					  a.pool.blocks[i].domain);
			ck_assert_uint_eq(b.index.nodes[i].held, a.index.nodes[i].held);
		} else {
			ck_assert_uint_gt(b.pool.blocks[i].generation,
					  image_record(&b.image, i)->life);
		}
	}
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
		if (block_pool_get(&b.pool, i)->indexed && b.index.nodes[i].held)
			ck_assert_int_eq(prefix_release(&b.index, i), 0);
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
	struct user u, v;
	uint32_t end;

	world_new(&a, 32);
	user_ask(&a, &u, ALICE, "", true, 0, 2, 3);
	user_ask(&a, &v, BOB, "", true, 0, 2, 5);
	end = v.table.ids[4];
	save_all(&a);
	ck_assert_int_eq(prefix_hold(&a.index, u.table.ids[2], true, 30), 0);
	ck_assert_int_eq(prefix_hold(&a.index, v.table.ids[2], true, 30), 0);
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
		user_leave(&a, &u);
		user_leave(&a, &v);
		ck_assert_int_eq(prefix_hold(&a.index, end, true, 30), 0);
	}
	world_close(&a, false);
}
END_TEST

START_TEST(what_was_not_written_down_is_a_miss)
{
	struct world a, b;
	struct user u;

	world_new(&a, 16);
	user_ask(&a, &u, ALICE, "", false, 0, 0, 6);
	/* parents first, as many as may be read; one at least */
	ck_assert_uint_eq(prefix_save(&a.index, 0), 5);
	ck_assert_uint_eq(prefix_save(&a.index, 2 * BYTES - 1), 4);
	ck_assert_uint_eq(world_restart(&b, &a).restored, 2);
	ck_assert_uint_eq(visit(&b, ALICE, "", false, 0, 0, 6), 2);
	world_close(&b, true);
	ck_assert_uint_eq(prefix_save(&a.index, 3 * BYTES), 1);
	save_all(&a);
	user_leave(&a, &u);
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
	struct user u;

	world_new(&a, 4);
	visit(&a, BOB, "", false, 1, 0, 4);
	save_all(&a);
	while (prefix_evict(&a.index, 1))
		;
	ck_assert_uint_eq(world_restart(&b, &a).restored, 0);
	world_close(&b, true);
	user_ask(&a, &u, BOB, "", false, 2, 0, 4);
	save_all(&a);
	ck_assert_int_eq(prefix_hold(&a.index, u.table.ids[1], false, 4), 0);
	user_leave(&a, &u);
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
	struct user u;

	world_new(&a, 8);
	user_ask(&a, &u, ALICE, "", false, 0, 0, 2);
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
		ck_assert_uint_eq(b.index.n_nodes, 2 - hurt);
		world_close(&b, true);
	}
	user_leave(&a, &u);
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
	ck_assert_uint_eq(b.pool.evict.n_listed[EVICT_OFTEN], 4);
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

/* --- death at every instruction ---------------------------------------------------------- */

/* Publishes, shares, holds, makes public, evicts and reuses in a pool that is too small. */
static void live(struct world *w)
{
	struct user u;

	visit(w, ALICE, "", true, 0, 2, 3);
	prefix_save(&w->index, 2 * BYTES);
	visit(w, BOB, "", true, 1, 2, 3);
	save_all(w);
	user_ask(w, &u, ALICE, "", true, 2, 2, 4);
	save_all(w);
	(void)prefix_hold(&w->index, u.table.ids[1], true, 4);
	user_leave(w, &u);
	visit(w, BOB, "", true, 3, 2, 5);
	save_all(w);
	for (uint32_t i = 0; i < w->n_blocks; i++)
		if (block_pool_get(&w->pool, i)->indexed && w->index.nodes[i].held)
			(void)prefix_release(&w->index, i);
	visit(w, BOB, "", false, 4, 0, 6);
	save_all(w);
	visit(w, ALICE, "", true, 5, 0, 6);
	save_all(w);
}

/* Restarts from what is there now. Return: blocks that are believed. */
static uint32_t resurrect(const struct world *w)
{
	struct world b;
	uint32_t n;

	ck_assert_int_eq(image_check(w->map, w->map_bytes, &w->model), 0);
	world_restart(&b, w);
	n = believe_all(&b);
	ck_assert_uint_eq(b.image.n_bad, 0);
	visit(&b, ALICE, "", true, 0, 2, 3);
	visit(&b, BOB, "", true, 1, 2, 3);
	visit(&b, BOB, "", false, 4, 0, 6);
	visit(&b, ALICE, "", true, 2, 2, 4);
	world_close(&b, true);
	return n;
}

START_TEST(death_at_every_instruction)
{
	struct world w;
	size_t n_steps = 0, n_states = 0, blocks_bytes;
	uint32_t n_most = 0;
	uint8_t *last_map, *last_blocks;
	int status;
	pid_t pid;

	world_new(&w, 8);
	blocks_bytes = (size_t)w.n_blocks * BYTES;
	last_map = calloc(1, w.map_bytes);
	last_blocks = calloc(1, blocks_bytes);
	ck_assert(last_map && last_blocks);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			_exit(77);
		raise(SIGSTOP);
		live(&w);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		fputs("image: no right to trace, death at every instruction is not tried\n",
		      stderr);
		return;
	}
	while (WIFSTOPPED(status)) {
		if (memcmp(last_map, w.map, w.map_bytes) != 0 ||
		    memcmp(last_blocks, w.blocks, blocks_bytes) != 0) {
			uint32_t n = resurrect(&w);

			n_most = n > n_most ? n : n_most;
			n_states++;
			memcpy(last_map, w.map, w.map_bytes);
			memcpy(last_blocks, w.blocks, blocks_bytes);
		}
		ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		n_steps++;
	}
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	/* the pool was full, and much happened */
	ck_assert_uint_eq(n_most, 8);
	ck_assert_uint_gt(n_states, 500);
	fprintf(stderr, "image: %zu instructions, %zu states of the memory\n", n_steps,
		n_states);
	free(last_map);
	free(last_blocks);
	world_close(&w, false);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("image");
	TCase *tcase = tcase_create("image");
	SRunner *runner;
	int n_failed;

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
	tcase_add_test(tcase, death_at_every_instruction);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
