/* SPDX-License-Identifier: MIT */
/* For tests of the prefix index: one over a small pool, and sequences that hold its blocks.
 * One thread. */
#ifndef KVD_TESTS_HOLDER_H
#define KVD_TESTS_HOLDER_H

#include "daemon/cache/prefix_node.h"
#include "daemon/cache/seq.h"

#include "tests/unit/cache/flush.h"
#include "tests/unit/suite.h"

#include <check.h>
#include <string.h>

#define BT         4
#define MAX_BLOCKS 8

struct fixture {
	struct block_pool pool;
	struct prefix_index index;
};

/* One sequence that publishes all its full blocks at once. */
struct holder {
	int32_t tokens[BT * MAX_BLOCKS];
	struct prefix_key keys[MAX_BLOCKS];
	struct prefix_chain chain;
	struct seq_table table;
};

static const struct prefix_model model = {
	.k_format = "fp16",
	.v_format = "fp16",
	.backend = "c",
	.rope = "neox 10000",
	.block_tokens = BT,
};

static const struct prefix_secret secret = {"as random as any"};

static inline void index_open(struct prefix_index *index, struct block_pool *pool,
			      uint32_t n_blocks, const struct evict_policy *evict,
			      const struct prefix_model *of, uint32_t key_bits)
{
	ck_assert_int_eq(block_pool_init(pool, n_blocks, evict), 0);
	ck_assert_int_eq(prefix_init(index, pool, of, &secret, 0, key_bits), 0);
}

static inline void index_check(const struct prefix_index *index)
{
	ck_assert_int_eq(block_pool_check(index->pool), 0);
	ck_assert_int_eq(prefix_check(index), 0);
}

static inline void index_close(struct prefix_index *index)
{
	struct block_pool *pool = index->pool;

	index_check(index);
	prefix_deinit(index);
	block_pool_deinit(pool);
}

static inline void setup(struct fixture *f, uint32_t n_blocks, uint32_t key_bits)
{
	index_open(&f->index, &f->pool, n_blocks, &evict_lru, &model, key_bits);
}

static inline void teardown(struct fixture *f)
{
	index_close(&f->index);
}

static inline void holder_init(struct prefix_index *index, struct holder *h,
			       uint32_t domain, uint64_t owner, const char *salt)
{
	memset(h, 0, sizeof(*h));
	h->chain.keys = h->keys;
	h->chain.cap_keys = MAX_BLOCKS;
	h->chain.domain = domain;
	h->chain.owner = owner;
	ck_assert_int_eq(prefix_key_root(&index->keyer, &index->spaces[0].base, domain,
					 NULL, 0, salt, strlen(salt), &h->chain.root),
			 0);
	ck_assert_int_eq(seq_init(&h->table, MAX_BLOCKS), 0);
}

static inline void holder_deinit(struct prefix_index *index, struct holder *h)
{
	seq_release(&h->table, index->pool);
	seq_deinit(&h->table);
}

/* Takes what is there of @n blocks. Return: hits. */
static inline uint32_t holder_adopt(struct prefix_index *index, struct holder *h,
				    uint32_t n)
{
	uint32_t ids[MAX_BLOCKS];
	uint32_t n_hits = lookup(index, &h->chain, h->tokens, n, ids);

	for (uint32_t i = 0; i < n_hits; i++)
		seq_append_published(&h->table, ids[i]);
	return n_hits;
}

/* Adopts what is there, takes the rest up to @n blocks, publishes. Return: hits. */
static inline uint32_t holder_fill(struct prefix_index *index, struct holder *h,
				   uint32_t n)
{
	uint32_t n_hits = holder_adopt(index, h, n), id;

	while (h->table.n_blocks < n) {
		int c = prefix_take(index, h->chain.domain, h->chain.owner, &id);

		if (c == BLOCK_POOL_DRY)
			break;
		seq_append(&h->table, id);
	}
	seq_publish(&h->table, index, &h->chain, h->tokens, h->table.n_blocks * BT);
	return n_hits;
}

/* Its last block holds @n_rows rows, which others may copy. Return: as the call. */
static inline int holder_partial(struct prefix_index *index, struct holder *h,
				 uint32_t n_rows)
{
	uint32_t n = h->table.n_published, id;

	if (h->table.n_blocks == n) {
		ck_assert_int_eq(prefix_take(index, h->chain.domain, h->chain.owner, &id),
				 0);
		seq_append(&h->table, id);
	}
	return prefix_publish_rows(index, &h->chain, h->tokens, n,
				   n ? h->table.ids[n - 1] : BLOCK_NONE, h->table.ids[n],
				   n_rows);
}

#endif
