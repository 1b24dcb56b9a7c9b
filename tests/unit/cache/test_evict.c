/* SPDX-License-Identifier: MIT */
/* Whose blocks go when the pool is full: the domain's that is charged most, whatever it does. */
#include "tests/unit/cache/holder.h"

#define N_POOL 64
#define FOE    1
#define VICTIM 2
#define OTHER  3

static void setup_adaptive(struct fixture *f)
{
	index_open(&f->index, &f->pool, N_POOL, &evict_adaptive, &model, 256);
}

/* @domain asks for a prompt of @n blocks that is number @number of its own. Return: hits. */
static uint32_t ask(struct fixture *f, uint32_t domain, int32_t number, uint32_t n)
{
	struct holder h;
	uint32_t hits;

	holder_init(&f->index, &h, domain, domain, "");
	h.tokens[0] = number;
	hits = holder_fill(&f->index, &h, n);
	holder_deinit(&f->index, &h);
	return hits;
}

/* Candidates of @domain, counted in the pool. */
static uint32_t charged(const struct fixture *f, uint32_t domain)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < N_POOL; i++)
		n += evict_contains(&f->pool.evict, i) &&
		     f->pool.blocks[i].domain == domain;
	return n;
}

/* 16 blocks of the victim, then a flood of eight times the pool, each prompt asked @times. */
static void flood(int32_t times)
{
	struct fixture f;

	setup_adaptive(&f);
	ask(&f, VICTIM, 1, 8);
	ask(&f, VICTIM, 2, 8);
	for (int32_t i = 0; i < 8 * N_POOL / 8; i++)
		for (int32_t k = 0; k < times; k++)
			ask(&f, FOE, i, 8);
	index_check(&f.index);
	ck_assert_uint_eq(charged(&f, VICTIM), 16);
	ck_assert_uint_eq(charged(&f, FOE), N_POOL - 16);
	ck_assert_uint_eq(ask(&f, VICTIM, 1, 8), 8);
	ck_assert_uint_eq(ask(&f, VICTIM, 2, 8), 8);
	teardown(&f);
}

START_TEST(a_flood_takes_from_itself)
{
	flood(1);
	flood(2);
	flood(5);
}
END_TEST

/* Who has no more than an even share does not see what others take, cold or as a hit. */
START_TEST(a_share_shows_nothing)
{
	struct fixture f;

	setup_adaptive(&f);
	for (int32_t i = 0; i < N_POOL / 8; i++)
		ask(&f, FOE, i, 8);
	for (int32_t i = 0; i < 2; i++)
		ask(&f, VICTIM, i, 8);
	for (int32_t i = 0; i < 200; i++) {
		ask(&f, OTHER, i / 3, 1 + (uint32_t)i % 8);
		ck_assert_uint_ge(charged(&f, VICTIM), 16);
	}
	ck_assert_uint_eq(ask(&f, VICTIM, 0, 8), 8);
	/* three that all want more have about a third each */
	for (int32_t i = 0; i < 100; i++) {
		ask(&f, FOE, 1000 + i, 8);
		ask(&f, VICTIM, 1000 + i, 8);
		ask(&f, OTHER, 1000 + i, 8);
	}
	for (uint32_t d = FOE; d <= OTHER; d++)
		ck_assert_uint_ge(charged(&f, d), N_POOL / 3 - 8);
	teardown(&f);
}
END_TEST

/* What others have below a public prefix keeps that, also when it is charged most. */
START_TEST(a_public_parent_stays_below_its_children)
{
	struct holder h;
	struct fixture f;
	uint32_t end;

	setup_adaptive(&f);
	holder_init(&f.index, &h, FOE, FOE, "");
	holder_fill(&f.index, &h, 6);
	end = h.table.ids[5];
	ck_assert_int_eq(prefix_pin(&f.index, f.index.node_of[end], true, N_POOL), 0);
	holder_deinit(&f.index, &h);
	holder_init(&f.index, &h, VICTIM, VICTIM, "");
	h.chain.reads_public = true;
	ck_assert_uint_eq(holder_fill(&f.index, &h, 8), 6);
	holder_deinit(&f.index, &h);
	ck_assert_int_eq(prefix_unpin(&f.index, f.index.node_of[end]), 0);
	ck_assert_uint_eq(charged(&f, PREFIX_DOMAIN_PUBLIC), 6);
	ck_assert_uint_eq(charged(&f, VICTIM), 2);
	index_check(&f.index);
	/* the two blocks below it go first, then the public ones from the leaf up */
	for (uint32_t left = 7; left < 8; left--) {
		ck_assert_uint_eq(prefix_evict(&f.index, 1), 1);
		ck_assert_uint_eq(f.pool.n_cached, left);
		index_check(&f.index);
	}
	ck_assert_uint_eq(prefix_evict(&f.index, 1), 0);
	teardown(&f);
}
END_TEST

/* As many domains as blocks, each with one: groups come and go. */
START_TEST(each_block_may_be_of_another)
{
	struct fixture f;

	setup_adaptive(&f);
	for (uint32_t d = 10; d < 10 + 5 * N_POOL; d++) {
		ask(&f, d, 1, 1);
		if (d % 7 == 0)
			ask(&f, d - 3, 1, 2);
		index_check(&f.index);
	}
	ck_assert_uint_ge(f.pool.evict.n_groups, N_POOL / 2);
	teardown(&f);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("evict");

	tcase_add_test(tc, a_flood_takes_from_itself);
	tcase_add_test(tc, a_share_shows_nothing);
	tcase_add_test(tc, a_public_parent_stays_below_its_children);
	tcase_add_test(tc, each_block_may_be_of_another);
	return run_case("evict", tc);
}
