/* SPDX-License-Identifier: MIT */
/*
 * What a step costs the loop thread: sched_plan() and sched_complete() with many running
 * requests, and the prefix lookup beside the hash alone.
 *
 *   bench-sched [--json]
 */
#include "daemon/sched/sched.h"
#include "tests/unit/cache/flush.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK_TOKENS 16
#define N_RUNS       7

static bool json;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "bench-sched: %s failed\n", what);
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), by_value);
	return values[n / 2];
}

/* @peer: what it is compared with in the same run; @must and @goal in the same unit. */
static void report(const char *name, double value, const char *unit, const char *peer,
		   double peer_value, double must, double goal)
{
	if (json)
		printf("{\"bench\":\"sched\",\"case\":\"%s\",\"value\":%.4g,"
		       "\"unit\":\"%s\",\"peer\":\"%s\",\"peer_value\":%.4g,"
		       "\"ratio\":%.4g,\"must\":%.4g,\"goal\":%.4g}\n",
		       name, value, unit, peer, peer_value, peer_value / value, must,
		       goal);
	else
		printf("%-42s %9.3f %s  (%s %.3f, must %.3f, goal %.3f)\n", name, value,
		       unit, peer, peer_value, must, goal);
}

struct bench {
	struct cache cache;
	struct sched *sched;
	struct plan plan;
	struct plan_result result;
};

static void bench_init(struct bench *b, uint32_t n_seqs, uint32_t n_rows,
		       uint32_t n_blocks, uint32_t max_len)
{
	struct prefix_model model = {.block_tokens = BLOCK_TOKENS};
	struct sched_config config = {
		.max_num_seqs = n_seqs,
		.max_num_batched_tokens = n_rows,
		.max_model_len = max_len,
		.max_waiting = 1024,
		.block_tokens = BLOCK_TOKENS,
		.enable_prefix_caching = true,
	};
	struct plan_caps caps;

	const struct cache_config cache = {
		.identity = &model,
		.block_bytes = 64,
		.n_blocks = n_blocks,
		.evict = &evict_lru,
	};

	check(!cache_init(&b->cache, &cache), "cache_init");
	check(!sched_new(&config, &b->cache, &b->sched), "sched_new");
	sched_plan_caps(b->sched, &caps);
	check(!plan_init(&b->plan, &caps), "plan_init");
	check(!plan_result_init(&b->result, &caps), "plan_result_init");
}

static void bench_deinit(struct bench *b)
{
	sched_free(b->sched);
	plan_result_deinit(&b->result);
	plan_deinit(&b->plan);
	cache_deinit(&b->cache);
}

/* One step with a model that takes no time. Return: ns spent in the scheduler. */
static uint64_t step(struct bench *b)
{
	uint64_t t0 = now_ns(), t1, t2;

	sched_plan(b->sched, t0, &b->plan);
	t1 = now_ns();
	if (!b->plan.n_rows)
		return t1 - t0;
	plan_result_reset(&b->result);
	b->result.step = b->plan.step;
	b->result.n_outputs = b->plan.n_outputs;
	for (uint32_t i = 0; i < b->plan.n_outputs; i++)
		b->result.outputs[i].token = (int32_t)((b->plan.step + i) % 1000);
	t2 = now_ns();
	sched_complete(b->sched, &b->plan, &b->result);
	sched_clear_events(b->sched);
	return t1 - t0 + (now_ns() - t2);
}

