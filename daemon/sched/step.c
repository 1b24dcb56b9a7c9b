/* SPDX-License-Identifier: MIT */
/*
 * Building a plan.
 *
 * What a plan holds, in this order:
 *   1. one row for each request that decodes, oldest first; where several users run, as many
 *      as the time of the step that is theirs has room for, in turns (share.c);
 *   2. prefill chunks, within that time as well, from what is left of the budget. uids take
 *      turns, by deficit round robin over rows: each has the same credit a step, all of its
 *      rows cost credit, and what one does not use goes to the others. Inside a uid the first
 *      by priority and turn gets half of what is left to it, the next one half of the rest,
 *      and so on. So a long prompt delays short ones by a constant factor and not by its
 *      length, for every client. Waiting requests are admitted here.
 *
 *      Among requests of one uid and priority its clients take turns, one request each, so
 *      that who has queued a thousand does not keep the others of the uid waiting for them.
 *
 * Fairness: the credit of a uid stays within one step's budget, so neither long silence nor
 * a burst weighs for long. A uid that has nothing running and is kept out for want of places
 * or blocks gets them from the uid that has most of them, one request a step; from one that
 * has a single request only after a while, if it holds more than an even share. Priorities
 * order the requests of one uid and take nothing from another's.
 *
 * When blocks run out: cached blocks are evicted; then paused requests lose theirs, the
 * latest first; then requests that came later than the one in need and have no rows in this
 * plan yet: of the uid that holds most beyond its guarantee the least important, the latest
 * first. They keep their tokens, go back to the head of the queue and are computed again,
 * with hits on what of theirs is still cached (policy_preempt() is the one place that takes
 * blocks away, and so where spilling them to a lower tier would go). A request that finds
 * no victim keeps what it has and sits the step out, and nobody who has something running
 * is admitted meanwhile.
 *   Progress: if no row is planned before the oldest unpaused request is looked at, all
 *   others are its victims, and alone it fits (sched_add() saw to that). Older requests
 *   never lose blocks to younger ones, so none computes the same rows for ever.
 */
#include "daemon/sched/state.h"

#include <assert.h>
#include <errno.h>

/* @more: the table grows by it; else it replaces one that is charged already. */
static bool take_id(struct sched *sched, struct plan *plan, struct request *r, bool more,
		    uint32_t *ret_id)
{
	uint32_t id;
	int c;

	for (;;) {
		struct request *victim;
		bool capped = more && !policy_blocks_left(r->user);

		c = BLOCK_POOL_DRY;
		if (!capped)
			c = prefix_take(sched->index, r->chain.domain, r->chain.owner,
					&id);
		if (c != BLOCK_POOL_DRY)
			break;
		victim = policy_victim(sched, r, plan->step, capped);
		if (!victim) {
			/* at its own limit it is nobody's business but its own */
			sched->stalled |= !capped;
			sched->capped |= capped;
			sched->counters.stalls++;
			return false;
		}
		policy_preempt(sched, victim);
	}
	if (c == BLOCK_NEEDS_ZERO) {
		assert(plan->n_zero < plan->caps.zeros);
		plan->zero[plan->n_zero++] = id;
	}
	*ret_id = id;
	return true;
}

static bool take_block(struct sched *sched, struct plan *plan, struct request *r)
{
	uint32_t id;

	if (!take_id(sched, plan, r, true, &id))
		return false;
	seq_append(&r->table, id);
	policy_charge(r);
	return true;
}

static void add_outputs(struct plan *plan, const struct request *r,
			const struct kv_batch_entry *e)
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
		bool score = r->kind == REQUEST_SCORE, last = pos + 1 == r->n_tokens;
		struct plan_dist dist = {0};

		if (r->dist.words && pos >= r->dist_first) {
			dist = r->dist;
			dist.off = plan->n_dist_words;
			plan->n_dist_words += dist.words;
		}
		if (score && last && !dist.words)
			return;
		assert(plan->n_outputs < plan->caps.outputs);
		assert(plan->n_dist_words <= plan->caps.dist_words);
		plan->outputs[plan->n_outputs++] = (struct plan_output){
			.row = e->row0 + (pos - e->pos0),
			.entry = plan->n_entries,
			.kind = !score ? PLAN_SAMPLE
				: last ? PLAN_DIST
				       : PLAN_SCORE,
			.target = score && !last ? r->tokens[pos + 1] : -1,
			.sample = r->sample,
			.dist = dist,
			.position = (uint64_t)pos + 1,
		};
	}
}

