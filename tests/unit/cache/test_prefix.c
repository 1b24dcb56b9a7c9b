/* SPDX-License-Identifier: MIT */
/* The prefix index: keys, hits, eviction, and random operations against a model. */
#include "tests/unit/cache/holder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

START_TEST(key_is_hmac_of_tagged_fields)
{
	/* by Python's hmac and hashlib, with the secret of holder.h; of each field its tag, u32
	 * length, bytes */
	static const uint8_t root[] = {0x4e, 0xbf, 0x37, 0xde, 0xff, 0xdd, 0xbd, 0x99,
				       0x6b, 0x66, 0xb7, 0xf2, 0xe1, 0x66, 0x41, 0xf9,
				       0xeb, 0x4d, 0x88, 0x8f, 0xb0, 0xc8, 0xd3, 0x30,
				       0xda, 0x9f, 0x60, 0x43, 0x4e, 0xb3, 0xfa, 0x71};
	static const uint8_t first[] = {0xe3, 0x40, 0x41, 0xe8, 0xdb, 0xd1, 0xe1, 0x7e,
					0x2c, 0xab, 0xdb, 0xc6, 0xea, 0x4d, 0x84, 0x52,
					0xce, 0x71, 0xbb, 0xd4, 0x9b, 0x85, 0x9e, 0x62,
					0x66, 0x8a, 0xc4, 0x53, 0x6b, 0x6f, 0x61, 0xe5};
	static const uint8_t ids[] = {0xd3, 0x23, 0xd3, 0x7c, 0xda, 0x95, 0x14, 0xbb,
				      0x53, 0x63, 0x1a, 0x62, 0xfb, 0x9e, 0xb1, 0xc8,
				      0xbb, 0xea, 0xa7, 0x45, 0x28, 0x41, 0xc6, 0x2e,
				      0x08, 0x61, 0x42, 0x37, 0x6a, 0x8a, 0xd6, 0xfd};
	static const int32_t tokens[BT] = {1, 2, 3, 49151};
	struct prefix_secret derived;
	struct prefix_keyer keyer;
	struct prefix_key base, key;

	ck_assert_int_eq(prefix_keyer_init(&keyer, &secret, 256), 0);
	ck_assert_int_eq(prefix_key_base(&keyer, &model, &base), 0);
	ck_assert_int_eq(
		prefix_key_root(&keyer, &base, 1000, "lora", 4, "pepper", 6, &key), 0);
	ck_assert_mem_eq(key.bytes, root, sizeof(root));
	ck_assert_int_eq(prefix_key_next(&keyer, &key, tokens, BT, &key), 0);
	ck_assert_mem_eq(key.bytes, first, sizeof(first));
	ck_assert_int_eq(prefix_key_derive(&keyer, "prefix ids", &derived), 0);
	ck_assert_mem_eq(derived.bytes, ids, sizeof(ids));
	prefix_keyer_deinit(&keyer);
	ck_assert_int_eq(prefix_keyer_init(&keyer, &secret, 0), -EINVAL);
	ck_assert_int_eq(prefix_keyer_init(&keyer, &secret, 257), -EINVAL);
}
END_TEST

