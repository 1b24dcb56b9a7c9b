/* SPDX-License-Identifier: MIT */
/*
 * Which policy keeps the right prefixes: hit rates of generated traces on the real pool and
 * index, without a model.
 *
 *   bench_evict [--json]
 *
 * A trace is a sequence of requests by seed; N_ACTIVE of them hold their blocks at a time.
 *
 *   agents   conversations of many turns that come back after a while, each turn adding a
 *            question and an answer to all that was said
 *   system   few system prompts, asked by popularity (Zipf), each with its own question
 *   flood    `agents` and `system` mixed, with two one-off prompts for each other request
 *   loop     more distinct prompts than the pool holds, round and round: the worst of LRU
 *   shift    `system` whose popular prompts change ten times
 */
#include "daemon/cache/prefix.h"
#include "daemon/cache/seq.h"
#include "ipc/base.h"
#include "tests/unit/cache/flush.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BT          16
#define MAX_BLOCKS  160
#define N_ACTIVE    8
#define N_REQUESTS  20000
#define N_AGENTS    64
#define N_SYSTEMS   256
#define POOL_BLOCKS 1024

static uint64_t rng;

static uint32_t rnd(uint32_t n)
{
	/* splitmix64 */
	uint64_t x = rng += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)((x ^ x >> 31) >> 24) % n;
}

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "bench_evict: %s failed\n", what);
	exit(1);
}

/* --- S3-FIFO (Yang and others, SOSP 2023), as far as a tree of blocks allows it ---------
 * `once` is the small queue, `often` the main one. A use while it is held counts; a block
 * that has none goes from the small queue, else it moves on. Searches for a leaf.
 */
static void s3_insert(struct evict *evict, uint32_t id)
{
	evict_list_append(evict, evict->blocks[id].list, id);
}

static uint32_t s3_pick(struct evict *evict, uint32_t group)
{
	for (uint32_t n = 0; n < 12 * evict->n_candidates; n++) {
		bool small = evict->n_listed[EVICT_RECENT] * 10 > evict->n_candidates;
		struct evict_block *b;
		uint32_t id;

		/* a round without a leaf: try the other queue */
		if (n >= evict->n_candidates)
			small = n / evict->n_candidates % 2;
		if (evict_list_first(evict, group, EVICT_FREQUENT) == EVICT_NONE)
			small = true;
		if (evict_list_first(evict, group, EVICT_RECENT) == EVICT_NONE)
			small = false;
		id = evict_list_first(evict, group,
				      small ? EVICT_RECENT : EVICT_FREQUENT);
		b = &evict->blocks[id];
		if (!b->uses && evict->is_leaf(evict->index, id))
			return id;
		evict_list_remove(evict, id);
		if (b->uses && small)
			evict_list_append(evict, EVICT_FREQUENT, id);
		else
			evict_list_append(evict, b->list, id);
		if (b->uses)
			b->uses = small ? 0 : b->uses - 1;
	}
	return EVICT_NONE;
}

static void s3_admit(struct evict *evict, uint32_t id, uint64_t key)
{
	struct evict_ghost *ghost = &evict->ghosts[(key >> 32) & (evict->n_ghosts - 1)];
	bool back = ghost->when && ghost->key == (uint32_t)key &&
		    evict->n_evicted - ghost->when < evict->n_blocks;

	evict->blocks[id].list = back ? EVICT_FREQUENT : EVICT_RECENT;
	evict->blocks[id].uses = 0;
}

static void s3_touch(struct evict *evict, uint32_t id)
{
	if (evict->blocks[id].uses < 3)
		evict->blocks[id].uses++;
}

static void s3_forget(struct evict *evict, uint32_t id, uint64_t key)
{
	evict->n_evicted++;
	if (evict->blocks[id].list == EVICT_RECENT)
		evict->ghosts[(key >> 32) & (evict->n_ghosts - 1)] = (struct evict_ghost){
			.key = (uint32_t)key,
			.when = evict->n_evicted,
		};
}

static const struct evict_policy evict_s3fifo = {
	.name = "s3-fifo",
	.insert = s3_insert,
	.remove = evict_list_remove,
	.pick = s3_pick,
	.admit = s3_admit,
	.touch = s3_touch,
	.forget = s3_forget,
};

