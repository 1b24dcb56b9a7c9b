/* SPDX-License-Identifier: MIT */
/* The block pool against its state diagram, and random operations against a model. */
#include "daemon/cache/block.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/unit/suite.h"

START_TEST(states_and_counts)
{
	struct block_pool pool;
	uint32_t a, b, c;

	ck_assert_int_eq(block_pool_init(&pool, 0, &evict_lru), -EINVAL);
	ck_assert_int_eq(block_pool_init(&pool, 2, &evict_lru), 0);
	ck_assert_int_eq(block_pool_take(&pool, 7, 70, &a), 0);
	ck_assert_int_eq(block_pool_take(&pool, 7, 70, &b), 0);
	ck_assert_int_eq(block_pool_take(&pool, 7, 70, &c), BLOCK_POOL_DRY);
	ck_assert_uint_ne(a, b);
	ck_assert_uint_eq(block_pool_get(&pool, a)->owner, 70);

	/* indexed: cached when let go, a candidate, and back to active by a hit */
	block_pool_set_indexed(&pool, a);
	block_pool_unref(&pool, a);
	ck_assert_uint_eq(block_pool_get(&pool, a)->state, BLOCK_CACHED);
	ck_assert_uint_eq(evict_pick(&pool.evict), a);
	block_pool_ref(&pool, a);
	ck_assert_uint_eq(pool.n_active, 2);
	ck_assert_uint_eq(evict_pick(&pool.evict), EVICT_NONE);

	/* private: free when let go */
	block_pool_ref(&pool, b);
	block_pool_unref(&pool, b);
	ck_assert_uint_eq(pool.n_active, 2);
	block_pool_unref(&pool, b);
	ck_assert_uint_eq(block_pool_get(&pool, b)->state, BLOCK_FREE);

	/* leaves the index while it is read: free when let go */
	block_pool_clear_indexed(&pool, a);
	ck_assert_uint_eq(block_pool_get(&pool, a)->state, BLOCK_ACTIVE);
	block_pool_unref(&pool, a);
	ck_assert_uint_eq(pool.n_free, 2);
	ck_assert_int_eq(block_pool_check(&pool), 0);
	block_pool_deinit(&pool);
}
END_TEST

START_TEST(zeroed_between_domains)
{
	struct block_pool pool;
	uint32_t id;

	ck_assert_int_eq(block_pool_init(&pool, 1, &evict_lru), 0);
	ck_assert_int_eq(block_pool_take(&pool, 1, 0, &id), 0);
	block_pool_unref(&pool, id);
	ck_assert_int_eq(block_pool_take(&pool, 1, 0, &id), 0);
	block_pool_unref(&pool, id);
	ck_assert_int_eq(block_pool_take(&pool, 2, 0, &id), BLOCK_NEEDS_ZERO);
	/* the step that was to zero it failed: not even its own domain takes it as it is */
	block_pool_taint(&pool, id);
	block_pool_unref(&pool, id);
	ck_assert_int_eq(block_pool_take(&pool, 2, 0, &id), BLOCK_NEEDS_ZERO);
	block_pool_unref(&pool, id);
	ck_assert_int_eq(block_pool_take(&pool, 2, 0, &id), 0);
	ck_assert(block_pool_get(&pool, id)->used);
	block_pool_deinit(&pool);
}
END_TEST

START_TEST(pins_keep_it_cached)
{
	struct block_pool pool;
	uint32_t id;

	ck_assert_int_eq(block_pool_init(&pool, 3, &evict_lru), 0);
	ck_assert_int_eq(block_pool_take(&pool, 1, 0, &id), 0);
	block_pool_set_indexed(&pool, id);
	block_pool_pin(&pool, id);
	block_pool_pin(&pool, id);
	block_pool_unref(&pool, id);
	ck_assert_uint_eq(pool.n_cached_pinned, 1);
	ck_assert_uint_eq(block_pool_n_available(&pool), 2);
	ck_assert_uint_eq(evict_pick(&pool.evict), EVICT_NONE);
	block_pool_unpin(&pool, id);
	ck_assert_uint_eq(pool.n_pinned, 1);
	block_pool_unpin(&pool, id);
	ck_assert_uint_eq(pool.n_pinned, 0);
	ck_assert_uint_eq(evict_pick(&pool.evict), id);
	ck_assert_uint_eq(block_pool_n_available(&pool), 3);
	ck_assert_int_eq(block_pool_check(&pool), 0);
	block_pool_deinit(&pool);
}
END_TEST

