/* SPDX-License-Identifier: MIT */
/* Flushes, drops and listings in pieces, and what others do between two of those. */
#include "daemon/cache/cache.h"
#include "tests/unit/cache/kept_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_CHAINS 6

static void publish_chain(struct prefix_index *index, uint32_t domain, int32_t seed,
			  uint32_t n)
{
	struct holder h;

	holder_init(index, &h, domain, 1, "");
	for (int i = 0; i < BT * MAX_BLOCKS; i++)
		h.tokens[i] = seed + i / BT;
	holder_fill(index, &h, n);
	holder_deinit(index, &h);
}

static uint32_t n_of_domain(const struct prefix_index *index, uint32_t domain)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < index->cap_nodes; i++)
		n += node_in_use(index, i) && index->nodes[i].domain == domain;
	return n;
}

/* One piece after the other; what comes between is on what is there. */
START_TEST(others_go_on_during_a_flush)
{
	struct prefix_flush flush = {0};
	struct fixture f;
	uint32_t n_steps = 0;

	srandom((unsigned)_i + 1);
	setup(&f, 64, 256);
	for (int i = 0; i < N_CHAINS; i++)
		publish_chain(&f.index, 1 + i % 2, 100 * i, MAX_BLOCKS);
	prefix_flush_domain(&f.index, &flush, 1);
	while (!prefix_flush_step(&flush, 1 + (uint32_t)random() % 40)) {
		ck_assert_int_eq(prefix_check(&f.index), 0);
		ck_assert_int_eq(block_pool_check(&f.pool), 0);
		/* again what is being flushed, and new things, at the cost of the oldest */
		publish_chain(&f.index, 1, 100 * (int32_t)(random() % N_CHAINS),
			      1 + (uint32_t)random() % MAX_BLOCKS);
		if (random() % 3 == 0)
			prefix_evict(&f.index, (uint32_t)random() % 8);
		ck_assert_uint_lt(n_steps++, 10000);
	}
	ck_assert_uint_eq(flush.result.remaining, 0);
	for (uint32_t i = 0; i < f.index.cap_nodes; i++)
		ck_assert(!node_in_use(&f.index, i) || f.index.nodes[i].domain != 1 ||
			  f.index.nodes[i].life > flush.life);
	prefix_flush_end(&flush);
	prefix_flush_end(&flush);
	teardown(&f);
}
END_TEST

/* Where nobody else does anything, all pieces together do what one flush does. */
START_TEST(pieces_make_a_whole)
{
	struct prefix_flush flush;
	struct fixture f;

	setup(&f, 64, 256);
	for (int i = 0; i < N_CHAINS; i++)
		publish_chain(&f.index, 1 + i % 2, 100 * i, MAX_BLOCKS);
	prefix_flush_domain(&f.index, &flush, 2);
	for (uint32_t before = f.pool.n_free;; before = f.pool.n_free) {
		bool done = prefix_flush_step(&flush, PREFIX_NODE_COST);

		/* a piece is a piece */
		ck_assert_uint_le(f.pool.n_free - before, 1);
		if (done)
			break;
	}
	ck_assert_uint_eq(flush.result.flushed, N_CHAINS / 2 * MAX_BLOCKS);
	ck_assert_uint_eq(n_of_domain(&f.index, 2), 0);
	ck_assert_uint_eq(n_of_domain(&f.index, 1), N_CHAINS / 2 * MAX_BLOCKS);
	prefix_flush_end(&flush);
	teardown(&f);
}
END_TEST

