/* SPDX-License-Identifier: MIT */
/*
 * Fairness of the scheduler in figures: how evenly users that always want more are served
 * by a pool that is too small for them, and how long a short request waits while a long
 * prompt is computed. Time is counted in steps and rows, so that the figures are the same
 * on every machine; the device is one that answers at once.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/world.h"
#include "tests/unit/suite.h"

#define N_USERS 8

/*
 * @demand: requests that each user has outstanding, always.
 * Return: Jain's index of the tokens that were delivered to each.
 */
static double serve(const uint32_t *demand, uint32_t n_blocks, uint32_t n_prompt,
		    uint32_t n_answer)
{
	double got[N_USERS] = {0}, sum = 0, squares = 0;
	struct sched_stats stats;
	struct world w;

	world_init(&w, n_blocks, 64);
	for (uint32_t u = 0; u < N_USERS; u++)
		for (uint32_t i = 0; i < demand[u]; i++)
			ask(&w, 1000 + u, n_prompt, n_answer, u);
	for (uint32_t step = 0; step < 6000; step++) {
		const struct sched_event *events;
		uint32_t n, ended[N_USERS] = {0};

		ck_assert_uint_gt(world_step(&w), 0);
		events = sched_events(w.sched, &n);
		for (uint32_t i = 0; i < n; i++) {
			got[events[i].cookie] += events[i].kind == SCHED_TOKEN;
			ended[events[i].cookie] += events[i].kind == SCHED_FINISHED;
		}
		sched_clear_events(w.sched);
		for (uint32_t u = 0; u < N_USERS; u++)
			while (ended[u]--)
				ask(&w, 1000 + u, n_prompt, n_answer, u);
	}
	ck_assert_int_eq(sched_check(w.sched), 0);
	sched_stats(w.sched, &stats);
	for (uint32_t u = 0; u < N_USERS; u++) {
		sum += got[u];
		squares += got[u] * got[u];
	}
	printf("demand %u..%u, %u blocks: Jain %.3f, %llu preemptions, %llu stalls\n",
	       demand[0], demand[N_USERS - 1], n_blocks, sum * sum / (N_USERS * squares),
	       (unsigned long long)stats.counters.preemptions,
	       (unsigned long long)stats.counters.stalls);
	ck_assert(stats.counters.stalls || stats.counters.preemptions);
	world_deinit(&w);
	return sum * sum / (N_USERS * squares);
}

START_TEST(equal_users_are_served_equally)
{
	static const uint32_t demand[N_USERS] = {8, 8, 8, 8, 8, 8, 8, 8};

	ck_assert(serve(demand, 200, 180, 120) >= 0.95);
}
END_TEST

START_TEST(a_greedy_user_gets_no_more_than_the_others)
{
	static const uint32_t demand[N_USERS] = {200, 8, 8, 8, 8, 8, 8, 8};

	ck_assert(serve(demand, 200, 180, 120) >= 0.9);
}
END_TEST

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/*
 * Short requests of @uid while user 1000 has long prompts computed without a pause.
 * Return: the 99th percentile of rows from arrival to the first token.
 */
static uint64_t short_wait(uint32_t uid)
{
	enum { N_SHORT = 400 };
	static uint64_t asked[N_SHORT], waited[N_SHORT];
	uint32_t n_asked = 0, n_seen = 0;
	struct world w;

	world_init(&w, 4096, 128);
	ask(&w, 1000, 6000, 1, N_SHORT);
	while (n_seen < N_SHORT) {
		const struct sched_event *events;
		uint32_t n;

		if (n_asked < N_SHORT && !rnd(&w, 3)) {
			asked[n_asked] = w.rows;
			ask(&w, uid, 16 + rnd(&w, 32), 1, n_asked++);
		}
		world_step(&w);
		events = sched_events(w.sched, &n);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t c = events[i].cookie;

			if (c == N_SHORT && events[i].kind == SCHED_FINISHED)
				ask(&w, 1000, 6000, 1, N_SHORT);
			else if (c < N_SHORT && events[i].kind == SCHED_TOKEN)
				waited[n_seen++] = w.rows - asked[c];
		}
		sched_clear_events(w.sched);
	}
	world_deinit(&w);
	qsort(waited, N_SHORT, sizeof(waited[0]), by_value);
	printf("short requests of %s user behind a 6,000-token prompt: p50 %llu rows, p99 "
	       "%llu rows\n",
	       uid == 1000 ? "the same" : "another",
	       (unsigned long long)waited[N_SHORT / 2],
	       (unsigned long long)waited[N_SHORT * 99 / 100]);
	return waited[N_SHORT * 99 / 100];
}

