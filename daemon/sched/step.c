/* SPDX-License-Identifier: MIT */
#include "daemon/sched/state.h"

#include <assert.h>
#include <errno.h>

static uint32_t blocks_for(const struct sched *sched, uint32_t n_tokens)
{
	uint32_t bt = sched->config.block_tokens;

	return n_tokens / bt + !!(n_tokens % bt);
}

/* Rows below this position may come out of the cache: nobody wants their logits. */
static uint32_t adoptable_tokens(const struct request *r)
{
	return r->kind == REQUEST_SCORE ? r->n_scored : r->n_tokens - 1;
}

/* Whether the next thing to compute is a block that the index may hold or get. */
static bool at_shareable_block(const struct sched *sched, const struct request *r)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t n = r->table.n_blocks;

	return !r->uncached && r->table.n_published == n && r->n_computed == n * bt &&
	       (n + 1) * (uint64_t)bt <= adoptable_tokens(r);
}

static uint32_t last_block(const struct request *r)
{
	return r->table.n_blocks ? r->table.ids[r->table.n_blocks - 1] : BLOCK_NONE;
}

static void adopt(struct sched *sched, struct request *r)
{
	uint32_t bt = sched->config.block_tokens;
	struct prefix_counters *counters = &sched->index->counters;
	struct prefix_counters before = *counters;

	while (at_shareable_block(sched, r)) {
		uint32_t id = prefix_acquire(sched->index, &r->chain, r->tokens,
					     r->table.n_blocks, last_block(r));

		if (id == BLOCK_NONE)
			break;
		seq_append_published(&r->table, id);
		r->n_computed += bt;
		if (r->preempted)
			continue;
		r->n_cached += bt;
		sched->counters.cached_tokens += bt;
	}
	/* finding one's own blocks after a preemption saves work but is no hit */
	if (r->preempted)
		*counters = before;
}

/* Another request that computes the next block of @r in this plan, or NULL. */
static struct request *claimed_by(struct sched *sched, uint64_t step, struct request *r)
{
	const struct prefix_key *key;

	if (!at_shareable_block(sched, r))
		return NULL;
	key = prefix_chain_key(sched->index, &r->chain, r->tokens, r->table.n_blocks);
	return key ? claims_find(sched, step, r, r->table.n_blocks, key) : NULL;
}

/* Claims the full blocks of positions [from, to) that others could adopt. */
static void claim_blocks(struct sched *sched, uint64_t step, struct request *r,
			 uint32_t from, uint32_t to)
{
	uint32_t bt = sched->config.block_tokens;

	if (r->uncached)
		return;
	for (uint32_t b = blocks_for(sched, from); b * (uint64_t)bt < to; b++) {
		const struct prefix_key *key;

		if ((b + 1) * (uint64_t)bt > r->n_tokens)
			break;
		key = prefix_chain_key(sched->index, &r->chain, r->tokens, b);
		if (!key)
			break;
		claims_add(sched, step, r, b, key);
	}
}

static bool take_block(struct sched *sched, struct plan *plan, struct request *r)
{
	uint32_t id;
	int c;

	for (;;) {
		struct request *victim;

		c = prefix_take(sched->index, r->chain.domain, r->chain.owner, &id);
		if (c != BLOCK_POOL_DRY)
			break;
		victim = policy_victim(sched, r, plan->step);
		if (!victim)
			return false;
		policy_preempt(sched, victim);
	}
	if (c == BLOCK_NEEDS_ZERO) {
		assert(plan->n_zero < plan->caps.zeros);
		plan->zero[plan->n_zero++] = id;
	}
	seq_append(&r->table, id);
	return true;
}