/* @n_users: how many uids the requests come from. */
static void bench_decode(uint32_t n_seqs, uint32_t context, uint32_t n_users)
{
	int32_t *tokens = calloc(context, sizeof(*tokens));
	struct sched_stats stats;
	double runs[N_RUNS];
	struct bench b;
	char name[64];

	check(tokens, "calloc");
	/* prompts are done before the first to start runs out of room */
	bench_init(&b, n_seqs, n_seqs + n_seqs * context / 64 + 512,
		   n_seqs * (context / BLOCK_TOKENS + 16), context + 256);
	for (uint32_t i = 0; i < n_seqs; i++) {
		struct request_desc desc = {
			.kind = REQUEST_GENERATE,
			.ignore_eos = true,
			.tokens = tokens,
			.n_tokens = context,
			.uid = i % n_users,
			.client = i % 1000,
			.domain = i % n_users,
			.cookie = i,
		};
		uint32_t id;

		tokens[0] = (int32_t)i;
		check(!sched_add(b.sched, &desc, 0, &id, NULL), "sched_add");
	}
	do
		step(&b);
	while (b.plan.n_rows != n_seqs || b.plan.n_outputs != n_seqs);
	for (int run = 0; run < N_RUNS; run++) {
		uint64_t ns = 0;

		/* a whole block of each, so that taking and publishing have their share */
		for (int i = 0; i < BLOCK_TOKENS; i++)
			ns += step(&b);
		runs[run] = (double)ns / BLOCK_TOKENS / n_seqs / 1e3;
	}
	sched_stats(b.sched, &stats);
	check(stats.running == n_seqs, "keeping all running");
	snprintf(name, sizeof(name), "decode_%u_running_%u_context_%u_uids", n_seqs,
		 context, n_users);
	report(name, median(runs, N_RUNS), "us", "limit", 5, 5, 5);
	bench_deinit(&b);
	free(tokens);
}

/* Return: us for each request and step. */
static double burst_once(const int32_t *tokens, uint32_t n_seqs, uint32_t n_tokens)
{
	uint64_t ns = 0, n_steps = 0;
	struct sched_stats stats;
	struct bench b;

	bench_init(&b, n_seqs, n_seqs + 512, n_seqs * (n_tokens / BLOCK_TOKENS + 2),
		   n_tokens + 16);
	for (uint32_t i = 0; i < n_seqs; i++) {
		struct request_desc desc = {
			.kind = REQUEST_GENERATE,
			.tokens = tokens,
			.n_tokens = n_tokens,
			.max_tokens = 1,
			.owner = i,
		};
		uint32_t id;

		check(!sched_add(b.sched, &desc, 0, &id, NULL), "sched_add");
	}
	do {
		ns += step(&b);
		n_steps++;
		sched_stats(b.sched, &stats);
	} while (stats.running + stats.waiting);
	/* one computes the prompt, each of the others no more than its last block */
	check(stats.counters.computed_rows <= n_tokens + n_seqs * (uint64_t)BLOCK_TOKENS,
	      "sharing the prompt");
	bench_deinit(&b);
	return (double)ns / (double)n_steps / n_seqs / 1e3;
}

/* Many prompts at once that are all the same: one computes, the others wait for hits. */
static void bench_burst(uint32_t n_seqs, uint32_t n_tokens)
{
	int32_t *tokens = calloc(n_tokens, sizeof(*tokens));
	double runs[N_RUNS];
	char name[64];

	check(tokens, "calloc");
	for (int run = 0; run < N_RUNS; run++)
		runs[run] = burst_once(tokens, n_seqs, n_tokens);
	snprintf(name, sizeof(name), "burst_%u_equal_prompts_of_%u", n_seqs, n_tokens);
	report(name, median(runs, N_RUNS), "us", "limit", 5, 5, 5);
	free(tokens);
}

/* Queueing: each of @n_clients clients of one uid adds all of its requests at once. */
static void bench_queue(uint32_t n_clients, uint32_t n_requests)
{
	int32_t token = 1;
	double runs[N_RUNS];
	char name[64];

	for (int run = 0; run < N_RUNS; run++) {
		uint64_t t0;
		struct bench b;

		bench_init(&b, 16, 512, n_requests, 64);
		t0 = now_ns();
		for (uint32_t i = 0; i < n_requests; i++) {
			struct request_desc desc = {
				.kind = REQUEST_GENERATE,
				.tokens = &token,
				.n_tokens = 1,
				.max_tokens = 1,
				.client = i / (n_requests / n_clients),
			};
			uint32_t id;

			check(!sched_add(b.sched, &desc, 0, &id, NULL), "sched_add");
		}
		runs[run] = (double)(now_ns() - t0) / n_requests / 1e3;
		bench_deinit(&b);
	}
	snprintf(name, sizeof(name), "queue_%u_requests_of_%u_clients", n_requests,
		 n_clients);
	report(name, median(runs, N_RUNS), "us", "limit", 5, 5, 5);
}