START_TEST(short_requests_do_not_wait_for_long_prompts)
{
	/* in order of arrival it would be up to 6,000; a step is 512 */
	ck_assert_uint_le(short_wait(2000), 512);
	ck_assert_uint_le(short_wait(1000), 512);
}
END_TEST

/* Steps until request @cookie has ended. */
static uint32_t steps_until(struct world *w, uint64_t cookie)
{
	for (uint32_t step = 1;; step++) {
		const struct sched_event *events;
		bool ended = false;
		uint32_t n;

		ck_assert_uint_gt(world_step(w), 0);
		events = sched_events(w->sched, &n);
		for (uint32_t i = 0; i < n; i++)
			ended |= events[i].cookie == cookie &&
				 events[i].kind == SCHED_FINISHED;
		sched_clear_events(w->sched);
		if (ended)
			return step;
	}
}

/*
 * One client of a uid has 1,024 requests, then another client of the same uid asks for one.
 * With 8 places and 10 steps for each request its queue lasts 1,280 steps.
 */
START_TEST(a_client_does_not_wait_for_all_of_another)
{
	uint32_t waited, whole;
	struct world w;

	world_init(&w, 4096, 8);
	for (uint32_t i = 0; i < 1024; i++)
		ask_by(&w, 1000, 1, 16, 10, i);
	for (uint32_t i = 0; i < 5; i++) {
		world_step(&w);
		sched_clear_events(w.sched);
	}
	ask_by(&w, 1000, 2, 16, 10, 5000);
	ck_assert_int_eq(sched_check(w.sched), 0);
	waited = steps_until(&w, 5000);
	ask_by(&w, 1000, 2, 16, 10, 5001);
	waited += steps_until(&w, 5001);
	whole = steps_until(&w, 1023);
	printf("two requests behind 1,024 of another client of the uid: %u steps, those "
	       "%u more\n",
	       waited, whole);
	/* one request of the other client ends before each, then they run */
	ck_assert_uint_le(waited, 2 * 22);
	ck_assert_uint_gt(whole, 1000);
	ck_assert_int_eq(sched_check(w.sched), 0);
	world_deinit(&w);
}
END_TEST

/* Clients of one uid that have queued 1,024, 64 and 8 end them in turns. */
START_TEST(clients_of_one_uid_take_turns)
{
	static const uint32_t queued[3] = {1024, 64, 8};
	uint32_t ended[3] = {0};
	struct world w;

	world_init(&w, 4096, 8);
	for (uint32_t c = 0; c < 3; c++)
		for (uint32_t i = 0; i < queued[c]; i++)
			ask_by(&w, 1000, c, 16, 10, c);
	ck_assert_int_eq(sched_check(w.sched), 0);
	while (ended[2] < queued[2]) {
		const struct sched_event *events;
		uint32_t n;

		world_step(&w);
		events = sched_events(w.sched, &n);
		for (uint32_t i = 0; i < n; i++)
			ended[events[i].cookie] += events[i].kind == SCHED_FINISHED;
		sched_clear_events(w.sched);
	}
	printf("clients with 1,024, 64 and 8 requests: %u, %u, %u have ended\n", ended[0],
	       ended[1], ended[2]);
	/* as many each, but for those that ran side by side at the end */
	ck_assert_uint_le(ended[0], queued[2] + 8);
	ck_assert_uint_ge(ended[1] + 8, queued[2]);
	world_deinit(&w);
}
END_TEST

