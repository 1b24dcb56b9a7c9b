/* SPDX-License-Identifier: MIT */
/*
 * Users: the lists of their requests, whose turn it is, shares of a plan, and who loses blocks.
 *
 * Turns are the round robin among the clients of a user, as the order of one list: the requests of
 * a client have rising turns, and the first one of a client that had none waiting takes the turn
 * after the one that was let in last. So the i-th requests of all clients stand together, however
 * many one of them has queued. (Start-time fair queueing with each request of size one; source:
 * Goyal, Vin, Cheng, SIGCOMM 1996.)
 *
 * A user is in the work ring while its waiting or prefill list holds anything, so a step looks only
 * at users that want prefill.
 */
#include "daemon/sched/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static uint32_t uid_bucket(uint32_t uid)
{
	/* Knuth's multiplicative hash: uids of one machine tend to be neighbours */
	return (uid * UINT32_C(2654435761)) >> 24;
}

struct sched_user *policy_user_find(const struct sched *sched, uint32_t uid)
{
	struct sched_user *user = sched->users[uid_bucket(uid)];

	while (user && user->uid != uid)
		user = user->next_hash;
	return user;
}

/* The user of @uid, made if need be; one live request more. NULL: out of memory. */
static struct sched_user *user_acquire(struct sched *sched, uint32_t uid)
{
	struct sched_user **bucket = &sched->users[uid_bucket(uid)];
	struct sched_user *user = policy_user_find(sched, uid);

	if (!user) {
		user = calloc(1, sizeof(*user));
		if (!user)
			return NULL;
		user->uid = uid;
		user->next_hash = *bucket;
		*bucket = user;
		sched->n_users++;
	}
	user->n_live++;
	return user;
}

static void user_release(struct sched *sched, struct sched_user *user)
{
	struct sched_user **link = &sched->users[uid_bucket(user->uid)];

	assert(user->n_live);
	if (--user->n_live)
		return;
	assert(!user->next_work && !user->n_blocks);
	sched->n_users--;
	while (*link != user)
		link = &(*link)->next_hash;
	*link = user->next_hash;
	free(user);
}

static struct sched_client *client_acquire(struct sched *sched, struct sched_user *user,
					   uint64_t id)
{
	struct sched_client **bucket = &sched->clients[id % SCHED_CLIENT_BUCKETS];
	struct sched_client *client = *bucket;

	while (client && (client->id != id || client->user != user))
		client = client->next_hash;
	if (!client) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return NULL;
		*client = (struct sched_client){
			.id = id, .user = user, .next_hash = *bucket};
		*bucket = client;
	}
	client->n_live++;
	return client;
}

static void client_release(struct sched *sched, struct sched_client *client)
{
	struct sched_client **link = &sched->clients[client->id % SCHED_CLIENT_BUCKETS];

	assert(client->n_live);
	if (--client->n_live)
		return;
	while (*link != client)
		link = &(*link)->next_hash;
	*link = client->next_hash;
	free(client);
}

int policy_join(struct sched *sched, struct request *request, uint32_t uid,
		uint64_t client)
{
	request->user = user_acquire(sched, uid);
	if (!request->user)
		return -ENOMEM;
	request->client = client_acquire(sched, request->user, client);
	if (request->client)
		return 0;
	user_release(sched, request->user);
	return -ENOMEM;
}

void policy_leave(struct sched *sched, struct request *request)
{
	client_release(sched, request->client);
	user_release(sched, request->user);
}

static uint32_t turn_class(const struct request *request)
{
	int32_t p = request->priority;

	p = p < -SCHED_MAX_PRIORITY  ? -SCHED_MAX_PRIORITY
	    : p > SCHED_MAX_PRIORITY ? SCHED_MAX_PRIORITY
				     : p;
	return (uint32_t)(p + SCHED_MAX_PRIORITY);
}

/* The highest turn of @request's priority that was let in. */
static uint64_t *turn_now(const struct request *request)
{
	return &request->user->turns[turn_class(request)];
}

static struct sched_turns *turns_of(const struct request *request)
{
	return &request->client->turns[turn_class(request)];
}

void policy_take_turn(struct request *request)
{
	const struct sched_turns *turns = turns_of(request);
	uint64_t now = *turn_now(request);

	request->turn = 1 + (turns->n_waiting && turns->last > now ? turns->last : now);
}

