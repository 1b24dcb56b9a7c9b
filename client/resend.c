/* SPDX-License-Identifier: MIT */
/*
 * A ring after its daemon died: opened again with its old geometry, what is in flight
 * submitted again, and answers that begin a second time cut to what is new of them.
 *
 * Inputs need no copy of their own: the old mapping holds them until the new one does,
 * at the same offsets. What may be submitted again is everything whose answer is bound
 * to be the same: kvd draws tokens by seed and position, and its arithmetic does not
 * depend on neighbours or on what the cache holds. So an answer that was given out in part
 * begins again, is compared with a hash of what was given out, and goes on from there.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/internal.h"
#include "ipc/base.h"

/*
 * A request that kills the daemon must not do so for ever, nor so fast that the service
 * manager gives the daemon up. So one that was lost a few times without getting on is held
 * back, each time longer; others proceed meanwhile, or are at least not submitted in the
 * same instants for ever, since the times differ. Who was held back while a daemon died
 * has nothing to do with it.
 *
 * What counts against a request: little where a daemon dies soon anyhow; much where it
 * lived until this one was let go.
 *
 * To a daemon that has just come all that comes back is new at once, so limits on what
 * waits may refuse what ran before. It is tried again, soon first, since what runs waits no
 * more; and not for ever, since a limit may have been lowered.
 */
#define MAX_LOST           250
#define LOST_SOON          1
#define LOST_LATE          8
#define LOST_HELD          25
#define REFUSED            1
#define SOON_NS            3000000000u
#define QUICK_LOST         3
#define MAX_DOUBLE         2
#define REFUSED_NS         10000000u
#define MAX_REFUSED_DOUBLE 7

#define HASH_PRIME 0x100000001b3u

static void add_token(struct progress *p, uint64_t word)
{
	p->token_hash = (p->token_hash ^ word) * HASH_PRIME;
	p->token_hash ^= p->token_hash >> 29;
	p->n_tokens++;
}

static void add_byte(struct progress *p, uint8_t byte)
{
	p->byte_hash = (p->byte_hash ^ byte) * HASH_PRIME;
	p->n_bytes++;
}

static uint64_t token_word(const struct kvd_cqe_token *t)
{
	uint32_t logprob;

	memcpy(&logprob, &t->logprob, sizeof(logprob));
	return (uint64_t)logprob << 32 | (uint32_t)t->token;
}

/* Tell the new daemon to end what nobody wants. If there is no room it ends later. */
static void cancel_wire(struct kvc_ring *r, uint64_t wire)
{
	struct kvd_sqe sqe = {
		.user_data = WIRE_NOBODY,
		.opcode = KVD_OP_CANCEL,
		.arg = wire,
	};

	if (ring_client_sq_space(&r->ring) == 0)
		return;
	(void)ring_client_put(&r->ring, &sqe);
	ring_client_kick(&r->ring);
	r->n_cancels++;
}

static void doom(struct kvc_ring *r, struct kvc_request *q)
{
	q->replay = false;
	q->doomed = true;
	q->res = KVD_E_RESTARTED;
	cancel_wire(r, q->wire.user_data);
}

/* Take out of r->cqe what was given out before. Return: false if nothing remains. */
static bool skip_given(struct kvc_ring *r, struct kvc_request *q)
{
	struct kvd_cqe_token *t = &r->cqe.u.token;
	struct progress *g = &q->given, *a = &q->again;
	bool is_token = !(r->cqe.flags & KVD_CQE_PIECE), old_token = false;
	uint8_t i, old_bytes = 0;

	if (is_token) {
		old_token = a->n_tokens < g->n_tokens;
		add_token(a, token_word(t));
		if (!old_token)
			*g = (struct progress){a->token_hash, g->byte_hash, g->n_bytes,
					       a->n_tokens};
	}
	for (i = 0; i < t->n_bytes; i++) {
		bool old = a->n_bytes < g->n_bytes;

		add_byte(a, t->bytes[i]);
		old_bytes += old;
		if (!old)
			add_byte(g, t->bytes[i]);
	}
	if ((a->n_tokens == g->n_tokens && a->token_hash != g->token_hash) ||
	    (a->n_bytes == g->n_bytes && a->byte_hash != g->byte_hash)) {
		doom(r, q);
		return false;
	}
	q->replay = a->n_tokens < g->n_tokens || a->n_bytes < g->n_bytes;
	memmove(t->bytes, t->bytes + old_bytes, t->n_bytes - old_bytes);
	t->n_bytes -= old_bytes;
	if (is_token && !old_token)
		return true;
	if (is_token) {
		r->cqe.flags |= KVD_CQE_PIECE;
		r->cqe.flags &= ~KVD_CQE_LOGPROB;
		t->token = 0;
		t->logprob = 0;
	}
	return t->n_bytes > 0;
}