/* Two at a time, in each other's way; one is given up. */
START_TEST(two_flushes_share_a_tree)
{
	struct prefix_flush all, tree, given_up;
	struct fixture f;
	struct holder h;
	bool done = false, tree_done = false;

	setup(&f, 32, 256);
	holder_init(&f.index, &h, 1, 1, "");
	holder_fill(&f.index, &h, MAX_BLOCKS);
	prefix_flush_all(&f.index, &all);
	prefix_flush_chain(&f.index, &tree, f.index.node_of[h.table.ids[2]], true);
	prefix_flush_chain(&f.index, &given_up, f.index.node_of[h.table.ids[7]], false);
	prefix_flush_step(&given_up, 1);
	while (!done || !tree_done) {
		done = prefix_flush_step(&all, 3);
		tree_done = prefix_flush_step(&tree, 5);
		ck_assert_int_eq(prefix_check(&f.index), 0);
		if (given_up.index && f.index.n_nodes < MAX_BLOCKS - 2)
			prefix_flush_end(&given_up);
	}
	/* all were read by h */
	ck_assert_uint_eq(all.result.kept_active + tree.result.kept_active +
				  given_up.result.kept_active,
			  MAX_BLOCKS);
	ck_assert_uint_eq(all.result.remaining + tree.result.remaining, 0);
	ck_assert_uint_eq(f.index.n_nodes, 0);
	prefix_flush_end(&all);
	prefix_flush_end(&tree);
	ck_assert_ptr_null(f.index.flushes);
	holder_deinit(&f.index, &h);
	ck_assert_uint_eq(f.pool.n_free, 32);
	teardown(&f);
}
END_TEST

/* A prefix is pinned for all while it is being flushed: what was not reached remains. */
START_TEST(a_pin_during_a_flush)
{
	for (uint32_t n = 0; n < 200; n++) {
		struct prefix_flush flush;
		struct fixture f;
		struct holder h, twin;
		uint32_t end, top, n_left = 0;
		int r = 0;

		setup(&f, 32, 256);
		holder_init(&f.index, &twin, 2, 2, "");
		holder_fill(&f.index, &twin, 2);
		ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[twin.table.ids[1]],
					    true, 32),
				 0);
		holder_init(&f.index, &h, 1, 1, "");
		holder_fill(&f.index, &h, 6);
		end = h.table.ids[3];
		top = h.table.ids[n % 5];
		holder_deinit(&f.index, &h);
		prefix_flush_chain(&f.index, &flush, f.index.node_of[top], true);
		prefix_flush_step(&flush, n);
		if (block_pool_get(&f.pool, end)->indexed &&
		    block_pool_get(&f.pool, end)->domain == 1)
			r = prefix_pin(&f.index, f.index.node_of[end], true, 32);
		ck_assert(!r);
		ck_assert_int_eq(prefix_check(&f.index), 0);
		while (!prefix_flush_step(&flush, 1))
			ck_assert_int_eq(prefix_check(&f.index), 0);
		for (uint32_t i = 0; i < f.index.cap_nodes; i++)
			n_left += node_in_use(&f.index, i) && !node_pins(&f.index, i);
		ck_assert_uint_le(flush.result.remaining, n_left);
		prefix_flush_end(&flush);
		holder_deinit(&f.index, &twin);
		teardown(&f);
	}
}
END_TEST

/* Wrong bytes near the root: nothing below is found from then on, and all goes in pieces. */
START_TEST(a_drop_takes_its_time)
{
	struct prefix_flush drop = {0};
	struct world a, b;
	uint32_t n_steps = 0;
	struct holder h;

	world_new(&a, 32);
	world_ask(&a, &h, ALICE, "", false, 0, 2, 6);
	visit(&a, ALICE, "", false, 1, 2, 6);
	ck_assert_int_eq(prefix_pin(&a.index, a.index.node_of[h.table.ids[4]], false, 8),
			 0);
	save_all(&a);
	holder_deinit(&a.index, &h);
	for (uint32_t i = 0; i < 32; i++) {
		const struct prefix_node *node = &a.index.nodes[a.index.node_of[i]];

		if (block_pool_get(&a.pool, i)->indexed && node->n_tokens == 2 * BT)
			a.blocks[i * BYTES] ^= 1;
	}
	world_restart(&b, &a);
	ck_assert_uint_eq(visit(&b, ALICE, "", false, 0, 2, 6), 1);
	ck_assert_uint_eq(b.image.n_bad, 1);
	ck_assert_uint_ne(b.index.doomed, NODE_NONE);
	index_check(&b.index);
	/* what was computed instead is found, and survives the drop */
	ck_assert_uint_eq(visit(&b, ALICE, "", false, 0, 2, 6), 6);
	while (prefix_drop_step(&b.index, &drop, PREFIX_NODE_COST)) {
		index_check(&b.index);
		ck_assert_uint_lt(n_steps++, 1000);
	}
	ck_assert_uint_gt(n_steps, 3);
	ck_assert_uint_eq(b.image.n_lost, b.image.n_bad + 4 + 4);
	ck_assert_uint_eq(b.pool.n_pinned, 0);
	ck_assert_uint_eq(visit(&b, ALICE, "", false, 0, 2, 6), 6);
	world_close(&b, true);
	world_close(&a, false);
}
END_TEST

