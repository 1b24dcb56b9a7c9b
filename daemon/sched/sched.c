/* SPDX-License-Identifier: MIT */
/*
 * The life of requests, and their events.
 *
 *   sched_add()  sched_cancel()  sched_pause()      any time, also during a step
 *        |            |               |
 *        v            v               v
 *      [ requests ] -- sched_plan() --> struct plan --> worker
 *           ^                                             |
 *           +-------- sched_complete() <-- struct plan_result
 *                          |
 *                          v   sched_events(): TOKEN, SCORED, FINISHED
 *
 * A run is replayed by replaying the calls. Quotas are checked where the cost arises; who is at a
 * limit waits for itself and for nobody else.
 */
#include "daemon/sched/sched.h"
#include "daemon/sched/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SCHED_MAX_SEQS  4096
#define SCHED_MAX_SLOTS 65535
#define NO_SLOT         UINT32_MAX

/* Tokens of the longest sequence; the last one of them needs no K and V. */
static uint32_t seq_limit(const struct sched *sched, uint32_t max_blocks)
{
	uint32_t n = sched->pool->n_blocks;
	uint64_t fit = (uint64_t)(max_blocks && max_blocks < n ? max_blocks : n) *
			       sched->config.block_tokens +
		       1;
	uint32_t max = sched->config.max_model_len;

	return fit < max ? (uint32_t)fit : max;
}

static int sched_set_caps(struct sched *sched)
{
	const struct sched_config *c = &sched->config;
	uint32_t bt = c->block_tokens;
	uint32_t seq_blocks = seq_limit(sched, 0) / bt + 1;
	uint32_t n_claims = 1;

	sched->caps = (struct plan_caps){
		.rows = c->max_num_batched_tokens,
		.entries = c->max_num_seqs,
		.outputs = c->max_num_batched_tokens,
		.zeros = c->max_num_batched_tokens,
		.dist_words = c->max_dist_words,
		.copies = c->max_num_seqs,
	};
	if (__builtin_mul_overflow(c->max_num_seqs, seq_blocks, &sched->caps.block_ids))
		return -EINVAL;
	/* one per block of a chunk and per candidate, at most half full */
	while (n_claims < 2 * ((uint64_t)c->max_num_batched_tokens / bt +
			       3 * (uint64_t)c->max_num_seqs))
		n_claims *= 2;
	sched->n_claims = n_claims;
	sched->n_slots = c->max_num_seqs + c->max_waiting;
	/* every live request may finish, and as many again before anybody looks */
	sched->cap_events = 2 * sched->n_slots + sched->caps.outputs;
	return 0;
}

int sched_new(const struct sched_config *config, struct cache *cache,
	      struct sched **ret_sched)
{
	struct sched *s;

	if (!config->max_num_seqs || config->max_num_seqs > SCHED_MAX_SEQS ||
	    config->max_num_batched_tokens < config->max_num_seqs ||
	    config->max_num_batched_tokens > INT32_MAX / 4 || config->max_model_len < 2 ||
	    config->max_model_len > INT32_MAX || config->n_eos > SCHED_MAX_EOS ||
	    config->max_waiting > SCHED_MAX_SLOTS - config->max_num_seqs ||
	    !config->block_tokens ||
	    config->block_tokens != cache->index.spaces[0].block_tokens)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->config = *config;
	s->pool = &cache->pool;
	s->index = &cache->index;
	cost_init(&s->cost);
	if (sched_set_caps(s) < 0) {
		free(s);
		return -EINVAL;
	}
	s->slots = calloc(s->n_slots, sizeof(*s->slots));
	s->tails = calloc(config->max_num_seqs, sizeof(*s->tails));
	s->claims = calloc(s->n_claims, sizeof(*s->claims));
	s->candidates = calloc(config->max_num_seqs, sizeof(*s->candidates));
	s->deferred = calloc(config->max_num_seqs, sizeof(struct request *));
	s->events = calloc(s->cap_events, sizeof(*s->events));
	s->heap = calloc(s->n_slots, sizeof(struct request *));
	if (!s->slots || !s->tails || !s->heap || !s->claims || !s->candidates ||
	    !s->deferred || !s->events) {
		s->n_slots = 0;
		sched_free(s);
		return -ENOMEM;
	}
	/* the lowest is handed out first, so that few of them are ever touched */
	while (s->n_free_tails < config->max_num_seqs) {
		uint32_t i = s->n_free_tails++;

		s->tails[i] = config->max_num_seqs - 1 - i;
	}
	for (uint32_t i = 0; i < s->n_slots; i++)
		s->slots[i].next_free = i + 1 < s->n_slots ? i + 1 : NO_SLOT;
	*ret_sched = s;
	return 0;
}

