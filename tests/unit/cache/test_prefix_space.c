/* SPDX-License-Identifier: MIT */
/* The prefix index: spaces side by side, keys without tokens, nodes without blocks. */
#include "tests/unit/cache/holder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NODES 64

static const struct prefix_model other = {
	.k_format = "int8",
	.v_format = "int8",
	.backend = "c",
	.block_tokens = BT / 2,
};

static const struct prefix_model opaque = {
	.backend = "elsewhere",
	.block_tokens = 256,
	.keys_only = true,
};

static void holder_in(struct prefix_index *index, struct holder *h, uint32_t space)
{
	holder_init(index, h, 1, 1, "");
	h->chain.space = space;
	ck_assert_int_eq(prefix_key_root(&index->keyer, &index->spaces[space].base, 1,
					 NULL, 0, NULL, 0, &h->chain.root),
			 0);
}

/* A chain of @n keys that somebody else made. */
static void holder_with_keys(struct prefix_index *index, struct holder *h, uint32_t space,
			     uint32_t n)
{
	holder_in(index, h, space);
	for (uint32_t i = 0; i < n; i++)
		memset(h->keys[i].bytes, (int)(0x10 + i), PREFIX_KEY_LEN);
	h->chain.n_keys = n;
}

static uint32_t find(struct prefix_index *index, struct holder *h, uint32_t i,
		     const struct holder *before)
{
	return prefix_find(index, &h->chain,
			   index->spaces[h->chain.space].keys_only ? NULL : h->tokens, i,
			   i ? before->table.ids[i - 1] : BLOCK_NONE);
}

static void fill_in(struct prefix_index *index, struct holder *h, uint32_t n)
{
	bool keys_only = index->spaces[h->chain.space].keys_only;
	uint32_t id;

	while (h->table.n_blocks < n) {
		ck_assert_int_eq(prefix_take(index, 1, 1, &id), 0);
		seq_append(&h->table, id);
	}
	ck_assert_uint_eq(seq_publish(&h->table, index, &h->chain,
				      keys_only ? NULL : h->tokens,
				      n * index->spaces[h->chain.space].block_tokens),
			  n);
}

/* Equal tokens, domains and salts, and nothing is found across spaces of one index. */
START_TEST(spaces_do_not_meet)
{
	struct prefix_flush_result flushed;
	struct holder a, b;
	struct fixture f;
	uint32_t space;

	setup(&f, 16, 256);
	ck_assert_int_eq(prefix_add_space(&f.index, &other, &space), 0);
	ck_assert_uint_eq(space, 1);
	ck_assert_mem_ne(&f.index.spaces[0].base, &f.index.spaces[1].base,
			 sizeof(struct prefix_key));
	holder_in(&f.index, &a, 0);
	holder_in(&f.index, &b, space);
	fill_in(&f.index, &a, 2);
	ck_assert_uint_eq(find(&f.index, &b, 0, &b), BLOCK_NONE);
	fill_in(&f.index, &b, 3);
	ck_assert_uint_eq(f.index.n_nodes, 5);
	ck_assert_uint_eq(find(&f.index, &a, 0, &a), a.table.ids[0]);
	ck_assert_uint_eq(find(&f.index, &b, 0, &b), b.table.ids[0]);
	ck_assert_uint_eq(f.index.nodes[f.index.node_of[a.table.ids[1]]].n_tokens,
			  2 * BT);
	ck_assert_uint_eq(f.index.nodes[f.index.node_of[b.table.ids[2]]].n_tokens,
			  3 * BT / 2);
	index_check(&f.index);

	/* a public prefix is public in its own */
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[b.table.ids[0]], true, 16),
			 0);
	a.chain.reads_public = true;
	ck_assert_uint_eq(find(&f.index, &a, 0, &a), a.table.ids[0]);
	holder_deinit(&f.index, &a);
	holder_in(&f.index, &a, space);
	a.chain.domain = 2;
	a.chain.reads_public = true;
	ck_assert_uint_eq(find(&f.index, &a, 0, &a), b.table.ids[0]);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[b.table.ids[0]]), 0);
	holder_deinit(&f.index, &a);
	holder_deinit(&f.index, &b);
	flush_all(&f.index, &flushed);
	ck_assert_uint_eq(flushed.flushed, 5);
	teardown(&f);
}
END_TEST

START_TEST(a_space_has_to_fit)
{
	struct prefix_model wide = model;
	struct fixture f;
	uint32_t space;

	setup(&f, 4, 256);
	wide.block_tokens = BT + 1;
	ck_assert_int_eq(prefix_add_space(&f.index, &wide, &space), -EINVAL);
	wide.block_tokens = 0;
	ck_assert_int_eq(prefix_add_space(&f.index, &wide, &space), -EINVAL);
	while (f.index.n_spaces < PREFIX_MAX_SPACES)
		ck_assert_int_eq(prefix_add_space(&f.index, &opaque, &space), 0);
	ck_assert_int_eq(prefix_add_space(&f.index, &opaque, &space), -ENOSPC);
	teardown(&f);
}
END_TEST

