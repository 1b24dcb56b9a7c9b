/* SPDX-License-Identifier: MIT */
/* Single behaviours of the scheduler that the simulation does not spell out. */
#include "daemon/sched/sched.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/prefix_node.h"
#include "ipc/base.h"
#include "tests/unit/cache/flush.h"
#include "tests/unit/suite.h"

#define BT  16
#define EOS 2

struct fixture {
	struct cache cache;
	struct sched *sched;
	struct plan plan;
	struct plan_result result;
	int32_t tokens[8192];
};

static void setup_with(struct fixture *f, uint32_t n_blocks, uint32_t max_seqs,
		       uint32_t budget, uint32_t max_len, bool copy_rows)
{
	struct prefix_model model = {.block_tokens = BT};
	struct sched_config config = {
		.max_num_seqs = max_seqs,
		.max_num_batched_tokens = budget,
		.max_model_len = max_len,
		.max_waiting = 64,
		.block_tokens = BT,
		.max_dist_words = 100,
		.enable_prefix_caching = true,
		.copy_rows = copy_rows,
		.eos = {EOS},
		.n_eos = 1,
	};
	struct plan_caps caps;

	memset(f, 0, sizeof(*f));
	const struct cache_config cache = {
		.identity = &model,
		.block_bytes = 64,
		.n_blocks = n_blocks,
		.evict = &evict_lru,
	};

	ck_assert_int_eq(cache_init(&f->cache, &cache), 0);
	ck_assert_int_eq(sched_new(&config, &f->cache, &f->sched), 0);
	sched_plan_caps(f->sched, &caps);
	ck_assert_int_eq(plan_init(&f->plan, &caps), 0);
	ck_assert_int_eq(plan_result_init(&f->result, &caps), 0);
}

static void setup(struct fixture *f, uint32_t n_blocks, uint32_t max_seqs,
		  uint32_t budget, uint32_t max_len)
{
	setup_with(f, n_blocks, max_seqs, budget, max_len, false);
}

/* With a format whose blocks can be copied row by row. */
static void setup_copying(struct fixture *f, uint32_t n_blocks, uint32_t max_seqs,
			  uint32_t budget, uint32_t max_len)
{
	setup_with(f, n_blocks, max_seqs, budget, max_len, true);
}

static void teardown(struct fixture *f)
{
	ck_assert_int_eq(sched_check(f->sched), 0);
	sched_free(f->sched);
	ck_assert_uint_eq(f->cache.pool.n_active, 0);
	plan_result_deinit(&f->result);
	plan_deinit(&f->plan);
	cache_deinit(&f->cache);
}

/* A GENERATE request of @n tokens that all depend on @text. */
static struct request_desc desc(struct fixture *f, uint32_t n, int32_t text)
{
	for (uint32_t i = 0; i < n; i++)
		f->tokens[i] = text + 10;
	return (struct request_desc){
		.kind = REQUEST_GENERATE,
		.tokens = f->tokens,
		.n_tokens = n,
		.max_tokens = 1,
	};
}

static uint32_t add(struct fixture *f, const struct request_desc *d)
{
	uint32_t id;

	ck_assert_int_eq(sched_add(f->sched, d, 0, &id, NULL), 0);
	return id;
}

/* Plans; every output becomes @token. */
static uint32_t plan(struct fixture *f, int32_t token)
{
	uint32_t n = sched_plan(f->sched, 0, &f->plan);

	ck_assert_int_eq(plan_check(&f->plan, BT, f->cache.pool.n_blocks, 0), 0);
	plan_result_reset(&f->result);
	f->result.step = f->plan.step;
	f->result.n_outputs = f->plan.n_outputs;
	for (uint32_t i = 0; i < f->plan.n_outputs; i++)
		f->result.outputs[i].token = f->plan.outputs[i].kind == PLAN_SAMPLE
						     ? token
						     : f->plan.outputs[i].target;
	return n;
}

static void complete(struct fixture *f)
{
	sched_complete(f->sched, &f->plan, &f->result);
	ck_assert_int_eq(sched_check(f->sched), 0);
}

static const struct sched_event *last_event(struct fixture *f)
{
	uint32_t n;
	const struct sched_event *events = sched_events(f->sched, &n);

	ck_assert_uint_gt(n, 0);
	return &events[n - 1];
}

static uint32_t rows_of(const struct fixture *f, uint32_t id)
{
	for (uint32_t i = 0; i < f->plan.n_entries; i++)
		if (f->plan.entries[i].seq_id == id)
			return f->plan.entries[i].n_rows;
	return 0;
}