START_TEST(every_field_changes_the_root)
{
	struct prefix_model other[9];
	struct prefix_key base, keys[15];
	struct prefix_keyer keyer;
	uint32_t n = 0;

	for (int i = 0; i < 9; i++)
		other[i] = model;
	other[0].fingerprint[31] = 1;
	other[1].k_format = other[1].v_format = "int8";
	other[2].backend = "avx2";
	other[3].rope = "neox 500000";
	/* the same bytes, cut elsewhere */
	other[4].v_format = "fp16c";
	other[4].backend = "";
	other[5].k_format = "fp16fp16";
	other[5].v_format = "";
	/* K and V are told apart */
	other[6].k_format = "int8";
	other[7].v_format = "int8";
	other[8].block_tokens = 2 * BT;
	for (int i = 0; i < 9; i++) {
		ck_assert_int_eq(prefix_keyer_init(&keyer, &secret, 256), 0);
		ck_assert_int_eq(prefix_key_base(&keyer, &other[i], &base), 0);
		ck_assert_int_eq(
			prefix_key_root(&keyer, &base, 1, NULL, 0, NULL, 0, &keys[n++]),
			0);
		prefix_keyer_deinit(&keyer);
	}
	ck_assert_int_eq(prefix_keyer_init(&keyer, &secret, 256), 0);
	ck_assert_int_eq(prefix_key_base(&keyer, &model, &base), 0);
	ck_assert_int_eq(prefix_key_root(&keyer, &base, 1, NULL, 0, NULL, 0, &keys[n++]),
			 0);
	ck_assert_int_eq(prefix_key_root(&keyer, &base, 2, NULL, 0, NULL, 0, &keys[n++]),
			 0);
	ck_assert_int_eq(prefix_key_root(&keyer, &base, 1, "ab", 2, "c", 1, &keys[n++]),
			 0);
	ck_assert_int_eq(prefix_key_root(&keyer, &base, 1, "a", 1, "bc", 2, &keys[n++]),
			 0);
	ck_assert_int_eq(prefix_key_root(&keyer, &base, 1, NULL, 0, "abc", 3, &keys[n++]),
			 0);
	/* and so does every bit of the secret */
	keyer.secret.bytes[31] ^= 0x80;
	ck_assert_int_eq(prefix_key_root(&keyer, &base, 1, NULL, 0, "abc", 3, &keys[n++]),
			 0);
	prefix_keyer_deinit(&keyer);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < i; j++)
			ck_assert_mem_ne(&keys[i], &keys[j], sizeof(keys[i]));
}
END_TEST

/* A key is the same from the memo, also when it was written over its parent's; two of ten
 * thousand equal blocks in a row share a place in there now and then. */
START_TEST(memo_has_the_right_key)
{
	struct fixture f;

	setup(&f, 4, 256);
	for (int32_t i = 0; i < 10000; i++) {
		int32_t tokens[BT] = {i};
		struct prefix_key key = f.index.spaces[0].public_root, want = key;

		for (int k = 0; k < 2; k++) {
			ck_assert_int_eq(
				node_key_next(&f.index, 0, 1, &key, tokens, &key), 0);
			ck_assert_int_eq(
				prefix_key_next(&f.index.keyer, &want, tokens, BT, &want),
				0);
			ck_assert_mem_eq(&key, &want, sizeof(key));
		}
	}
	teardown(&f);
}
END_TEST

/* What one domain looked up below the public root is hashed again for another. */
START_TEST(memo_is_for_one_domain)
{
	static const int32_t tokens[BT] = {1, 2, 3, 4};
	struct prefix_key keys[2];
	struct fixture f;

	setup(&f, 4, 256);
	for (uint32_t k = 0; k < 4; k++) {
		uint32_t n_used = 0;

		ck_assert_int_eq(node_key_next(&f.index, 0, 1000 + k % 2,
					       &f.index.spaces[0].public_root, tokens,
					       &keys[k % 2]),
				 0);
		for (uint32_t i = 0; i < PREFIX_MEMO_KEYS; i++)
			n_used += f.index.memo[i].used;
		ck_assert_uint_eq(n_used, k ? 2 : 1);
	}
	ck_assert_mem_eq(&keys[0], &keys[1], sizeof(keys[0]));
	teardown(&f);
}
END_TEST

START_TEST(hits_stay_inside_domain_and_salt)
{
	struct holder a, same, domain, salt;
	struct fixture f;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 10, "");
	holder_init(&f.index, &same, 1, 11, "");
	holder_init(&f.index, &domain, 2, 10, "");
	holder_init(&f.index, &salt, 1, 10, "s");
	ck_assert_uint_eq(holder_fill(&f.index, &a, 4), 0);
	ck_assert_uint_eq(holder_fill(&f.index, &domain, 4), 0);
	ck_assert_uint_eq(holder_fill(&f.index, &salt, 4), 0);
	same.tokens[3 * BT] = 9;
	ck_assert_uint_eq(holder_fill(&f.index, &same, 4), 3);
	ck_assert_uint_eq(f.index.counters.hit_tokens, 3 * BT);
	ck_assert_uint_eq(f.index.counters.shared_hit_tokens, 3 * BT);
	ck_assert_mem_eq(a.table.ids, same.table.ids, 3 * sizeof(*a.table.ids));
	ck_assert_uint_ne(a.table.ids[3], same.table.ids[3]);
	ck_assert_uint_eq(block_pool_get(&f.pool, a.table.ids[0])->refs, 2);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	holder_deinit(&f.index, &a);
	holder_deinit(&f.index, &same);
	holder_deinit(&f.index, &domain);
	holder_deinit(&f.index, &salt);
	ck_assert_uint_eq(f.pool.n_active, 0);
	teardown(&f);
}
END_TEST

