/* SPDX-License-Identifier: MIT */
/* The prefix index: what people do to it. Flushes, pins, public prefixes. */
#include "tests/unit/cache/holder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/failing_alloc.h"

START_TEST(flush_leaves_readers_alone)
{
	struct prefix_flush_result r;
	struct holder a, b, pinned;
	struct fixture f;
	uint32_t id;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 1, "");
	holder_init(&f.index, &b, 1, 1, "b");
	holder_init(&f.index, &pinned, 1, 1, "p");
	holder_fill(&f.index, &a, 3);
	holder_fill(&f.index, &b, 2);
	holder_fill(&f.index, &pinned, 2);
	node_pin_chain(&f.index, f.index.node_of[pinned.table.ids[1]]);
	holder_deinit(&f.index, &b);
	holder_deinit(&f.index, &pinned);

	flush_domain(&f.index, 2, &r);
	ck_assert_uint_eq(r.flushed + r.kept_active + r.kept_pinned + r.remaining, 0);
	flush_domain(&f.index, 1, &r);
	ck_assert_uint_eq(r.flushed, 2);
	ck_assert_uint_eq(r.kept_active, 3);
	ck_assert_uint_eq(r.kept_pinned, 2);
	ck_assert_uint_eq(r.remaining, 0);
	ck_assert_uint_eq(f.pool.n_active, 3);
	ck_assert_int_eq(prefix_check(&f.index), 0);

	/* what a computes from here on has no parent in the index */
	ck_assert_int_eq(prefix_take(&f.index, 1, 1, &id), 0);
	seq_append(&a.table, id);
	ck_assert_uint_eq(seq_publish(&a.table, &f.index, &a.chain, a.tokens, 4 * BT), 0);
	holder_init(&f.index, &b, 1, 1, "");
	ck_assert_uint_eq(holder_fill(&f.index, &b, 3), 0);
	holder_deinit(&f.index, &a);
	ck_assert_uint_eq(f.pool.n_active, 3);
	holder_deinit(&f.index, &b);
	holder_init(&f.index, &pinned, 1, 1, "p");
	ck_assert_uint_eq(holder_fill(&f.index, &pinned, 2), 2);
	node_unpin_chain(&f.index, f.index.node_of[pinned.table.ids[1]]);
	holder_deinit(&f.index, &pinned);
	flush_all(&f.index, &r);
	ck_assert_uint_eq(f.pool.n_free, 32);
	teardown(&f);
}
END_TEST

/* A public prefix is found by every domain, what hangs below it by its own only. */
START_TEST(public_prefix_is_shared)
{
	struct prefix_flush_result r;
	struct holder a, b, salted;
	struct fixture f;
	uint32_t end;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 1, "");
	ck_assert_uint_eq(holder_fill(&f.index, &a, 5), 0);
	end = a.table.ids[2];
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, 2), -EDQUOT);
	ck_assert_uint_eq(f.index.n_public, 0);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[end]), -ENOENT);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], false, 3), 0);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, 3), 0);
	ck_assert_uint_eq(f.index.n_public, 3);
	ck_assert_uint_eq(f.pool.n_pinned, 3);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	holder_deinit(&f.index, &a);

	/* its owner finds all of it, others the public part; what they add is theirs */
	holder_init(&f.index, &a, 1, 1, "");
	a.chain.reads_public = true;
	ck_assert_uint_eq(holder_fill(&f.index, &a, 5), 5);
	holder_init(&f.index, &b, 2, 2, "");
	b.chain.reads_public = true;
	ck_assert_uint_eq(holder_fill(&f.index, &b, 5), 3);
	holder_deinit(&f.index, &b);
	holder_init(&f.index, &b, 2, 2, "");
	b.chain.reads_public = true;
	ck_assert_uint_eq(holder_fill(&f.index, &b, 5), 5);
	ck_assert_uint_ne(a.table.ids[3], b.table.ids[3]);
	holder_init(&f.index, &salted, 2, 2, "salt");
	ck_assert_uint_eq(holder_fill(&f.index, &salted, 2), 0);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	holder_deinit(&f.index, &a);
	holder_deinit(&f.index, &b);
	holder_deinit(&f.index, &salted);

	flush_domain(&f.index, PREFIX_DOMAIN_PUBLIC, &r);
	ck_assert_uint_eq(r.kept_pinned, 3);
	ck_assert_uint_eq(r.flushed, 0);
	prefix_evict(&f.index, 32);
	ck_assert_uint_eq(f.pool.n_cached, 3);

	/* once nobody holds it, it goes, with what hangs below */
	holder_init(&f.index, &b, 2, 2, "");
	b.chain.reads_public = true;
	ck_assert_uint_eq(holder_fill(&f.index, &b, 5), 3);
	holder_deinit(&f.index, &b);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[end]), 0);
	flush_domain(&f.index, PREFIX_DOMAIN_PUBLIC, &r);
	ck_assert_uint_eq(r.flushed, 5);
	ck_assert_uint_eq(r.remaining, 0);
	ck_assert_uint_eq(f.pool.n_free, 32);
	teardown(&f);
}
END_TEST