static void add_outputs(struct plan *plan, const struct request *r,
			const struct plan_entry *e)
{
	uint32_t end = e->pos0 + e->n_rows;
	uint32_t first = e->pos0;

	if (r->kind == REQUEST_GENERATE) {
		if (end < r->n_tokens)
			return;
		first = end - 1;
	} else if (first < r->n_scored) {
		first = r->n_scored;
	}
	for (uint32_t pos = first; pos < end; pos++) {
		bool score = r->kind == REQUEST_SCORE;

		if (score && pos + 1 == r->n_tokens)
			return;
		assert(plan->n_outputs < plan->caps.outputs);
		plan->outputs[plan->n_outputs++] = (struct plan_output){
			.row = e->row0 + (pos - e->pos0),
			.entry = plan->n_entries,
			.kind = score ? PLAN_SCORE : PLAN_SAMPLE,
			.target = score ? r->tokens[pos + 1] : -1,
			.sample = r->sample,
			.position = (uint64_t)pos + 1,
		};
	}
}

/* Rows n_computed .. end - 1 of @r; its table covers them. */
static void add_entry(struct sched *sched, struct plan *plan, struct request *r,
		      uint32_t end)
{
	struct plan_entry e = {
		.seq_id = r->id,
		.row0 = plan->n_rows,
		.n_rows = end - r->n_computed,
		.pos0 = r->n_computed,
		.block_off = plan->n_block_ids,
		.n_blocks = blocks_for(sched, end),
	};

	assert(plan->n_entries < plan->caps.entries);
	assert(e.n_rows && e.n_rows <= plan->caps.rows - plan->n_rows);
	assert(e.n_blocks <= plan->caps.block_ids - plan->n_block_ids);
	for (uint32_t i = 0; i < e.n_rows; i++) {
		plan->tokens[e.row0 + i] = r->tokens[e.pos0 + i];
		plan->positions[e.row0 + i] = e.pos0 + i;
	}
	seq_copy(&r->table, e.n_blocks, plan->block_ids + e.block_off);
	add_outputs(plan, r, &e);
	plan->entries[plan->n_entries++] = e;
	plan->n_rows += e.n_rows;
	plan->n_block_ids += e.n_blocks;
	r->planned = plan->step;
}

static void stall(struct sched *sched)
{
	sched->stalled = true;
	sched->counters.stalls++;
}

static void plan_decodes(struct sched *sched, struct plan *plan)
{
	uint32_t bt = sched->config.block_tokens;

	/* preemption takes only younger requests away, which stand behind r */
	for (struct request *r = sched->run_head; r; r = r->next_run) {
		if (r->state != REQUEST_DECODE || r->paused)
			continue;
		if (r->n_computed == r->table.n_blocks * bt &&
		    !take_block(sched, plan, r)) {
			stall(sched);
			continue;
		}
		add_entry(sched, plan, r, r->n_computed + 1);
	}
}

/* Where the run of rows from n_computed on meets a block that another computes now. */
static uint32_t unclaimed_end(struct sched *sched, uint64_t step, struct request *r,
			      uint32_t end)
{
	uint32_t bt = sched->config.block_tokens;

	/* without an unbroken chain in the index nothing can be adopted later */
	if (r->uncached || r->table.n_published != r->n_computed / bt)
		return end;
	for (uint32_t b = blocks_for(sched, r->n_computed); b * (uint64_t)bt < end; b++) {
		const struct prefix_key *key;
		struct request *other;

		if ((b + 1) * (uint64_t)bt > adoptable_tokens(r))
			break;
		key = prefix_chain_key(sched->index, &r->chain, r->tokens, b);
		other = key ? claims_find(sched, step, r, b, key) : NULL;
		if (other && other->planned == step)
			return b * bt;
	}
	return end;
}

static void plan_chunk(struct sched *sched, struct plan *plan, struct request *r,
		       uint32_t quota)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t end = r->n_tokens;

	if (end - r->n_computed > quota) {
		end = r->n_computed + quota;
		/* whole blocks can be adopted by others one step earlier */
		if (end / bt * bt > r->n_computed)
			end = end / bt * bt;
	}
	end = unclaimed_end(sched, plan->step, r, end);
	if (end <= r->n_computed) {
		sched->counters.deferrals++;
		return;
	}
	while (r->table.n_blocks * (uint64_t)bt < end)
		if (!take_block(sched, plan, r)) {
			end = r->table.n_blocks * bt;
			break;
		}
	if (end <= r->n_computed) {
		stall(sched);
		return;
	}
	claim_blocks(sched, plan->step, r, r->n_computed, end);
	add_entry(sched, plan, r, end);
}

