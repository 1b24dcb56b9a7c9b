/* SPDX-License-Identifier: MIT */
/*
 * The time of the device between users: one with a single sequence beside others that want far
 * more. A user's fair share is what it gets alone, over the number of users.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/world.h"
#include "tests/unit/suite.h"

#include "ipc/base.h"

#define VICTIM   2000
#define MAX_FOES 5
#define N_WARM   200
#define N_STEPS  4000

/* Weights are read in the time of 5 rows, of half a row, and of 100; positions cost as much as
 * a row every 500, 20,000 and 5,000. */
static const struct device devices[] = {
	{2.5e6, 5e5, 1e3},
	{2.5e5, 5e5, 25},
	{1e7, 1e5, 20},
};

/**
 * struct foes - what the others do, @n of them
 * @n_seqs: requests that each has outstanding, always
 * @n_prompt, @n_answer: of each of them
 */
struct foes {
	uint32_t n;
	uint32_t n_seqs;
	uint32_t n_prompt;
	uint32_t n_answer;
};

/* @rates: rows a second of the victim, then of each of the others. */
struct outcome {
	double rates[MAX_FOES + 1];
};

static void victim_asks(struct world *w)
{
	ask_by(w, VICTIM, 0, 32, 200, 0);
}

/* Adds the rows of the last plan. */
static void add_rows(const struct world *w, double *rows)
{
	for (uint32_t i = 0; i < w->plan.n_entries; i++) {
		const struct kv_batch_entry *e = &w->plan.entries[i];
		const struct request *r = sched_get(w->sched, e->seq_id);

		if (r)
			rows[r->uid == VICTIM ? 0 : r->uid - 1000 + 1] += e->n_rows;
	}
}

static struct outcome compete(const struct device *device, const struct foes *foes,
			      bool victim)
{
	struct outcome out = {0};
	double began = 0;
	struct world w;

	world_init(&w, 1 << 16, 512);
	w.device = *device;
	for (uint32_t u = 0; u < foes->n; u++)
		for (uint32_t i = 0; i < foes->n_seqs; i++)
			ask_by(&w, 1000 + u, 0, foes->n_prompt, foes->n_answer, 1 + u);
	if (victim)
		victim_asks(&w);
	for (uint32_t step = 0; step < N_WARM + N_STEPS; step++) {
		uint32_t n, ended[MAX_FOES + 1] = {0};
		const struct sched_event *events;

		if (step == N_WARM) {
			began = w.time_ns;
			out = (struct outcome){0};
		}
		ck_assert_uint_gt(world_step(&w), 0);
		add_rows(&w, out.rates);
		events = sched_events(w.sched, &n);
		for (uint32_t i = 0; i < n; i++)
			ended[events[i].cookie] += events[i].kind == SCHED_FINISHED;
		sched_clear_events(w.sched);
		while (ended[0]--)
			victim_asks(&w);
		for (uint32_t u = 0; u < foes->n; u++)
			while (ended[1 + u]--)
				ask_by(&w, 1000 + u, 0, foes->n_prompt, foes->n_answer,
				       1 + u);
	}
	ck_assert_int_eq(sched_check(w.sched), 0);
	for (uint32_t u = 0; u <= MAX_FOES; u++)
		out.rates[u] /= (w.time_ns - began) / 1e9;
	world_deinit(&w);
	return out;
}

/*
 * On each device: the victim has its fair share, what it gets alone over the number of users; and
 * the time is evenly divided, that of a user being what its rows would have taken it alone.
 */
