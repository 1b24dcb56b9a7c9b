/* SPDX-License-Identifier: MIT */
/*
 * Least squares of relative errors, with weights that fade and no part below zero. What the latest
 * steps cannot tell apart stays near the last estimate, and leans to the rows: who takes rows for
 * dear has short steps planned, and learns from those; who takes the step itself for dear would go
 * on with long ones.
 */
#include "daemon/sched/cost.h"

#include <string.h>

/* Before the first step: one row costs little beside the step, and rows are all there is. */
#define COST_PRIOR_STEP_NS 1e6
#define COST_PRIOR_ROW_NS  (COST_PRIOR_STEP_NS / 1024)

/* A step weighs half as much after some 35 others. */
#define COST_FADE 0.98

/* One that took longer than so many times what was expected has met something else. */
#define COST_MAX_SURPRISE 4

/* How close an estimate stays to the one before, as a share of what is seen. */
#define COST_INERTIA 1e-3

/* How much of the step's part has to prove itself again with each step. */
#define COST_LEAN 0.02

void cost_init(struct cost *cost)
{
	memset(cost, 0, sizeof(*cost));
	cost->ns[COST_STEP] = COST_PRIOR_STEP_NS;
	cost->ns[COST_ROW] = COST_PRIOR_ROW_NS;
}

double cost_of(const struct cost *cost, const struct cost_count *count)
{
	double ns = 0;

	for (int i = 0; i < COST_N_PARTS; i++)
		ns += cost->ns[i] * count->n[i];
	return ns;
}

struct equations {
	double a[COST_N_PARTS][COST_N_PARTS + 1];
};

/* Solves those of the parts in @free, by elimination; the others are 0. */
static void solve(struct equations e, unsigned free, double *ret_x)
{
	for (int i = 0; i < COST_N_PARTS; i++) {
		if (!(free & 1u << i))
			continue;
		/* positive definite: no pivot is 0 */
		for (int k = 0; k < COST_N_PARTS; k++) {
			double f = e.a[k][i] / e.a[i][i];

			if (k == i || !(free & 1u << k))
				continue;
			for (int j = 0; j <= COST_N_PARTS; j++)
				e.a[k][j] -= f * e.a[i][j];
		}
	}
	for (int i = 0; i < COST_N_PARTS; i++)
		ret_x[i] = free & 1u << i ? e.a[i][COST_N_PARTS] / e.a[i][i] : 0;
}

/* The parts that fit best: as long as one is negative, the most negative share is 0 instead. */
static void fit(struct cost *cost)
{
	double x[COST_N_PARTS];
	struct equations e;
	unsigned free = 0;
	int worst;

	for (int i = 0; i < COST_N_PARTS; i++) {
		double own = cost->seen[i][i], was = cost->ns[i];

		if (own > 0)
			free |= 1u << i;
		if (i == COST_STEP)
			was *= 1 - COST_LEAN;
		for (int j = 0; j < COST_N_PARTS; j++)
			e.a[i][j] = cost->seen[i][j];
		e.a[i][i] += COST_INERTIA * own;
		e.a[i][COST_N_PARTS] = cost->seen_time[i] + COST_INERTIA * own * was;
	}
	do {
		double least = 0;

		worst = -1;
		solve(e, free, x);
		for (int i = 0; i < COST_N_PARTS; i++)
			if (x[i] * e.a[i][i] < least) {
				least = x[i] * e.a[i][i];
				worst = i;
			}
		if (worst >= 0)
			free &= ~(1u << worst);
	} while (worst >= 0);
	for (int i = 0; i < COST_N_PARTS; i++)
		if (cost->seen[i][i] > 0)
			cost->ns[i] = x[i];
}

void cost_learn(struct cost *cost, const struct cost_count *count, uint64_t elapsed_ns)
{
	double t = (double)elapsed_ns, most = cost_of(cost, count) * COST_MAX_SURPRISE;

	if (!elapsed_ns)
		return;
	if (cost->n_seen && most > 0 && t > most)
		t = most;
	cost->n_seen += cost->n_seen < UINT32_MAX;
	for (int i = 0; i < COST_N_PARTS; i++) {
		cost->seen_time[i] = cost->seen_time[i] * COST_FADE + count->n[i] / t;
		for (int j = 0; j < COST_N_PARTS; j++)
			cost->seen[i][j] = cost->seen[i][j] * COST_FADE +
					   count->n[i] * count->n[j] / (t * t);
	}
	fit(cost);
}