/* --- segmented LRU: the adaptive policy with a fixed target of a fifth ------------------ */
static uint32_t slru_pick(struct evict *evict, uint32_t group)
{
	evict->target = evict->n_blocks / 5;
	return evict_adaptive.pick(evict, group);
}

static void slru_touch(struct evict *evict, uint32_t id)
{
	evict_adaptive.touch(evict, id);
}

static void slru_admit(struct evict *evict, uint32_t id, uint64_t key)
{
	(void)key;
	evict->blocks[id].list = EVICT_RECENT;
}

static void slru_insert(struct evict *evict, uint32_t id)
{
	evict_adaptive.insert(evict, id);
}

static const struct evict_policy evict_slru = {
	.name = "slru",
	.insert = slru_insert,
	.remove = evict_list_remove,
	.pick = slru_pick,
	.admit = slru_admit,
	.touch = slru_touch,
};

/* --- traces ---------------------------------------------------------------------------- */

enum trace { AGENTS, SYSTEM, FLOOD, LOOP, SHIFT, N_TRACES };

static const char *const trace_names[] = {"agents", "system", "flood", "loop", "shift"};

/* A prompt is blocks of one number each; equal numbers in equal places are equal blocks. */
struct prompt {
	uint32_t blocks[MAX_BLOCKS];
	uint32_t n;
};

static struct prompt agents[N_AGENTS];
static uint32_t next_text;

static void prompt_add(struct prompt *p, uint32_t n)
{
	while (n-- && p->n < MAX_BLOCKS)
		p->blocks[p->n++] = ++next_text;
}

static void agent_turn(struct prompt *p)
{
	/* a few are busy, the others come back now and then */
	struct prompt *agent = &agents[rnd(3) ? rnd(8) : rnd(N_AGENTS)];

	if (agent->n > MAX_BLOCKS - 20) {
		agent->n = 0;
	}
	if (!agent->n)
		for (uint32_t i = 0; i < 16; i++)
			agent->blocks[agent->n++] = UINT32_MAX - i;
	prompt_add(agent, 1 + rnd(6));
	*p = *agent;
}

static void system_prompt(struct prompt *p, uint32_t shift)
{
	uint32_t which = 0;

	/* Zipf by halving: each rank is a little rarer */
	while (which < N_SYSTEMS - 1 && rnd(12))
		which++;
	which = (which + shift) % N_SYSTEMS;
	p->n = 0;
	for (uint32_t i = 0; i < 8 + which % 24; i++)
		p->blocks[p->n++] = UINT32_MAX / 2 - which * 64 - i;
	prompt_add(p, 1 + rnd(4));
}

static void one_off(struct prompt *p)
{
	p->n = 0;
	prompt_add(p, 10 + rnd(60));
}

static void trace_next(enum trace trace, uint32_t i, struct prompt *p)
{
	switch (trace) {
	case AGENTS:
		agent_turn(p);
		break;
	case SYSTEM:
		system_prompt(p, 0);
		break;
	case FLOOD:
		if (i % 3)
			one_off(p);
		else if (rnd(2))
			agent_turn(p);
		else
			system_prompt(p, 0);
		break;
	case LOOP:
		p->n = 0;
		for (uint32_t k = 0; k < 16; k++)
			p->blocks[p->n++] = 1 + i % 90 * 64 + k;
		break;
	default:
		system_prompt(p, i / (N_REQUESTS / 10) * 25);
		break;
	}
}

/* --- replay ---------------------------------------------------------------------------- */

struct held {
	struct seq_table table;
	bool used;
};