START_TEST(equal_block_is_swapped)
{
	struct holder a, b;
	struct fixture f;
	uint32_t id;

	setup(&f, 8, 256);
	holder_init(&f.index, &a, 1, 10, "");
	holder_init(&f.index, &b, 1, 11, "");
	/* both compute the same two blocks before either has published */
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(prefix_take(&f.index, 1, 10, &id), 0);
		seq_append(&a.table, id);
		ck_assert_int_eq(prefix_take(&f.index, 1, 11, &id), 0);
		seq_append(&b.table, id);
	}
	ck_assert_uint_eq(f.pool.n_active, 4);
	ck_assert_uint_eq(seq_publish(&a.table, &f.index, &a.chain, a.tokens, 2 * BT), 2);
	ck_assert_uint_eq(seq_publish(&b.table, &f.index, &b.chain, b.tokens, 2 * BT), 2);
	ck_assert_mem_eq(a.table.ids, b.table.ids, 2 * sizeof(*a.table.ids));
	ck_assert_uint_eq(f.pool.n_active, 2);
	ck_assert_uint_eq(f.index.counters.duplicate_blocks, 2);
	ck_assert_uint_eq(f.index.counters.hit_tokens, 0);
	holder_deinit(&f.index, &a);
	holder_deinit(&f.index, &b);
	teardown(&f);
}
END_TEST

START_TEST(leaves_go_first)
{
	struct holder hot, cold, other;
	uint32_t root, shared;
	struct fixture f;

	setup(&f, 6, 256);
	holder_init(&f.index, &hot, 1, 1, "");
	holder_init(&f.index, &cold, 1, 1, "");
	cold.tokens[BT] = 5;
	holder_fill(&f.index, &hot, 3);
	shared = hot.table.ids[0];
	ck_assert_uint_eq(holder_fill(&f.index, &cold, 3), 1);
	root = cold.table.ids[0];
	ck_assert_uint_eq(root, shared);
	holder_deinit(&f.index, &cold);
	holder_deinit(&f.index, &hot);
	ck_assert_uint_eq(f.pool.n_cached, 5);

	/* cold's two own blocks, hot's two, and the root of both last */
	ck_assert_uint_eq(prefix_evict(&f.index, 2), 2);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	holder_init(&f.index, &hot, 1, 1, "");
	ck_assert_uint_eq(holder_fill(&f.index, &hot, 3), 3);
	holder_deinit(&f.index, &hot);
	ck_assert_uint_eq(prefix_evict(&f.index, 2), 2);
	ck_assert(block_pool_get(&f.pool, root)->indexed);
	ck_assert_uint_eq(prefix_evict(&f.index, 9), 1);
	ck_assert_uint_eq(f.pool.n_free, 6);
	ck_assert_uint_eq(f.index.counters.evicted_blocks, 5);

	/* a full pool gives up a cached block, never an active one */
	holder_init(&f.index, &hot, 1, 1, "");
	holder_init(&f.index, &other, 1, 1, "x");
	holder_fill(&f.index, &hot, 4);
	ck_assert_uint_eq(holder_fill(&f.index, &other, 4), 0);
	ck_assert_uint_eq(other.table.n_blocks, 2);
	holder_deinit(&f.index, &other);
	holder_init(&f.index, &other, 1, 1, "y");
	holder_fill(&f.index, &other, 4);
	ck_assert_uint_eq(other.table.n_blocks, 2);
	holder_deinit(&f.index, &other);
	holder_deinit(&f.index, &hot);
	teardown(&f);
}
END_TEST

