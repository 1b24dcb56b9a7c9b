/* SPDX-License-Identifier: MIT */
/* Turns by user, by clocks that only move when a turn says so. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/turns.h"
#include "ipc/base.h"
#include "tests/unit/suite.h"

#define US UINT64_C(1000)

static uint64_t time_ns, without_cpu_ns;
static struct turns turns;

static uint64_t fake_clock(void)
{
	return time_ns;
}

static uint64_t fake_cpu_clock(void)
{
	return time_ns - without_cpu_ns;
}

static void setup(void)
{
	time_ns = 5 * US;
	without_cpu_ns = 0;
	turns_init(&turns, fake_clock, fake_cpu_clock);
}

/*
 * @cost_ns: of each of its pieces; 0: it looks in vain. @n_pieces: that it has; after the last one
 * it stops. @lost_ns: for which others have the CPU in each. @spent_ns: what they took.
 * @first_ns: when it first ran.
 */
struct work {
	struct turn turn;
	uint64_t cost_ns;
	uint64_t n_pieces;
	uint64_t lost_ns;
	uint64_t spent_ns;
	uint64_t first_ns;
	uint64_t n_runs;
	struct turn_user *frees;
};

static bool work_run(struct turn *turn)
{
	struct work *work = container_of(turn, struct work, turn);

	if (!work->n_runs++)
		work->first_ns = time_ns;
	time_ns += work->cost_ns + work->lost_ns;
	without_cpu_ns += work->lost_ns;
	work->spent_ns += work->cost_ns;
	if (!--work->n_pieces)
		turn_stop(turn);
	if (work->frees) {
		turn_user_deinit(work->frees);
		memset(work->frees, 0xaa, sizeof(*work->frees));
	}
	return work->cost_ns;
}

static bool work_pending(struct turn *turn)
{
	return container_of(turn, struct work, turn)->cost_ns;
}

static const struct turn_kind kind = {work_run, work_pending};

static void begin(struct turn_user *user, struct work *work, uint64_t cost_ns,
		  uint64_t n_pieces)
{
	*work = (struct work){.cost_ns = cost_ns, .n_pieces = n_pieces};
	turn_start(&turns, user, &work->turn, &kind);
}

static enum turns_left run(void)
{
	return turns_run(&turns, time_ns);
}

#define FOREVER UINT64_MAX
#define N_USERS 6
#define N_WORKS 40

/* However many turns a user has and whatever they take, all who have work get the same time. */
START_TEST(users_share_time_alike)
{
	struct turn_user users[N_USERS] = {0};
	static struct work works[N_USERS][N_WORKS];
	uint64_t longest = 0, least, most;

	srand((unsigned)_i);
	for (int u = 0; u < N_USERS; u++) {
		int n = 1 + rand() % N_WORKS;
		uint64_t scale = US << rand() % 13;

		users[u].uid = (uint32_t)u;
		for (int w = 0; w < n; w++) {
			uint64_t cost = scale + (uint64_t)rand() % scale;

			begin(&users[u], &works[u][w], cost, FOREVER);
			longest = cost > longest ? cost : longest;
		}
	}
	for (int n = 0; n < 2000; n++) {
		uint64_t before = time_ns;

		ck_assert_int_eq(run(), TURNS_MORE);
		ck_assert_uint_le(time_ns - before, TURNS_NS + longest);
		least = UINT64_MAX;
		most = 0;
		for (int u = 0; u < N_USERS; u++) {
			uint64_t spent = 0;

			for (int w = 0; w < N_WORKS; w++)
				spent += works[u][w].spent_ns;
			least = spent < least ? spent : least;
			most = spent > most ? spent : most;
		}
		ck_assert_uint_le(most - least, TURNS_NS + longest);
	}
	ck_assert_uint_gt(least, 10 * longest);
	/* and within a user each turn gets its go */
	for (int u = 0; u < N_USERS; u++)
		for (int w = 0; w < N_WORKS && works[u][w].turn.user; w++)
			ck_assert_uint_le(works[u][0].n_runs - works[u][w].n_runs + 1, 2);
	memset(works, 0, sizeof(works));
}
END_TEST

/* Who comes waits for what is in work, not for a turn of each other. */
START_TEST(a_newcomer_is_next)
{
	struct turn_user users[N_USERS] = {0};
	struct work works[N_USERS], one;
	const uint64_t longest = 700 * US;

	srand((unsigned)_i);
	for (int u = 0; u < N_USERS; u++) {
		users[u].uid = (uint32_t)u;
		begin(&users[u], &works[u], 1 + (uint64_t)rand() % longest, FOREVER);
	}
	for (int n = 0; n < 500; n++) {
		struct turn_user late = {.uid = N_USERS + (uint32_t)n};
		uint64_t came_ns;

		for (int r = rand() % 8; r >= 0; r--)
			run();
		came_ns = time_ns;
		begin(&late, &one, 3 * US, 1);
		run();
		ck_assert_uint_eq(one.n_runs, 1);
		ck_assert_uint_le(one.first_ns - came_ns, TURNS_NS + longest);
		ck_assert_ptr_null(one.turn.user);
		turn_user_deinit(&late);
	}
}
END_TEST