START_TEST(refusals_name_their_numbers)
{
	struct sched_refusal why;
	struct request_desc d;
	struct fixture f;
	uint32_t id;

	setup(&f, 4, 2, 64, 100);
	d = desc(&f, 100, 0);
	ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, &why), SCHED_PROMPT_TOO_LONG);
	ck_assert_uint_eq(why.wanted, 100);
	ck_assert_uint_eq(why.limit, 99);
	d = desc(&f, 65, 0);
	ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, &why), SCHED_CANNOT_EVER_FIT);
	ck_assert_uint_eq(why.wanted, 5);
	ck_assert_uint_eq(why.limit, 4);
	d = desc(&f, 3, 0);
	f.tokens[2] = -1;
	ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, &why), SCHED_INVALID);
	ck_assert_uint_eq(why.wanted, 2);
	d.n_tokens = 0;
	ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, &why), SCHED_INVALID);
	d = desc(&f, 3, 0);
	/* Each user gets half of the places that are left, and there is always one more. */
	for (int left = 66; left;) {
		int half = (left + 1) / 2;

		d.uid++;
		for (int i = 0; i < half; i++)
			add(&f, &d);
		ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, &why), SCHED_QUEUE_FULL);
		ck_assert_uint_eq(why.limit, 66);
		left -= half;
	}
	teardown(&f);
}
END_TEST

START_TEST(one_prompt_is_computed_once)
{
	struct sched_stats stats;
	struct request_desc d;
	struct fixture f;

	setup(&f, 2000, 32, 512, 4096);
	d = desc(&f, 1000, 1);
	for (uint32_t i = 0; i < 16; i++) {
		d.owner = i;
		d.uid = i % 3;
		add(&f, &d);
	}
	while (plan(&f, 7)) {
		complete(&f);
		sched_clear_events(f.sched);
	}
	sched_stats(f.sched, &stats);
	/* 62 full blocks once; the open one, 8 tokens, by each */
	ck_assert_uint_eq(stats.counters.computed_rows, 1000 + 15 * 8);
	ck_assert_uint_eq(stats.counters.cached_tokens, 15 * 992);
	ck_assert_uint_eq(f.cache.index.counters.shared_hit_tokens, 15 * 992);
	ck_assert_uint_eq(stats.counters.completed, 16);
	teardown(&f);
}
END_TEST

START_TEST(waiters_go_on_when_the_computing_one_is_cancelled)
{
	struct request_desc d;
	struct fixture f;
	uint32_t first, second;

	setup(&f, 200, 8, 64, 4096);
	d = desc(&f, 300, 1);
	first = add(&f, &d);
	second = add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 64);
	ck_assert_uint_eq(rows_of(&f, second), 0);
	sched_cancel(f.sched, first);
	/* in flight: nothing of it returns before the device is done */
	ck_assert_uint_eq(f.cache.pool.n_active, 4);
	complete(&f);
	ck_assert_uint_eq(last_event(&f)->reason, SCHED_REASON_CANCELLED);
	sched_clear_events(f.sched);
	ck_assert_uint_eq(plan(&f, 7), 64);
	ck_assert_uint_eq(rows_of(&f, second), 64);
	ck_assert_uint_eq(sched_get(f.sched, second)->n_cached, 64);
	complete(&f);
	teardown(&f);
}
END_TEST

START_TEST(long_prompt_does_not_hold_up_short_ones)
{
	struct request_desc d;
	struct fixture f;
	uint32_t ids[4];

	setup(&f, 2000, 32, 512, 8000);
	d = desc(&f, 6000, 1);
	add(&f, &d);
	plan(&f, 7);
	ck_assert_uint_eq(f.plan.n_rows, 512);
	complete(&f);
	/* same uid, then three others: each has its first token from the next step */
	for (uint32_t i = 0; i < 4; i++) {
		d = desc(&f, 40, (int32_t)i + 2);
		d.uid = i;
		ids[i] = add(&f, &d);
	}
	plan(&f, 7);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(rows_of(&f, ids[i]), 40);
	/* and what they leave of its user's time goes to the long one, in whole blocks */
	ck_assert_uint_gt(f.plan.n_rows, 4 * 40 + 128);
	ck_assert_uint_eq((f.plan.n_rows - 4 * 40) % 16, 0);
	complete(&f);
	teardown(&f);
}
END_TEST