static uint32_t rows_of(struct fixture *f, struct holder *h, uint32_t i, uint32_t parent,
			uint32_t max_rows, uint32_t *ret_id)
{
	uint32_t n_rows;

	*ret_id = prefix_find_rows(&f->index, &h->chain, h->tokens, i, parent, max_rows,
				   &n_rows);
	ck_assert_int_eq(*ret_id == BLOCK_NONE, n_rows == 0);
	return n_rows;
}

START_TEST(rows_of_a_block_that_begins_the_same)
{
	struct holder a, b, stranger, salted;
	struct fixture f;
	uint32_t id;

	setup(&f, 16, 256);
	holder_init(&f.index, &a, 1, 10, "");
	holder_init(&f.index, &b, 1, 11, "");
	holder_init(&f.index, &stranger, 2, 12, "");
	holder_init(&f.index, &salted, 1, 10, "s");
	for (int i = 0; i < BT * MAX_BLOCKS; i++)
		a.tokens[i] = b.tokens[i] = stranger.tokens[i] = salted.tokens[i] = i;
	holder_fill(&f.index, &a, 2);

	/* of a full block, as far as it is the same and no further than asked */
	b.tokens[BT + 2] = 99;
	ck_assert_uint_eq(rows_of(&f, &b, 1, a.table.ids[0], BT, &id), 2);
	ck_assert_uint_eq(id, a.table.ids[1]);
	ck_assert_uint_eq(rows_of(&f, &b, 1, a.table.ids[0], 1, &id), 1);
	b.tokens[BT] = 99;
	ck_assert_uint_eq(rows_of(&f, &b, 1, a.table.ids[0], BT, &id), 0);
	/* not after another block, nor for anybody else */
	ck_assert_uint_eq(rows_of(&f, &a, 1, a.table.ids[1], BT, &id), 0);
	ck_assert_uint_eq(rows_of(&f, &stranger, 0, BLOCK_NONE, BT, &id), 0);
	ck_assert_uint_eq(rows_of(&f, &salted, 0, BLOCK_NONE, BT, &id), 0);

	/* of an open one, and of as many rows as were published */
	ck_assert_int_eq(holder_partial(&f.index, &a, 1), 0);
	memcpy(b.tokens, a.tokens, sizeof(b.tokens));
	ck_assert_uint_eq(rows_of(&f, &b, 2, a.table.ids[1], BT, &id), 1);
	/* whatever a former block has left behind them */
	memcpy(node_tokens(&f.index, f.index.node_of[a.table.ids[2]]),
	       a.tokens + (size_t)2 * BT, BT * sizeof(*a.tokens));
	ck_assert_uint_eq(rows_of(&f, &b, 2, a.table.ids[1], BT, &id), 1);
	ck_assert_int_eq(holder_partial(&f.index, &a, 3), 0);
	ck_assert_uint_eq(rows_of(&f, &b, 2, a.table.ids[1], BT, &id), 3);
	ck_assert_uint_eq(id, a.table.ids[2]);
	prefix_acquire_rows(&f.index, &a.chain, id, 3);
	ck_assert_uint_eq(f.index.counters.hit_tokens, 3);
	ck_assert_uint_eq(f.index.counters.shared_hit_tokens, 0);
	block_pool_unref(&f.pool, id);
	ck_assert_uint_eq(prefix_find(&f.index, &b.chain, b.tokens, 2, a.table.ids[1]),
			  BLOCK_NONE);

	/* when full it is a block like any other */
	seq_publish(&a.table, &f.index, &a.chain, a.tokens, 3 * BT);
	ck_assert_uint_eq(prefix_find(&f.index, &a.chain, a.tokens, 2, a.table.ids[1]),
			  a.table.ids[2]);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	holder_deinit(&f.index, &a);
	holder_deinit(&f.index, &stranger);
	seq_deinit(&b.table);
	seq_deinit(&salted.table);
	teardown(&f);
}
END_TEST