bool policy_turn_valid(const struct request *request)
{
	const struct sched_turns *turns = turns_of(request);

	return request->turn && (request->state != REQUEST_WAITING ||
				 (turns->n_waiting && turns->last >= request->turn));
}

void policy_let_in(struct request *request)
{
	request->n_let_in = request->n_tokens;
	if (*turn_now(request) < request->turn)
		*turn_now(request) = request->turn;
}

static void turns_insert(const struct request *request)
{
	struct sched_turns *turns = turns_of(request);

	if (!turns->n_waiting++ || turns->last < request->turn)
		turns->last = request->turn;
}

/*
 * Before it leaves the list. Its client's last one but this stands near: a client has one of
 * each turn, but for those that came back to the queue.
 */
static void turns_remove(const struct request *request)
{
	struct sched_turns *turns = turns_of(request);
	const struct request *r;

	if (!--turns->n_waiting || turns->last != request->turn)
		return;
	for (r = request->next; r && r->turn == request->turn; r = r->next)
		if (r->client == request->client && r->priority == request->priority)
			return;
	r = request->prev;
	while (r->client != request->client || r->priority != request->priority)
		r = r->prev;
	turns->last = r->turn;
}

static bool list_before(const struct request *a, const struct request *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority;
	return a->turn != b->turn ? a->turn < b->turn : a->arrival < b->arrival;
}

/*
 * Its place is near the tail when its client has most of what waits, and near the head when
 * its client had nothing there: looked for from both ends at once.
 */
static void list_insert(struct request_list *list, struct request *request)
{
	struct request *after = list->tail, *before = list->head;

	while (after && list_before(request, after)) {
		after = after->prev;
		if (!list_before(before, request)) {
			after = before->prev;
			break;
		}
		before = before->next;
	}
	request->prev = after;
	request->next = after ? after->next : list->head;
	if (request->next)
		request->next->prev = request;
	else
		list->tail = request;
	if (after)
		after->next = request;
	else
		list->head = request;
}

static void list_remove(struct request_list *list, struct request *request)
{
	if (request->prev)
		request->prev->next = request->next;
	else
		list->head = request->next;
	if (request->next)
		request->next->prev = request->prev;
	else
		list->tail = request->prev;
	request->prev = NULL;
	request->next = NULL;
}

static void run_insert(struct sched *sched, struct request *request)
{
	struct request *after = sched->run_tail;

	while (after && after->arrival > request->arrival)
		after = after->prev_run;
	request->prev_run = after;
	request->next_run = after ? after->next_run : sched->run_head;
	if (request->next_run)
		request->next_run->prev_run = request;
	else
		sched->run_tail = request;
	if (after)
		after->next_run = request;
	else
		sched->run_head = request;
	sched->n_running++;
	request->user->n_running++;
	sched->n_paused_running += request->paused;
}

static void run_remove(struct sched *sched, struct request *request)
{
	if (request->prev_run)
		request->prev_run->next_run = request->next_run;
	else
		sched->run_head = request->next_run;
	if (request->next_run)
		request->next_run->prev_run = request->prev_run;
	else
		sched->run_tail = request->prev_run;
	request->prev_run = NULL;
	request->next_run = NULL;
	sched->n_running--;
	request->user->n_running--;
	sched->n_paused_running -= request->paused;
}

/* Keeps the work ring in step with the two lists of a user. */
static void user_update(struct sched *sched, struct sched_user *user)
{
	bool work = user->waiting.head || user->prefill.head;

	if (work && !user->next_work) {
		user->rank = 0;
		if (!sched->first) {
			sched->first = user;
			user->prev_work = user;
			user->next_work = user;
			return;
		}
		/* behind all others */
		user->next_work = sched->first;
		user->prev_work = sched->first->prev_work;
		user->prev_work->next_work = user;
		user->next_work->prev_work = user;
	} else if (!work && user->next_work) {
		if (sched->first == user)
			sched->first = user->next_work == user ? NULL : user->next_work;
		user->prev_work->next_work = user->next_work;
		user->next_work->prev_work = user->prev_work;
		user->prev_work = NULL;
		user->next_work = NULL;
	}
}

/* A request has a tail slot while it runs: there are as many as may run. */
static void tail_acquire(struct sched *sched, struct request *request)
{
	assert(sched->n_free_tails && request->tail == REQUEST_NO_TAIL);
	request->tail = sched->tails[--sched->n_free_tails];
}