START_TEST(ends)
{
	const struct sched_event *e;
	struct request_desc d;
	struct fixture f;
	uint32_t n;

	setup(&f, 20, 4, 64, 24);
	/* max_tokens */
	d = desc(&f, 10, 1);
	add(&f, &d);
	plan(&f, 7);
	complete(&f);
	e = last_event(&f);
	ck_assert_uint_eq(e->reason, SCHED_REASON_LENGTH);
	ck_assert_uint_eq(e->n_prompt, 10);
	ck_assert_uint_eq(e->n_generated, 1);
	sched_clear_events(f.sched);
	/* end of sequence */
	d.max_tokens = 0;
	add(&f, &d);
	plan(&f, EOS);
	complete(&f);
	e = sched_events(f.sched, &n);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(e[0].kind, SCHED_TOKEN);
	ck_assert(e[0].is_eos);
	ck_assert_uint_eq(e[0].position, 10);
	ck_assert_uint_eq(e[1].reason, SCHED_REASON_STOP);
	sched_clear_events(f.sched);
	/* ignored, so the context ends it */
	d.ignore_eos = true;
	add(&f, &d);
	for (n = 0; plan(&f, EOS); n++) {
		sched_clear_events(f.sched);
		complete(&f);
	}
	ck_assert_uint_eq(n, 14);
	ck_assert_uint_eq(last_event(&f)->reason, SCHED_REASON_LENGTH);
	ck_assert_uint_eq(last_event(&f)->n_generated, 14);
	sched_clear_events(f.sched);
	/* the device fails */
	add(&f, &d);
	plan(&f, 7);
	f.result.status = -EIO;
	complete(&f);
	ck_assert_uint_eq(last_event(&f)->reason, SCHED_REASON_ERROR);
	ck_assert_int_eq(last_event(&f)->status, -EIO);
	teardown(&f);
}
END_TEST

/* No number for one row: its request fails, the other of the step goes on, and what led
 * there is not shared. */
START_TEST(a_row_without_numbers_fails_alone)
{
	const struct sched_event *e;
	struct request_desc d;
	struct fixture f;
	uint32_t n, bad, good;

	setup(&f, 16, 4, 128, 100);
	d = desc(&f, 40, 0);
	bad = add(&f, &d);
	d = desc(&f, 40, 1);
	good = add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 80);
	ck_assert_uint_eq(f.plan.entries[f.plan.outputs[0].entry].seq_id, bad);
	f.result.outputs[0] = (struct plan_output_result){-1, NAN};
	complete(&f);
	e = sched_events(f.sched, &n);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(e[0].id, bad);
	ck_assert_uint_eq(e[0].kind, SCHED_FINISHED);
	ck_assert_uint_eq(e[0].reason, SCHED_REASON_ERROR);
	ck_assert_int_eq(e[0].status, -EDOM);
	ck_assert_uint_eq(e[0].n_generated, 0);
	ck_assert_uint_eq(e[1].id, good);
	ck_assert_uint_eq(e[1].kind, SCHED_TOKEN);
	ck_assert_int_eq(e[1].token, 7);
	ck_assert_uint_eq(e[2].reason, SCHED_REASON_LENGTH);
	sched_clear_events(f.sched);
	for (int32_t text = 0; text < 2; text++) {
		d = desc(&f, 40, text);
		add(&f, &d);
		plan(&f, 7);
		complete(&f);
		ck_assert_uint_eq(last_event(&f)->n_cached, text ? 2 * BT : 0);
		sched_clear_events(f.sched);
	}
	teardown(&f);
}
END_TEST

START_TEST(score_computes_every_row)
{
	const struct sched_event *e;
	struct request_desc d;
	struct fixture f;
	uint32_t n;

	setup(&f, 20, 4, 64, 100);
	d = desc(&f, 40, 1);
	for (int round = 0; round < 2; round++) {
		d.kind = REQUEST_SCORE;
		add(&f, &d);
		ck_assert_uint_eq(plan(&f, 0), 40);
		complete(&f);
		e = sched_events(f.sched, &n);
		ck_assert_uint_eq(n, 40);
		for (uint32_t i = 0; i < 39; i++) {
			ck_assert_uint_eq(e[i].kind, SCHED_SCORED);
			ck_assert_uint_eq(e[i].position, i + 1);
			ck_assert_int_eq(e[i].token, f.tokens[i + 1]);
		}
		ck_assert_uint_eq(e[39].reason, SCHED_REASON_STOP);
		ck_assert_uint_eq(e[39].n_cached, 0);
		sched_clear_events(f.sched);
	}
	/* a later GENERATE uses what SCORE has published */
	d.kind = REQUEST_GENERATE;
	add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 8);
	complete(&f);
	ck_assert_uint_eq(last_event(&f)->n_cached, 32);
	teardown(&f);
}
END_TEST