bool ring_progress(struct kvc_ring *r, struct kvc_request *q)
{
	const struct kvd_cqe_token *t = &r->cqe.u.token;
	uint8_t i;

	if (r->cqe.flags & KVD_CQE_END && q->n_seqs > 1)
		q->n_seqs--;
	if (q->doomed)
		return false;
	if (q->replay) {
		if (!skip_given(r, q))
			return false;
	} else if (!(r->cqe.flags & KVD_CQE_END)) {
		if (!(r->cqe.flags & KVD_CQE_PIECE))
			add_token(&q->given, token_word(t));
		for (i = 0; i < t->n_bytes; i++)
			add_byte(&q->given, t->bytes[i]);
	}
	q->shown = true;
	q->n_lost = 0;
	q->n_lives = 0;
	q->n_refused = 0;
	return true;
}

/* A CANCEL and what it names end here: the work died with the daemon. */
static void settle_cancel(struct kvc_ring *r, struct kvc_request *cancel)
{
	uint32_t i = (uint32_t)cancel->wire.arg;
	struct kvc_request *q = i < r->n_reqs ? &r->reqs[i] : NULL;
	bool found = q && q->used && !q->ended && q->opcode != KVD_OP_CANCEL &&
		     q->serial == (uint32_t)(cancel->wire.arg >> 32);

	if (found)
		request_end(r, q, q->doomed ? q->res : -ECANCELED);
	request_end(r, cancel, found ? q->n_seqs : -ENOENT);
}

static void add_cost(struct kvc_request *q, unsigned cost)
{
	q->n_lost =
		(uint8_t)(q->n_lost + cost > MAX_LOST ? MAX_LOST + 1 : q->n_lost + cost);
}

/* Is it held back when it is submitted again? A NOP harms nobody. */
static bool is_suspect(const struct kvc_request *q)
{
	return q->n_lives >= QUICK_LOST && q->opcode != KVD_OP_NOP;
}

/* It was submitted @lived_ns or less before the daemon died. */
static void count_loss(struct kvc_request *q, uint64_t lived_ns)
{
	add_cost(q, lived_ns < SOON_NS ? LOST_SOON
		    : is_suspect(q)    ? LOST_HELD
				       : LOST_LATE);
	/* What kills comes as far as before; a long answer in a short life does not. */
	if (q->replay && q->again.n_tokens > 0)
		q->n_lives = 0;
	else if (q->n_lives < UINT8_MAX)
		q->n_lives++;
}

/* @pause and up to half of it more, another one for each request and time. */
static uint64_t spread(const struct kvc_request *q, uint64_t pause)
{
	uint64_t n = (uint64_t)q->n_lives + q->n_refused;

	return pause +
	       (pause >> 17) *
		       ((q->wire.user_data * HASH_PRIME >> 16 ^ n * 0x9e37u) & 0xffff);
}

/* Until when it has to wait; 0: not at all. */
static uint64_t hold_until(const struct kvc_ring *r, const struct kvc_request *q,
			   uint64_t now)
{
	unsigned n;

	if (!is_suspect(q))
		return 0;
	n = q->n_lives - QUICK_LOST;
	return now + spread(q, r->client->pause_ns << (n < MAX_DOUBLE ? n : MAX_DOUBLE));
}