static void tail_release(struct sched *sched, struct request *request)
{
	assert(sched->n_free_tails < sched->config.max_num_seqs);
	sched->tails[sched->n_free_tails++] = request->tail;
	request->tail = REQUEST_NO_TAIL;
}

static void lists_insert(struct sched *sched, struct request *request)
{
	if (request->state == REQUEST_WAITING) {
		list_insert(&request->user->waiting, request);
		turns_insert(request);
		request->user->n_waiting++;
		sched->n_waiting++;
		return;
	}
	run_insert(sched, request);
	if (request->state == REQUEST_PREFILL)
		list_insert(&request->user->prefill, request);
}

static void lists_remove(struct sched *sched, struct request *request)
{
	struct sched_user *user = request->user;

	/* requests change places while a plan is built: its cursors move on */
	if (user->cursor == request)
		user->cursor = request->next;
	if (user->cursor_waiting == request)
		user->cursor_waiting = request->next;

	if (request->state == REQUEST_WAITING) {
		turns_remove(request);
		list_remove(&user->waiting, request);
		user->n_waiting--;
		sched->n_waiting--;
		return;
	}
	run_remove(sched, request);
	if (request->state == REQUEST_PREFILL)
		list_remove(&user->prefill, request);
}

void policy_link(struct sched *sched, struct request *request)
{
	lists_insert(sched, request);
	user_update(sched, request->user);
}

void policy_unlink(struct sched *sched, struct request *request)
{
	lists_remove(sched, request);
	if (request->state != REQUEST_WAITING)
		tail_release(sched, request);
	user_update(sched, request->user);
}

/*
 *               add                    first rows, or a hit
 *      ------------------> WAITING ---------------------------> PREFILL
 *                             ^  ^          preempted              |
 *                             |  +---------------------------------+ prompt computed,
 *                             |             preempted              v token sampled
 *                             +---------------------------------- DECODE
 *
 * From each of them a request ends at once, or when the step in flight has completed.
 */
void policy_move(struct sched *sched, struct request *request, enum request_state state)
{
	/* the user keeps its place in the ring if it has work before and after */
	lists_remove(sched, request);
	if (request->state == REQUEST_WAITING)
		tail_acquire(sched, request);
	else if (state == REQUEST_WAITING)
		tail_release(sched, request);
	request->state = state;
	lists_insert(sched, request);
	user_update(sched, request->user);
}

void policy_charge(struct request *request)
{
	struct sched_user *user = request->user;

	assert(user->n_blocks >= request->charged);
	user->n_blocks += request->table.n_blocks - request->charged;
	request->charged = request->table.n_blocks;
}

uint32_t policy_blocks_left(const struct sched_user *user)
{
	if (!user->quota.max_blocks)
		return UINT32_MAX;
	return user->n_blocks < user->quota.max_blocks
		       ? user->quota.max_blocks - user->n_blocks
		       : 0;
}

void policy_preempt(struct sched *sched, struct request *request)
{
	assert(request->state != REQUEST_WAITING && !sched->in_flight);
	seq_release(&request->table, sched->pool);
	policy_charge(request);
	request->cow = false;
	request->n_computed = 0;
	request->preempted = true;
	sched->counters.preemptions++;
	policy_move(sched, request, REQUEST_WAITING);
}

struct request *policy_paused_victim(const struct sched *sched,
				     const struct sched_user *user, bool any)
{
	if (!sched->n_paused_running)
		return NULL;
	for (struct request *r = sched->run_tail; r; r = r->prev_run)
		if (r->paused && (any || r->table.n_blocks) && (!user || r->user == user))
			return r;
	return NULL;
}

/* Blocks that a user holds beyond what it is sure of. */
static uint32_t user_excess(const struct sched_user *user)
{
	return user->n_blocks > user->quota.min_blocks
		       ? user->n_blocks - user->quota.min_blocks
		       : 0;
}

/* Whether @r gives way before @best: its user has more, or it matters less to its user. */
static bool gives_way(const struct request *r, const struct request *best)
{
	uint32_t a = user_excess(r->user), b;

	if (!best)
		return true;
	b = user_excess(best->user);
	return a != b ? a > b : r->user == best->user && r->priority > best->priority;
}

/*
 * The latest paused one; else the least important of the user that holds most beyond its guarantee,
 * among those younger than @request, or of any age while the user of @request is below its own.
 */
