/* SPDX-License-Identifier: MIT */
/*
 * What goes wrong: every allocation fails once, and the checkers find every kind of damage.
 *
 * Damage is done by changing one field of a world in which much is going on: requests in
 * all states, published, cached, pinned and shared blocks, a fork about to copy.
 */
#include "daemon/sched/sched.h"
#include "daemon/sched/state.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/prefix_node.h"
#include "tests/unit/cache/flush.h"
#include "tests/unit/failing_alloc.h"
#include "tests/unit/suite.h"

#define BT 4

/* --- a libcrypto that fails ------------------------------------------------------------ */

static long crypto_fails_after = -1;

static bool crypto_fails(void)
{
	return crypto_fails_after >= 0 && crypto_fails_after-- == 0;
}

int EVP_DigestInit_ex(EVP_MD_CTX *ctx, const EVP_MD *type, ENGINE *impl)
{
	static int (*next)(EVP_MD_CTX *, const EVP_MD *, ENGINE *);

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "EVP_DigestInit_ex");
	return crypto_fails() ? 0 : next(ctx, type, impl);
}

int EVP_DigestUpdate(EVP_MD_CTX *ctx, const void *data, size_t len)
{
	static int (*next)(EVP_MD_CTX *, const void *, size_t);

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "EVP_DigestUpdate");
	return crypto_fails() ? 0 : next(ctx, data, len);
}

int EVP_DigestFinal_ex(EVP_MD_CTX *ctx, unsigned char *md, unsigned int *len)
{
	static int (*next)(EVP_MD_CTX *, unsigned char *, unsigned int *);

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "EVP_DigestFinal_ex");
	return crypto_fails() ? 0 : next(ctx, md, len);
}

/* --- a world --------------------------------------------------------------------------- */

struct world {
	struct cache cache;
	struct sched *sched;
	struct plan plan;
	struct plan_result result;
	uint32_t ids[8];
};

/* The first of two blocks of a chain. */
static uint32_t first_node(const struct cache *cache)
{
	const struct prefix_index *index = &cache->index;
	uint32_t node = index->node_of[0];

	return index->nodes[node].parent == NODE_NONE ? node : index->node_of[1];
}

static int world_open(struct world *w)
{
	struct prefix_model model = {.block_tokens = BT};
	struct sched_config config = {
		.max_num_seqs = 4,
		.max_num_batched_tokens = 32,
		.max_model_len = 64,
		.max_waiting = 8,
		.block_tokens = BT,
		.enable_prefix_caching = true,
		.copy_rows = true,
	};
	const struct cache_config cache = {
		.identity = &model,
		.block_bytes = 64,
		.n_blocks = 40,
		.evict = &evict_adaptive,
	};
	struct plan_caps caps;
	int r;

	memset(w, 0, sizeof(*w));
	r = cache_init(&w->cache, &cache);
	if (!r)
		r = sched_new(&config, &w->cache, &w->sched);
	if (r)
		return r;
	sched_plan_caps(w->sched, &caps);
	r = plan_init(&w->plan, &caps);
	return r ? r : plan_result_init(&w->result, &caps);
}

static void world_close(struct world *w)
{
	sched_free(w->sched);
	plan_result_deinit(&w->result);
	plan_deinit(&w->plan);
	cache_deinit(&w->cache);
}

static void step(struct world *w)
{
	if (!sched_plan(w->sched, 1, &w->plan))
		return;
	plan_result_reset(&w->result);
	w->result.step = w->plan.step;
	w->result.n_outputs = w->plan.n_outputs;
	for (uint32_t i = 0; i < w->plan.n_outputs; i++)
		w->result.outputs[i].token = 3;
	sched_complete(w->sched, &w->plan, &w->result);
	sched_clear_events(w->sched);
}

static int add(struct world *w, uint32_t uid, uint32_t first, uint32_t n, uint32_t max,
	       uint64_t deadline, uint32_t *ret_id)
{
	int32_t tokens[64];
	struct request_desc desc = {
		.kind = REQUEST_GENERATE,
		.ignore_eos = true,
		.tokens = tokens,
		.n_tokens = n,
		.max_tokens = max,
		.uid = uid,
		.domain = uid,
		.deadline_ns = deadline,
		.salt = "s",
		.salt_len = 1,
	};

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)(first + i);
	return sched_add(w->sched, &desc, 0, ret_id, NULL);
}

