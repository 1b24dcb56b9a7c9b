/* SPDX-License-Identifier: MIT */
/* The course of one seed, and of all of them. */
#include "daemon/cache/prefix_node.h"
#include "tests/sim/sim.h"
#include "tests/unit/cache/flush.h"

#include <stdio.h>
#include <stdlib.h>

static void sim_pin(struct sim *sim)
{
	uint32_t id = rnd(sim, sim->n_blocks);

	if (sim->n_pinned && rnd(sim, 2)) {
		node_unpin_chain(&sim->cache.index,
				 sim->cache.index.node_of[sim->pinned[--sim->n_pinned]]);
	} else if (sim->n_pinned < 4 && sim->cache.pool.blocks[id].indexed) {
		node_pin_chain(&sim->cache.index, sim->cache.index.node_of[id]);
		sim->pinned[sim->n_pinned++] = id;
		sim->ever_pinned = true;
	}
}

static void sim_disturb(struct sim *sim, bool arrivals)
{
	struct sim_request *r;

	if (arrivals && !rnd(sim, 3))
		for (uint32_t n = rnd(sim, rnd(sim, 4) ? 3 : 12); n; n--)
			sim_add(sim);
	if (sim->kind->disturb)
		sim->kind->disturb(sim);
	sim_flush_step(sim, rnd(sim, 3) ? 1 + rnd(sim, 60) : UINT32_MAX);
	if (!sim->n_requests)
		return;
	r = &sim->requests[rnd(sim, sim->n_requests)];
	switch (rnd(sim, 40)) {
	case 0:
	case 1:
		if (!r->finished && !r->cancelled) {
			r->cancelled = true;
			sched_cancel(sim->sched, r->id);
		}
		break;
	case 2:
	case 3:
	case 4:
		r->paused = arrivals && !r->paused;
		sched_pause(sim->sched, r->id, r->paused);
		break;
	case 5:
		if (sim->flush.index)
			break;
		if (rnd(sim, 2))
			prefix_flush_all(&sim->cache.index, &sim->flush);
		else
			prefix_flush_domain(&sim->cache.index, &sim->flush,
					    1000 + rnd(sim, N_DOMAINS));
		break;
	case 6:
		if (sim->seed % 4 == 0)
			sim_pin(sim);
		break;
	case 7:
		if (sim->seed % 8 == 1) {
			uint32_t i = rnd(sim, N_DOMAINS);

			sim->quota[i].max_blocks = 1 + rnd(sim, sim->n_blocks);
			sim->quota_lowered = true;
			sched_set_quota(sim->sched, 1000 + i, &sim->quota[i]);
		}
		break;
	case 9:
	case 10:
	case 11:
		sim_fork(sim, r);
		break;
	case 8:
		sim->now += rnd(sim, 20);
		if (rnd(sim, 2))
			sched_expire(sim->sched, sim->now);
		break;
	}
}

static void sim_step(struct sim *sim, bool arrivals)
{
	uint32_t domains[64];
	uint32_t n_rows;

	sim_disturb(sim, arrivals);
	sim_events(sim);
	if (sim->mortal && !rnd(sim, 25))
		sim->kind->dies(sim, false);
	sim->now++;
	n_rows = sched_plan(sim->sched, sim->now, &sim->plan);
	sim_check(sim, !sched_next_deadline(sim->sched) ||
			       sched_next_deadline(sim->sched) > sim->now);
	sim_check(sim, n_rows == sim->plan.n_rows);
	sim_check(sim, n_rows <= sim->config.max_num_batched_tokens);
	sim_check(sim, !plan_check(&sim->plan, sim->bt, sim->n_blocks, N_VOCAB));
	sim_events(sim);
	if (!n_rows) {
		for (uint32_t i = 0; i < sim->n_requests; i++)
			sim_check(sim,
				  sim->requests[i].finished || sim->requests[i].paused);
		return;
	}
	for (uint32_t i = 0; i < sim->plan.n_entries; i++) {
		const struct request *r =
			sched_get(sim->sched, sim->plan.entries[i].seq_id);

		sim_check(sim, r && !r->paused);
		domains[i] = r->chain.domain;
	}
	if (rnd(sim, 2))
		sim_disturb(sim, arrivals);
	if (sim->mortal && !rnd(sim, 40))
		sim->die_after = rnd(sim, sim->plan.n_entries + 1);
	sim_run(sim, domains);
	if (sim->die_after != UINT32_MAX) {
		sim->kind->dies(sim, true);
		return;
	}
	if (rnd(sim, 2))
		sim_disturb(sim, arrivals);
	sched_complete(sim->sched, &sim->plan, &sim->result);
	sim_events(sim);
}

static void sim_count(struct sim *sim, struct sim_totals *totals)
{
	const uint64_t *from;
	uint64_t *to;
	struct sched_stats stats;

	sched_stats(sim->sched, &stats);
	from = (const uint64_t *)&stats.counters;
	to = (uint64_t *)&totals->sched;
	for (size_t i = 0; i < sizeof(stats.counters) / sizeof(*to); i++)
		to[i] += from[i];
	from = (const uint64_t *)&sim->cache.index.counters;
	to = (uint64_t *)&totals->prefix;
	for (size_t i = 0; i < sizeof(sim->cache.index.counters) / sizeof(*to); i++)
		to[i] += from[i];
}

