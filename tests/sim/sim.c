/* SPDX-License-Identifier: MIT */
/* The world of one seed: its requests, the fake device, and what must come out. */
#include "tests/sim/sim.h"

#include "daemon/cache/prefix_node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t mix(uint64_t x)
{
	/* splitmix64's finalizer */
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint32_t rnd(struct sim *sim, uint32_t n)
{
	sim->rng = mix(sim->rng);
	return (uint32_t)((sim->rng >> 20) % n);
}

static int32_t sample(uint64_t state, const struct kv_sample_params *p, uint64_t position)
{
	return (int32_t)(mix(state ^ mix(p->seed + position)) % N_VOCAB);
}

static float score(uint64_t state, int32_t target)
{
	return -(float)(mix(state + (uint64_t)target) % 1000) / 64;
}

/* What the fake's memory holds at the position after @state, for @token. */
static uint64_t advance(uint64_t *acc, int32_t token)
{
	uint64_t value = mix(*acc ^ mix((uint64_t)token + 1));

	*acc = mix(*acc + value);
	return value;
}

/* Nobody loses any of an even share while another has more, but below public blocks. */
static void check_eviction(struct evict *evict, uint32_t id, uint64_t key)
{
	uint32_t n = evict->groups[evict->blocks[id].group].n;

	for (uint32_t i = 0; i < evict->n_groups; i++) {
		const struct evict_group *g = &evict->groups[evict->heap[i]];

		if (g->n > n && g->domain != PREFIX_DOMAIN_PUBLIC)
			ck_abort_msg("domain %u has %u candidates and loses none, "
				     "another with %u does",
				     g->domain, g->n, n);
	}
	evict_adaptive.forget(evict, id, key);
}

/* The policies, with their names and orders, and that check. */
static struct evict_policy checked_adaptive, checked_lru;

/* The whole answer of one request, alone. state[i] belongs to the row of position i. */
static void solve(struct sim_request *r)
{
	uint32_t n = r->desc.n_tokens;
	uint64_t acc = 1;

	for (uint32_t i = 0; i < r->limit; i++) {
		if (i >= n)
			r->tokens[i] = sample(r->state[i - 1], &r->desc.sample, i);
		r->state[i] = advance(&acc, r->tokens[i]);
		if (i >= n && r->tokens[i] == EOS && !r->desc.ignore_eos) {
			r->limit = i + 1;
			return;
		}
	}
}

void sim_open_index(struct sim *sim)
{
	const struct cache_config config = {
		.identity = &sim->model,
		.block_bytes = sim->bt * sizeof(*sim->mem),
		.n_blocks = sim->n_blocks,
		.evict = sim->policy,
		.key_bits = sim->key_bits,
	};

	ck_assert_int_eq(cache_init(&sim->cache, &config), 0);
}

void sim_open_sched(struct sim *sim)
{
	ck_assert_int_eq(sched_new(&sim->config, &sim->cache, &sim->sched), 0);
}

void sim_init(struct sim *sim, const struct sim_kind *kind, uint64_t seed)
{
	static const uint32_t block_tokens[] = {1, 2, 4, 16};
	struct plan_caps caps;
	bool tails;

	memset(sim, 0, sizeof(*sim));
	sim->seed = seed;
	sim->kind = kind;
	sim->die_after = UINT32_MAX;
	sim->rng = mix(seed);
	tails = rnd(sim, 2);
	sim->bt = block_tokens[rnd(sim, 4)];
	sim->n_blocks = 1 + rnd(sim, rnd(sim, 2) ? 16 : 160);
	sim->model = (struct prefix_model){.backend = "fake", .block_tokens = sim->bt};
	sim->config = (struct sched_config){
		.max_num_seqs = 1 + rnd(sim, rnd(sim, 2) ? 4 : 24),
		.max_model_len = 2 + rnd(sim, MAX_TOKENS - 2),
		.max_waiting = rnd(sim, 40),
		.block_tokens = sim->bt,
		.enable_prefix_caching = rnd(sim, 8) > 0,
		.copy_rows = !tails && rnd(sim, 4),
		.eos = {EOS},
		.n_eos = 1,
	};
	sim->config.max_num_batched_tokens =
		sim->config.max_num_seqs + rnd(sim, rnd(sim, 2) ? 8 : 100);
	sim->failing = !rnd(sim, 10);
	sim->now = 1000;
	sim->elapsed_ns[0] = mix(seed) % 3 * 1000;
	sim->elapsed_ns[1] = mix(seed + 1) % 3 * 300;
	for (uint32_t i = 0; i < N_DOMAINS; i++) {
		struct sched_quota *q = &sim->quota[i];

		if (rnd(sim, 2))
			continue;
		q->min_blocks = rnd(sim, sim->n_blocks / N_DOMAINS + 1);
		q->max_blocks = rnd(sim, 2) ? 1 + rnd(sim, sim->n_blocks) : 0;
		q->max_running = rnd(sim, 2) ? 1 + rnd(sim, 4) : 0;
		q->max_waiting = rnd(sim, 2) ? 1 + rnd(sim, 8) : 0;
	}
	checked_adaptive = evict_adaptive;
	checked_lru = evict_lru;
	checked_adaptive.forget = checked_lru.forget = check_eviction;
	sim->policy = rnd(sim, 3) ? &checked_adaptive : &checked_lru;
	sim->key_bits = rnd(sim, 3) ? 256 : 3;
	sim_open_index(sim);
	sim_open_sched(sim);
	sched_plan_caps(sim->sched, &caps);
	ck_assert_int_eq(plan_init(&sim->plan, &caps), 0);
	ck_assert_int_eq(plan_result_init(&sim->result, &caps), 0);
	sim->mem = calloc((size_t)sim->n_blocks * sim->bt, sizeof(*sim->mem));
	sim->mem_domain = malloc(sim->n_blocks * sizeof(*sim->mem_domain));
	ck_assert(sim->mem && sim->mem_domain);
	if (tails) {
		sim->tails = calloc((size_t)sim->config.max_num_seqs * sim->bt,
				    sizeof(*sim->tails));
		ck_assert(sim->tails);
	}
	memset(sim->mem_domain, 0xff, sim->n_blocks * sizeof(*sim->mem_domain));
	if (kind->open)
		kind->open(sim);
}

/* Whether the flush was for this node, which was there when it began. */
static bool was_to_go(const struct prefix_flush *flush, const struct prefix_node *node)
{
	return node->n_rows && (int32_t)(node->life - flush->life) <= 0 &&
	       (flush->kind == FLUSH_ALL ||
		(flush->kind == FLUSH_DOMAIN && node->domain == flush->domain));
}

void sim_flush_step(struct sim *sim, uint32_t work)
{
	const struct prefix_index *index = &sim->cache.index;
	uint32_t n_left = 0;

	if (!sim->flush.index || !prefix_flush_step(&sim->flush, work))
		return;
	for (uint32_t i = 0; i < index->cap_nodes; i++)
		n_left +=
			was_to_go(&sim->flush, &index->nodes[i]) && !node_pins(index, i);
	sim_check(sim, sim->ever_pinned || (!n_left && !sim->flush.result.remaining));
	prefix_flush_end(&sim->flush);
}

void sim_deinit(struct sim *sim)
{
	prefix_flush_end(&sim->flush);
	sched_free(sim->sched);
	plan_result_deinit(&sim->result);
	plan_deinit(&sim->plan);
	cache_deinit(&sim->cache);
	free(sim->mem);
	free(sim->tails);
	free(sim->mem_domain);
	if (sim->kind->close)
		sim->kind->close(sim);
}

static struct sim_request *sim_find(struct sim *sim, uint64_t cookie)
{
	sim_check(sim, cookie < sim->n_requests);
	return &sim->requests[cookie];
}

/* The scheduler has taken @r: what must come of it. */
static void sim_accept(struct sim *sim, struct sim_request *r)
{
	const struct sched_quota *quota = r->desc.quota;
	uint64_t most = sim->n_blocks;
	uint32_t n = r->desc.n_tokens;

	if (quota->max_blocks && quota->max_blocks < most)
		most = quota->max_blocks;
	most = most * sim->bt + 1;
	r->accepted = true;
	sim->n_requests++;
	r->limit = n;
	if (r->desc.kind == REQUEST_GENERATE) {
		r->limit = sim->config.max_model_len;
		if (r->limit > most)
			r->limit = (uint32_t)most;
		if (r->desc.max_tokens && r->limit > n + r->desc.max_tokens)
			r->limit = n + r->desc.max_tokens;
	}
	r->n_seen = r->desc.kind == REQUEST_GENERATE ? n : 1;
	solve(r);
}

void sim_fork(struct sim *sim, const struct sim_request *parent)
{
	const struct request *live = sched_get(sim->sched, parent->id);
	struct sim_request *r = &sim->requests[sim->n_requests];
	uint32_t n, more = rnd(sim, 2) ? 0 : rnd(sim, 6);
	struct sched_refusal refusal;
	struct request_desc desc;
	int c;

	if (sim->n_requests == MAX_REQUESTS || parent->finished || !live ||
	    live->id != parent->id)
		return;
	n = rnd(sim, 2) ? live->n_tokens : 1 + rnd(sim, live->n_tokens);
	memset(r, 0, sizeof(*r));
	memcpy(r->tokens, parent->tokens, n * sizeof(*r->tokens));
	for (uint32_t i = 0; i < more && n + i < MAX_TOKENS; i++)
		r->tokens[n + i] = (int32_t)rnd(sim, N_VOCAB - 1);
	r->desc = parent->desc;
	r->desc.kind = REQUEST_GENERATE;
	r->desc.tokens = r->tokens + n;
	r->desc.n_tokens = more;
	r->desc.max_tokens = rnd(sim, 4) ? 1 + rnd(sim, 30) : 0;
	r->desc.sample.seed = rnd(sim, 3);
	r->desc.deadline_ns = 0;
	r->desc.cookie = sim->n_requests;
	desc = r->desc;
	/* all that belongs to the parent is taken from there */
	desc.domain = 77;
	desc.salt_len = 0;
	c = sched_fork(sim->sched, parent->id, n, &desc, sim->now, &r->id, &refusal);
	sim_check(sim, c >= 0 && c != SCHED_NO_PARENT && c != SCHED_INVALID);
	if (c)
		return;
	r->forked = true;
	r->desc.tokens = r->tokens;
	r->desc.n_tokens = n + more;
	sim_accept(sim, r);
}

void sim_add(struct sim *sim)
{
	uint32_t n = 1 + rnd(sim, rnd(sim, 2) ? 20 : MAX_TOKENS - 2);
	uint64_t pool_tokens = (uint64_t)sim->n_blocks * sim->bt, user_tokens;
	const struct sched_quota *quota;
	struct sched_usage usage;
	uint32_t who = rnd(sim, N_DOMAINS), family = rnd(sim, 3), common;
	struct sched_refusal refusal;
	struct sim_request *r;
	bool gen;
	int c;

	if (sim->n_requests == MAX_REQUESTS)
		return;
	r = &sim->requests[sim->n_requests];
	memset(r, 0, sizeof(*r));
	/* a family shares its beginning, the rest is private or equal by chance */
	common = rnd(sim, 4) ? rnd(sim, n + 1) : n;
	for (uint32_t i = 0; i < n; i++)
		r->tokens[i] = (int32_t)(i < common ? mix(family * 1000 + i) % N_VOCAB
						    : rnd(sim, 2));
	r->desc = (struct request_desc){
		.kind = rnd(sim, 5) ? REQUEST_GENERATE : REQUEST_SCORE,
		.ignore_eos = rnd(sim, 2),
		.tokens = r->tokens,
		.n_tokens = n,
		.max_tokens = rnd(sim, 4) ? 1 + rnd(sim, 30) : 0,
		.sample = {.temperature = 1, .top_p = 1, .seed = rnd(sim, 3)},
		.uid = 1000 + who,
		.quota = &sim->quota[who],
		.priority = (int32_t)rnd(sim, 3) - 1,
		.deadline_ns = rnd(sim, 10) ? 0 : sim->now + rnd(sim, 40),
		.domain = 1000 + (rnd(sim, 8) ? who : 0),
		.owner = rnd(sim, 4),
		.client = rnd(sim, 3),
		.salt = "pepper",
		.salt_len = rnd(sim, 6) ? 0 : 6,
		.cookie = sim->n_requests,
	};
	if (sim->kind->open)
		r->desc.reads_public = !r->desc.salt_len && rnd(sim, 2);
	gen = r->desc.kind == REQUEST_GENERATE;
	quota = &sim->quota[who];
	user_tokens =
		quota->max_blocks ? (uint64_t)quota->max_blocks * sim->bt : pool_tokens;
	sched_usage(sim->sched, r->desc.uid, &usage);
	c = sched_add(sim->sched, &r->desc, 0, &r->id, &refusal);
	if (n + gen > sim->config.max_model_len) {
		sim_check(sim, c == SCHED_PROMPT_TOO_LONG && refusal.wanted == n);
		return;
	}
	if (n > pool_tokens) {
		sim_check(sim,
			  c == SCHED_CANNOT_EVER_FIT && refusal.limit == sim->n_blocks);
		return;
	}
	if (n > user_tokens) {
		sim_check(sim,
			  c == SCHED_QUOTA_BLOCKS && refusal.limit == quota->max_blocks);
		return;
	}
	if (quota->max_waiting && usage.waiting >= quota->max_waiting) {
		sim_check(sim, c == SCHED_QUOTA_WAITING);
		return;
	}
	if (c) {
		sim_check(sim, c == SCHED_QUEUE_FULL);
		return;
	}
	sim_accept(sim, r);
}

/*
 * A hit can be no longer than what some request of the same domain and salt had, or any if it
 * may have become public.
 */
static void check_cached(struct sim *sim, const struct sim_request *r, uint32_t n_cached)
{
	bool any = sim->have_public && r->desc.reads_public;
	uint32_t best = 0;

	if (r->forked) {
		sim_check(sim, n_cached < r->desc.n_tokens);
		return;
	}
	for (uint32_t i = 0; i < sim->n_requests; i++) {
		const struct sim_request *o = &sim->requests[i];
		uint32_t n = 0;

		if (o == r || (!any && (o->desc.domain != r->desc.domain ||
					o->desc.salt_len != r->desc.salt_len)))
			continue;
		while (n < o->limit && n < r->desc.n_tokens &&
		       o->tokens[n] == r->tokens[n])
			n++;
		if (n > best)
			best = n;
	}
	sim_check(sim, n_cached <= best && n_cached < r->desc.n_tokens);
	sim_check(sim, sim->config.copy_rows || n_cached % sim->bt == 0);
	sim->n_row_hits += n_cached % sim->bt != 0;
}

void sim_events(struct sim *sim)
{
	const struct sched_event *events;
	uint32_t n;

	events = sched_events(sim->sched, &n);
	for (uint32_t i = 0; i < n; i++) {
		const struct sched_event *e = &events[i];
		struct sim_request *r = sim_find(sim, e->cookie);
		uint32_t pos = e->position;

		sim_check(sim, !r->finished && e->id == r->id);
		if (e->kind == SCHED_FINISHED) {
			r->finished = true;
			sim_check(sim, !sched_get(sim->sched, r->id));
			sim_check(sim, e->n_prompt == r->desc.n_tokens);
			check_cached(sim, r, e->n_cached);
			if (r->desc.kind == REQUEST_GENERATE)
				sim_check(sim, e->n_prompt + e->n_generated == r->n_seen);
			if (e->reason == SCHED_REASON_DEADLINE)
				sim_check(sim, r->desc.deadline_ns &&
						       r->desc.deadline_ns <= sim->now);
			else if (r->cancelled)
				sim_check(sim, e->reason == SCHED_REASON_CANCELLED);
			else if (e->reason == SCHED_REASON_ERROR)
				sim_check(sim, (e->status == -EIO && sim->failing) ||
						       (e->status == -ENOSPC &&
							sim->ever_pinned) ||
						       (e->status == -EDQUOT &&
							sim->quota_lowered));
			else
				sim_check(sim, r->n_seen == r->limit);
			if (e->reason == SCHED_REASON_LENGTH)
				sim_check(sim, e->n_generated);
			continue;
		}
		sim_check(sim, !r->cancelled && pos == r->n_seen && pos < r->limit);
		sim_check(sim, e->token == r->tokens[pos]);
		sim_check(sim,
			  (e->kind == SCHED_TOKEN) == (r->desc.kind == REQUEST_GENERATE));
		sim_check(sim, e->logprob == score(r->state[pos - 1], e->token));
		sim_check(sim, e->is_eos == (e->kind == SCHED_TOKEN && e->token == EOS));
		r->n_seen++;
	}
	sched_clear_events(sim->sched);
	sim_check(sim, !sched_check(sim->sched));
	for (uint32_t i = 0; i < N_DOMAINS && !sim->quota_lowered; i++) {
		const struct sched_quota *q = &sim->quota[i];
		struct sched_usage usage;

		sched_usage(sim->sched, 1000 + i, &usage);
		sim_check(sim, !q->max_blocks || usage.blocks <= q->max_blocks);
		sim_check(sim, !q->max_running || usage.running <= q->max_running);
	}
}

/* Where position @pos is read, and where it is written, by entry @e. */
static uint64_t *sim_cell(struct sim *sim, const struct kv_batch_entry *e, uint32_t pos)
{
	uint32_t id = sim->plan.block_ids[e->block_off + pos / sim->bt];
	uint32_t first_open = e->pos0 / sim->bt * sim->bt;

	if (sim->tails && pos >= first_open)
		return &sim->tails[(size_t)e->tail * sim->bt + pos % sim->bt];
	return &sim->mem[(size_t)id * sim->bt + pos % sim->bt];
}

/* A row was written: a block moves out of its tail slot when it is full. */
static void sim_wrote(struct sim *sim, const struct kv_batch_entry *e, uint32_t pos)
{
	uint32_t id = sim->plan.block_ids[e->block_off + pos / sim->bt];
	uint64_t *block = &sim->mem[(size_t)id * sim->bt];

	if (!sim->tails)
		return;
	if ((pos + 1) % sim->bt)
		memset(block, 0x5a, sim->bt * sizeof(*block));
	else
		memcpy(block, &sim->tails[(size_t)e->tail * sim->bt],
		       sim->bt * sizeof(*block));
}

/* Its bytes may be any domain's. */
static bool is_public(const struct sim *sim, uint32_t id)
{
	return sim->have_public &&
	       block_pool_get(&sim->cache.pool, id)->domain == PREFIX_DOMAIN_PUBLIC;
}

static void run_entry(struct sim *sim, uint32_t entry, uint32_t *domain)
{
	const struct plan *plan = &sim->plan;
	const struct kv_batch_entry *e = &plan->entries[entry];
	const uint32_t *ids = plan->block_ids + e->block_off;
	uint32_t end = e->pos0 + e->n_rows, output = 0;
	uint64_t acc = 1;

	for (uint32_t pos = 0; pos < end; pos++) {
		uint32_t id = ids[pos / sim->bt];
		uint64_t *cell = sim_cell(sim, e, pos);
		uint32_t row = e->row0 + (pos - e->pos0);

		if (pos < e->pos0) {
			sim_check(sim,
				  sim->mem_domain[id] == *domain || is_public(sim, id));
			acc = mix(acc + *cell);
			continue;
		}
		sim_check(sim, sim->mem_domain[id] == *domain ||
				       sim->mem_domain[id] == UINT32_MAX);
		sim->mem_domain[id] = *domain;
		*cell = advance(&acc, plan->tokens[row]);
		sim_wrote(sim, e, pos);
		while (output < plan->n_outputs && plan->outputs[output].row < row)
			output++;
		if (output < plan->n_outputs && plan->outputs[output].row == row) {
			const struct plan_output *o = &plan->outputs[output];
			int32_t token = o->target;

			if (o->kind == PLAN_SAMPLE)
				token = sample(*cell, &o->sample, o->position);
			sim->result.outputs[output] = (struct plan_output_result){
				.token = token,
				.logprob = score(*cell, token),
			};
		}
	}
}

/* Entries in any order, as a device may. */
void sim_run(struct sim *sim, const uint32_t *domains)
{
	const struct plan *plan = &sim->plan;
	uint32_t first = rnd(sim, plan->n_entries);
	bool backwards = rnd(sim, 2);

	plan_result_reset(&sim->result);
	sim->result.step = plan->step;
	sim->result.n_outputs = plan->n_outputs;
	sim->result.elapsed_ns = sim->elapsed_ns[0] + sim->elapsed_ns[1] * plan->n_rows;
	if (sim->failing && !rnd(sim, 20)) {
		sim->result.status = -EIO;
		return;
	}
	for (uint32_t i = 0; i < plan->n_zero; i++) {
		memset(&sim->mem[(size_t)plan->zero[i] * sim->bt], 0,
		       sim->bt * sizeof(*sim->mem));
		sim->mem_domain[plan->zero[i]] = UINT32_MAX;
	}
	for (uint32_t i = 0; i < plan->n_copies; i++) {
		const struct kv_block_copy *c = &plan->copies[i];

		memcpy(&sim->mem[(size_t)c->dst * sim->bt],
		       &sim->mem[(size_t)c->src * sim->bt], sim->bt * sizeof(*sim->mem));
		sim->mem_domain[c->dst] =
			is_public(sim, c->src)
				? block_pool_get(&sim->cache.pool, c->dst)->domain
				: sim->mem_domain[c->src];
	}
	for (uint32_t i = 0; i < plan->n_entries && i < sim->die_after; i++) {
		uint32_t e = (first + i) % plan->n_entries;

		if (backwards)
			e = plan->n_entries - 1 - e;
		run_entry(sim, e, (uint32_t *)&domains[e]);
	}
}