START_TEST(distributions_are_spread_over_steps)
{
	static const uint32_t want_rows[] = {15, 10, 10, 5};
	struct request_desc d;
	struct fixture f;
	uint32_t position = 5, n, id;
	const struct sched_event *e;

	setup(&f, 20, 4, 64, 100);
	d = desc(&f, 40, 1);
	d.kind = REQUEST_SCORE;
	d.dist = (struct plan_dist){.top = 5, .words = 10};
	d.dist_first = 5;
	id = add(&f, &d);
	for (size_t i = 0; i < KVD_ARRAY_LEN(want_rows); i++) {
		/* a hundred words a step: ten positions */
		ck_assert_uint_eq(plan(&f, 0), want_rows[i]);
		ck_assert_uint_eq(rows_of(&f, id), want_rows[i]);
		complete(&f);
		e = sched_events(f.sched, &n);
		for (uint32_t k = 0, row = 0; k < n; k++) {
			if (e[k].kind != SCHED_SCORED || !e[k].dist.words)
				continue;
			ck_assert_uint_eq(e[k].position, ++position);
			ck_assert_uint_eq(e[k].dist.off, 10 * row++);
			ck_assert_int_eq(e[k].token, position < 40 ? f.tokens[0] : -1);
		}
		sched_clear_events(f.sched);
	}
	ck_assert_uint_eq(position, 40);
	ck_assert_ptr_null(sched_get(f.sched, id));
	/* more than a step can ever hold, and a first position that is none */
	d.dist.words = 101;
	ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, NULL), SCHED_INVALID);
	d.dist.words = 10;
	d.dist_first = 40;
	ck_assert_int_eq(sched_add(f.sched, &d, 0, &id, NULL), SCHED_INVALID);
	teardown(&f);
}
END_TEST

START_TEST(second_hits_while_first_decodes)
{
	struct request_desc d;
	struct fixture f;
	uint32_t id;

	setup(&f, 200, 4, 2048, 4096);
	d = desc(&f, 1500, 1);
	d.max_tokens = 100;
	add(&f, &d);
	plan(&f, 7);
	complete(&f);
	sched_clear_events(f.sched);
	id = add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 1 + 1500 - 1488);
	ck_assert_uint_eq(sched_get(f.sched, id)->n_cached, 1488);
	complete(&f);
	teardown(&f);
}
END_TEST

START_TEST(paused_one_yields_its_blocks)
{
	struct sched_stats stats;
	struct request_desc d;
	struct fixture f;
	uint32_t a, b;

	setup(&f, 4, 4, 64, 100);
	d = desc(&f, 40, 1);
	d.max_tokens = 8;
	a = add(&f, &d);
	plan(&f, 7);
	complete(&f);
	sched_clear_events(f.sched);
	sched_pause(f.sched, a, true);
	ck_assert_uint_eq(plan(&f, 7), 0);
	ck_assert_uint_eq(f.cache.pool.n_active, 3);
	d = desc(&f, 50, 2);
	b = add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 50);
	ck_assert_uint_eq(rows_of(&f, b), 50);
	complete(&f);
	sched_clear_events(f.sched);
	sched_stats(f.sched, &stats);
	ck_assert_uint_eq(stats.counters.preemptions, 1);
	sched_pause(f.sched, a, false);
	while (plan(&f, 7)) {
		sched_clear_events(f.sched);
		complete(&f);
	}
	ck_assert_uint_eq(last_event(&f)->id, a);
	ck_assert_uint_eq(last_event(&f)->n_generated, 8);
	teardown(&f);
}
END_TEST