/*
 * May it be submitted again? @same: the model, and the input is there. Return: 0, or with
 * what to end it.
 */
static int judge(struct kvc_request *q, bool same, uint64_t now)
{
	if (q->doomed || q->n_lost > MAX_LOST)
		return KVD_E_RESTARTED;
	if (q->deadline_ns && now >= q->deadline_ns)
		return KVD_E_DEADLINE;
	switch (q->opcode) {
	case KVD_OP_NOP:
		return 0;
	case KVD_OP_FORK: /* its parent was lost in an unknown state */
		return KVD_E_RESTARTED;
	case KVD_OP_GENERATE:
		/* Sequences that ended would end again, in another order. */
		if (q->several && q->shown)
			return KVD_E_RESTARTED;
		break;
	default:
		break;
	}
	return same ? 0 : KVD_E_RESTARTED;
}

/* Its input into the arena of the new ring, and the time that is left. */
static void carry_over(struct kvc_ring *r, const struct ring_client *from,
		       struct kvc_request *q)
{
	if (q->in_len)
		memcpy(r->ring.in + q->in_off, from->in + q->in_off, q->in_len);
	q->resent = true;
	q->again = (struct progress){0};
	q->replay = q->given.n_tokens || q->given.n_bytes;
}

/* To be submitted when there is room. Only now is known what time is left. */
static void enqueue(struct kvc_ring *r, struct kvc_request *q, uint64_t now)
{
	uint32_t ms;

	if (q->deadline_ns) {
		ms = (uint32_t)((q->deadline_ns - now) / 1000000u);
		ms = ms ? ms : 1;
		memcpy(r->ring.in + q->wire.params_off +
			       offsetof(struct kvd_gen_params, timeout_ms),
		       &ms, sizeof(ms));
	}
	if (!q->unsent)
		r->n_unsent++;
	q->unsent = true;
}

/* Let an event loop look again at r->hold_ns; 0: not on that account. */
static int set_alarm(struct kvc_ring *r)
{
	struct epoll_event in = {.events = EPOLLIN};
	struct itimerspec when = {
		.it_value = {(time_t)(r->hold_ns / 1000000000u),
			     (long)(r->hold_ns % 1000000000u)},
	};

	if (r->epoll_fd < 0 || (!r->hold_ns && r->hold_fd < 0))
		return 0;
	if (r->hold_fd < 0) {
		r->hold_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (r->hold_fd < 0)
			return -errno;
		if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->hold_fd, &in) < 0) {
			r->hold_fd = fd_close(r->hold_fd);
			return -ENOMEM;
		}
	}
	/* Once it has gone off, this also makes it unreadable. */
	return timerfd_settime(r->hold_fd, TFD_TIMER_ABSTIME, &when, NULL) < 0 ? -errno
									       : 0;
}

void ring_clear_alarm(struct kvc_ring *r)
{
	uint64_t count;
	ssize_t n;

	if (r->hold_fd < 0)
		return;
	do
		n = read(r->hold_fd, &count, sizeof(count));
	while (n < 0 && errno == EINTR);
}

/* Let go what was held back long enough; all of it if @all. */
static void release_held(struct kvc_ring *r, bool all)
{
	uint64_t now = clock_ns(), soonest = 0;
	uint32_t i;

	for (i = 0; i < r->n_reqs; i++) {
		struct kvc_request *q = &r->reqs[i];
		uint64_t until = q->hold_ns;

		if (!q->used || !q->held)
			continue;
		if (q->deadline_ns && q->deadline_ns < until)
			until = q->deadline_ns;
		if (!all && now < until) {
			if (!soonest || until < soonest)
				soonest = until;
			continue;
		}
		if (q->deadline_ns && now >= q->deadline_ns) {
			request_end(r, q, KVD_E_DEADLINE);
			continue;
		}
		q->held = false;
		r->n_held--;
		enqueue(r, q, now);
	}
	r->hold_ns = soonest;
}