/* Takes a request out of everything; the caller emits. */
static void sched_drop(struct sched *sched, struct request *request)
{
	uint32_t slot = request->id & 0xffff;

	policy_unlink(sched, request);
	deadline_unlink(sched, request);
	fork_release(sched, request);
	seq_release(&request->table, sched->pool);
	policy_charge(request);
	policy_leave(sched, request);
	sched->n_paused -= request->paused;
	sched->slots[slot].request = NULL;
	sched->slots[slot].next_free = sched->free_slot;
	sched->free_slot = slot;
	sched->n_live--;
	request_free(request);
}

void sched_free(struct sched *sched)
{
	if (!sched)
		return;
	for (uint32_t i = 0; i < sched->n_slots; i++)
		if (sched->slots[i].request)
			sched_drop(sched, sched->slots[i].request);
	free(sched->slots);
	free(sched->tails);
	free(sched->claims);
	free(sched->candidates);
	free(sched->deferred);
	free(sched->events);
	free(sched->heap);
	free(sched);
}

void sched_plan_caps(const struct sched *sched, struct plan_caps *ret_caps)
{
	*ret_caps = sched->caps;
}

static int refuse(struct sched_refusal *ret_refusal, int condition, uint64_t wanted,
		  uint64_t limit)
{
	if (ret_refusal)
		*ret_refusal = (struct sched_refusal){wanted, limit};
	return condition;
}

/* The limits that hold for a new request: its own, or those its uid has already. */
static struct sched_quota desc_quota(const struct sched *sched,
				     const struct request_desc *desc)
{
	const struct sched_user *user = policy_user_find(sched, desc->uid);

	if (desc->quota)
		return *desc->quota;
	return user ? user->quota : (struct sched_quota){0};
}

static int quota_check(const struct sched *sched, const struct request_desc *desc,
		       uint64_t n_blocks, struct sched_refusal *ret_refusal)
{
	const struct sched_user *user = policy_user_find(sched, desc->uid);
	struct sched_quota quota = desc_quota(sched, desc);

	if (quota.max_blocks && n_blocks > quota.max_blocks)
		return refuse(ret_refusal, SCHED_QUOTA_BLOCKS, n_blocks,
			      quota.max_blocks);
	if (quota.max_waiting && user && user->n_waiting >= quota.max_waiting)
		return refuse(ret_refusal, SCHED_QUOTA_WAITING, user->n_waiting,
			      quota.max_waiting);
	return 0;
}

/* Everything but the tokens themselves, which may not be there yet. */
static int size_check(const struct sched *sched, const struct request_desc *desc,
		      struct sched_refusal *ret_refusal)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t n_out = desc->kind == REQUEST_GENERATE;
	uint64_t n_blocks = ((uint64_t)desc->n_tokens + bt - 1) / bt;

	if (!desc->n_tokens || desc->kind > REQUEST_SCORE)
		return refuse(ret_refusal, SCHED_INVALID, 0, 0);
	if (desc->dist.words > sched->config.max_dist_words ||
	    (desc->dist.words &&
	     (desc->kind != REQUEST_SCORE || desc->dist_first >= desc->n_tokens)))
		return refuse(ret_refusal, SCHED_INVALID, 0, 0);
	if ((uint64_t)desc->n_tokens + n_out > sched->config.max_model_len)
		return refuse(ret_refusal, SCHED_PROMPT_TOO_LONG, desc->n_tokens,
			      sched->config.max_model_len - n_out);
	if (n_blocks > sched->pool->n_blocks)
		return refuse(ret_refusal, SCHED_CANNOT_EVER_FIT, n_blocks,
			      sched->pool->n_blocks);
	return quota_check(sched, desc, n_blocks, ret_refusal);
}

static int tokens_check(const struct request_desc *desc,
			struct sched_refusal *ret_refusal)
{
	for (uint32_t i = 0; i < desc->n_tokens; i++)
		if (desc->tokens[i] < 0)
			return refuse(ret_refusal, SCHED_INVALID, i, 0);
	return 0;
}

/* Who waits with as many as there are places left gets no more: so there is always one for the
 * next user. */
static int room_check(const struct sched *sched, const struct request_desc *desc,
		      struct sched_refusal *ret_refusal)
{
	const struct sched_user *user = policy_user_find(sched, desc->uid);