START_TEST(pins_cannot_hang_a_request)
{
	struct request_desc d;
	struct fixture f;

	setup(&f, 4, 4, 64, 100);
	d = desc(&f, 48, 1);
	add(&f, &d);
	plan(&f, 7);
	prefix_check(&f.cache.index);
	complete(&f);
	sched_clear_events(f.sched);
	for (uint32_t id = 0; id < 4; id++)
		if (block_pool_get(&f.cache.pool, id)->indexed &&
		    !f.cache.index.nodes[f.cache.index.node_of[id]].n_children)
			node_pin_chain(&f.cache.index, f.cache.index.node_of[id]);
	ck_assert_uint_eq(f.cache.pool.n_pinned, 3);
	d = desc(&f, 30, 2);
	add(&f, &d);
	while (plan(&f, 7)) {
		complete(&f);
	}
	ck_assert_uint_eq(last_event(&f)->reason, SCHED_REASON_ERROR);
	ck_assert_int_eq(last_event(&f)->status, -ENOSPC);
	teardown(&f);
}
END_TEST

/* Whether the copy of those rows was made shows when the step has ended, not before. */
START_TEST(a_fork_takes_no_rows_that_are_being_copied)
{
	struct request_desc d, branch = {.kind = REQUEST_GENERATE, .max_tokens = 4};
	struct fixture f;
	uint32_t first, second, child;

	setup_copying(&f, 16, 8, 64, 100);
	d = desc(&f, 20, 0);
	d.max_tokens = 4;
	first = add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 20);
	complete(&f);
	sched_clear_events(f.sched);

	/* the second one's tokens differ from the 19th on: two rows of a block to be copied */
	f.tokens[18] = 9;
	second = add(&f, &d);
	plan(&f, 7);
	ck_assert_uint_eq(f.plan.n_copies, 1);
	ck_assert_uint_eq(rows_of(&f, second), 2);
	ck_assert_int_eq(sched_fork(f.sched, second, 20, &branch, 0, &child, NULL), 0);
	f.result.status = -EIO;
	complete(&f);
	sched_clear_events(f.sched);
	ck_assert_ptr_null(sched_get(f.sched, second));
	ck_assert_ptr_null(sched_get(f.sched, first));

	/* it has the full block, and computes the rest */
	plan(&f, 7);
	ck_assert_uint_eq(f.plan.n_copies, 1);
	ck_assert_uint_eq(rows_of(&f, child), 2);
	complete(&f);
	sched_clear_events(f.sched);
	sched_cancel(f.sched, child);
	sched_clear_events(f.sched);
	teardown(&f);
}
END_TEST

/* Rows of a running request's first block are offered once, and not again after a flush. */
START_TEST(flushed_rows_stay_away)
{
	struct prefix_flush_result flushed;
	struct request_desc d;
	struct fixture f;

	setup_copying(&f, 16, 8, 64, 100);
	d = desc(&f, 5, 0);
	d.max_tokens = 20;
	add(&f, &d);
	plan(&f, 7);
	complete(&f);
	sched_clear_events(f.sched);
	ck_assert_uint_eq(f.cache.index.n_nodes, 1);
	flush_all(&f.cache.index, &flushed);
	ck_assert_uint_eq(flushed.kept_active, 1);
	while (plan(&f, 7)) {
		complete(&f);
		sched_clear_events(f.sched);
		ck_assert_uint_eq(f.cache.index.n_nodes, 0);
	}
	sched_clear_events(f.sched);
	teardown(&f);
}
END_TEST

/* Rows that a new request finds of 8 tokens of text 0. */
static uint32_t rows_found(struct fixture *f)
{
	struct request_desc d = desc(f, 8, 0);
	uint32_t n;

	add(f, &d);
	n = 8 - plan(f, 7);
	complete(f);
	sched_clear_events(f->sched);
	return n;
}

static void run_out(struct fixture *f)
{
	while (plan(f, 7)) {
		complete(f);
		sched_clear_events(f->sched);
	}
	sched_clear_events(f->sched);
}

/* A fork copies rows that its parent offered: when a flush takes them before the fork, before
 * the copy or while it is made, the fork does not bring them back. Else they are its own. */