/* Pages and pieces give each prefix once, with what only it has. */
START_TEST(listing_in_pieces)
{
	const struct cache_config config = {.identity = &model,
					    .block_bytes = 64,
					    .n_blocks = 64,
					    .evict = &evict_adaptive};
	struct cache_list list = {.view = {.domain = 1}};
	struct cache_prefix_info info;
	struct cache cache;
	uint32_t n = 0, n_own = 0, n_turns = 0;
	int r;

	ck_assert_int_eq(cache_init(&cache, &config), 0);
	for (int i = 0; i < N_CHAINS; i++)
		publish_chain(&cache.index, 1 + i % 2, 100 * i, 2 + (uint32_t)i);
	do {
		uint32_t work = 3;

		r = cache_list_next(&cache, &list, &work, &info);
		ck_assert_uint_le(work, 3);
		n_turns++;
		if (r != CACHE_LIST_ENTRY)
			continue;
		n++;
		n_own += info.own_blocks;
		ck_assert_uint_eq(info.domain, 1);
		ck_assert_uint_eq(info.tokens, info.own_blocks * BT);
		/* what is published meanwhile may come or not; what was listed may go */
		publish_chain(&cache.index, 2, 1000 * (int32_t)n, 2);
	} while (r != CACHE_LIST_END);
	ck_assert_uint_eq(n, N_CHAINS / 2);
	ck_assert_uint_eq(n_own, 2 + 4 + 6);
	ck_assert_uint_gt(n_turns, 64 / 3);
	/* an entry that goes while it is worked at is left out */
	list = (struct cache_list){.view = {.all = true}};
	do {
		uint32_t work = 1;

		r = cache_list_next(&cache, &list, &work, &info);
		ck_assert_int_ne(r, CACHE_LIST_ENTRY);
		if (list.end)
			prefix_evict(&cache.index, 64);
	} while (r != CACHE_LIST_END);
	cache_deinit(&cache);
	cache_deinit(&cache);
}
END_TEST

/* The listing of domain @domain: how many, and what is added up. */
static struct cache_prefix_info listed(const struct cache *cache, uint32_t domain)
{
	struct cache_list list = {.view = {.domain = domain}};
	struct cache_prefix_info info, sum = {0};
	uint32_t work = UINT32_MAX;

	while (cache_list_next(cache, &list, &work, &info) == CACHE_LIST_ENTRY) {
		sum.id++;
		sum.tokens += info.tokens;
		sum.own_blocks += info.own_blocks;
		sum.readers += info.readers;
		sum.frequent |= info.frequent;
	}
	return sum;
}

