/* SPDX-License-Identifier: MIT */
/* The equations of requests, lists, tails and blocks, counted again from what they sum up. */
#include "daemon/sched/state.h"

#include <errno.h>
#include <stdlib.h>

/* Whether others may copy rows of block @i of @r, and all of those are computed. */
static bool rows_published(const struct sched *sched, const struct request *r, uint32_t i)
{
	uint32_t n_rows = prefix_n_rows(sched->index, r->table.ids[i]);

	return n_rows < sched->config.block_tokens &&
	       (uint64_t)i * sched->config.block_tokens + n_rows <= r->n_computed;
}

static bool request_valid(const struct sched *sched, const struct request *r,
			  uint32_t *refs)
{
	const struct seq_table *t = &r->table;
	uint64_t bt = sched->config.block_tokens;

	for (uint32_t i = 0; i < t->n_blocks; i++) {
		const struct block *b;

		if (t->ids[i] >= sched->pool->n_blocks)
			return false;
		refs[t->ids[i]]++;
		b = block_pool_get(sched->pool, t->ids[i]);
		if (b->domain != r->chain.domain && b->domain != PREFIX_DOMAIN_PUBLIC)
			return false;
		/* its first rows may be published; what a fork has yet to copy, its parent
		 * may have published */
		if (i >= t->n_published && b->indexed &&
		    !(r->cow && i + 1 == t->n_blocks) && !rows_published(sched, r, i))
			return false;
	}
	if (r->cow_src != BLOCK_NONE)
		refs[r->cow_src]++;
	if (r->cow && (r->cow_src != BLOCK_NONE || r->n_computed % bt == 0 ||
		       r->n_computed / bt + 1 != t->n_blocks))
		return false;
	if (r->charged != t->n_blocks || (r->expired && !r->planned))
		return false;
	if (r->n_tokens != r->n_prompt + r->n_generated || r->n_tokens > r->max_total ||
	    r->n_computed >= r->n_tokens || r->n_computed > t->n_blocks * bt ||
	    t->n_published > t->n_blocks || t->n_blocks > t->cap_blocks)
		return false;
	switch (r->state) {
	case REQUEST_WAITING:
		return !t->n_blocks && !r->n_computed && r->tail == REQUEST_NO_TAIL;
	case REQUEST_DECODE:
		return r->n_computed == r->n_tokens - 1 && r->n_generated;
	default:
		return true;
	}
}

static bool in_order(const struct request *a, const struct request *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority;
	return a->turn < b->turn || (a->turn == b->turn && a->arrival < b->arrival);
}

static bool list_valid(const struct request_list *list, enum request_state state,
		       uint32_t *n)
{
	const struct request *prev = NULL;

	for (const struct request *r = list->head; r; prev = r, r = r->next, ++*n)
		if (r->state != state || r->prev != prev || (prev && !in_order(prev, r)))
			return false;
	return list->tail == prev;
}

/* A user's charges are the sum of its requests'. */
static bool user_valid(const struct sched *sched, const struct sched_user *user)
{
	uint32_t n_live = 0, n_running = 0, n_blocks = 0;

	for (uint32_t i = 0; i < sched->n_slots; i++) {
		const struct request *r = sched->slots[i].request;

		if (!r || r->user != user)
			continue;
		n_live++;
		n_running += r->state != REQUEST_WAITING;
		n_blocks += r->charged;
	}
	return n_live == user->n_live && n_running == user->n_running &&
	       n_live - n_running == user->n_waiting && n_blocks == user->n_blocks;
}

/* Each request has the client of its user, and each client as many as it counts. */
static bool clients_valid(const struct sched *sched)
{
	uint32_t n_live = 0;

	for (uint32_t i = 0; i < SCHED_CLIENT_BUCKETS; i++)
		for (const struct sched_client *c = sched->clients[i]; c;
		     c = c->next_hash) {
			if (!c->n_live)
				return false;
			n_live += c->n_live;
		}
	for (uint32_t i = 0; i < sched->n_slots; i++) {
		const struct request *r = sched->slots[i].request;

		if (r && (r->client->user != r->user || !policy_turn_valid(r)))
			return false;
	}
	return n_live == sched->n_live;
}

static bool lists_valid(const struct sched *sched)
{
	uint32_t n_waiting = 0, n_prefill = 0, n_live = 0, n_run[3] = {0}, n_paused = 0;
	uint32_t n_users = 0;
	const struct request *prev = NULL;

	for (const struct request *r = sched->run_head; r; prev = r, r = r->next_run) {
		if (r->prev_run != prev || (prev && prev->arrival >= r->arrival))
			return false;
		n_run[r->state]++;
		n_paused += r->paused;
	}
	for (uint32_t i = 0; i < SCHED_USER_BUCKETS; i++)
		for (const struct sched_user *u = sched->users[i]; u; u = u->next_hash) {
			bool work = u->waiting.head || u->prefill.head;

			if (!list_valid(&u->waiting, REQUEST_WAITING, &n_waiting) ||
			    !list_valid(&u->prefill, REQUEST_PREFILL, &n_prefill) ||
			    work != !!u->next_work || !user_valid(sched, u))
				return false;
			n_users++;
			n_live += u->n_live;
		}
	return sched->run_tail == prev && !n_run[REQUEST_WAITING] &&
	       n_prefill == n_run[REQUEST_PREFILL] && n_waiting == sched->n_waiting &&
	       n_run[REQUEST_PREFILL] + n_run[REQUEST_DECODE] == sched->n_running &&
	       n_paused == sched->n_paused_running && n_users == sched->n_users &&
	       deadline_check(sched) && clients_valid(sched) && n_live == sched->n_live &&
	       sched->n_running + sched->n_waiting == sched->n_live &&
	       sched->n_running <= sched->config.max_num_seqs;
}

/* Each tail slot is free or has one running request. */
static bool tails_valid(const struct sched *sched, uint32_t *n_holders)
{
	uint32_t n = sched->config.max_num_seqs;

	if (sched->n_free_tails != n - sched->n_running)
		return false;
	for (uint32_t i = 0; i < sched->n_free_tails; i++)
		if (sched->tails[i] >= n || n_holders[sched->tails[i]]++)
			return false;
	for (const struct request *r = sched->run_head; r; r = r->next_run)
		if (r->tail >= n || n_holders[r->tail]++)
			return false;
	return true;
}

int sched_check(const struct sched *sched)
{
	uint32_t *refs = calloc(sched->pool->n_blocks, sizeof(*refs));
	uint32_t *tails = calloc(sched->config.max_num_seqs, sizeof(*tails));
	uint32_t n_live = 0, n_paused = 0;
	int r = -EINVAL;

	if (!refs || !tails) {
		r = -ENOMEM;
		goto out;
	}
	for (uint32_t i = 0; i < sched->n_slots; i++) {
		const struct request *request = sched->slots[i].request;

		if (!request)
			continue;
		n_live++;
		n_paused += request->paused;
		if (!request_valid(sched, request, refs))
			goto out;
	}
	for (uint32_t i = 0; i < sched->pool->n_blocks; i++)
		if (refs[i] != block_pool_get(sched->pool, i)->refs)
			goto out;
	if (n_live == sched->n_live && n_paused == sched->n_paused &&
	    lists_valid(sched) && tails_valid(sched, tails) &&
	    !block_pool_check(sched->pool))
		r = prefix_check(sched->index);
out:
	free(refs);
	free(tails);
	return r;
}