	if (sched->n_live >= sched->n_slots ||
	    (user && user->n_waiting >= sched->n_slots - sched->n_live) ||
	    sched->n_live + sched->n_finished_events >= 2 * sched->n_slots)
		return refuse(ret_refusal, SCHED_QUEUE_FULL, sched->n_live,
			      sched->n_slots);
	return 0;
}

/* At how many tokens it ends. */
static uint32_t desc_limit(const struct sched *sched, const struct request_desc *desc)
{
	uint32_t max = seq_limit(sched, desc_quota(sched, desc).max_blocks);

	if (desc->kind == REQUEST_SCORE)
		return desc->n_tokens;
	if (desc->max_tokens && desc->n_tokens < max &&
	    desc->max_tokens < max - desc->n_tokens)
		return desc->n_tokens + desc->max_tokens;
	return max;
}

uint64_t sched_request_bytes(const struct sched *sched, const struct request_desc *desc)
{
	return request_bytes(desc_limit(sched, desc), sched->config.block_tokens);
}

/* A valid description becomes a request in the queue. Return: 0 or -ENOMEM. */
static int add_request(struct sched *sched, const struct request_desc *desc,
		       const struct prefix_key *root, uint64_t now_ns,
		       struct request **ret_request)
{
	uint32_t place;
	struct sched_slot *slot;
	struct request *r;
	int c;

	c = request_new(desc, desc_limit(sched, desc), sched->config.block_tokens, &r);
	if (c < 0)
		return c;
	r->uncached = !sched->config.enable_prefix_caching;
	if (root)
		r->chain.root = *root;
	else
		c = prefix_key_root(&sched->index->keyer, &sched->index->spaces[0].base,
				    desc->domain, NULL, 0, desc->salt, desc->salt_len,
				    &r->chain.root);
	if (c >= 0)
		c = policy_join(sched, r, desc->uid, desc->client);
	if (c < 0) {
		request_free(r);
		return c;
	}

	place = sched->free_slot;
	slot = &sched->slots[place];
	sched->free_slot = slot->next_free;
	slot->request = r;
	if (!++slot->generation)
		slot->generation = 1;
	sched->n_live++;
	r->id = (uint32_t)slot->generation << 16 | place;
	r->arrival = ++sched->n_arrivals;
	r->arrived_ns = now_ns;
	if (desc->quota)
		r->user->quota = *desc->quota;
	policy_take_turn(r);
	deadline_link(sched, r);
	policy_link(sched, r);
	*ret_request = r;
	return 0;
}

int sched_may_add(const struct sched *sched, const struct request_desc *desc,
		  struct sched_refusal *ret_refusal)
{
	int c = size_check(sched, desc, ret_refusal);

	return c ? c : room_check(sched, desc, ret_refusal);
}

int sched_add(struct sched *sched, const struct request_desc *desc, uint64_t now_ns,
	      uint32_t *ret_id, struct sched_refusal *ret_refusal)
{
	struct request *r;
	int c;

	c = sched_may_add(sched, desc, ret_refusal);
	if (!c)
		c = tokens_check(desc, ret_refusal);
	if (!c)
		c = add_request(sched, desc, NULL, now_ns, &r);
	if (!c)
		*ret_id = r->id;
	return c;
}

int sched_fork(struct sched *sched, uint32_t id, uint32_t n_tokens,
	       const struct request_desc *desc, uint64_t now_ns, uint32_t *ret_id,
	       struct sched_refusal *ret_refusal)
{
	struct request *parent = sched_request(sched, id), *r;
	struct request_desc whole = *desc;
	int32_t *tokens;
	int c;

	if (!parent || !n_tokens || n_tokens > parent->n_tokens)
		return refuse(ret_refusal, SCHED_NO_PARENT, n_tokens,
			      parent ? parent->n_tokens : 0);
	if (desc->kind != REQUEST_GENERATE ||
	    __builtin_add_overflow(n_tokens, desc->n_tokens, &whole.n_tokens))
		return refuse(ret_refusal, SCHED_INVALID, 0, 0);
	/* A refusal has to cost less than a copy. */
	c = sched_may_add(sched, &whole, ret_refusal);
	if (!c)
		c = tokens_check(desc, ret_refusal);
	if (c)
		return c;
	tokens = malloc((size_t)whole.n_tokens * sizeof(*tokens));
	if (!tokens)
		return -ENOMEM;
	memcpy(tokens, parent->tokens, (size_t)n_tokens * sizeof(*tokens));
	if (desc->n_tokens)
		memcpy(tokens + n_tokens, desc->tokens,
		       (size_t)desc->n_tokens * sizeof(*tokens));
	whole.tokens = tokens;
	whole.domain = parent->chain.domain;
	whole.reads_public = parent->chain.reads_public;
	whole.owner = parent->chain.owner;
	c = add_request(sched, &whole, &parent->chain.root, now_ns, &r);
	explicit_bzero(tokens, (size_t)whole.n_tokens * sizeof(*tokens));
	free(tokens);
	if (c)
		return c;
	fork_share(sched, r, parent, n_tokens);
	*ret_id = r->id;
	return 0;
}