struct request *policy_victim(const struct sched *sched, const struct request *request,
			      uint64_t step, bool own)
{
	const struct sched_user *user = request->user;
	bool entitled = user->n_blocks < user->quota.min_blocks;
	struct request *victim = policy_paused_victim(sched, own ? user : NULL, false);

	if (victim)
		return victim;
	for (struct request *r = sched->run_tail; r; r = r->prev_run) {
		bool younger = r->arrival > request->arrival;

		if (r == request || r->planned == step || !r->table.n_blocks)
			continue;
		if (r->user == user) {
			if (!younger)
				continue;
		} else if (own || !user_excess(r->user) || (!younger && !entitled)) {
			continue;
		}
		if (gives_way(r, victim))
			victim = r;
	}
	return victim;
}

/* The last one of its user: when somebody has starved for a while, and it has got on since it was
 * let in, so that two who take it from each other both do. */
static bool last_gives_way(const struct sched *sched, const struct request *r)
{
	return sched->n_starved >= SCHED_STARVED_PLANS && r->state == REQUEST_DECODE &&
	       r->n_tokens - r->n_let_in >= SCHED_STARVED_PLANS;
}

void policy_relieve(struct sched *sched)
{
	struct request *victim = NULL;

	sched->n_starved = sched->starved ? sched->n_starved + 1 : 0;
	if (!sched->starved)
		return;
	sched->starved = false;
	for (struct request *r = sched->run_tail; r; r = r->prev_run) {
		const struct sched_user *user = r->user;
		uint64_t places = (uint64_t)user->n_running * sched->n_users;
		uint64_t blocks = (uint64_t)user->n_blocks * sched->n_users;

		/* only from more than an even share */
		if (!user_excess(user) ||
		    (user->n_running < 2 && !last_gives_way(sched, r)) ||
		    (places <= sched->config.max_num_seqs &&
		     blocks <= sched->pool->n_blocks))
			continue;
		if (gives_way(r, victim))
			victim = r;
	}
	if (!victim)
		return;
	sched->counters.reliefs++;
	policy_preempt(sched, victim);
}

void policy_served(struct sched *sched, struct request *request, uint32_t n_rows)
{
	int64_t least = -(int64_t)sched->config.max_num_batched_tokens;

	request->user->deficit -= n_rows;
	if (request->user->deficit < least)
		request->user->deficit = least;
}

/* Credit for each user that wants rows; what it may have by right in this plan. */
static void share_credit(struct sched *sched, uint32_t budget)
{
	uint32_t bt = sched->config.block_tokens, n_users = 0, quantum;

	for (uint32_t i = 0; i < sched->n_candidates; i++)
		n_users += !sched->candidates[i].rank;
	if (!n_users)
		return;
	quantum = budget / n_users;
	if (quantum < bt)
		quantum = bt;
	for (uint32_t i = 0; i < sched->n_candidates; i++) {
		struct sched_user *user = sched->candidates[i].request->user;

		if (sched->candidates[i].rank)
			continue;
		user->deficit += quantum;
		if (user->deficit > sched->config.max_num_batched_tokens)
			user->deficit = sched->config.max_num_batched_tokens;
		user->allowance = user->deficit > 0 ? (uint32_t)user->deficit : 0;
		user->rows_left = share_rows(sched, sched->candidates[i].request, budget);
	}
}

void policy_share(struct sched *sched, uint32_t budget)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t left = budget;

	share_credit(sched, budget);
	/* the first round goes by credit; each later one grants a row or is the last */
	for (uint32_t round = 0, granted = 1; granted && left; round++) {
		granted = round == 0;
		for (uint32_t i = 0; i < sched->n_candidates && left; i++) {
			struct sched_candidate *c = &sched->candidates[i];
			struct sched_user *user = c->request->user;
			uint32_t shift = c->rank < 30 ? c->rank + 1 : 31;
			uint32_t share = user->allowance >> shift;
			uint32_t want = c->want - c->quota;

			if (round)
				share = budget >> shift;
			share = (share + bt) / bt * bt;
			if (!round && !user->allowance)
				share = 0;
			if (share > want)
				share = want;
			if (share > left)
				share = left;
			if (share > user->rows_left)
				share = user->rows_left;
			c->quota += share;
			left -= share;
			user->rows_left -= share;
			granted |= share > 0;
		}
	}
}