/* Two domains computed one prefix before it was public: one of them becomes so. */
START_TEST(equal_public_prefixes_are_one)
{
	struct prefix_flush_result r;
	struct holder a, b, c;
	struct fixture f;
	uint32_t end, own, longer;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 1, "");
	holder_init(&f.index, &b, 2, 2, "");
	holder_fill(&f.index, &a, 3);
	ck_assert_uint_eq(holder_fill(&f.index, &b, 5), 0);
	end = a.table.ids[2];
	own = b.table.ids[2];
	longer = b.table.ids[4];
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[own], false, 6), 0);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, 6), 0);
	ck_assert_uint_eq(f.pool.n_pinned, 6);
	/* the hold of b's moves to a's */
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[own], true, 6), 0);
	ck_assert_uint_eq(f.index.n_public, 3);
	ck_assert_uint_eq(f.pool.n_pinned, 3);
	ck_assert(f.index.nodes[f.index.node_of[end]].pinned &&
		  !f.index.nodes[f.index.node_of[own]].pinned);
	ck_assert_int_eq(block_pool_get(&f.pool, own)->domain, 2);

	/* what b has after it moves below a's, when nobody reads it */
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[longer], true, 32), -EBUSY);
	ck_assert_uint_eq(f.index.n_public, 3);
	holder_deinit(&f.index, &b);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[longer], true, 4), -EDQUOT);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[longer], true, 5), 0);
	ck_assert_uint_eq(f.index.n_public, 5);
	ck_assert_uint_eq(f.pool.n_pinned, 5);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	ck_assert_int_eq(block_pool_check(&f.pool), 0);
	holder_deinit(&f.index, &a);
	holder_init(&f.index, &c, 3, 3, "");
	c.chain.reads_public = true;
	ck_assert_uint_eq(holder_fill(&f.index, &c, 5), 5);
	ck_assert_uint_eq(c.table.ids[2], end);
	ck_assert_uint_eq(c.table.ids[4], longer);
	holder_deinit(&f.index, &c);

	/* by whatever id it is named */
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[longer]), 0);
	ck_assert_uint_eq(f.pool.n_pinned, 3);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[own]), 0);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[own]), -ENOENT);
	ck_assert_uint_eq(f.pool.n_pinned, 0);
	/* leaves first: what moved stands before what it hangs below */
	while (prefix_evict(&f.index, 1))
		ck_assert_int_eq(prefix_check(&f.index), 0);
	ck_assert_uint_eq(f.pool.n_free, 32);
	flush_all(&f.index, &r);
	ck_assert_uint_eq(r.flushed, 0);
	teardown(&f);
}
END_TEST

/* What is held already may have to hold more when it becomes public. */
START_TEST(public_hold_of_what_is_held)
{
	struct holder a, b;
	struct fixture f;
	uint32_t end, own, longer;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 1, "");
	holder_init(&f.index, &b, 2, 2, "");
	holder_fill(&f.index, &a, 3);
	ck_assert_uint_eq(holder_fill(&f.index, &b, 5), 0);
	end = a.table.ids[2];
	own = b.table.ids[2];
	longer = b.table.ids[4];
	fail_after = 0;
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, 32), -ENOMEM);
	fail_after = -1;
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, 32), 0);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[end]), 0);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[own], false, 32), 0);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[longer], false, 32), 0);
	ck_assert_uint_eq(f.pool.n_pinned, 5);
	holder_deinit(&f.index, &a);
	holder_deinit(&f.index, &b);
	/* three more: those that were public and are equal */
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[longer], true, 7), -EDQUOT);
	ck_assert_uint_eq(f.index.n_public, 3);
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[longer], true, 8), 0);
	ck_assert_uint_eq(f.index.n_public, 5);
	ck_assert_uint_eq(f.pool.n_pinned, 8);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	ck_assert_int_eq(block_pool_check(&f.pool), 0);
	teardown(&f);
}
END_TEST

