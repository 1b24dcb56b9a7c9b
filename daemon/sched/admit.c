/* SPDX-License-Identifier: MIT */
/*
 * Who is let in, and what it finds in the cache.
 *
 * Prefixes: a request adopts published blocks when it is admitted and again before each
 * chunk that begins at a block boundary. If its next block is being computed in this very
 * step by another request, it leaves that block to the other and looks again in the next
 * step: 16 requests with one prompt compute it once. That cannot deadlock, because it waits
 * only for rows that are in the plan, and each step decides again. At least one token of
 * each request is always computed, since its logits are wanted. SCORE needs the logits of
 * every row, which the cache does not hold, so it computes all rows and adopts nothing, but
 * publishes what it has computed; only after a preemption it adopts the rows that it has
 * reported already.
 */
#include "daemon/sched/state.h"

static uint32_t last_block(const struct request *r)
{
	return r->table.n_blocks ? r->table.ids[r->table.n_blocks - 1] : BLOCK_NONE;
}

static void adopt(struct sched *sched, struct request *r)
{
	uint32_t bt = sched->config.block_tokens;
	struct prefix_counters *counters = &sched->index->counters;
	struct prefix_counters before = *counters;

	while (request_at_shareable(sched, r) && policy_blocks_left(r->user)) {
		uint32_t id = prefix_acquire(sched->index, &r->chain, r->tokens,
					     r->table.n_blocks, last_block(r));

		if (id == BLOCK_NONE)
			break;
		seq_append_published(&r->table, id);
		policy_charge(r);
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
	*a = (struct admission){0};
	for (const struct request *r = sched->run_head; r; r = r->next_run) {
		if (r->paused)
			continue;
		a->active++;
		if (r->state == REQUEST_PREFILL)
			a->reserved +=
				sched_blocks_for(sched, r->n_tokens) - r->table.n_blocks;
		else
			a->growth++;
	}
	/* a newcomer would take what somebody has been waiting for */
	a->closed = (sched->stalled || sched->stalled_before) && a->active;
}

/* Blocks that the prompt of @r needs beyond its hits, and what is there for them. */
static bool room_for(struct sched *sched, const struct admission *a, struct request *r,
		     uint64_t *ret_need)
{
	uint32_t n_idle, n = claims_cached(sched, r, &n_idle);
	uint64_t need = sched_blocks_for(sched, r->n_tokens) - n;

	*ret_need = need;
	return need + n_idle + a->reserved + a->growth <=
	       block_pool_n_available(sched->pool);
}

/* Whether the limits of its user let one more request run. Alone it fits. */
static bool quota_allows(const struct sched *sched, const struct request *r)
{
	const struct sched_user *user = r->user;

	if (!user->n_running)
		return true;
	if (user->quota.max_running && user->n_running >= user->quota.max_running)
		return false;
	return policy_blocks_left(user) >= sched_blocks_for(sched, r->n_tokens);
}

bool admit_allowed(const struct sched *sched, const struct request *request)
{
	return sched->n_running < sched->config.max_num_seqs &&
	       quota_allows(sched, request);
}

/* Somebody with nothing running is not let in: the next plan makes room for it. */
static bool keep_out(struct sched *sched, const struct request *r)
{
	if (!r->user->n_running)
		sched->starved = true;
	return false;
}

static bool admit(struct sched *sched, struct admission *a, struct request *r)
{
	bool closed = a->closed && r->user->n_running;
	uint64_t need;

	while (!quota_allows(sched, r)) {
		struct request *victim = policy_paused_victim(sched, r->user, true);

		if (!victim)
			return false;
		policy_preempt(sched, victim);
	}
	if (closed || sched->n_running >= sched->config.max_num_seqs) {
		struct request *victim;

		/* a client that does not read must not hold a place for ever */
		victim = closed ? NULL : policy_paused_victim(sched, NULL, true);
		if (!victim)
			return keep_out(sched, r);
		policy_preempt(sched, victim);
	}
	while (!room_for(sched, a, r, &need)) {
		struct request *victim = policy_paused_victim(sched, NULL, false);

		if (victim) {
			policy_preempt(sched, victim);
			continue;
		}
		/* alone it fits, unless pins are in the way: then it stalls and fails */
		if (!a->active)
			break;
		a->closed = true;
		return keep_out(sched, r);
	}
	a->reserved += need;
	a->active++;
	if (!r->preempted) {
		r->started_ns = sched->now_ns;
		sched->counters.prompt_tokens += r->n_prompt;
		if (!r->uncached)
			sched->index->counters.queried_tokens += r->n_prompt;
	}
	policy_let_in(r);
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
		if (claims_by(sched, step, r)) {
			sched->counters.deferrals++;
			sched->deferred[sched->n_deferred++] = r;
			continue;
		}
		claims_add(sched, step, r, r->n_computed, r->n_computed + 1);
		sched->candidates[sched->n_candidates++] = (struct sched_candidate){
			.request = r,
			.rank = user->rank++,
			.want = r->n_tokens - r->n_computed,
		};
		return true;
	}
	return false;
}

/*
 * Who could use @budget rows for prefill: users in turn, each one's requests in order; waiting ones
 * are admitted on the way, blocks that were published meanwhile are adopted. Deferred are those
 * whose next block a candidate is about to compute.
 */
void admit_gather(struct sched *sched, uint64_t step, uint32_t budget)
{
	uint32_t bt = sched->config.block_tokens;
	struct sched_user *first = sched->first, *user = first;
	uint64_t least = 0;
	struct admission a;
	bool found = true;

	sched->spare = 0;
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
	if (block_pool_n_available(sched->pool) > a.reserved + a.growth)
		sched->spare =
			block_pool_n_available(sched->pool) - a.reserved - a.growth;
}