/* What was not used is not saved up, also by a user that looked all the time. */
START_TEST(a_pause_gives_no_credit)
{
	struct turn_user busy = {.uid = 1}, idle = {.uid = 2}, looking = {.uid = 3};
	struct work works[3];

	begin(&busy, &works[0], 50 * US, FOREVER);
	begin(&looking, &works[2], 0, FOREVER);
	for (int n = 0; n < 1000; n++)
		run();
	begin(&idle, &works[1], 50 * US, FOREVER);
	works[2].cost_ns = 50 * US;
	works[0].spent_ns = 0;
	for (int n = 0; n < 300; n++)
		run();
	for (int i = 1; i < 3; i++) {
		ck_assert_uint_le(works[i].spent_ns, works[0].spent_ns + 2 * TURNS_NS);
		ck_assert_uint_ge(works[i].spent_ns + 2 * TURNS_NS, works[0].spent_ns);
	}
}
END_TEST

/* A piece that took long is paid for before the next one, also by who went in between. */
/* While others' processes have the CPU, nobody is served, and nobody pays. */
START_TEST(time_without_a_cpu_is_nobodys)
{
	struct turn_user users[2] = {{.uid = 1}, {.uid = 2}};
	struct work works[2];

	begin(&users[0], &works[0], 20 * US, FOREVER);
	begin(&users[1], &works[1], 20 * US, FOREVER);
	works[0].lost_ns = 4000 * US;
	for (int n = 0; n < 1000; n++)
		ck_assert_int_eq(run(), TURNS_MORE);
	ck_assert_uint_le(works[1].spent_ns, works[0].spent_ns + TURNS_NS + 20 * US);
	ck_assert_uint_le(works[0].spent_ns, works[1].spent_ns + TURNS_NS + 20 * US);
}
END_TEST

START_TEST(debts_are_paid)
{
	struct turn_user light = {.uid = 1}, heavy = {.uid = 2};
	struct work small, large;
	uint64_t before;

	begin(&light, &small, 10 * US, FOREVER);
	run();
	begin(&heavy, &large, 5000 * US, 1);
	run();
	ck_assert_uint_eq(large.n_runs, 1);
	turn_user_deinit(&heavy);
	heavy = (struct turn_user){.uid = 2};
	begin(&heavy, &large, 5000 * US, 1);
	before = small.spent_ns;
	while (!large.n_runs)
		run();
	ck_assert_uint_ge(small.spent_ns - before, 5000 * US - TURNS_NS);
	ck_assert_uint_le(small.spent_ns - before, 5000 * US + TURNS_NS);
}
END_TEST

/* Alone, a user has all the time there is. */
START_TEST(debts_hold_nobody_up)
{
	struct turn_user user = {.uid = 2};
	struct work work;

	begin(&user, &work, 9000 * US, 10);
	for (int n = 0; n < 10; n++)
		ck_assert_int_eq(run(), n < 9 ? TURNS_MORE : TURNS_NONE);
	ck_assert_uint_eq(work.n_runs, 10);
}
END_TEST

/* Turns that only look end a run, each once. */
START_TEST(looks_end)
{
	struct turn_user users[3] = {{.uid = 1}, {.uid = 2}, {.uid = 3}};
	struct work works[5];

	ck_assert_int_eq(run(), TURNS_NONE);
	ck_assert(!turns_look(&turns, 10));
	for (int i = 0; i < 5; i++)
		begin(&users[i % 3], &works[i], 0, FOREVER);
	ck_assert_int_eq(run(), TURNS_LOOK);
	for (int i = 0; i < 5; i++)
		ck_assert_uint_eq(works[i].n_runs, 1);
	ck_assert(!turns_look(&turns, 1));
	ck_assert(!turns_look(&turns, 100));
	works[4].cost_ns = 1;
	ck_assert(turns_look(&turns, 5));
	works[4].n_pieces = 1;
	ck_assert_int_eq(run(), TURNS_LOOK);
	ck_assert_ptr_null(works[4].turn.user);
	for (int i = 0; i < 4; i++)
		turn_stop(&works[i].turn);
	turn_stop(&works[0].turn);
	ck_assert_int_eq(run(), TURNS_NONE);
}
END_TEST

/* The last turn of a user may free it; what the turn took is owed. */
START_TEST(a_user_goes_in_its_turn)
{
	struct turn_user light = {.uid = 1}, gone = {.uid = 7};
	struct work small, last;

	begin(&light, &small, 10 * US, FOREVER);
	run();
	begin(&gone, &last, 3000 * US, 1);
	last.frees = &gone;
	run();
	ck_assert_uint_eq(last.n_runs, 1);
	gone = (struct turn_user){.uid = 7};
	begin(&gone, &last, US, 1);
	small.spent_ns = 0;
	while (!last.n_runs)
		run();
	ck_assert_uint_ge(small.spent_ns, 3000 * US - TURNS_NS);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("turns");

	tcase_add_checked_fixture(tcase, setup, NULL);
	tcase_add_loop_test(tcase, users_share_time_alike, 0, 50);
	tcase_add_loop_test(tcase, a_newcomer_is_next, 0, 20);
	tcase_add_test(tcase, a_pause_gives_no_credit);
	tcase_add_test(tcase, time_without_a_cpu_is_nobodys);
	tcase_add_test(tcase, debts_are_paid);
	tcase_add_test(tcase, debts_hold_nobody_up);
	tcase_add_test(tcase, looks_end);
	tcase_add_test(tcase, a_user_goes_in_its_turn);
	return run_case("turns", tcase);
}