/* Decoding, prefilling, waiting, a fork that has yet to copy, cached and pinned blocks. */
static void world_fill(struct world *w)
{
	struct request_desc desc = {.kind = REQUEST_GENERATE, .uid = 1, .max_tokens = 9};

	ck_assert_int_eq(world_open(w), 0);
	ck_assert_int_eq(add(w, 1, 100, 9, 1, 0, &w->ids[0]), 0);
	step(w);
	/* two full ones, and one with the row of the ninth token */
	ck_assert_uint_eq(w->cache.pool.n_cached, 3);
	ck_assert_int_eq(add(w, 2, 300, 9, 1, 0, &w->ids[1]), 0);
	step(w);
	node_pin_chain(&w->cache.index, first_node(&w->cache));
	ck_assert_int_eq(add(w, 1, 1, 10, 30, 0, &w->ids[2]), 0);
	step(w);
	ck_assert_int_eq(add(w, 2, 200, 60, 4, 900, &w->ids[3]), 0);
	ck_assert_int_eq(add(w, 3, 400, 60, 4, 800, &w->ids[4]), 0);
	step(w);
	ck_assert_int_eq(sched_fork(w->sched, w->ids[2], 10, &desc, 0, &w->ids[5], NULL),
			 0);
	ck_assert_int_eq(add(w, 3, 1, 10, 30, 700, &w->ids[6]), 0);
	ck_assert_int_eq(add(w, 3, 1, 10, 30, 0, &w->ids[7]), 0);
	ck_assert_int_eq(sched_check(w->sched), 0);
	ck_assert(sched_request(w->sched, w->ids[5])->cow);
	ck_assert_uint_eq(sched_request(w->sched, w->ids[3])->state, REQUEST_PREFILL);
	ck_assert_uint_eq(sched_request(w->sched, w->ids[6])->state, REQUEST_WAITING);
}

/* --- the tests ------------------------------------------------------------------------- */

START_TEST(opening_without_memory)
{
	struct world w;
	long n = 0;

	for (;; n++) {
		int r;

		fail_after = n;
		r = world_open(&w);
		if (fail_after >= 0) {
			fail_after = -1;
			ck_assert_int_eq(r, 0);
			break;
		}
		fail_after = -1;
		/* libcrypto may do without what it could not get */
		ck_assert(r == 0 || r == -ENOMEM);
		world_close(&w);
	}
	world_close(&w);
	ck_assert_int_gt(n, 20);
}
END_TEST

START_TEST(requests_without_memory)
{
	struct request_desc desc = {.kind = REQUEST_GENERATE, .uid = 1};
	struct sched_stats before, after;
	struct world w;
	uint32_t id;

	world_fill(&w);
	sched_stats(w.sched, &before);
	for (long n = 0;; n++) {
		int r;

		fail_after = n;
		r = add(&w, 77, 50, 10, 5, 5, &id);
		if (!r)
			break;
		fail_after = -1;
		ck_assert_int_eq(r, -ENOMEM);
		sched_stats(w.sched, &after);
		ck_assert_uint_eq(after.waiting, before.waiting);
		ck_assert_int_eq(sched_check(w.sched), 0);
		for (long k = 0; k < 5; k++) {
			fail_after = k;
			r = sched_fork(w.sched, w.ids[2], 5, &desc, 0, &id, NULL);
			fail_after = -1;
			if (!r)
				sched_cancel(w.sched, id);
			sched_clear_events(w.sched);
			ck_assert_int_eq(sched_check(w.sched), 0);
		}
	}
	for (long k = 0; k < 3; k++) {
		fail_after = k;
		(void)sched_check(w.sched);
		fail_after = -1;
	}
	node_unpin_chain(&w.cache.index, first_node(&w.cache));
	world_close(&w);
}
END_TEST