/* A full hit of n_blocks beside the hash of the same tokens, the same way. */
static void bench_lookup(uint32_t n_blocks, uint32_t n_cached)
{
	struct prefix_model model = {.block_tokens = BLOCK_TOKENS};
	const struct prefix_secret secret = {"as random as any"};
	int32_t *tokens = calloc((size_t)n_cached * BLOCK_TOKENS, sizeof(*tokens));
	uint32_t *ids = calloc(n_cached, sizeof(*ids));
	struct prefix_key *keys = calloc(n_cached, sizeof(*keys));
	struct prefix_chain chain = {.keys = keys, .cap_keys = n_cached};
	double hash[N_RUNS], looked_up[N_RUNS];
	const int repeat = 200;
	struct prefix_index index;
	struct block_pool pool;
	double alone;
	uint32_t same, parent = BLOCK_NONE;
	char name[64];

	check(tokens && ids && keys, "calloc");
	check(!block_pool_init(&pool, n_cached, &evict_lru), "block_pool_init");
	check(!prefix_init(&index, &pool, &model, &secret, 0, 256), "prefix_init");
	check(!prefix_key_root(&index.keyer, &index.spaces[0].base, 0, NULL, 0, NULL, 0,
			       &chain.root),
	      "root");
	for (uint32_t i = 0; i < n_cached * BLOCK_TOKENS; i++)
		tokens[i] = (int32_t)(i * 7919 % 49152);
	for (uint32_t i = 0; i < n_cached; i++) {
		check(block_pool_take(&pool, 0, 0, &ids[i]) == 0, "take");
		check(!prefix_publish(&index, &chain, tokens, i, parent, ids[i], &same),
		      "publish");
		parent = ids[i];
	}
	for (uint32_t i = n_cached; i--;)
		block_pool_unref(&pool, ids[i]);
	for (int run = 0; run < N_RUNS; run++) {
		uint64_t t0 = now_ns(), t1;

		for (int n = 0; n < repeat; n++)
			for (uint32_t i = 0; i < n_blocks; i++)
				prefix_key_next(&index.keyer,
						i ? &keys[i - 1] : &chain.root,
						tokens + i * BLOCK_TOKENS, BLOCK_TOKENS,
						&keys[i]);
		t1 = now_ns();
		hash[run] = (double)(t1 - t0) / repeat / 1e3;
		for (int n = 0; n < repeat; n++) {
			chain.n_keys = 0;
			check(lookup(&index, &chain, tokens, n_blocks, ids) == n_blocks,
			      "lookup");
			for (uint32_t i = n_blocks; i--;)
				block_pool_unref(&pool, ids[i]);
		}
		looked_up[run] = (double)(now_ns() - t1) / repeat / 1e3;
	}
	snprintf(name, sizeof(name), "lookup_%u_blocks_of_%u_cached", n_blocks, n_cached);
	alone = median(hash, N_RUNS);
	report(name, median(looked_up, N_RUNS), "us", "hash", alone, 3 * alone,
	       1.3 * alone);
	prefix_deinit(&index);
	block_pool_deinit(&pool);
	free(tokens);
	free(ids);
	free(keys);
}

int main(int argc, char **argv)
{
	json = argc > 1 && !strcmp(argv[1], "--json");
	bench_decode(16, 512, 1);
	bench_decode(128, 512, 1);
	bench_decode(1024, 512, 1);
	bench_decode(1024, 512, 1000);
	bench_decode(1024, 4096, 16);
	bench_burst(16, 1024);
	bench_burst(1024, 1024);
	bench_queue(1, 1024);
	bench_queue(32, 1024);
	bench_queue(1024, 1024);
	bench_lookup(94, 94);
	bench_lookup(94, 20000);
	return 0;
}
