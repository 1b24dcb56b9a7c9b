/* SPDX-License-Identifier: MIT */
/*
 * How long requests about the cache hold the loop, with a million cached blocks: the longest
 * turn of each, beside the same work in one go.
 *
 *   bench_cache [--json]
 *
 * Chains of CHAIN blocks, a half of them behind a common first block, and one of DEEP blocks.
 */
#include "daemon/cache/cache.h"
#include "daemon/cache/prefix_node.h"
#include "daemon/cache/seq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BT          16
#define N_BLOCKS    1000000
#define CHAIN       50
#define DEEP        50000
#define BLOCK_BYTES 64
#define MAX_TURNS   200000

static bool json;
static double turns[MAX_TURNS]; /* ms */
static uint32_t n_turns;

static double now_ms(void)
{
	struct timespec ts;

	/* of this thread: a busy machine takes any turn's CPU away for longer than it lasts */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "bench_cache: %s failed\n", what);
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void turn(double begin_ms)
{
	check(n_turns < MAX_TURNS, "counting turns");
	turns[n_turns++] = now_ms() - begin_ms;
}

/* @whole_ms: the same in one turn. */
static void report(const char *name, double whole_ms)
{
	double sum = 0, longest, p50;

	for (uint32_t i = 0; i < n_turns; i++)
		sum += turns[i];
	qsort(turns, n_turns, sizeof(*turns), by_value);
	longest = turns[n_turns - 1];
	p50 = turns[n_turns / 2];
	if (json)
		printf("{\"bench\":\"cache\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"ms\","
		       "\"peer\":\"one go\",\"peer_value\":%.4g,\"ratio\":%.4g,"
		       "\"must\":5,\"goal\":1}\n",
		       name, longest, whole_ms, whole_ms / longest);
	else
		printf("%-14s longest turn %6.3f ms, median %.3f, %u turns, %.0f ms in all "
		       "(in one go %.0f ms)\n",
		       name, longest, p50, n_turns, sum, whole_ms);
	n_turns = 0;
}

/* One chain of @n blocks of domain @domain, published and given back. */
static void publish(struct prefix_index *index, uint32_t domain, int32_t seed,
		    bool common, uint32_t n)
{
	int32_t *tokens = calloc((size_t)n * BT, sizeof(*tokens));
	struct prefix_key *keys = calloc(n, sizeof(*keys));
	struct prefix_chain chain = {.keys = keys, .cap_keys = n, .domain = domain};
	struct seq_table table;
	uint32_t id;

	check(tokens && keys && !seq_init(&table, n), "memory");
	for (uint32_t i = common ? BT : 0; i < n * BT; i++)
		tokens[i] = i < 2 * BT ? seed : 0;
	check(!prefix_key_root(&index->keyer, &index->spaces[0].base, domain, NULL, 0,
			       NULL, 0, &chain.root),
	      "root");
	while (table.n_blocks < n) {
		id = prefix_acquire(index, &chain, tokens, table.n_blocks,
				    table.n_blocks ? table.ids[table.n_blocks - 1]
						   : BLOCK_NONE);
		if (id == BLOCK_NONE)
			break;
		seq_append_published(&table, id);
	}
	while (table.n_blocks < n) {
		check(prefix_take(index, domain, 1, &id) >= 0, "take");
		seq_append(&table, id);
	}
	seq_publish(&table, index, &chain, tokens, n * BT);
	check(table.n_published == n, "publish");
	seq_release(&table, index->pool);
	seq_deinit(&table);
	free(tokens);
	free(keys);
}

/* Domain 1: half of the chains; 2: those with a common block; 3: the long one. */
static void fill(struct cache *cache)
{
	const uint32_t n = (N_BLOCKS - DEEP) / CHAIN / 2;

	for (uint32_t i = 0; i < n; i++) {
		publish(&cache->index, 1, (int32_t)i + 1, false, CHAIN);
		publish(&cache->index, 2, (int32_t)i + 1, true, CHAIN);
	}
	publish(&cache->index, 3, 1, false, DEEP);
}

/* A node that ends the long chain, or the one that begins all of domain 2. */
static uint32_t find(const struct prefix_index *index, uint32_t domain, bool top)
{
	uint32_t id = 0;

	while (!node_in_use(index, id) || index->nodes[id].domain != domain ||
	       (top ? index->nodes[id].parent != NODE_NONE : index->nodes[id].n_children))
		id++;
	return id;
}

static double list_all(struct cache *cache, uint32_t work)
{
	struct cache_list list = {.view = {.all = true}};
	struct cache_prefix_info info;
	double t0 = now_ms();
	uint32_t n = 0;
	int r;

	do {
		uint32_t left = work;
		double t1 = now_ms();

		while ((r = cache_list_next(cache, &list, &left, &info)) ==
		       CACHE_LIST_ENTRY)
			n++;
		if (work != UINT32_MAX)
			turn(t1);
	} while (r != CACHE_LIST_END);
	check(n == (N_BLOCKS - DEEP) / CHAIN + 1, "listing");
	return now_ms() - t0;
}

/* 1, 2: a domain; 3: the long chain; 0: all; 4: what hangs below wrong bytes. */
static double flush(struct cache *cache, int what, uint32_t work)
{
	struct prefix_index *index = &cache->index;
	struct prefix_flush f = {0};
	double t0 = now_ms(), t1;
	bool done;

	if (what == 0)
		prefix_flush_all(index, &f);
	else if (what < 3)
		prefix_flush_domain(index, &f, (uint32_t)what);
	else if (what == 3)
		prefix_flush_chain(index, &f, find(index, 3, false), false);
	else
		node_doom(index, find(index, 2, true));
	do {
		t1 = now_ms();
		done = what == 4 ? !cache_work(cache, work) : prefix_flush_step(&f, work);
		if (work != UINT32_MAX)
			turn(t1);
	} while (!done);
	check(!f.result.remaining, "flushing");
	prefix_flush_end(&f);
	return now_ms() - t0;
}

static void open_cache(struct cache *cache, void **map, void *blocks)
{
	static const struct prefix_model model = {.block_tokens = BT};
	const struct cache_config config = {.identity = &model,
					    .block_bytes = BLOCK_BYTES,
					    .n_blocks = N_BLOCKS,
					    .evict = &evict_adaptive};
	struct image_model image;

	check(!cache_init(cache, &config), "cache_init");
	image = cache_image_model(cache, &model);
	*map = calloc(1, image_bytes(&image));
	check(*map && !cache_keep(cache, *map, &image, blocks), "image");
	fill(cache);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"flush-all", "flush-domain", "flush-shared",
					    "flush-chain", "drop"};
	void *blocks = calloc(N_BLOCKS, BLOCK_BYTES), *map;
	struct cache cache;
	double whole;

	json = argc > 1 && !strcmp(argv[1], "--json");
	check(blocks, "memory");
	open_cache(&cache, &map, blocks);
	whole = list_all(&cache, UINT32_MAX);
	list_all(&cache, PREFIX_TURN_WORK);
	report("ls", whole);
	for (int what = 0; what < 5; what++) {
		if (what)
			open_cache(&cache, &map, blocks);
		whole = flush(&cache, what, UINT32_MAX);
		cache_deinit(&cache);
		free(map);
		open_cache(&cache, &map, blocks);
		flush(&cache, what, PREFIX_TURN_WORK);
		report(names[what], whole);
		cache_deinit(&cache);
		free(map);
	}
	free(blocks);
	return 0;
}