/* Who had nothing queued comes right after what was let in last. */
START_TEST(a_newcomer_takes_the_next_turn)
{
	struct world w;
	const struct request *r;
	uint32_t id;

	world_init(&w, 4096, 8);
	for (uint32_t i = 0; i < 64; i++)
		ask_by(&w, 1000, 1, 16, 10, i);
	id = ask_by(&w, 1000, 2, 16, 10, 5000);
	r = sched_get(w.sched, id);
	ck_assert_uint_eq(r->turn, 1);
	world_step(&w);
	sched_clear_events(w.sched);
	/* eight have left the queue: seven of the one, the only one of the other */
	ck_assert_int_ne(sched_get(w.sched, id)->state, REQUEST_WAITING);
	id = ask_by(&w, 1000, 3, 16, 10, 5001);
	ck_assert_uint_eq(sched_get(w.sched, id)->turn, 8);
	ck_assert_int_eq(sched_check(w.sched), 0);
	world_deinit(&w);
}
END_TEST

/* What a client has queued at another priority, or has cancelled, does not weigh on it. */
START_TEST(turns_are_of_what_waits)
{
	uint32_t ids[64], id;
	struct world w;

	world_init(&w, 4096, 4);
	w.priority = 10;
	for (uint32_t i = 0; i < 64; i++)
		ids[i] = ask_by(&w, 1000, 1, 16, 10, i);
	w.priority = 0;
	id = ask_by(&w, 1000, 1, 16, 10, 100);
	ck_assert_uint_eq(sched_get(w.sched, id)->turn, 1);
	w.priority = 10;
	for (uint32_t i = 32; i < 64; i++)
		sched_cancel(w.sched, ids[i]);
	id = ask_by(&w, 1000, 1, 16, 10, 101);
	ck_assert_uint_eq(sched_get(w.sched, id)->turn, 33);
	ck_assert_int_eq(sched_check(w.sched), 0);
	for (uint32_t i = 0; i < 32; i++)
		sched_cancel(w.sched, ids[i]);
	sched_cancel(w.sched, id);
	id = ask_by(&w, 1000, 1, 16, 10, 102);
	ck_assert_uint_eq(sched_get(w.sched, id)->turn, 1);
	sched_clear_events(w.sched);
	ck_assert_int_eq(sched_check(w.sched), 0);
	world_deinit(&w);
}
END_TEST

/* A branch that runs at once has not waited: newcomers do not come after it. */
START_TEST(a_branch_lets_nobody_wait)
{
	struct request_desc branch = {
		.kind = REQUEST_GENERATE, .uid = 1000, .client = 1, .max_tokens = 4};
	uint32_t parent, id;
	struct world w;

	world_init(&w, 4096, 4);
	parent = ask_by(&w, 1000, 1, 40, 100, 0);
	world_step(&w);
	sched_clear_events(w.sched);
	for (uint32_t i = 1; i < 32; i++)
		ask_by(&w, 1000, 1, 16, 10, i);
	ck_assert_int_eq(sched_fork(w.sched, parent, 40, &branch, w.rows, &id, NULL), 0);
	ck_assert_int_ne(sched_get(w.sched, id)->state, REQUEST_WAITING);
	id = ask_by(&w, 1000, 2, 16, 10, 100);
	ck_assert_uint_eq(sched_get(w.sched, id)->turn, 2);
	ck_assert_int_eq(sched_check(w.sched), 0);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("fair");

	tcase_set_timeout(tc, 0);
	tcase_add_test(tc, equal_users_are_served_equally);
	tcase_add_test(tc, a_greedy_user_gets_no_more_than_the_others);
	tcase_add_test(tc, short_requests_do_not_wait_for_long_prompts);
	tcase_add_test(tc, a_client_does_not_wait_for_all_of_another);
	tcase_add_test(tc, clients_of_one_uid_take_turns);
	tcase_add_test(tc, a_newcomer_takes_the_next_turn);
	tcase_add_test(tc, turns_are_of_what_waits);
	tcase_add_test(tc, a_branch_lets_nobody_wait);
	return run_case("fair", tc);
}