/* Return: share of the tokens of all prompts that were found. */
static double replay(const struct evict_policy *policy, enum trace trace, double *ret_ns)
{
	struct prefix_model model = {.block_tokens = BT};
	const struct prefix_secret secret = {"as random as any"};
	struct held held[N_ACTIVE] = {0};
	struct prefix_key keys[MAX_BLOCKS];
	static int32_t tokens[MAX_BLOCKS * BT];
	struct prefix_index index;
	struct block_pool pool;
	struct timespec t0, t1;
	uint64_t asked = 0;
	double rate;

	rng = 1 + trace;
	next_text = 1000000;
	memset(agents, 0, sizeof(agents));
	check(!block_pool_init(&pool, POOL_BLOCKS + N_ACTIVE * MAX_BLOCKS, policy),
	      "block_pool_init");
	check(!prefix_init(&index, &pool, &model, &secret, 0, 256), "prefix_init");
	clock_gettime(CLOCK_MONOTONIC, &t0);
	for (uint32_t i = 0; i < N_REQUESTS; i++) {
		struct prefix_chain chain = {.keys = keys, .cap_keys = MAX_BLOCKS};
		struct held *h = &held[rnd(N_ACTIVE)];
		struct prompt p;
		uint32_t id;

		trace_next(trace, i, &p);
		for (uint32_t b = 0; b < p.n; b++)
			for (uint32_t k = 0; k < BT; k++)
				tokens[b * BT + k] = (int32_t)(p.blocks[b] & INT32_MAX);
		if (h->used) {
			seq_release(&h->table, &pool);
			seq_deinit(&h->table);
		}
		/* what runs takes from the cache: keep its part of the pool constant */
		while (pool.n_cached > POOL_BLOCKS)
			prefix_evict(&index, 1);
		check(!seq_init(&h->table, MAX_BLOCKS), "seq_init");
		h->used = true;
		check(!prefix_key_root(&index.keyer, &index.spaces[0].base, 0, NULL, 0,
				       NULL, 0, &chain.root),
		      "root");
		asked += p.n;
		h->table.n_blocks = lookup(&index, &chain, tokens, p.n, h->table.ids);
		h->table.n_published = h->table.n_blocks;
		while (h->table.n_blocks < p.n) {
			check(prefix_take(&index, 0, 0, &id) == 0, "take");
			seq_append(&h->table, id);
		}
		seq_publish(&h->table, &index, &chain, tokens, p.n * BT);
	}
	clock_gettime(CLOCK_MONOTONIC, &t1);
	*ret_ns = ((double)(t1.tv_sec - t0.tv_sec) * 1e9 +
		   (double)(t1.tv_nsec - t0.tv_nsec)) /
		  (double)asked;
	rate = (double)index.counters.hit_tokens / BT / (double)asked;
	for (uint32_t i = 0; i < N_ACTIVE; i++)
		if (held[i].used) {
			seq_release(&held[i].table, &pool);
			seq_deinit(&held[i].table);
		}
	check(!block_pool_check(&pool) && !prefix_check(&index), "accounting");
	prefix_deinit(&index);
	block_pool_deinit(&pool);
	return rate;
}

int main(int argc, char **argv)
{
	static const struct evict_policy *const policies[] = {
		&evict_lru, &evict_slru, &evict_s3fifo, &evict_adaptive};
	const size_t n = KVD_ARRAY_LEN(policies);
	bool json = argc > 1 && !strcmp(argv[1], "--json");

	if (!json) {
		printf("%-10s", "trace");
		for (size_t i = 0; i < n; i++)
			printf(" %9s", policies[i]->name);
		printf("   share of tokens found; pool of %u blocks\n", POOL_BLOCKS);
	}
	for (int trace = 0; trace < N_TRACES; trace++) {
		double rates[8], ns[8];

		for (size_t i = 0; i < n; i++)
			rates[i] = replay(policies[i], trace, &ns[i]);
		if (json) {
			printf("{\"bench\":\"evict\",\"case\":\"%s\",\"value\":%.4f,"
			       "\"unit\":\"share\",\"peer\":\"lru\",\"peer_value\":%.4f,"
			       "\"ratio\":%.4g}\n",
			       trace_names[trace], rates[n - 1], rates[0],
			       rates[n - 1] / (rates[0] > 0 ? rates[0] : 1e-9));
			continue;
		}
		printf("%-10s", trace_names[trace]);
		for (size_t i = 0; i < n; i++)
			printf(" %9.4f", rates[i]);
		printf("   %.0f ns a block\n", ns[n - 1]);
	}
	return 0;
}
