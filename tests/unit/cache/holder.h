/* SPDX-License-Identifier: MIT */
/* For tests of the prefix index: one over a small pool, and sequences that hold its blocks. */
#ifndef KVD_TESTS_HOLDER_H
#define KVD_TESTS_HOLDER_H

#include "daemon/cache/prefix_node.h"
#include "daemon/cache/seq.h"

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

static inline void setup(struct fixture *f, uint32_t n_blocks, uint32_t key_bits)
{
	ck_assert_int_eq(block_pool_init(&f->pool, n_blocks, &evict_lru), 0);
	ck_assert_int_eq(prefix_init(&f->index, &f->pool, &model, key_bits), 0);
}

static inline void teardown(struct fixture *f)
{
	ck_assert_int_eq(block_pool_check(&f->pool), 0);
	ck_assert_int_eq(prefix_check(&f->index), 0);
	prefix_deinit(&f->index);
	block_pool_deinit(&f->pool);
}

static inline void holder_init(struct fixture *f, struct holder *h, uint32_t domain,
			       uint64_t owner, const char *salt)
{
	memset(h, 0, sizeof(*h));
	h->chain.keys = h->keys;
	h->chain.cap_keys = MAX_BLOCKS;
	h->chain.domain = domain;
	h->chain.owner = owner;
	ck_assert_int_eq(prefix_key_root(&f->index.keyer, domain, NULL, 0, salt,
					 strlen(salt), &h->chain.root),
			 0);
	ck_assert_int_eq(seq_init(&h->table, MAX_BLOCKS), 0);
}

static inline void holder_deinit(struct fixture *f, struct holder *h)
{
	seq_release(&h->table, &f->pool);
	seq_deinit(&h->table);
}

/* Adopts what is there, takes the rest up to @n blocks, publishes. Return: hits. */
static inline uint32_t holder_fill(struct fixture *f, struct holder *h, uint32_t n)
{
	uint32_t ids[MAX_BLOCKS], n_hits, id;

	n_hits = prefix_lookup(&f->index, &h->chain, h->tokens, n, ids);
	for (uint32_t i = 0; i < n_hits; i++)
		seq_append_published(&h->table, ids[i]);
	while (h->table.n_blocks < n) {
		int c = prefix_take(&f->index, h->chain.domain, h->chain.owner, &id);

		if (c == BLOCK_POOL_DRY)
			break;
		seq_append(&h->table, id);
	}
	seq_publish(&h->table, &f->index, &h->chain, h->tokens, h->table.n_blocks * BT);
	return n_hits;
}

/* Its last block holds @n_rows rows, which others may copy. Return: as the call. */
static inline int holder_open(struct fixture *f, struct holder *h, uint32_t n_rows)
{
	uint32_t n = h->table.n_published, id;

	if (h->table.n_blocks == n) {
		ck_assert_int_eq(
			prefix_take(&f->index, h->chain.domain, h->chain.owner, &id), 0);
		seq_append(&h->table, id);
	}
	return prefix_publish_rows(&f->index, &h->chain, h->tokens, n,
				   n ? h->table.ids[n - 1] : BLOCK_NONE, h->table.ids[n],
				   n_rows);
}

#endif