START_TEST(open_blocks_come_and_go)
{
	struct prefix_flush_result flushed;
	struct holder a, b, c;
	struct fixture f;
	uint32_t open, id;

	setup(&f, 6, 256);
	holder_init(&f.index, &a, 1, 10, "");
	holder_init(&f.index, &b, 1, 11, "");
	holder_init(&f.index, &c, 1, 12, "");
	for (int i = 0; i < BT * MAX_BLOCKS; i++)
		a.tokens[i] = b.tokens[i] = c.tokens[i] = i;
	holder_fill(&f.index, &a, 1);
	holder_fill(&f.index, &b, 1);
	ck_assert_int_eq(holder_partial(&f.index, &a, 2), 0);
	open = a.table.ids[1];

	/* what is offered already is not offered twice */
	ck_assert_int_eq(holder_partial(&f.index, &b, 2), PREFIX_EXISTS);
	ck_assert(!block_pool_get(&f.pool, b.table.ids[1])->indexed);

	/* its writer has gone: it stays, till one with more rows comes */
	holder_deinit(&f.index, &a);
	ck_assert_int_eq(block_pool_get(&f.pool, open)->state, BLOCK_CACHED);
	ck_assert_int_eq(holder_partial(&f.index, &b, 3), 0);
	ck_assert_int_eq(block_pool_get(&f.pool, open)->state, BLOCK_FREE);

	/* a block that another has filled takes its place */
	holder_fill(&f.index, &c, 2);
	id = b.table.ids[1];
	seq_publish(&b.table, &f.index, &b.chain, b.tokens, 2 * BT);
	ck_assert_uint_eq(b.table.ids[1], c.table.ids[1]);
	ck_assert_int_eq(block_pool_get(&f.pool, id)->state, BLOCK_FREE);

	/* leaves go first, odd ends before all; a flush of the prefix takes them too */
	ck_assert_int_eq(holder_partial(&f.index, &b, 1), 0);
	id = b.table.ids[2];
	holder_deinit(&f.index, &c);
	holder_deinit(&f.index, &b);
	ck_assert_uint_eq(prefix_evict(&f.index, 1), 1);
	ck_assert_int_eq(block_pool_get(&f.pool, id)->state, BLOCK_FREE);
	holder_init(&f.index, &b, 1, 11, "");
	for (int i = 0; i < BT * MAX_BLOCKS; i++)
		b.tokens[i] = i;
	holder_fill(&f.index, &b, 2);
	ck_assert_int_eq(holder_partial(&f.index, &b, 1), 0);
	id = b.table.ids[1];
	holder_deinit(&f.index, &b);
	flush_chain(&f.index, id, false, &flushed);
	ck_assert_uint_eq(flushed.flushed, 3);
	ck_assert_uint_eq(f.index.n_nodes, 0);
	teardown(&f);
}
END_TEST

START_TEST(table_truncates_and_copies)
{
	struct fixture f;
	struct holder a;
	uint32_t ids[3];

	setup(&f, 8, 256);
	holder_init(&f.index, &a, 1, 1, "");
	holder_fill(&f.index, &a, 3);
	seq_copy(&a.table, 3, ids);
	ck_assert_mem_eq(ids, a.table.ids, sizeof(ids));
	seq_truncate(&a.table, &f.pool, 1);
	ck_assert_uint_eq(a.table.n_blocks, 1);
	ck_assert_uint_eq(a.table.n_published, 1);
	ck_assert_uint_eq(f.pool.n_cached, 2);
	/* last first */
	ck_assert_uint_eq(evict_pick(&f.pool.evict), ids[2]);
	holder_deinit(&f.index, &a);
	teardown(&f);
}
END_TEST

/*
 * Random holders with tokens from a tiny alphabet, some with keys of a few bits. The
 * model is a plain list of what each block was filled with, so a hit can be compared
 * with what its block really holds.
 */
#define N_POOL    24
#define N_HOLDERS 6

struct content {
	uint32_t domain;
	uint32_t salted;
	uint32_t n;
	int32_t tokens[BT * MAX_BLOCKS];
};