struct request *sched_request(const struct sched *sched, uint32_t id)
{
	uint32_t place = id & 0xffff;
	struct request *r;

	if (place >= sched->n_slots)
		return NULL;
	r = sched->slots[place].request;
	return r && r->id == id ? r : NULL;
}

const struct request *sched_get(const struct sched *sched, uint32_t id)
{
	return sched_request(sched, id);
}

struct sched_event *sched_emit(struct sched *sched, const struct request *request,
			       enum sched_event_kind kind)
{
	struct sched_event *e;

	assert(sched->n_events < sched->cap_events);
	e = &sched->events[sched->n_events++];
	*e = (struct sched_event){
		.kind = kind,
		.id = request->id,
		.cookie = request->cookie,
	};
	if (kind == SCHED_FINISHED)
		sched->n_finished_events++;
	else
		sched->n_output_events++;
	return e;
}

void sched_finish(struct sched *sched, struct request *request, enum sched_reason reason,
		  int status)
{
	struct sched_event *e = sched_emit(sched, request, SCHED_FINISHED);

	e->reason = reason;
	e->status = status;
	e->n_prompt = request->n_prompt;
	e->n_cached = request->n_cached;
	e->n_generated = request->n_generated;
	if (reason == SCHED_REASON_CANCELLED)
		sched->counters.cancelled++;
	else if (reason == SCHED_REASON_DEADLINE)
		sched->counters.expired++;
	else if (reason == SCHED_REASON_ERROR)
		sched->counters.failed++;
	else
		sched->counters.completed++;
	sched_drop(sched, request);
}

void sched_cancel(struct sched *sched, uint32_t id)
{
	struct request *r = sched_request(sched, id);

	if (!r)
		return;
	if (sched->in_flight && r->planned == sched->step)
		r->cancelled = true;
	else
		sched_finish(sched, r, SCHED_REASON_CANCELLED, 0);
}

void sched_pause(struct sched *sched, uint32_t id, bool paused)
{
	struct request *r = sched_request(sched, id);

	if (!r || r->paused == paused)
		return;
	r->paused = paused;
	if (paused) {
		sched->n_paused++;
		sched->n_paused_running += r->state != REQUEST_WAITING;
	} else {
		sched->n_paused--;
		sched->n_paused_running -= r->state != REQUEST_WAITING;
	}
}

void sched_expire(struct sched *sched, uint64_t now_ns)
{
	while (sched->n_heap && sched->heap[0]->deadline_ns <= now_ns) {
		struct request *r = sched->heap[0];

		if (sched->in_flight && r->planned == sched->step) {
			deadline_unlink(sched, r);
			r->expired = true;
		} else {
			sched_finish(sched, r, SCHED_REASON_DEADLINE, 0);
		}
	}
}

uint64_t sched_next_deadline(const struct sched *sched)
{
	return sched->n_heap ? sched->heap[0]->deadline_ns : 0;
}

void sched_set_quota(struct sched *sched, uint32_t uid, const struct sched_quota *quota)
{
	struct sched_user *user = policy_user_find(sched, uid);

	if (user)
		user->quota = *quota;
}

void sched_usage(const struct sched *sched, uint32_t uid, struct sched_usage *ret_usage)
{
	const struct sched_user *user = policy_user_find(sched, uid);

	*ret_usage = (struct sched_usage){0};
	if (user)
		*ret_usage = (struct sched_usage){
			.running = user->n_running,
			.waiting = user->n_waiting,
			.blocks = user->n_blocks,
		};
}

const struct sched_event *sched_events(const struct sched *sched, uint32_t *ret_n)
{
	*ret_n = sched->n_events;
	return sched->events;
}

void sched_clear_events(struct sched *sched)
{
	sched->n_events = 0;
	sched->n_output_events = 0;
	sched->n_finished_events = 0;
}

void sched_stats(const struct sched *sched, struct sched_stats *ret_stats)
{
	*ret_stats = (struct sched_stats){
		.running = sched->n_running,
		.waiting = sched->n_waiting,
		.paused = sched->n_paused,
		.counters = sched->counters,
	};
}
