/* SPDX-License-Identifier: MIT */
/*
 * For tests of the pool's image: an index whose blocks outlive it, and who asks for them.
 *
 * The bytes of a block are a function of the tokens up to its end, as with a model, so that
 * each block that is believed can be compared with what it has to hold.
 */
#ifndef KVD_TESTS_KEPT_WORLD_H
#define KVD_TESTS_KEPT_WORLD_H

#include "daemon/cache/image.h"
#include "tests/unit/cache/holder.h"

#include <sys/mman.h>
#include <xxhash.h>

#define BYTES 64
#define ALICE 1000
#define BOB   1001

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
static inline void fill(const int32_t *tokens, uint32_t i, uint8_t *bytes)
{
	uint64_t x = XXH3_64bits(tokens, (i + 1) * BT * sizeof(*tokens));

	for (uint32_t k = 0; k < BYTES; k++) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		bytes[k] = (uint8_t)(x >> 56);
	}
}

/* Index and pool over memory that is there; the image is not touched yet. Each process draws a
 * secret of its own. */
static inline void world_open(struct world *w, uint32_t n_blocks, void *map,
			      uint8_t *blocks)
{
	static uint8_t n_worlds;

	memset(w, 0, sizeof(*w));
	w->n_blocks = n_blocks;
	index_open(&w->index, &w->pool, n_blocks, &evict_adaptive, &common, 256);
	w->index.keyer.secret.bytes[31] = ++n_worlds;
	ck_assert_int_eq(node_set_public_root(&w->index, 0), 0);
	w->model = (struct image_model){
		.base = w->index.spaces[0].base,
		.secret = w->index.keyer.secret,
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

static inline void *shared(size_t size)
{
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);

	ck_assert_ptr_ne(map, MAP_FAILED);
	return map;
}

/* As a first start does. */
static inline void world_new(struct world *w, uint32_t n_blocks)
{
	world_open(w, n_blocks, NULL, NULL);
	w->map = shared(w->map_bytes);
	w->blocks = shared((size_t)n_blocks * BYTES);
	image_format(w->map, &w->model, 77);
	ck_assert_int_eq(image_init(&w->image, w->map, &w->model, w->blocks), 0);
	w->index.image = &w->image;
}

/* As a later start does, over a copy of what @from left. */
static inline struct prefix_restored world_restart(struct world *w,
						   const struct world *from)
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

static inline void world_close(struct world *w, bool heap)
{
	image_deinit(&w->image);
	index_close(&w->index);
	if (heap) {
		free(w->map);
		free(w->blocks);
	} else {
		munmap(w->map, w->map_bytes);
		munmap(w->blocks, (size_t)w->n_blocks * BYTES);
	}
}

/* @n blocks of which the first @n_common are the same for all seeds; computes what it does
 * not find. Return: blocks found. */
static inline uint32_t world_ask(struct world *w, struct holder *h, uint32_t domain,
				 const char *salt, bool reads_public, uint32_t seed,
				 uint32_t n_common, uint32_t n)
{
	uint32_t n_hits, id;

	holder_init(&w->index, h, domain, 1 + seed, salt);
	h->chain.reads_public = reads_public;
	for (uint32_t i = 0; i < BT * MAX_BLOCKS; i++)
		h->tokens[i] = (int32_t)(i < n_common * BT ? i : 1000 * (seed + 1) + i);
	n_hits = holder_adopt(&w->index, h, n);
	while (h->table.n_blocks < n) {
		int c = prefix_take(&w->index, domain, h->chain.owner, &id);

		ck_assert_int_ne(c, BLOCK_POOL_DRY);
		if (c == BLOCK_NEEDS_ZERO)
			memset(w->blocks + id * BYTES, 0, BYTES);
		fill(h->tokens, h->table.n_blocks, w->blocks + id * BYTES);
		seq_append(&h->table, id);
	}
	seq_publish(&h->table, &w->index, &h->chain, h->tokens, n * BT);
	return n_hits;
}

/* Asks and leaves. Return: blocks found. */
static inline uint32_t visit(struct world *w, uint32_t domain, const char *salt,
			     bool reads_public, uint32_t seed, uint32_t n_common,
			     uint32_t n)
{
	struct holder h;
	uint32_t n_hits = world_ask(w, &h, domain, salt, reads_public, seed, n_common, n);

	for (uint32_t i = 0; i < n; i++) {
		uint8_t want[BYTES];

		fill(h.tokens, i, want);
		ck_assert_msg(!memcmp(want, w->blocks + h.table.ids[i] * BYTES, BYTES),
			      "block %u of prompt %u is wrong; KVD_IMAGE_SEED=%llu", i,
			      seed, (unsigned long long)seed_now);
	}
	holder_deinit(&w->index, &h);
	return n_hits;
}

/* Every block that the index believes has the right bytes. Return: how many. */
static inline uint32_t believe_all(struct world *w)
{
	uint32_t n = 0;

	drop_all(&w->index);

	for (uint32_t i = 0; i < w->n_blocks; i++) {
		int32_t tokens[BT * (MAX_BLOCKS + 1)];
		uint32_t path[MAX_BLOCKS + 1], depth = 0;
		uint8_t want[BYTES];
		bool good = true;

		if (!block_pool_get(&w->pool, i)->indexed)
			continue;
		for (uint32_t id = w->index.node_of[i]; id != NODE_NONE;
		     id = w->index.nodes[id].parent) {
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
		drop_all(&w->index);
		if (!good)
			continue;
		fill(tokens, depth - 1, want);
		ck_assert_msg(!memcmp(want, w->blocks + i * BYTES, BYTES),
			      "block %u is believed and wrong; KVD_IMAGE_SEED=%llu", i,
			      (unsigned long long)seed_now);
		n++;
	}
	index_check(&w->index);
	return n;
}

static inline void save_all(struct world *w)
{
	ck_assert_uint_eq(prefix_save(&w->index, SIZE_MAX), 0);
}

#endif
