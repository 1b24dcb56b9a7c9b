/* SPDX-License-Identifier: MIT */
/*
 * A scheduler, a cache and a device that takes a known time, for simulations of who gets how much:
 * time is counted in steps, rows and nanoseconds of that device, never by a clock.
 */
#ifndef KVD_SIM_WORLD_H
#define KVD_SIM_WORLD_H

#include "daemon/sched/sched.h"

#include <check.h>
#include <stdint.h>
#include <string.h>

#define BT 16

/* What the device needs, in nanoseconds: for a step, a row, a position that a row reads. */
struct device {
	double step;
	double row;
	double position;
};

struct world {
	struct cache cache;
	struct sched *sched;
	struct plan plan;
	struct plan_result result;
	uint64_t rng;
	uint64_t rows;        /* computed so far: the clock */
	struct device device; /* all 0: one that answers at once */
	double time_ns;
	int32_t next_token;
	int32_t priority; /* of what is asked for next */
};

static inline uint32_t rnd(struct world *w, uint32_t n)
{
	uint64_t x = w->rng += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)((x ^ x >> 31) >> 20) % n;
}

static inline void world_init(struct world *w, uint32_t n_blocks, uint32_t n_seqs)
{
	struct prefix_model model = {.block_tokens = BT};
	struct sched_config config = {
		.max_num_seqs = n_seqs,
		.max_num_batched_tokens = 512,
		.max_model_len = 8192,
		.max_waiting = 4096,
		.block_tokens = BT,
		.enable_prefix_caching = true,
	};
	struct plan_caps caps;

	memset(w, 0, sizeof(*w));
	const struct cache_config cache = {
		.identity = &model,
		.block_bytes = 64,
		.n_blocks = n_blocks,
		.evict = &evict_adaptive,
	};

	ck_assert(!cache_init(&w->cache, &cache));
	ck_assert(!sched_new(&config, &w->cache, &w->sched));
	sched_plan_caps(w->sched, &caps);
	ck_assert(!plan_init(&w->plan, &caps));
	ck_assert(!plan_result_init(&w->result, &caps));
}

static inline void world_deinit(struct world *w)
{
	sched_free(w->sched);
	plan_result_deinit(&w->result);
	plan_deinit(&w->plan);
	cache_deinit(&w->cache);
}

/* What the plan takes on the device. */
static inline double world_time(const struct world *w)
{
	double ns = w->device.step;

	for (uint32_t i = 0; i < w->plan.n_entries; i++) {
		const struct kv_batch_entry *e = &w->plan.entries[i];

		ns += e->n_rows *
		      (w->device.row +
		       w->device.position * (e->pos0 + (e->n_rows + 1) / 2.0));
	}
	return ns;
}

/* One step. Return: rows; the events wait to be read. */
static inline uint32_t world_step(struct world *w)
{
	uint32_t n = sched_plan(w->sched, w->rows, &w->plan);

	if (!n)
		return 0;
	plan_result_reset(&w->result);
	w->result.step = w->plan.step;
	w->result.n_outputs = w->plan.n_outputs;
	w->result.elapsed_ns = (uint64_t)world_time(w);
	w->time_ns += world_time(w);
	for (uint32_t i = 0; i < w->plan.n_outputs; i++)
		w->result.outputs[i].token = 1;
	sched_complete(w->sched, &w->plan, &w->result);
	w->rows += n;
	return n;
}

/* A request whose prompt nobody else has, of one of the clients of @uid. */
static inline uint32_t ask_by(struct world *w, uint32_t uid, uint64_t client,
			      uint32_t n_prompt, uint32_t n_answer, uint64_t cookie)
{
	static int32_t tokens[8192];
	struct request_desc desc = {
		.kind = REQUEST_GENERATE,
		.ignore_eos = true,
		.tokens = tokens,
		.n_tokens = n_prompt,
		.max_tokens = n_answer,
		.uid = uid,
		.client = client,
		.priority = w->priority,
		.domain = uid,
		.cookie = cookie,
	};
	uint32_t id;

	for (uint32_t i = 0; i < n_prompt; i++)
		tokens[i] = w->next_token++ & INT32_MAX;
	ck_assert_int_eq(sched_add(w->sched, &desc, w->rows, &id, NULL), 0);
	return id;
}

static inline void ask(struct world *w, uint32_t uid, uint32_t n_prompt,
		       uint32_t n_answer, uint64_t cookie)
{
	ask_by(w, uid, 0, n_prompt, n_answer, cookie);
}

#endif