START_TEST(a_fork_does_not_bring_flushed_rows_back)
{
	enum { NEVER, BEFORE_FORK, BEFORE_PLAN, IN_FLIGHT, N_TIMES };
	struct request_desc d, branch = {.kind = REQUEST_GENERATE, .max_tokens = 4};
	struct prefix_flush_result flushed;
	struct fixture f;
	uint32_t first, child;

	/* the parent's block is open, or full when the fork takes some rows of it */
	for (uint32_t n = 5; n <= 20; n += 15) {
		for (int when = 0; when < N_TIMES; when++) {
			setup_copying(&f, 16, 8, 64, 100);
			d = desc(&f, n, 0);
			d.max_tokens = 20;
			first = add(&f, &d);
			plan(&f, 7);
			complete(&f);
			sched_clear_events(f.sched);
			if (when == BEFORE_FORK)
				flush_all(&f.cache.index, &flushed);
			branch.cookie = 1;
			ck_assert_int_eq(
				sched_fork(f.sched, first, 5, &branch, 0, &child, NULL),
				0);
			if (when == BEFORE_PLAN)
				flush_all(&f.cache.index, &flushed);
			plan(&f, 7);
			ck_assert_uint_eq(f.plan.n_copies, 1);
			if (when == IN_FLIGHT)
				flush_all(&f.cache.index, &flushed);
			complete(&f);
			sched_clear_events(f.sched);
			run_out(&f);
			ck_assert_uint_eq(rows_found(&f),
					  when == NEVER ? n == 5 ? 5 : 7 : 0);
			teardown(&f);
		}
	}
}
END_TEST

/* So does a request that copies rows which it has found. */
START_TEST(copied_rows_are_flushed_with_their_source)
{
	struct prefix_flush_result flushed;
	struct request_desc d;
	struct fixture f;

	for (int flush = 0; flush < 2; flush++) {
		setup_copying(&f, 16, 8, 64, 100);
		ck_assert_uint_eq(rows_found(&f), 0);
		d = desc(&f, 6, 0);
		d.max_tokens = 3;
		f.tokens[5] = 99;
		add(&f, &d);
		ck_assert_uint_eq(plan(&f, 7), 1);
		ck_assert_uint_eq(f.plan.n_copies, 1);
		if (flush)
			flush_all(&f.cache.index, &flushed);
		complete(&f);
		sched_clear_events(f.sched);
		ck_assert_uint_eq(f.cache.index.n_nodes, flush ? 0 : 2);
		run_out(&f);
		teardown(&f);
	}
}
END_TEST

START_TEST(other_domain_gets_zeroed_blocks)
{
	struct request_desc d;
	struct fixture f;

	setup(&f, 3, 4, 64, 100);
	d = desc(&f, 40, 1);
	d.domain = 1;
	add(&f, &d);
	plan(&f, 7);
	ck_assert_uint_eq(f.plan.n_zero, 0);
	complete(&f);
	sched_clear_events(f.sched);
	d.domain = 2;
	add(&f, &d);
	ck_assert_uint_eq(plan(&f, 7), 40);
	ck_assert_uint_eq(f.plan.n_zero, 3);
	complete(&f);
	ck_assert_uint_eq(last_event(&f)->n_cached, 0);
	teardown(&f);
}
END_TEST

START_TEST(ids_are_not_reused_at_once)
{
	struct request_desc d;
	struct fixture f;
	uint32_t a, b;

	setup(&f, 20, 4, 64, 100);
	d = desc(&f, 5, 1);
	a = add(&f, &d);
	sched_cancel(f.sched, a);
	b = add(&f, &d);
	ck_assert_uint_ne(a, b);
	sched_cancel(f.sched, a);
	ck_assert_ptr_nonnull(sched_get(f.sched, b));
	ck_assert_ptr_null(sched_get(f.sched, a));
	ck_assert_ptr_null(sched_get(f.sched, 0));
	ck_assert_ptr_null(sched_get(f.sched, UINT32_MAX));
	teardown(&f);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("sched");

	tcase_add_test(tc, refusals_name_their_numbers);
	tcase_add_test(tc, one_prompt_is_computed_once);
	tcase_add_test(tc, waiters_go_on_when_the_computing_one_is_cancelled);
	tcase_add_test(tc, long_prompt_does_not_hold_up_short_ones);
	tcase_add_test(tc, ends);
	tcase_add_test(tc, score_computes_every_row);
	tcase_add_test(tc, distributions_are_spread_over_steps);
	tcase_add_test(tc, second_hits_while_first_decodes);
	tcase_add_test(tc, paused_one_yields_its_blocks);
	tcase_add_test(tc, a_row_without_numbers_fails_alone);
	tcase_add_test(tc, pins_cannot_hang_a_request);
	tcase_add_test(tc, a_fork_takes_no_rows_that_are_being_copied);
	tcase_add_test(tc, flushed_rows_stay_away);
	tcase_add_test(tc, a_fork_does_not_bring_flushed_rows_back);
	tcase_add_test(tc, copied_rows_are_flushed_with_their_source);
	tcase_add_test(tc, other_domain_gets_zeroed_blocks);
	tcase_add_test(tc, ids_are_not_reused_at_once);
	return run_case("sched", tc);
}