START_TEST(keys_without_libcrypto)
{
	struct prefix_model model = {.k_format = "fp16", .block_tokens = BT};
	const struct prefix_secret secret = {"as random as any"};
	int32_t tokens[BT] = {0};
	struct prefix_keyer keyer;
	struct prefix_key base, key;
	struct world w;
	uint32_t id;
	int r = -1;

	for (long n = 0; r; n++) {
		crypto_fails_after = n;
		r = prefix_keyer_init(&keyer, &secret, 256);
		crypto_fails_after = -1;
		ck_assert(!r || r == -ENOMEM);
	}
	r = -1;
	for (long n = 0; r; n++) {
		crypto_fails_after = n;
		r = prefix_key_base(&keyer, &model, &base);
		crypto_fails_after = -1;
		ck_assert(!r || r == -ENOMEM);
	}
	r = -1;
	for (long n = 0; r; n++) {
		crypto_fails_after = n;
		r = prefix_key_root(&keyer, &base, 1, "a", 1, "s", 1, &key);
		crypto_fails_after = -1;
		ck_assert(!r || r == -ENOMEM);
	}
	r = -1;
	for (long n = 0; r; n++) {
		crypto_fails_after = n;
		r = prefix_key_next(&keyer, &key, tokens, BT, &key);
		crypto_fails_after = -1;
		ck_assert(!r || r == -ENOMEM);
	}
	prefix_keyer_deinit(&keyer);

	/* a request whose keys cannot be made is served without the cache */
	ck_assert_int_eq(world_open(&w), 0);
	ck_assert_int_eq(add(&w, 1, 500, 40, 20, 0, &id), 0);
	for (long n = 0; n < 40; n++) {
		crypto_fails_after = n % 4;
		step(&w);
		crypto_fails_after = -1;
		ck_assert_int_eq(sched_check(w.sched), 0);
	}
	ck_assert_ptr_null(sched_get(w.sched, id));
	crypto_fails_after = 0;
	ck_assert_int_eq(add(&w, 1, 500, 40, 20, 0, &id), -ENOMEM);
	crypto_fails_after = -1;
	world_close(&w);
}
END_TEST

START_TEST(impossible_settings)
{
	const struct sched_config good = {.max_num_seqs = 4,
					  .max_num_batched_tokens = 32,
					  .max_model_len = 64,
					  .max_waiting = 8,
					  .block_tokens = BT};
	struct prefix_model model = {.block_tokens = 0};
	const struct prefix_secret secret = {"as random as any"};
	struct block_pool pool;
	struct prefix_index index;
	struct sched *sched;
	struct world w;

	ck_assert_int_eq(world_open(&w), 0);
#define BAD(field, value)                                                                \
	do {                                                                             \
		struct sched_config c = good;                                            \
		c.field = (value);                                                       \
		ck_assert_int_eq(sched_new(&c, &w.cache, &sched), -EINVAL);              \
	} while (0)
	BAD(max_num_seqs, 0);
	BAD(max_num_seqs, 5000);
	BAD(max_num_batched_tokens, 3);
	BAD(max_num_batched_tokens, INT32_MAX);
	BAD(max_model_len, 1);
	BAD(max_model_len, UINT32_MAX);
	BAD(n_eos, SCHED_MAX_EOS + 1);
	BAD(max_waiting, 65535);
	BAD(block_tokens, 0);
	BAD(block_tokens, BT + 1);
#undef BAD
	ck_assert_int_eq(block_pool_init(&pool, 0, &evict_lru), -EINVAL);
	ck_assert_int_eq(block_pool_init(&pool, UINT32_MAX, &evict_lru), -EINVAL);
	ck_assert_int_eq(prefix_init(&index, &w.cache.pool, &model, &secret, 0, 256),
			 -EINVAL);
	model.block_tokens = BT;
	ck_assert_int_eq(prefix_init(&index, &w.cache.pool, &model, &secret, 0, 0),
			 -EINVAL);
	ck_assert_int_eq(prefix_init(&index, &w.cache.pool, &model, &secret, 0, 257),
			 -EINVAL);
	world_close(&w);
}
END_TEST