/* The odd ends that others have below it do not keep it. */
START_TEST(flush_of_a_public_chain)
{
	struct prefix_flush_result r;
	struct holder a, b, c;
	struct fixture f;
	uint32_t end;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 1, "");
	holder_init(&f.index, &b, 2, 2, "");
	holder_init(&f.index, &c, 3, 3, "");
	b.chain.reads_public = true;
	c.chain.reads_public = true;
	holder_fill(&f.index, &a, 2);
	end = a.table.ids[1];
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, 32), 0);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[end]), 0);
	holder_deinit(&f.index, &a);
	ck_assert_uint_eq(holder_fill(&f.index, &b, 2), 2);
	ck_assert_int_eq(holder_partial(&f.index, &b, 1), 0);
	ck_assert_uint_eq(holder_fill(&f.index, &c, 2), 2);
	ck_assert_int_eq(holder_partial(&f.index, &c, 3), 0);
	ck_assert_uint_eq(f.index.nodes[f.index.node_of[end]].n_children, 2);
	holder_deinit(&f.index, &b);
	/* c still reads all but b's end */
	flush_chain(&f.index, end, false, &r);
	ck_assert_uint_eq(r.flushed, 1);
	ck_assert_uint_eq(r.kept_active, 3);
	ck_assert_uint_eq(f.index.n_nodes, 0);
	ck_assert_uint_eq(f.index.n_public, 0);
	holder_deinit(&f.index, &c);
	ck_assert_uint_eq(f.pool.n_free, 32);
	teardown(&f);
}
END_TEST

START_TEST(flush_of_one_chain)
{
	struct prefix_flush_result r;
	struct holder a, b;
	struct fixture f;

	setup(&f, 32, 256);
	holder_init(&f.index, &a, 1, 1, "");
	holder_init(&f.index, &b, 1, 1, "");
	b.tokens[3 * BT] = 1;
	holder_fill(&f.index, &a, 5);
	ck_assert_uint_eq(holder_fill(&f.index, &b, 6), 3);
	/* a's branch goes and is in use; the three that b shares stay */
	flush_chain(&f.index, a.table.ids[4], true, &r);
	ck_assert_uint_eq(r.kept_active, 2);
	ck_assert_uint_eq(r.flushed, 0);
	ck_assert_uint_eq(f.index.n_nodes, 6);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	holder_deinit(&f.index, &a);
	/* an end that others go on from keeps all */
	flush_chain(&f.index, b.table.ids[2], false, &r);
	ck_assert_uint_eq(r.flushed + r.kept_active + r.kept_pinned, 0);
	/* a pin in the middle keeps what is before it */
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[b.table.ids[1]], false, 32),
			 0);
	flush_chain(&f.index, b.table.ids[3], true, &r);
	ck_assert_uint_eq(r.kept_active, 4);
	ck_assert_uint_eq(r.kept_pinned, 1);
	ck_assert_uint_eq(f.index.n_nodes, 2);
	ck_assert_int_eq(prefix_check(&f.index), 0);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[b.table.ids[1]]), 0);
	holder_deinit(&f.index, &b);
	ck_assert_uint_eq(f.pool.n_cached, 2);
	teardown(&f);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("admin");

	tcase_add_test(tc, flush_leaves_readers_alone);
	tcase_add_test(tc, public_prefix_is_shared);
	tcase_add_test(tc, equal_public_prefixes_are_one);
	tcase_add_test(tc, public_hold_of_what_is_held);
	tcase_add_test(tc, flush_of_a_public_chain);
	tcase_add_test(tc, flush_of_one_chain);
	return run_case("prefix-admin", tc);
}