/* Rows n_computed .. end - 1 of @r; its table covers them. */
static void add_entry(struct sched *sched, struct plan *plan, struct request *r,
		      uint32_t end)
{
	struct kv_batch_entry e = {
		.seq_id = r->id,
		.row0 = plan->n_rows,
		.n_rows = end - r->n_computed,
		.pos0 = r->n_computed,
		.block_off = plan->n_block_ids,
		.n_blocks = sched_blocks_for(sched, end),
		.tail = r->tail,
	};

	assert(plan->n_entries < plan->caps.entries);
	assert(e.n_rows && e.n_rows <= plan->caps.rows - plan->n_rows);
	assert(e.n_blocks <= plan->caps.block_ids - plan->n_block_ids);
	for (uint32_t i = 0; i < e.n_rows; i++)
		plan->tokens[e.row0 + i] = r->tokens[e.pos0 + i];
	seq_copy(&r->table, e.n_blocks, plan->block_ids + e.block_off);
	add_outputs(plan, r, &e);
	plan->entries[plan->n_entries++] = e;
	plan->n_rows += e.n_rows;
	plan->n_block_ids += e.n_blocks;
	r->planned = plan->step;
	policy_served(sched, r, e.n_rows);
	share_charge(sched, r, e.pos0, e.n_rows);
}

static void plan_decode(struct sched *sched, struct plan *plan, struct request *r)
{
	uint32_t bt = sched->config.block_tokens;

	if (r->n_computed == r->table.n_blocks * bt && !take_block(sched, plan, r))
		return;
	add_entry(sched, plan, r, r->n_computed + 1);
}

/* Whether the turn of @r is in this round: those of its user that came after the one that decoded
 * last are in the first, the others in the second. */
static bool in_round(const struct sched *sched, const struct request *r, uint32_t round)
{
	return !sched->shared || (r->arrival <= r->user->turn_from) == round;
}

static void plan_decodes(struct sched *sched, struct plan *plan)
{
	for (uint32_t round = 0; round <= sched->shared; round++)
		/* preemption takes others away, and never r */
		for (struct request *r = sched->run_head; r; r = r->next_run)
			if (r->state == REQUEST_DECODE && !r->paused &&
			    in_round(sched, r, round) && share_decodes(sched, r->user))
				plan_decode(sched, plan, r);
}

/* Cuts rows n_computed .. end - 1 where the step has no room for more distributions. */
static uint32_t dist_end(const struct plan *plan, const struct request *r, uint32_t end)
{
	uint32_t first = r->n_computed, room;

	if (!r->dist.words)
		return end;
	if (first < r->n_scored)
		first = r->n_scored;
	if (first < r->dist_first)
		first = r->dist_first;
	room = (plan->caps.dist_words - plan->n_dist_words) / r->dist.words;
	return end > first && end - first > room ? first + room : end;
}

/*
 * The next block of @r is not to be had, but another that begins as it does: copies it, and
 * goes on behind the rows they have in common. An idle source is one block less for others
 * until the step has ended: only where one is to spare. @r gets an entry in this plan, which
 * lets go of the source.
 */
static void adopt_rows(struct sched *sched, struct plan *plan, struct request *r)
{
	struct prefix_counters *counters = &sched->index->counters;
	uint64_t hits = counters->hit_tokens, shared = counters->shared_hit_tokens;
	uint32_t bt = sched->config.block_tokens, n = r->table.n_blocks;
	uint32_t adoptable = request_adoptable(r), max_rows, n_rows, src;
	const struct block *b;
	bool idle, taken;

	if (!sched->config.copy_rows || bt < 2 || r->uncached || r->dist.words ||
	    r->table.n_published != n || r->n_computed != n * bt ||
	    r->n_computed >= adoptable || !policy_blocks_left(r->user))
		return;
	max_rows = adoptable - r->n_computed;
	src = prefix_find_rows(sched->index, &r->chain, r->tokens, n,
			       n ? r->table.ids[n - 1] : BLOCK_NONE,
			       max_rows < bt ? max_rows : bt - 1, &n_rows);
	if (src == BLOCK_NONE)
		return;
	b = block_pool_get(sched->pool, src);
	idle = !b->refs && !b->pins;
	if (block_pool_n_available(sched->pool) <= idle || (idle && !sched->spare))
		return;
	sched->spare -= idle;
	prefix_acquire_rows(sched->index, &r->chain, src, n_rows);
	taken = take_block(sched, plan, r);
	assert(taken); /* one is available, and r->user may have it */
	fork_plan_copy(sched, plan, r, src);
	r->table.partial_published = n + 1;
	r->n_computed += n_rows;
	/* finding one's own rows after a preemption saves work but is no hit */
	if (r->preempted) {
		counters->hit_tokens = hits;
		counters->shared_hit_tokens = shared;
		return;
	}
	r->n_cached += n_rows;
	sched->counters.cached_tokens += n_rows;
}