START_TEST(check_finds_faults)
{
	struct block_pool pool;
	uint32_t id;

	ck_assert_int_eq(block_pool_init(&pool, 3, &evict_lru), 0);
	ck_assert_int_eq(block_pool_take(&pool, 1, 0, &id), 0);
	pool.blocks[id].refs = 0;
	ck_assert_int_eq(block_pool_check(&pool), -EINVAL);
	pool.blocks[id].refs = 1;
	pool.n_free--;
	ck_assert_int_eq(block_pool_check(&pool), -EINVAL);
	pool.n_free++;
	pool.blocks[id].pins = 1;
	ck_assert_int_eq(block_pool_check(&pool), -EINVAL);
	pool.blocks[id].pins = 0;
	ck_assert_int_eq(block_pool_check(&pool), 0);
	block_pool_deinit(&pool);
}
END_TEST

/* What the model knows of a block; taken means refs or indexed. */
struct model {
	uint32_t refs;
	uint32_t pins;
	bool indexed;
	uint32_t domain;
	uint64_t cached_at;
};

#define N_BLOCKS 12

/* The victim is of a domain that has most candidates, and became one first of those. */
static void check_victim(const struct model *model, uint32_t victim)
{
	uint32_t n[3] = {0}, n_all = 0;

	for (uint32_t b = 0; b < N_BLOCKS; b++)
		if (model[b].indexed && !model[b].refs && !model[b].pins) {
			n[model[b].domain]++;
			n_all++;
		}
	ck_assert_int_eq(victim != EVICT_NONE, n_all > 0);
	if (victim == EVICT_NONE)
		return;
	for (uint32_t d = 0; d < 3; d++)
		ck_assert_uint_ge(n[model[victim].domain], n[d]);
	for (uint32_t b = 0; b < N_BLOCKS; b++)
		if (model[b].indexed && !model[b].refs && !model[b].pins &&
		    model[b].domain == model[victim].domain)
			ck_assert_uint_ge(model[b].cached_at, model[victim].cached_at);
}

static void random_operation(struct block_pool *pool, struct model *model, uint64_t now)
{
	uint32_t i = (uint32_t)random() % N_BLOCKS, n_free = 0, id;
	struct model *m = &model[i];
	bool candidate = m->indexed && !m->refs && !m->pins;
	int c;

	switch (random() % 8) {
	case 0:
	case 1:
		for (uint32_t b = 0; b < N_BLOCKS; b++)
			n_free += !model[b].refs && !model[b].indexed;
		c = block_pool_take(pool, i % 3, i, &id);
		ck_assert_int_eq(c == BLOCK_POOL_DRY, !n_free);
		if (!n_free)
			break;
		m = &model[id];
		ck_assert(!m->refs && !m->indexed);
		ck_assert_int_eq(c, m->domain != UINT32_MAX && m->domain != i % 3);
		m->refs = 1;
		m->domain = i % 3;
		break;
	case 2:
		if (!m->refs && !m->indexed)
			break;
		block_pool_ref(pool, i);
		m->refs++;
		break;
	case 3:
	case 4:
		if (!m->refs)
			break;
		block_pool_unref(pool, i);
		if (!--m->refs)
			m->cached_at = now;
		break;
	case 5:
		if (!m->refs)
			break;
		if (m->indexed && !m->pins)
			block_pool_clear_indexed(pool, i);
		else if (!m->indexed)
			block_pool_set_indexed(pool, i);
		else
			break;
		m->indexed = !m->indexed;
		break;
	case 6:
		if (!m->indexed)
			break;
		if (m->pins && random() % 2) {
			block_pool_unpin(pool, i);
			if (!--m->pins)
				m->cached_at = now;
		} else {
			block_pool_pin(pool, i);
			m->pins++;
		}
		break;
	case 7:
		check_victim(model, evict_pick(&pool->evict));
		if (!candidate)
			break;
		block_pool_clear_indexed(pool, i);
		m->indexed = false;
		break;
	}
}

START_TEST(random_operations)
{
	struct model model[N_BLOCKS] = {0};
	struct block_pool pool;

	srandom((unsigned int)_i + 1);
	ck_assert_int_eq(block_pool_init(&pool, N_BLOCKS, &evict_lru), 0);
	for (uint32_t b = 0; b < N_BLOCKS; b++)
		model[b].domain = UINT32_MAX;
	for (uint64_t now = 1; now < 4000; now++) {
		random_operation(&pool, model, now);
		ck_assert_int_eq(block_pool_check(&pool), 0);
		for (uint32_t b = 0; b < N_BLOCKS; b++) {
			const struct block *block = block_pool_get(&pool, b);

			ck_assert_uint_eq(block->refs, model[b].refs);
			ck_assert_uint_eq(block->pins, model[b].pins);
			ck_assert_int_eq(block->indexed, model[b].indexed);
		}
	}
	block_pool_deinit(&pool);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("pool");

	tcase_add_test(tc, states_and_counts);
	tcase_add_test(tc, zeroed_between_domains);
	tcase_add_test(tc, pins_keep_it_cached);
	tcase_add_test(tc, check_finds_faults);
	tcase_add_loop_test(tc, random_operations, 0, 20);
	return run_case("block", tc);
}