static void sim_seed(const struct sim_kind *kind, uint64_t seed,
		     struct sim_totals *totals)
{
	static struct sim sim;
	struct prefix_flush_result flushed;
	struct sched_stats stats;
	uint32_t n_steps = 0;

	sim_init(&sim, kind, seed);
	for (uint32_t n = 20 + rnd(&sim, 60); n; n--)
		sim_step(&sim, true);
	/* nobody new comes, everybody reads again: all must end */
	for (uint32_t i = 0; i < sim.n_requests; i++) {
		sim.requests[i].paused = false;
		sched_pause(sim.sched, sim.requests[i].id, false);
	}
	do {
		sim_step(&sim, false);
		sched_stats(sim.sched, &stats);
		sim_check(&sim, ++n_steps < 50000);
	} while (stats.running + stats.waiting);
	for (uint32_t i = 0; i < sim.n_requests; i++)
		sim_check(&sim, sim.requests[i].finished);
	sim_check(&sim, !sim.cache.pool.n_active);
	sim_check(&sim,
		  stats.counters.cached_tokens <= sim.cache.index.counters.hit_tokens);
	sim_check(&sim, sim.cache.index.counters.hit_tokens <=
				sim.cache.index.counters.queried_tokens);
	sim_check(&sim, sim.cache.index.counters.shared_hit_tokens <=
				sim.cache.index.counters.hit_tokens);
	while (sim.n_pinned)
		node_unpin_chain(&sim.cache.index,
				 sim.cache.index.node_of[sim.pinned[--sim.n_pinned]]);
	if (kind->settle)
		kind->settle(&sim);
	prefix_flush_end(&sim.flush);
	sim_check(&sim, !sim.cache.pool.n_pinned);
	flush_all(&sim.cache.index, &flushed);
	sim_check(&sim, sim.cache.pool.n_free == sim.n_blocks && !flushed.remaining);
	sim_check(&sim, !sched_check(sim.sched));
	sim_count(&sim, totals);
	totals->n_row_hits += sim.n_row_hits;
	sim_deinit(&sim);
}

static void print_totals(uint64_t n, const struct sim_totals *t)
{
	printf("%llu seeds: %llu steps, %llu rows, %llu completed, %llu cancelled, "
	       "%llu expired, %llu failed, %llu preemptions, %llu reliefs, "
	       "%llu deferrals, %llu forks, %llu copied blocks, %llu stalls, %llu hit, %llu shared, %llu evicted, "
	       "%llu duplicate blocks, %llu hits inside a block\n",
	       (unsigned long long)n, (unsigned long long)t->sched.steps,
	       (unsigned long long)t->sched.computed_rows,
	       (unsigned long long)t->sched.completed,
	       (unsigned long long)t->sched.cancelled,
	       (unsigned long long)t->sched.expired, (unsigned long long)t->sched.failed,
	       (unsigned long long)t->sched.preemptions,
	       (unsigned long long)t->sched.reliefs,
	       (unsigned long long)t->sched.deferrals, (unsigned long long)t->sched.forks,
	       (unsigned long long)t->sched.copied_blocks,
	       (unsigned long long)t->sched.stalls,
	       (unsigned long long)t->prefix.hit_tokens,
	       (unsigned long long)t->prefix.shared_hit_tokens,
	       (unsigned long long)t->prefix.evicted_blocks,
	       (unsigned long long)t->prefix.duplicate_blocks,
	       (unsigned long long)t->n_row_hits);
}

static unsigned part = 1, n_parts = 1;
static const struct sim_kind *kind_now;
static void (*check_now)(uint64_t n, const struct sim_totals *totals);

START_TEST(every_request_as_if_alone)
{
	const char *one = getenv("KVD_SIM_SEED"), *many = getenv("KVD_SIM_SEEDS");
	const char *share = getenv("KVD_TEST_ROUNDS");
	uint64_t n = many    ? strtoull(many, NULL, 0)
		     : share ? kind_now->n_seeds * strtoull(share, NULL, 0) / 100
			     : kind_now->n_seeds;
	uint64_t first = n * (part - 1) / n_parts + 1, last = n * part / n_parts;
	struct sim_totals t = {0};

	if (one) {
		sim_seed(kind_now, strtoull(one, NULL, 0), &t);
		return;
	}
	for (uint64_t seed = first; seed <= last; seed++)
		sim_seed(kind_now, seed, &t);
	n = last + 1 - first;
	print_totals(n, &t);
	check_now(n, &t);
}
END_TEST

int sim_main(int argc, char **argv, const struct sim_kind *kind,
	     void (*check)(uint64_t n, const struct sim_totals *totals))
{
	Suite *suite = suite_create("sim");
	TCase *tc = tcase_create("seeds");
	SRunner *runner;
	int n_failed;

	kind_now = kind;
	check_now = check;
	if (argc > 1 &&
	    (sscanf(argv[1], "%u/%u", &part, &n_parts) != 2 || !part || part > n_parts)) {
		fprintf(stderr, "usage: %s [PART/PARTS]\n", kind->name);
		return 2;
	}
	tcase_set_timeout(tc, 0);
	tcase_add_test(tc, every_request_as_if_alone);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? 1 : 0;
}