/* Holds, publishes, releases or flushes one indexed block. */
static void change_one(struct fixture *f)
{
	uint32_t id = (uint32_t)random() % N_POOL;
	struct prefix_flush_result r;

	if (!f->pool.blocks[id].indexed)
		return;
	switch (random() % 4) {
	case 0:
		flush_chain(&f->index, id, random() % 2, &r);
		ck_assert_uint_eq(r.remaining, 0);
		break;
	case 1:
		(void)prefix_pin(&f->index, f->index.node_of[id], random() % 2,
				 N_POOL / 3);
		break;
	case 2:
		(void)prefix_unpin(&f->index, f->index.node_of[id]);
		break;
	default:
		flush_domain(&f->index, PREFIX_DOMAIN_PUBLIC, &r);
		ck_assert_uint_eq(r.remaining, 0);
	}
}

START_TEST(random_against_contents)
{
	static const uint32_t bits[] = {1, 3, 8, 256};
	struct content contents[N_POOL] = {0}, want;
	struct prefix_flush_result flushed;
	struct holder h[N_HOLDERS];
	bool live[N_HOLDERS] = {false};
	struct fixture f;
	uint64_t n_hits = 0;

	srandom((unsigned int)_i + 1);
	setup(&f, N_POOL, bits[_i % 4]);
	for (int op = 0; op < 3000; op++) {
		uint32_t k = (uint32_t)random() % N_HOLDERS, hits;
		uint32_t domain = (uint32_t)random() % 2, salted = (uint32_t)random() % 2;

		if (live[k]) {
			if (random() % 2)
				seq_truncate(&h[k].table, &f.pool,
					     (uint32_t)random() % (MAX_BLOCKS + 1));
			holder_deinit(&f.index, &h[k]);
			live[k] = false;
		} else if (random() % 30 == 0) {
			flush_domain(&f.index, domain, &flushed);
			ck_assert_uint_eq(flushed.remaining, 0);
		} else if (random() % 20 == 0) {
			change_one(&f);
		} else {
			holder_init(&f.index, &h[k], domain, k, salted ? "salt" : "");
			h[k].chain.reads_public = !salted;
			live[k] = true;
			for (int i = 0; i < BT * MAX_BLOCKS; i++)
				h[k].tokens[i] =
					(i % BT == 0) ? (int32_t)random() % 2 : 0;
			hits = holder_fill(&f.index, &h[k],
					   1 + (uint32_t)random() % MAX_BLOCKS);
			n_hits += hits;
			memset(&want, 0, sizeof(want));
			for (uint32_t i = 0; i < h[k].table.n_blocks; i++) {
				uint32_t id = h[k].table.ids[i];

				/* what is public came from anywhere */
				want.domain = contents[id].domain;
				want.salted = contents[id].salted;
				if (i >= hits ||
				    f.pool.blocks[id].domain != PREFIX_DOMAIN_PUBLIC) {
					want.domain = domain;
					want.salted = salted;
				}
				want.n = i + 1;
				memcpy(want.tokens, h[k].tokens,
				       (i + 1) * BT * sizeof(*want.tokens));
				if (i < hits)
					ck_assert_mem_eq(&contents[id], &want,
							 sizeof(want));
				contents[id] = want;
			}
		}
		index_check(&f.index);
	}
	ck_assert_uint_gt(n_hits, 100);
	for (uint32_t k = 0; k < N_HOLDERS; k++)
		if (live[k])
			holder_deinit(&f.index, &h[k]);
	ck_assert_uint_eq(f.pool.n_active, 0);
	teardown(&f);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("index");

	tcase_add_test(tc, key_is_hmac_of_tagged_fields);
	tcase_add_test(tc, every_field_changes_the_root);
	tcase_add_test(tc, memo_has_the_right_key);
	tcase_add_test(tc, memo_is_for_one_domain);
	tcase_add_test(tc, hits_stay_inside_domain_and_salt);
	tcase_add_test(tc, equal_block_is_swapped);
	tcase_add_test(tc, leaves_go_first);
	tcase_add_test(tc, rows_of_a_block_that_begins_the_same);
	tcase_add_test(tc, open_blocks_come_and_go);
	tcase_add_test(tc, table_truncates_and_copies);
	tcase_add_loop_test(tc, random_against_contents, 0, 20);
	return run_case("prefix", tc);
}