static void check_foes(const char *what, struct foes foes)
{
	const struct foes none = {0},
			  one = {1, foes.n_seqs, foes.n_prompt, foes.n_answer};

	for (size_t i = 0; i < KVD_ARRAY_LEN(devices); i++) {
		struct outcome out = compete(&devices[i], &foes, true);
		double foe = compete(&devices[i], &one, false).rates[1];
		double victim = compete(&devices[i], &none, true).rates[0];
		double sum = out.rates[0] / victim, squares = sum * sum, jain, share;
		uint32_t n = foes.n + 1;

		share = sum * n;
		for (uint32_t u = 1; u < n; u++) {
			sum += out.rates[u] / foe;
			squares += out.rates[u] / foe * out.rates[u] / foe;
		}
		jain = sum * sum / (n * squares);
		printf("%u x %s, device %zu: %.2f of the fair share, the others %.2f, "
		       "Jain %.3f\n",
		       foes.n, what, i, share, out.rates[1] / foe * n, jain);
		ck_assert(share >= 0.8);
		ck_assert(jain >= 0.9);
	}
}

START_TEST(one_sequence_beside_a_hundred)
{
	check_foes("100 sequences", (struct foes){1, 100, 8, 60});
}
END_TEST

START_TEST(one_sequence_beside_five_users_with_a_hundred)
{
	check_foes("100 sequences", (struct foes){5, 100, 8, 60});
}
END_TEST

/* A row of theirs costs far more than one of the victim, and they begin with prompts only. */
START_TEST(one_sequence_beside_long_contexts)
{
	check_foes("long contexts", (struct foes){1, 20, 6000, 1500});
	check_foes("long contexts", (struct foes){5, 20, 6000, 1500});
}
END_TEST

START_TEST(one_sequence_beside_prompts)
{
	check_foes("prompts", (struct foes){1, 8, 500, 1});
	check_foes("prompts", (struct foes){5, 8, 500, 1});
}
END_TEST

/* Sequences of one user take turns: from when all decode, none gets more than another. */
START_TEST(sequences_of_a_user_take_turns)
{
	uint32_t ids[100], begun[100], least = UINT32_MAX, most = 0;
	struct world w;

	world_init(&w, 1 << 14, 128);
	w.device = devices[0];
	for (uint32_t i = 0; i < 100; i++)
		ids[i] = ask_by(&w, 1000, 0, 8, 1500, 1 + i);
	ask_by(&w, VICTIM, 0, 32, 4000, 0);
	for (uint32_t i = 0; i < 2000; i++) {
		world_step(&w);
		sched_clear_events(w.sched);
		for (uint32_t k = 0; k < 100 && i == 500; k++) {
			begun[k] = sched_get(w.sched, ids[k])->n_generated;
			ck_assert_uint_gt(begun[k], 0);
		}
	}
	for (uint32_t i = 0; i < 100; i++) {
		uint32_t n = sched_get(w.sched, ids[i])->n_generated - begun[i];

		least = n < least ? n : least;
		most = n > most ? n : most;
	}
	printf("100 sequences of a user: %u to %u tokens\n", least, most);
	ck_assert_uint_gt(least, 50);
	ck_assert_uint_le(most - least, 1);
	world_deinit(&w);
}
END_TEST

/* A user that asks again at once is not met by a step that is all of another's. */
START_TEST(who_asks_again_meets_no_long_step)
{
	double longest = 0, alone = devices[0].step + 40 * devices[0].row;
	struct world w;

	world_init(&w, 1 << 14, 128);
	w.device = devices[0];
	for (uint32_t i = 0; i < 100; i++)
		ask_by(&w, 1000, 0, 8, 1500, 1);
	ask_by(&w, VICTIM, 0, 8, 20, 0);
	for (uint32_t i = 0, gone = 0; i < 2000; i++) {
		const struct sched_event *events;
		uint32_t n;

		world_step(&w);
		if (i > 500)
			longest = world_time(&w) > longest ? world_time(&w) : longest;
		events = sched_events(w.sched, &n);
		for (uint32_t k = 0; k < n; k++)
			gone += !events[k].cookie && events[k].kind == SCHED_FINISHED;
		sched_clear_events(w.sched);
		/* its next prompt comes while the step after the last one runs */
		if (gone && gone++ == 2) {
			ask_by(&w, VICTIM, 0, 8, 20, 0);
			gone = 0;
		}
	}
	printf("longest step: %.1f ms\n", longest / 1e6);
	ck_assert(longest < alone);
	/* and when it stays away, the other has all of the time again */
	for (uint32_t i = 0; i < 40; i++) {
		world_step(&w);
		sched_clear_events(w.sched);
	}
	ck_assert_uint_eq(w.plan.n_entries, 100);
	world_deinit(&w);
}
END_TEST