/* Others go on from it, read it and find it: nothing of that changes what is listed. */
START_TEST(others_see_of_a_public_prefix_that_it_is_pinned)
{
	const struct cache_config config = {
		.identity = &model,
		.block_bytes = 64,
		.n_blocks = 64,
		.evict = &evict_adaptive,
	};
	struct cache_list list = {.view = {.all = true}};
	struct cache_prefix_info info, before, after;
	uint32_t work = UINT32_MAX;
	struct holder admin, bob;
	struct cache cache;
	uint64_t id, tokens;

	ck_assert_int_eq(cache_init(&cache, &config), 0);
	holder_init(&cache.index, &admin, 0, 1, "");
	for (int i = 0; i < BT * MAX_BLOCKS; i++)
		admin.tokens[i] = 100 + i;
	holder_fill(&cache.index, &admin, 3);
	ck_assert_int_eq(cache_list_next(&cache, &list, &work, &info), CACHE_LIST_ENTRY);
	id = info.id;
	ck_assert_int_eq(cache_pin(&cache, id, true, 64, &tokens), 0);
	holder_deinit(&cache.index, &admin);
	publish_chain(&cache.index, 1, 1000, 2);
	before = listed(&cache, 1);
	ck_assert_uint_eq(before.id, 2);
	ck_assert_uint_eq(before.tokens, 5 * BT);
	ck_assert_uint_eq(before.own_blocks, 2);
	holder_init(&cache.index, &bob, 2, 1, "");
	bob.chain.reads_public = true;
	memcpy(bob.tokens, admin.tokens, sizeof(bob.tokens));
	holder_fill(&cache.index, &bob, 5);
	after = listed(&cache, 1);
	ck_assert_uint_eq(after.id, before.id);
	ck_assert_uint_eq(after.tokens, before.tokens);
	ck_assert_uint_eq(after.own_blocks, before.own_blocks);
	ck_assert_uint_eq(after.readers, before.readers);
	ck_assert_int_eq(after.frequent, before.frequent);
	ck_assert_uint_eq(listed(&cache, 2).readers, 1);
	holder_deinit(&cache.index, &bob);
	ck_assert_int_eq(cache_unpin(&cache, id, &tokens), 0);
	cache_deinit(&cache);
}
END_TEST

/* Whether tokens of publish_chain(@seed) stand anywhere in the index. */
static bool has_traces(const struct prefix_index *index, int32_t seed)
{
	for (uint32_t i = 0; i < index->cap_nodes * index->max_tokens; i++)
		if (index->tokens[i] >= seed && index->tokens[i] < seed + MAX_BLOCKS)
			return true;
	for (uint32_t i = 0; i < PREFIX_MEMO_KEYS * index->max_tokens; i++)
		if (index->memo_tokens[i] >= seed &&
		    index->memo_tokens[i] < seed + MAX_BLOCKS)
			return true;
	return false;
}

/* A prompt that is evicted or flushed is nowhere any more, and others' stay in the memo, so that
 * nobody sees by the time it takes that somebody flushed. */
START_TEST(prompts_leave_no_trace)
{
	struct prefix_flush_result result;
	struct fixture f;

	setup(&f, 64, 256);
	publish_chain(&f.index, 1, 1000, MAX_BLOCKS);
	ck_assert(has_traces(&f.index, 1000));
	prefix_evict(&f.index, 64);
	ck_assert(!has_traces(&f.index, 1000));
	for (int kind = 0; kind < 3; kind++) {
		uint32_t n_others = 0;

		publish_chain(&f.index, 1, 1000, MAX_BLOCKS);
		publish_chain(&f.index, 2, 2000, MAX_BLOCKS);
		ck_assert(has_traces(&f.index, 1000));
		if (kind == 0) {
			flush_all(&f.index, &result);
		} else if (kind == 1) {
			flush_domain(&f.index, 1, &result);
		} else {
			uint32_t node = 0;

			while (f.index.nodes[node].domain != 1 ||
			       f.index.nodes[node].parent != NODE_NONE)
				node++;
			flush_chain(&f.index, f.index.nodes[node].block, true, &result);
		}
		ck_assert(!has_traces(&f.index, 1000));
		for (uint32_t i = 0; i < PREFIX_MEMO_KEYS; i++)
			n_others += f.index.memo[i].used && f.index.memo[i].domain == 2;
		ck_assert_uint_eq(n_others, kind ? MAX_BLOCKS : 0);
	}
	teardown(&f);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("flush");

	tcase_add_loop_test(tc, others_go_on_during_a_flush, 0, 50);
	tcase_add_test(tc, pieces_make_a_whole);
	tcase_add_test(tc, two_flushes_share_a_tree);
	tcase_add_test(tc, a_pin_during_a_flush);
	tcase_add_test(tc, a_drop_takes_its_time);
	tcase_add_test(tc, listing_in_pieces);
	tcase_add_test(tc, prompts_leave_no_trace);
	tcase_add_test(tc, others_see_of_a_public_prefix_that_it_is_pinned);
	return run_case("prefix-flush", tc);
}
