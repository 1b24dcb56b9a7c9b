/* SPDX-License-Identifier: MIT */
/* What a step costs, learned from steps whose cost is known. */
#include "daemon/sched/cost.h"

#include <check.h>
#include <math.h>

#include "tests/unit/suite.h"

static uint64_t rng;

static uint32_t rnd(uint32_t n)
{
	rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(rng >> 33) % n;
}

/* Decodes, and often a chunk of a prompt. */
static struct cost_count some_step(void)
{
	struct cost_count count = {.n = {[COST_STEP] = 1}};
	uint32_t n = 1 + rnd(rnd(2) ? 4 : 100), chunk = rnd(3) ? 0 : 2 + rnd(200);

	count.n[COST_ROW] = n + chunk;
	count.n[COST_OUTPUT] = n;
	count.n[COST_VOCAB] = rnd(n + 1);
	for (uint32_t i = 0; i < n; i++)
		count.n[COST_CONTEXT] += 1 + rnd(3000);
	count.n[COST_PAIR] = chunk * (rnd(3000) + chunk / 2.0);
	return count;
}

static double takes(const double *ns, const struct cost_count *count)
{
	double sum = 0;

	for (int i = 0; i < COST_N_PARTS; i++)
		sum += ns[i] * count->n[i];
	return sum;
}

/* Steps of a device with parts @ns, each up to @noise per cent longer. */
static void run_steps(struct cost *cost, const double *ns, uint32_t n, uint32_t noise)
{
	for (uint32_t i = 0; i < n; i++) {
		struct cost_count count = some_step();
		double t = takes(ns, &count) * (1 + rnd(noise + 1) / 100.0);

		cost_learn(cost, &count, (uint64_t)t);
	}
}

/* The largest relative error over steps of that device. */
static double worst_error(const struct cost *cost, const double *ns)
{
	double worst = 0;

	for (uint32_t i = 0; i < 1000; i++) {
		struct cost_count count = some_step();

		worst = fmax(worst, fabs(cost_of(cost, &count) / takes(ns, &count) - 1));
	}
	return worst;
}

static const double a_cpu[] = {2.5e6, 4e5, 1e3, 200, 1e5, 3e5};
static const double a_gpu[] = {1e7, 5e4, 20, 2, 1e4, 1e4};

START_TEST(a_sum_is_found)
{
	struct cost cost;

	cost_init(&cost);
	run_steps(&cost, a_cpu, 3000, 0);
	ck_assert(worst_error(&cost, a_cpu) < 0.05);
	cost_init(&cost);
	run_steps(&cost, a_gpu, 3000, 0);
	ck_assert(worst_error(&cost, a_gpu) < 0.05);
}
END_TEST

START_TEST(noise_does_little)
{
	struct cost cost;

	cost_init(&cost);
	run_steps(&cost, a_cpu, 3000, 20);
	/* a tenth longer on average */
	ck_assert(worst_error(&cost, a_cpu) < 0.25);
}
END_TEST

/* All of the machine is slower: soon known of the steps that it runs, then of all. */
START_TEST(a_slow_machine_is_followed)
{
	const struct cost_count one = {
		.n = {[COST_STEP] = 1, [COST_ROW] = 1, [COST_OUTPUT] = 1}};
	double slow[COST_N_PARTS];
	struct cost cost;

	for (int i = 0; i < COST_N_PARTS; i++)
		slow[i] = 3 * a_cpu[i];
	cost_init(&cost);
	run_steps(&cost, a_cpu, 3000, 0);
	for (uint32_t i = 0; i < 200; i++)
		cost_learn(&cost, &one, (uint64_t)takes(slow, &one));
	ck_assert(fabs(cost_of(&cost, &one) / takes(slow, &one) - 1) < 0.05);
	run_steps(&cost, slow, 300, 0);
	ck_assert(worst_error(&cost, slow) < 0.1);
}
END_TEST

/* A step that met something else moves little; no part is ever negative or no number. */
START_TEST(odd_steps_are_survived)
{
	struct cost_count one = {.n = {[COST_STEP] = 1, [COST_ROW] = 1}};
	struct cost cost;

	cost_init(&cost);
	cost_learn(&cost, &one, 0);
	ck_assert_uint_eq(cost.n_seen, 0);
	run_steps(&cost, a_cpu, 1000, 0);
	cost_learn(&cost, &one, UINT64_C(60000000000));
	ck_assert(worst_error(&cost, a_cpu) < 1);
	for (uint32_t i = 0; i < 5000; i++) {
		struct cost_count count = some_step();

		cost_learn(&cost, &count, rnd(4) ? 1 + rnd(1000000000) : UINT64_MAX);
		for (int k = 0; k < COST_N_PARTS; k++)
			ck_assert(cost.ns[k] >= 0 && isfinite(cost.ns[k]));
	}
	ck_assert(cost_of(&cost, &one) > 0);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("cost");

	tcase_add_test(tc, a_sum_is_found);
	tcase_add_test(tc, noise_does_little);
	tcase_add_test(tc, a_slow_machine_is_followed);
	tcase_add_test(tc, odd_steps_are_survived);
	return run_case("cost", tc);
}