void ring_pump(struct kvc_ring *r)
{
	bool sent = false;
	struct kvc_request *q;

	/* A dead daemon would take nothing, but it would count as lost. */
	if (ring_stale(r))
		return;
	if (r->n_held && clock_ns() >= r->hold_ns) {
		release_held(r, false);
		if (set_alarm(r) < 0)
			release_held(r, true);
	}
	while (r->n_unsent && ring_client_sq_space(&r->ring) > 0) {
		q = &r->reqs[r->unsent_at++ % r->n_reqs];
		if (!q->unsent)
			continue;
		q->unsent = false;
		r->n_unsent--;
		(void)ring_client_put(&r->ring, &q->wire);
		sent = true;
	}
	if (sent)
		ring_client_kick(&r->ring);
}

/* Has the caller a CANCEL under way that names it? */
static bool is_cancelled(const struct kvc_ring *r, const struct kvc_request *q)
{
	uint32_t i;

	for (i = 0; i < r->n_reqs; i++)
		if (r->reqs[i].used && !r->reqs[i].ended &&
		    r->reqs[i].opcode == KVD_OP_CANCEL &&
		    r->reqs[i].wire.arg == q->wire.user_data)
			return true;
	return false;
}

/* What had run before the restart may run after it. */
bool ring_refused(struct kvc_ring *r, struct kvc_request *q)
{
	bool begun = q->replay ? q->again.n_tokens || q->again.n_bytes : q->shown;
	unsigned n = q->n_refused;

	if ((r->cqe.res != KVD_E_QUOTA && r->cqe.res != KVD_E_BUSY) || !q->resent ||
	    q->doomed || begun || q->n_lost + REFUSED > MAX_LOST || is_cancelled(r, q))
		return false;
	add_cost(q, REFUSED);
	if (q->n_refused < UINT8_MAX)
		q->n_refused++;
	q->hold_ns =
		clock_ns() +
		spread(q, (uint64_t)REFUSED_NS
				  << (n < MAX_REFUSED_DOUBLE ? n : MAX_REFUSED_DOUBLE));
	q->held = true;
	r->n_held++;
	r->hold_ns = 0;
	return true;
}

static void submit_again(struct kvc_ring *r, const struct ring_client *from, bool same)
{
	uint64_t now = clock_ns(), lived_ns = now - r->opened_ns;
	uint32_t i;
	int rc;

	r->opened_ns = now;
	for (i = 0; i < r->n_reqs; i++)
		if (r->reqs[i].used && !r->reqs[i].ended &&
		    r->reqs[i].opcode == KVD_OP_CANCEL)
			settle_cancel(r, &r->reqs[i]);
	for (i = 0; i < r->n_reqs; i++) {
		struct kvc_request *q = &r->reqs[i];

		if (!q->used || q->ended)
			continue;
		if (!q->unsent && !q->held) {
			count_loss(q, lived_ns);
			q->hold_ns = hold_until(r, q, now);
		}
		rc = judge(q, same, now);
		if (rc < 0) {
			request_end(r, q, rc);
			continue;
		}
		carry_over(r, from, q);
		if (q->unsent) {
			enqueue(r, q, now);
		} else if (!q->held) {
			/* What has not to wait is let go at once. */
			q->held = true;
			r->n_held++;
		}
	}
	r->unsent_at = 0;
	r->hold_ns = 0;
	for (i = 0; i < KVD_MAX_KEPT && i < r->n_kept; i++)
		r->kept[i].wire = WIRE_LOST;
	ring_pump(r);
}

int ring_reopen(struct kvc_ring *r)
{
	struct ring_client old = r->ring;
	bool same_model;
	int rc;

	if (!client_trylock(r))
		return -EAGAIN;
	rc = reopen_step(r, &same_model);
	client_set_timer(r->client);
	client_unlock(r->client);
	if (rc < 0)
		return rc;
	r->hup = false;
	r->n_cancels = 0;
	submit_again(r, &old, same_model && !ring_client_wiped(&old));
	ring_client_deinit(&old);
	if (r->epoll_fd >= 0)
		ring_client_arm(&r->ring, r->n_unsent > 0);
	return 0;
}