/**
 * struct admission - what the running requests leave to those that wait
 * @reserved: blocks that running prompts will still take
 * @growth: blocks that decodes may take soon
 * @active: running requests that are not paused
 * @closed: nobody else gets in with this plan
 */
struct admission {
	uint64_t reserved;
	uint32_t growth;
	uint32_t active;
	bool closed;
};

static void admission_open(const struct sched *sched, struct admission *a)
{
	*a = (struct admission){.closed = sched->stalled};
	for (const struct request *r = sched->run_head; r; r = r->next_run) {
		if (r->paused)
			continue;
		a->active++;
		if (r->state == REQUEST_PREFILL)
			a->reserved += blocks_for(sched, r->n_tokens) - r->table.n_blocks;
		else
			a->growth++;
	}
}

/* Blocks that the prompt of @r needs beyond its hits, and what is there for them. */
static bool room_for(struct sched *sched, const struct admission *a, struct request *r,
		     uint64_t *ret_need)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t n = 0, parent = BLOCK_NONE, n_idle_hits = 0;
	uint64_t need;

	while (!r->uncached && (n + 1) * (uint64_t)bt <= adoptable_tokens(r)) {
		const struct block *b;

		parent = prefix_find(sched->index, &r->chain, r->tokens, n, parent);
		if (parent == BLOCK_NONE)
			break;
		b = block_pool_get(sched->pool, parent);
		n_idle_hits += !b->refs && !b->pins;
		n++;
	}
	need = blocks_for(sched, r->n_tokens) - n;
	*ret_need = need;
	return need + n_idle_hits + a->reserved + a->growth <=
	       block_pool_n_available(sched->pool);
}

static bool admit(struct sched *sched, struct admission *a, struct request *r)
{
	uint64_t need;

	if (a->closed || sched->n_running >= sched->config.max_num_seqs) {
		struct request *victim;

		/* a client that does not read must not hold a place for ever */
		victim = a->closed ? NULL : policy_paused_victim(sched, true);
		if (!victim)
			return false;
		policy_preempt(sched, victim);
	}
	while (!room_for(sched, a, r, &need)) {
		struct request *victim = policy_paused_victim(sched, false);

		if (victim) {
			policy_preempt(sched, victim);
			continue;
		}
		/* alone it fits, unless pins are in the way: then it stalls and fails */
		if (!a->active)
			break;
		a->closed = true;
		return false;
	}
	a->reserved += need;
	a->active++;
	if (!r->preempted) {
		r->started_ns = sched->now_ns;
		sched->counters.prompt_tokens += r->n_prompt;
		if (!r->uncached)
			sched->index->counters.queried_tokens += r->n_prompt;
	}
	policy_move(sched, r, REQUEST_PREFILL);
	return true;
}

/* The next request of @user that may get a chunk, admitted if it waited; or NULL. */
static struct request *user_next(struct sched *sched, struct admission *a,
				 struct sched_user *user)
{
	struct request *r;

	while ((r = user->cursor)) {
		user->cursor = r->next;
		if (!r->paused)
			return r;
	}
	while ((r = user->cursor_waiting)) {
		if (!r->paused && !admit(sched, a, r))
			return NULL;
		if (user->cursor_waiting == r)
			user->cursor_waiting = r->next;
		if (!r->paused)
			return r;
	}
	return NULL;
}

/* One more candidate of @user, or false if it has none. */
static bool gather_one(struct sched *sched, struct admission *a, struct sched_user *user,
		       uint64_t step)
{
	struct request *r;

	while ((r = user_next(sched, a, user))) {
		adopt(sched, r);
		if (claimed_by(sched, step, r)) {
			sched->counters.deferrals++;
			sched->deferred[sched->n_deferred++] = r;
			continue;
		}
		claim_blocks(sched, step, r, r->n_computed, r->n_computed + 1);
		sched->candidates[sched->n_candidates++] = (struct sched_candidate){
			.request = r,
			.rank = user->rank++,
			.want = r->n_tokens - r->n_computed,
		};
		return true;
	}
	return false;
}

