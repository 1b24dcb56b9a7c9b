/* SPDX-License-Identifier: MIT */
/* The scheduler and the cache against a fake device, by seed: see sim.h. */
#include "tests/sim/sim.h"

/* A simulation that never gets near these proves nothing about them. */
static void check_totals(uint64_t n, const struct sim_totals *t)
{
	ck_assert(n < 1000 ||
		  (t->sched.preemptions && t->sched.deferrals && t->sched.stalls &&
		   t->sched.expired && t->sched.reliefs && t->sched.copied_blocks &&
		   t->prefix.shared_hit_tokens && t->prefix.evicted_blocks &&
		   t->prefix.duplicate_blocks && t->n_row_hits));
}

int main(int argc, char **argv)
{
	static const struct sim_kind kind = {.name = "sim-sched", .n_seeds = 100000};

	return sim_main(argc, argv, &kind, check_totals);
}