static void plan_chunk(struct sched *sched, struct plan *plan, struct request *r,
		       uint32_t quota)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t end = r->n_tokens;

	adopt_rows(sched, plan, r);
	if (end - r->n_computed > quota) {
		end = r->n_computed + quota;
		/* whole blocks can be adopted by others one step earlier */
		if (end / bt * bt > r->n_computed)
			end = end / bt * bt;
	}
	end = claims_end(sched, plan->step, r, dist_end(plan, r, end));
	if (end <= r->n_computed) {
		sched->counters.deferrals++;
		return;
	}
	if (r->cow) {
		uint32_t id;

		if (take_id(sched, plan, r, false, &id))
			fork_copy(sched, plan, r, id);
		else
			fork_recompute(sched, r);
		/* it may begin earlier now, for no more rows */
		if (end - r->n_computed > quota)
			end = r->n_computed + quota;
	}
	while (r->table.n_blocks * (uint64_t)bt < end)
		if (!take_block(sched, plan, r)) {
			end = r->table.n_blocks * bt;
			break;
		}
	if (end <= r->n_computed)
		return;
	claims_add(sched, plan->step, r, r->n_computed, end);
	add_entry(sched, plan, r, end);
}

static void plan_prefills(struct sched *sched, struct plan *plan)
{
	uint32_t budget = sched->config.max_num_batched_tokens - plan->n_rows;

	sched->n_candidates = 0;
	sched->n_deferred = 0;
	if (!budget)
		return;
	admit_gather(sched, plan->step, budget);
	policy_share(sched, budget);
	for (uint32_t i = 0; i < sched->n_candidates; i++) {
		struct sched_candidate *c = &sched->candidates[i];

		uint32_t quota = share_rows(sched, c->request, c->quota);

		/* one before it may have taken its blocks */
		if (quota && c->request->state == REQUEST_PREFILL)
			plan_chunk(sched, plan, c->request, quota);
	}
	/* what waited for a request that got nothing after all goes on itself */
	for (uint32_t i = 0; i < sched->n_deferred; i++) {
		struct request *r = sched->deferred[i];
		struct request *other;
		uint32_t left = sched->config.max_num_batched_tokens - plan->n_rows;

		if (!left || r->state != REQUEST_PREFILL)
			continue;
		other = claims_by(sched, plan->step, r);
		left = share_rows(sched, r, left);
		if (left && (!other || other->planned != plan->step))
			plan_chunk(sched, plan, r, left);
	}
}

/*
 * Nothing was planned although somebody wanted blocks. The oldest has all others as its
 * victims, but may not have had its turn. If it gets none either, pins hold what it
 * needs, or its user's limit was lowered below what it has, and waiting would be for ever.
 */
static void plan_oldest(struct sched *sched, struct plan *plan)
{
	struct request *r = sched->run_head;
	bool capped;

	while (r && r->paused)
		r = r->next_run;
	if (!r)
		return;
	/* guarantees are for those who compute, and nobody does */
	for (struct request *o = sched->run_tail, *prev; o; o = prev) {
		prev = o->prev_run;
		if (o != r && o->table.n_blocks)
			policy_preempt(sched, o);
	}
	if (r->state == REQUEST_PREFILL)
		plan_chunk(sched, plan, r, sched->config.max_num_batched_tokens);
	else
		plan_decode(sched, plan, r);
	if (plan->n_rows)
		return;
	capped = !policy_blocks_left(r->user);
	sched_finish(sched, r, SCHED_REASON_ERROR, capped ? -EDQUOT : -ENOSPC);
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
	sched->stalled_before = sched->stalled;
	plan_reset(plan);
	sched_expire(sched, now_ns);
	policy_relieve(sched);
	sched->throttled = false;
	do {
		plan->step = ++sched->step;
		sched->stalled = false;
		sched->capped = false;
		share_open(sched, sched->throttled);
		sched->throttled = false;
		plan_decodes(sched, plan);
		plan_prefills(sched, plan);
		if (plan->n_rows ||
		    !(sched->stalled || sched->capped || sched->throttled))
			break;
		/* nobody had credit left: debts are forgiven, and all try again */
		if (sched->throttled)
			continue;
		plan_oldest(sched, plan);
	} while (!plan->n_rows && sched->n_live);
	if (sched->first)
		sched->first = sched->first->next_work;
	sched->in_flight = plan->n_rows > 0;
	return plan->n_rows;
}