/* An index that knows keys only: whole keys, parents and domains are compared. */
START_TEST(keys_are_enough)
{
	struct prefix_index index;
	struct block_pool pool;
	struct holder a, b;

	index_open(&index, &pool, 16, &evict_adaptive, &opaque, 256);
	ck_assert_ptr_null(index.tokens);
	holder_with_keys(&index, &a, 0, 4);
	fill_in(&index, &a, 4);
	ck_assert_uint_eq(index.nodes[index.node_of[a.table.ids[3]]].n_tokens, 4 * 256);
	index_check(&index);
	holder_with_keys(&index, &b, 0, 4);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(find(&index, &b, i, &a), a.table.ids[i]);
	/* the last bit counts, and what came before does */
	b.keys[2].bytes[PREFIX_KEY_LEN - 1] ^= 1;
	ck_assert_uint_eq(find(&index, &b, 2, &a), BLOCK_NONE);
	b.keys[2].bytes[PREFIX_KEY_LEN - 1] ^= 1;
	ck_assert_uint_eq(prefix_find(&index, &b.chain, NULL, 2, BLOCK_NONE), BLOCK_NONE);
	ck_assert_uint_eq(prefix_find(&index, &b.chain, NULL, 2, a.table.ids[2]),
			  BLOCK_NONE);
	/* no further than there are keys */
	b.chain.n_keys = 3;
	ck_assert_uint_eq(find(&index, &b, 3, &a), BLOCK_NONE);
	b.chain.domain = 2;
	ck_assert_uint_eq(find(&index, &b, 0, &a), BLOCK_NONE);

	/* public, as any prefix */
	ck_assert_int_eq(prefix_pin(&index, index.node_of[a.table.ids[1]], true, 16), 0);
	index_check(&index);
	ck_assert_uint_eq(find(&index, &b, 0, &a), BLOCK_NONE);
	b.chain.reads_public = true;
	ck_assert_uint_eq(find(&index, &b, 0, &a), a.table.ids[0]);
	ck_assert_uint_eq(find(&index, &b, 1, &a), a.table.ids[1]);
	ck_assert_uint_eq(find(&index, &b, 2, &a), BLOCK_NONE);
	ck_assert_int_eq(prefix_unpin(&index, index.node_of[a.table.ids[1]]), 0);
	holder_deinit(&index, &a);
	seq_deinit(&b.table);
	ck_assert_uint_eq(prefix_evict(&index, 16), 4);
	index_close(&index);
}
END_TEST

/* The bytes of a prefix leave, its nodes stay; the next to compute it brings them back. */
START_TEST(nodes_outlive_their_blocks)
{
	struct prefix_flush_result flushed;
	struct prefix_index index;
	struct block_pool pool;
	struct holder a, b;
	uint32_t nodes[3], n = 0, id;

	ck_assert_int_eq(block_pool_init(&pool, 4, &evict_adaptive), 0);
	ck_assert_int_eq(prefix_init(&index, &pool, &model, &secret, MAX_NODES, 256), 0);
	holder_init(&index, &a, 1, 1, "");
	ck_assert_uint_eq(holder_fill(&index, &a, 3), 0);
	for (int i = 0; i < 3; i++)
		nodes[i] = index.node_of[a.table.ids[i]];
	holder_deinit(&index, &a);
	/* the leaf by itself, and what is before it by eviction, since it is found through those */
	node_detach(&index, nodes[2]);
	index_check(&index);
	ck_assert_uint_eq(prefix_evict(&index, 4), 2);
	index_check(&index);
	ck_assert_uint_eq(pool.n_free, 4);
	ck_assert_uint_eq(index.n_nodes, 3);
	for (int i = 0; i < 3; i++)
		ck_assert(!node_is_resident(&index, nodes[i]));

	/* a miss, and the same names when it is computed */
	holder_init(&index, &a, 1, 1, "");
	holder_init(&index, &b, 1, 1, "");
	b.tokens[2 * BT] = 7;
	ck_assert_uint_eq(holder_fill(&index, &a, 2), 0);
	index_check(&index);
	ck_assert_uint_eq(index.n_nodes, 3);
	for (int i = 0; i < 2; i++)
		ck_assert_uint_eq(index.node_of[a.table.ids[i]], nodes[i]);
	ck_assert_uint_eq(holder_fill(&index, &b, 3), 2);
	ck_assert_uint_eq(index.n_nodes, 4);
	index_check(&index);
	ck_assert_int_eq(prefix_take(&index, 1, 1, &id), 0);
	seq_append(&a.table, id);
	ck_assert_uint_eq(seq_publish(&a.table, &index, &a.chain, a.tokens, 3 * BT), 1);
	ck_assert_uint_eq(index.node_of[id], nodes[2]);
	index_check(&index);
	holder_deinit(&index, &a);
	holder_deinit(&index, &b);

	/* a flush takes them with the rest, and counts blocks */
	node_detach(&index, nodes[2]);
	flush_domain(&index, 1, &flushed);
	ck_assert_uint_eq(flushed.flushed, 3);
	ck_assert_uint_eq(flushed.remaining, 0);
	ck_assert_uint_eq(index.n_nodes, 0);

	/* when there are no more nodes, blocks stay private */
	while (index.n_nodes < MAX_NODES) {
		holder_init(&index, &a, 1, 1, "");
		a.tokens[0] = (int32_t)++n;
		ck_assert_uint_eq(holder_fill(&index, &a, 1), 0);
		ck_assert_uint_eq(a.table.n_published, 1);
		holder_deinit(&index, &a);
		node_detach(&index, index.node_of[0]);
	}
	holder_init(&index, &a, 1, 1, "");
	ck_assert_uint_eq(holder_fill(&index, &a, 1), 0);
	ck_assert_uint_eq(a.table.n_published, 0);
	ck_assert_int_eq(holder_partial(&index, &a, 2), PREFIX_FULL);
	holder_deinit(&index, &a);
	flush_all(&index, &flushed);
	ck_assert_uint_eq(flushed.flushed, 0);
	ck_assert_uint_eq(index.n_nodes, 0);
	index_close(&index);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("space");

	tcase_add_test(tc, spaces_do_not_meet);
	tcase_add_test(tc, a_space_has_to_fit);
	tcase_add_test(tc, keys_are_enough);
	tcase_add_test(tc, nodes_outlive_their_blocks);
	return run_case("prefix-space", tc);
}