/* Lists who could use the budget: users in turn, each one's requests by age. */
static void gather(struct sched *sched, uint64_t step, uint32_t budget)
{
	uint32_t bt = sched->config.block_tokens;
	struct sched_user *first = sched->first, *user = first;
	uint64_t least = 0;
	struct admission a;
	bool found = true;

	if (!first)
		return;
	admission_open(sched, &a);
	do {
		user->cursor = user->prefill.head;
		user->cursor_waiting = user->waiting.head;
		user->rank = 0;
		user = user->next_work;
	} while (user != first);

	while (found && least < budget) {
		found = false;
		user = first;
		do {
			const struct sched_candidate *c;

			if (gather_one(sched, &a, user, step)) {
				c = &sched->candidates[sched->n_candidates - 1];
				least += c->want < bt ? c->want : bt;
				found = true;
			}
			user = user->next_work;
		} while (user != first && least < budget);
	}
}

static void plan_prefills(struct sched *sched, struct plan *plan)
{
	uint32_t budget = sched->config.max_num_batched_tokens - plan->n_rows;

	sched->n_candidates = 0;
	sched->n_deferred = 0;
	if (!budget)
		return;
	gather(sched, plan->step, budget);
	policy_share(sched, budget);
	for (uint32_t i = 0; i < sched->n_candidates; i++) {
		struct sched_candidate *c = &sched->candidates[i];

		/* one before it may have taken its blocks */
		if (c->quota && c->request->state == REQUEST_PREFILL)
			plan_chunk(sched, plan, c->request, c->quota);
	}
	/* whoever waited for a request that got nothing after all goes on itself */
	for (uint32_t i = 0; i < sched->n_deferred; i++) {
		struct request *r = sched->deferred[i];
		struct request *other;
		uint32_t left = sched->config.max_num_batched_tokens - plan->n_rows;

		if (!left || r->state != REQUEST_PREFILL)
			continue;
		other = claimed_by(sched, plan->step, r);
		if (!other || other->planned != plan->step)
			plan_chunk(sched, plan, r, left);
	}
}

/*
 * Nothing was planned although somebody wanted blocks. The oldest has all others as its
 * victims, but may not have had its turn. If it gets none either, pins hold what it
 * needs, and waiting would be for ever.
 */
static void plan_oldest(struct sched *sched, struct plan *plan)
{
	struct request *r = sched->run_head;

	while (r && r->paused)
		r = r->next_run;
	if (!r)
		return;
	if (r->state == REQUEST_PREFILL)
		plan_chunk(sched, plan, r, sched->config.max_num_batched_tokens);
	if (!plan->n_rows)
		sched_finish(sched, r, SCHED_REASON_ERROR, -ENOSPC);
}

uint32_t sched_plan(struct sched *sched, uint64_t now_ns, struct plan *plan)
{
	assert(!sched->in_flight);
	assert(plan->caps.rows >= sched->caps.rows &&
	       plan->caps.entries >= sched->caps.entries &&
	       plan->caps.outputs >= sched->caps.outputs &&
	       plan->caps.block_ids >= sched->caps.block_ids &&
	       plan->caps.zeros >= sched->caps.zeros);
	sched->now_ns = now_ns;
	plan_reset(plan);
	do {
		plan->step = ++sched->step;
		sched->stalled = false;
		plan_decodes(sched, plan);
		plan_prefills(sched, plan);
		if (plan->n_rows || !sched->stalled)
			break;
		plan_oldest(sched, plan);
	} while (!plan->n_rows && sched->n_live);
	if (sched->first)
		sched->first = sched->first->next_work;
	sched->in_flight = plan->n_rows > 0;
	return plan->n_rows;
}