/* Changes @field, expects @check to notice, changes it back. */
#define DAMAGE(check, field, value)                                                      \
	do {                                                                             \
		__typeof__(field) old = (field);                                         \
		(field) = (value);                                                       \
		ck_assert_msg((check) != 0, "not noticed: %s = %s", #field, #value);     \
		(field) = old;                                                           \
		ck_assert_msg((check) == 0, "not mended: %s", #field);                   \
	} while (0)

static struct block *block_in(struct world *w, enum block_state state, bool pinned)
{
	for (uint32_t i = 0; i < w->cache.pool.n_blocks; i++)
		if (w->cache.pool.blocks[i].state == state &&
		    (w->cache.pool.blocks[i].pins > 0) == pinned)
			return &w->cache.pool.blocks[i];
	ck_abort_msg("no such block");
}

START_TEST(damaged_blocks_are_found)
{
	struct block *free_b, *active, *cached, *pinned;
	struct world w;

	world_fill(&w);
#define POOL(field, value) DAMAGE(block_pool_check(&w.cache.pool), field, value)
	free_b = block_in(&w, BLOCK_FREE, false);
	active = block_in(&w, BLOCK_ACTIVE, false);
	cached = block_in(&w, BLOCK_CACHED, false);
	pinned = block_in(&w, BLOCK_CACHED, true);
	POOL(free_b->refs, 1);
	POOL(free_b->indexed, true);
	POOL(free_b->pins, 1);
	POOL(free_b->state, BLOCK_CACHED);
	POOL(free_b->state, BLOCK_ACTIVE);
	POOL(free_b->state, 9);
	POOL(active->refs, 0);
	POOL(active->state, BLOCK_FREE);
	POOL(cached->refs, 1);
	POOL(cached->indexed, false);
	POOL(cached->tainted, true);
	POOL(cached->pins, 1);
	POOL(pinned->pins, 0);
	POOL(w.cache.pool.free_head, w.cache.pool.n_blocks);
	POOL(w.cache.pool.free_head, (uint32_t)(active - w.cache.pool.blocks));
	POOL(w.cache.pool.n_free, w.cache.pool.n_free - 1);
	POOL(w.cache.pool.n_active, w.cache.pool.n_active + 1);
	POOL(w.cache.pool.n_cached, w.cache.pool.n_cached + 1);
	POOL(w.cache.pool.n_pinned, 9);
	POOL(w.cache.pool.n_cached_pinned, 9);
	POOL(w.cache.pool.evict.n_candidates, 9);
	node_unpin_chain(&w.cache.index,
			 w.cache.index.node_of[pinned - w.cache.pool.blocks]);
	world_close(&w);
}
END_TEST

START_TEST(damaged_index_is_found)
{
	struct prefix_node *child = NULL;
	struct world w;
	struct block *b, *parent;
	uint32_t id = 0;

	world_fill(&w);
	for (uint32_t i = 0; i < w.cache.pool.n_blocks; i++)
		if (w.cache.pool.blocks[i].indexed && w.cache.pool.blocks[i].refs &&
		    w.cache.index.nodes[w.cache.index.node_of[i]].parent != NODE_NONE) {
			child = &w.cache.index.nodes[w.cache.index.node_of[i]];
			id = i;
		}
	ck_assert_ptr_nonnull(child);
	b = &w.cache.pool.blocks[id];
	parent = &w.cache.pool.blocks[child->parent];
#define INDEX(field, value) DAMAGE(prefix_check(&w.cache.index), field, value)
	INDEX(b->indexed, false);
	INDEX(child->parent, BLOCK_NONE);
	INDEX(child->parent, w.cache.pool.n_blocks);
	INDEX(child->links[PREFIX_BY_KEY].prev, 7);
	INDEX(child->links[PREFIX_BY_HEAD].prev, 7);
	INDEX(child->key.bytes[0], child->key.bytes[0] ^ 1);
	INDEX(child->root.bytes[3], child->root.bytes[3] ^ 1);
	INDEX(child->n_children, 9);
	INDEX(b->domain, 9);
	INDEX(b->pins, 1);
	INDEX(parent->refs, 0);
	INDEX(w.cache.index.n_nodes, 1);
	INDEX(w.cache.index.buckets[child->key.bytes[0] & 0], w.cache.pool.n_blocks);
	node_unpin_chain(&w.cache.index, first_node(&w.cache));
	world_close(&w);
}
END_TEST

START_TEST(damaged_requests_are_found)
{
	struct request *decode, *prefill, *waiting, *fork;
	struct world w;
	struct sched *s;

	world_fill(&w);
	s = w.sched;
	decode = sched_request(s, w.ids[2]);
	prefill = sched_request(s, w.ids[3]);
	fork = sched_request(s, w.ids[5]);
	waiting = sched_request(s, w.ids[6]);
#define SCHED(field, value) DAMAGE(sched_check(s), field, value)
	SCHED(decode->table.ids[0], w.cache.pool.n_blocks);
	SCHED(decode->table.ids[0], fork->table.ids[1]);
	SCHED(decode->chain.domain, 9);
	SCHED(decode->table.n_published, 0);
	SCHED(decode->table.n_published, 9);
	SCHED(decode->charged, 0);
	SCHED(decode->n_generated, 0);
	SCHED(decode->n_computed, decode->n_tokens);
	SCHED(decode->n_computed, 1);
	SCHED(decode->max_total, 2);
	SCHED(decode->table.cap_blocks, 0);
	SCHED(decode->tail, prefill->tail);
	SCHED(decode->tail, 99);
	SCHED(decode->paused, true);
	SCHED(fork->cow_src, 0);
	SCHED(waiting->n_computed, 1);
	SCHED(waiting->tail, 0);
	SCHED(waiting->state, REQUEST_PREFILL);
	SCHED(waiting->turn, UINT64_MAX);
	SCHED(waiting->turn, 0);
	SCHED(waiting->client->n_live, 9);
	SCHED(waiting->client->n_live, 0);
	SCHED(waiting->client->user, NULL);
	SCHED(waiting->priority, 5);
	SCHED(waiting->prev, waiting);
	SCHED(waiting->heap_place, 9);
	SCHED(prefill->deadline_ns, 1);
	SCHED(prefill->n_computed, 62);
	SCHED(decode->user->n_blocks, 0);
	SCHED(decode->user->n_running, 0);
	SCHED(decode->user->n_live, 9);
	SCHED(waiting->user->n_waiting, 9);
	SCHED(waiting->user->next_work, NULL);
	SCHED(waiting->user->waiting.tail, NULL);
	SCHED(prefill->user->prefill.tail, NULL);
	SCHED(s->run_tail, NULL);
	SCHED(decode->next_run, NULL);
	SCHED(s->n_running, 1);
	SCHED(s->n_waiting, 0);
	SCHED(s->n_paused, 3);
	SCHED(s->n_paused_running, 3);
	SCHED(s->n_live, 1);
	SCHED(s->n_users, 1);
	SCHED(s->n_free_tails, 3);
	SCHED(s->config.max_num_seqs, 2);
	SCHED(w.cache.pool.n_free, 1);
	node_unpin_chain(&w.cache.index, first_node(&w.cache));
	world_close(&w);
}
END_TEST

START_TEST(damaged_plans_are_found)
{
	struct world w;
	struct plan *p = &w.plan;

	world_fill(&w);
	sched_plan(w.sched, 1, p);
	ck_assert_uint_gt(p->n_copies, 0);
	ck_assert_uint_gt(p->n_outputs, 0);
#define PLAN(field, value)                                                               \
	DAMAGE(plan_check(p, BT, w.cache.pool.n_blocks, 1000), field, value)
	PLAN(p->n_rows, p->caps.rows + 1);
	PLAN(p->n_rows, p->n_rows - 1);
	PLAN(p->n_entries, p->caps.entries + 1);
	PLAN(p->n_entries, p->n_entries - 1);
	PLAN(p->n_block_ids, p->caps.block_ids + 1);
	PLAN(p->n_block_ids, 0);
	PLAN(p->n_outputs, p->caps.outputs + 1);
	PLAN(p->n_copies, p->caps.copies + 1);
	PLAN(p->n_zero, p->caps.zeros + 1);
	PLAN(p->tokens[0], -1);
	PLAN(p->tokens[0], 1000);
	PLAN(p->block_ids[0], w.cache.pool.n_blocks);
	PLAN(p->copies[0].src, w.cache.pool.n_blocks);
	PLAN(p->copies[0].dst, w.cache.pool.n_blocks);
	PLAN(p->entries[p->outputs[0].entry].pos0, 99);
	PLAN(p->entries[0].n_rows, 0);
	PLAN(p->entries[0].n_rows, 99);
	PLAN(p->entries[0].row0, 1);
	PLAN(p->entries[0].n_blocks, 9);
	PLAN(p->entries[0].block_off, 999);
	PLAN(p->entries[0].tail, 99);
	PLAN(p->outputs[0].row, 999);
	PLAN(p->outputs[0].entry, 99);
	PLAN(p->outputs[0].entry, p->n_entries - 1);
	PLAN(p->outputs[0].position, 99);
	PLAN(p->outputs[0].kind, 9);
	PLAN(p->outputs[0].kind, PLAN_SCORE);
	plan_result_reset(&w.result);
	w.result.step = p->step;
	w.result.n_outputs = p->n_outputs;
	sched_complete(w.sched, p, &w.result);
	node_unpin_chain(&w.cache.index, first_node(&w.cache));
	world_close(&w);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("faults");

	tcase_add_test(tc, opening_without_memory);
	tcase_add_test(tc, requests_without_memory);
	tcase_add_test(tc, keys_without_libcrypto);
	tcase_add_test(tc, impossible_settings);
	tcase_add_test(tc, damaged_blocks_are_found);
	tcase_add_test(tc, damaged_index_is_found);
	tcase_add_test(tc, damaged_requests_are_found);
	tcase_add_test(tc, damaged_plans_are_found);
	return run_case("faults", tc);
}
