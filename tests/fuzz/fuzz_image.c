/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the image of a pool: the header is judged, then an index is rebuilt from the
 * records, whose equations have to hold, also while it is verified and emptied. What a
 * fuzzer cannot guess, checksums and keys, is put right where the input says so.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/cache/image.h"
#include "daemon/cache/prefix_node.h"
#include "tests/unit/cache/flush.h"

#define N_BLOCKS     8
#define BT           4
#define BYTES        64
#define HEADER_BYTES 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void must(int good)
{
	if (!good)
		abort();
}

/* The key that a record would have below its parent, as that stands now. */
static void put_key(struct prefix_index *index, struct image *image, uint32_t id)
{
	struct image_record *r = image_record(image, id);
	const struct prefix_key *before = &r->root;

	if (r->parent < N_BLOCKS) {
		/* most nodes have the number of their block here */
		struct image_record *up = image_record(image, r->parent);

		r->parent_life = up->life;
		if (!memcmp(&up->root, &r->root, sizeof(r->root)))
			before = &up->key;
	}
	must(node_key_next(index, 0, r->domain, before, r->tokens, &r->key) == 0);
}

static void put_right(struct prefix_index *index, struct image *image, uint32_t id,
		      uint8_t how)
{
	struct image_record *r = image_record(image, id);

	if (how & 1)
		r->node = id;
	if (how & 1)
		r->parent = how & 2 ? (uint32_t)(how >> 2) % N_BLOCKS : BLOCK_NONE;
	if (how & 4) {
		r->root = index->spaces[0].public_root;
		r->domain = PREFIX_DOMAIN_PUBLIC;
	}
	if (how & 8)
		for (uint32_t i = 0; i < BT; i++)
			r->tokens[i] &= INT32_MAX;
	if (how & 16)
		put_key(index, image, id);
	if (how & 32)
		r->sum = XXH3_64bits(image->blocks + id * BYTES, BYTES);
	if (how & 64)
		r->flags &= IMAGE_PINNED;
	if (how & 128)
		r->commit =
			XXH3_64bits_withSeed((uint8_t *)r + sizeof(r->commit),
					     image->record_bytes - sizeof(r->commit), id);
}

static void check(struct prefix_index *index)
{
	must(block_pool_check(index->pool) == 0);
	must(prefix_check(index) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const struct prefix_model common = {
		.k_format = "fp16", .v_format = "fp16", .block_tokens = BT};
	static const struct prefix_secret secret = {"as random as any"};
	static uint8_t blocks[N_BLOCKS * BYTES];
	static uint64_t map[2048];
	struct block_pool pool;
	struct prefix_index index;
	struct image image;
	struct image_model model;
	struct prefix_restored result;
	size_t size;

	if (len < N_BLOCKS)
		return 0;
	must(block_pool_init(&pool, N_BLOCKS, &evict_adaptive) == 0);
	must(prefix_init(&index, &pool, &common, &secret, 0, 256) == 0);
	model = (struct image_model){
		.base = index.spaces[0].base,
		.k_format = "fp16",
		.v_format = "fp16",
		.block_bytes = BYTES,
		.n_blocks = N_BLOCKS,
		.block_tokens = BT,
	};
	size = image_bytes(&model);
	must(size && size <= sizeof(map));

	memset(map, 0, sizeof(map));
	memcpy(map, data, len < size ? len : size);
	must(image_condition_text(image_check(map, size, &model)) != NULL);

	memset(map, 0, sizeof(map));
	len -= N_BLOCKS;
	if (len > size - HEADER_BYTES)
		len = size - HEADER_BYTES;
	memcpy((uint8_t *)map + HEADER_BYTES, data + N_BLOCKS, len);
	image_format(map, &model, 1);
	must(image_check(map, size, &model) == 0);
	must(image_init(&image, map, &model, blocks) == 0);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		put_right(&index, &image, i, data[i]);
	must(prefix_restore(&index, &image, &result) == 0);
	must(result.restored == index.n_nodes && result.restored <= N_BLOCKS);
	check(&index);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		if (block_pool_get(&pool, i)->indexed && (data[i] & 1) &&
		    !index.nodes[index.node_of[i]].doomed)
			(void)node_verify(&index, index.node_of[i]);
	check(&index);
	drop_all(&index);
	check(&index);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		if (block_pool_get(&pool, i)->indexed &&
		    index.nodes[index.node_of[i]].pinned)
			(void)prefix_unpin(&index, index.node_of[i]);
	(void)prefix_evict(&index, N_BLOCKS);
	must(!index.n_nodes);
	check(&index);
	image_deinit(&image);
	prefix_deinit(&index);
	block_pool_deinit(&pool);
	return 0;
}
