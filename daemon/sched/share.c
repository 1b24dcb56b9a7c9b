/* SPDX-License-Identifier: MIT */
/*
 * The time of a step, divided between users.
 *
 * While one user runs, a step takes all that it has. Where several do, the measure is what each
 * would need for a step alone. The least demanding one has all of its rows, and each other as many
 * as it would compute alone in the time that this one needs alone:
 *
 *   alone(u)  = step + rows(u)               in time, by cost.h
 *   least     = min(alone)
 *   credit(u) = rows(u) * least / alone(u)
 *
 * So all get on at the same pace, compared with how fast they would be alone; and as the step lasts
 * step + sum of credits <= n * least, that pace is at least 1 / n: what n users gain by reading the
 * weights together is divided like the rest. A user with a hundred sequences beside one with a
 * single sequence has about as much of the time as that one, and its sequences take turns.
 *
 * It is deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): who has credit left gets
 * another row, and owes what the last of them costs beyond it. Credit that is not used does not
 * last, debts do. Of a user that has prompts as well, decodes leave half of the credit to them.
 */
#include "daemon/sched/state.h"

#include <math.h>

/* @n rows of @r from @pos on, of which the last has an output if @ends. */
static struct cost_count count_rows(const struct request *r, uint32_t pos, uint32_t n,
				    bool ends)
{
	struct cost_count count = {0};

	count.n[COST_ROW] = n;
	if (n == 1)
		count.n[COST_CONTEXT] = pos + 1.0;
	else
		count.n[COST_PAIR] = n * (pos + (n + 1) / 2.0);
	if (r->kind == REQUEST_SCORE) {
		count.n[COST_OUTPUT] = n;
		count.n[COST_VOCAB] = r->dist.words ? n : 0;
	} else if (ends) {
		count.n[COST_OUTPUT] = 1;
		count.n[COST_VOCAB] = r->sample.temperature > 0;
	}
	return count;
}

/* The user of @r is one of those that share this plan. */
static void join(struct sched *sched, struct sched_user *user)
{
	if (user->shares_step == sched->step)
		return;
	user->shares_step = sched->step;
	user->want_rows = 0;
	user->want = 0;
	user->reserve = 0;
	user->next_sharer = sched->sharers;
	sched->sharers = user;
}

static void want(struct sched *sched, const struct request *r, uint32_t n)
{
	struct sched_user *user = r->user;
	uint32_t max = sched->config.max_num_batched_tokens - user->want_rows;
	struct cost_count count;

	if (n > max)
		n = max;
	if (!n)
		return;
	count = count_rows(r, r->n_computed, n, r->n_computed + n == r->n_tokens);
	user->want_rows += n;
	user->want += cost_of(&sched->cost, &count);
	/* share_open() makes a share of it */
	if (r->state == REQUEST_PREFILL)
		user->reserve = 0.5;
}

static void gather(struct sched *sched)
{
	struct sched_user *user = sched->first;

	for (const struct request *r = sched->run_head; r; r = r->next_run) {
		if (r->paused)
			continue;
		join(sched, r->user);
		want(sched, r, r->n_tokens - r->n_computed);
	}
	if (!user || sched->stalled_before ||
	    sched->n_running >= sched->config.max_num_seqs)
		return;
	/* who has nothing running may get in with this plan */
	do {
		struct request *r = user->waiting.head;
		uint32_t n_idle;

		if (r && !r->paused && user->shares_step != sched->step) {
			join(sched, user);
			want(sched, r,
			     r->n_tokens - claims_cached(sched, r, &n_idle) *
						   sched->config.block_tokens);
		}
		user = user->next_work;
	} while (user != sched->first);
}

/* What the costliest row of all could owe, and a block of rows. */
static double max_debt(const struct sched *sched)
{
	const struct cost_count most = {
		.n[COST_ROW] = sched->config.block_tokens,
		.n[COST_OUTPUT] = sched->config.block_tokens,
		.n[COST_VOCAB] = sched->config.block_tokens,
		.n[COST_CONTEXT] = sched->config.max_model_len,
		.n[COST_PAIR] = sched->config.max_model_len,
	};

	return cost_of(&sched->cost, &most);
}

/* Who asks again as soon as it has its answer is not to meet a long step that began meanwhile:
 * for a few plans the others go on as if it were there. Return: the least that counts. */
static double remember(struct sched *sched, double least)
{
	const struct sched_user *first = sched->sharers;

	if (!first)
		return least;
	if (first->next_sharer) {
		sched->remembered = least;
		sched->n_remembered = SCHED_REMEMBERED_PLANS;
		return least;
	}
	if (!sched->n_remembered)
		return least;
	sched->n_remembered--;
	return fmin(least, sched->remembered);
}

void share_open(struct sched *sched, bool forgive)
{
	const struct cost_count one_step = {.n[COST_STEP] = 1};
	double step = cost_of(&sched->cost, &one_step), least = INFINITY,
	       debt = max_debt(sched);

	sched->planned = one_step;
	sched->shared = false;
	sched->sharers = NULL;
	if (sched->n_users > 1 || sched->n_remembered)
		gather(sched);
	for (const struct sched_user *u = sched->sharers; u; u = u->next_sharer)
		least = fmin(least, step + u->want);
	least = remember(sched, least);
	for (struct sched_user *u = sched->sharers; u; u = u->next_sharer) {
		double alone = step + u->want;
		/* in nanoseconds: enough for a row where rows seem to cost nothing */
		double credit = fmax(alone > 0 ? u->want * least / alone : 0, 1);

		u->turn_from = u->turn_last;
		u->reserve *= credit;
		u->credit = credit + (forgive ? 0 : fmax(fmin(u->credit, 0), -debt));
		sched->shared |= alone > least;
	}
}

static bool has_credit(struct sched *sched, const struct sched_user *user, double reserve)
{
	bool left = !sched->shared ||
		    (user->shares_step == sched->step && user->credit > reserve);

	sched->throttled |= !left;
	return left;
}

bool share_decodes(struct sched *sched, const struct sched_user *user)
{
	return has_credit(sched, user, user->reserve);
}

uint32_t share_rows(struct sched *sched, const struct request *r, uint32_t max)
{
	uint32_t n = r->n_tokens - r->n_computed;
	struct cost_count count;
	double each, rows;

	if (!max || !has_credit(sched, r->user, 0))
		return 0;
	if (!sched->shared)
		return max;
	if (n > max)
		n = max;
	count = count_rows(r, r->n_computed, n, r->n_computed + n == r->n_tokens);
	each = cost_of(&sched->cost, &count) / n;
	rows = each > 0 ? r->user->credit / each + 1 : max;
	return rows < max ? (uint32_t)rows : max;
}

void share_charge(struct sched *sched, struct request *r, uint32_t pos, uint32_t n)
{
	struct cost_count count = count_rows(r, pos, n, pos + n == r->n_tokens);

	for (int i = 0; i < COST_N_PARTS; i++)
		sched->planned.n[i] += count.n[i];
	if (sched->shared)
		r->user->credit -= cost_of(&sched->cost, &count);
	if (r->state == REQUEST_DECODE)
		r->user->turn_last = r->arrival;
}