/* Steps until request @cookie has ended, at most @max. */
static uint32_t steps_until(struct world *w, uint64_t cookie, uint32_t max)
{
	for (uint32_t step = 1; step < max; step++) {
		const struct sched_event *events;
		bool ended = false;
		uint32_t n;

		ck_assert_uint_gt(world_step(w), 0);
		ck_assert_int_eq(sched_check(w->sched), 0);
		events = sched_events(w->sched, &n);
		for (uint32_t i = 0; i < n; i++)
			ended |= events[i].cookie == cookie &&
				 events[i].kind == SCHED_FINISHED;
		sched_clear_events(w->sched);
		if (ended)
			return step;
	}
	return max;
}

/* A single sequence that holds nearly all of the pool gives way, and goes on afterwards. */
START_TEST(a_hog_gives_way)
{
	uint32_t victim, hog;
	struct world w;

	world_init(&w, 68, 8);
	w.device = devices[0];
	ask_by(&w, 1000, 0, 900, 180, 1);
	world_step(&w);
	world_step(&w);
	sched_clear_events(w.sched);
	ask_by(&w, VICTIM, 0, 200, 32, 0);
	victim = steps_until(&w, 0, 1000);
	hog = steps_until(&w, 1, 1000);
	printf("behind a hog of the pool: %u steps, the hog %u more\n", victim, hog);
	ck_assert_uint_le(victim, 64 + 32 + 32);
	ck_assert_uint_le(hog, 180);
	world_deinit(&w);
}
END_TEST

/* Two of which only one fits: they change places, and both come to an end. */
START_TEST(two_hogs_both_end)
{
	struct world w;
	uint32_t steps;

	world_init(&w, 68, 8);
	w.device = devices[0];
	ask_by(&w, 1000, 0, 600, 400, 1);
	ask_by(&w, 1001, 0, 600, 400, 2);
	steps = steps_until(&w, 1, 10000);
	steps += steps_until(&w, 2, 10000);
	printf("two hogs: %u steps\n", steps);
	ck_assert_uint_lt(steps, 1500);
	world_deinit(&w);
}
END_TEST

/* One user alone is never held back: each sequence has a token in each step. */
START_TEST(one_user_has_all_of_it)
{
	struct world w;

	world_init(&w, 1 << 14, 128);
	w.device = devices[0];
	for (uint32_t i = 0; i < 100; i++)
		ask_by(&w, 1000, 0, 8, 1500, 1 + i);
	world_step(&w);
	for (uint32_t i = 0; i < 1000; i++) {
		sched_clear_events(w.sched);
		world_step(&w);
	}
	ck_assert_uint_eq(w.plan.n_entries, 100);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("share");

	tcase_set_timeout(tc, 0);
	tcase_add_test(tc, one_sequence_beside_a_hundred);
	tcase_add_test(tc, one_sequence_beside_five_users_with_a_hundred);
	tcase_add_test(tc, one_sequence_beside_long_contexts);
	tcase_add_test(tc, one_sequence_beside_prompts);
	tcase_add_test(tc, sequences_of_a_user_take_turns);
	tcase_add_test(tc, who_asks_again_meets_no_long_step);
	tcase_add_test(tc, a_hog_gives_way);
	tcase_add_test(tc, two_hogs_both_end);
	tcase_add_test(tc, one_user_has_all_of_it);
	return run_case("share", tc);
}
