/* SPDX-License-Identifier: MIT */
/*
 * Completions: taking them off the ring, waiting for them, and making them up
 * for requests that a vanished daemon left behind. A ring whose daemon died is first
 * emptied, then opened again (resend.c); until that can be, there is nothing to take.
 *
 * Waiting is first polling, for a time that is learned: it doubles when polling
 * was rewarded and halves when the thread slept anyway, so a client that waits
 * for tokens soon stops polling and one that exchanges short messages never
 * sleeps. Where the full time would have been enough it is polled next time, as by a
 * daemon that sleeps itself: one wake-up in place of two. Where that is in vain, since
 * daemon and client share a core, it is tried ever more rarely. Then the doorbell,
 * together with the socket, where a new daemon speaks or the connection ends. The
 * doorbell's pipe hangs up when the daemon dies.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "client/internal.h"
#include "ipc/barrier.h"
#include "ipc/base.h"
#include "ipc/sqe.h"

/* Looks without cpu_relax(), which alone can take longer than a round trip. */
#define SPIN_HOT 256
/* Looks between two looks at the clock. */
#define SPIN_BATCH 16
/* The learned time never falls below this part of the full one. */
#define SPIN_FLOOR_SHIFT 5
/* Short sleeps in a row that are not taken for a reason to poll, at most. */
#define SPIN_MAX_DOUBTS 255
/* Between two looks at the socket of who peeks in vain, however often that is. */
#define PEEK_LOOK_NS 5000000u
/* While the daemon is away, and while another thread reads the socket: what would wake
 * this thread may be taken by that one. */
#define TICK_LOST_NS 10000000u
#define TICK_BUSY_NS 1000000u

/*
 * The alternatives behind the scores of @n tokens. Return: 0; -ENOBUFS: the caller has
 * no room for all of them.
 */
static int copy_top(struct kvc_ring *r, struct kvc_request *q, size_t n)
{
	bool all = q->score.top == KVD_TOP_ALL;
	const uint8_t *out = r->ring.out + q->out_off + 8 * n;
	uint64_t each = all ? r->n_vocab : q->score.top;
	uint64_t count = n > q->score.first ? (n - q->score.first) * each : 0;

	if (count > q->score.top_cap || 8 * n + count * (all ? 4 : 8) > q->out_len)
		return -ENOBUFS;
	if (!all) {
		if (q->score.top_ids)
			memcpy(q->score.top_ids, out, 4 * count);
		out += 4 * count;
	}
	if (q->score.top_logprobs)
		memcpy(q->score.top_logprobs, out, 4 * count);
	return 0;
}

/* Copy what the daemon wrote for @q to where the caller wants it. Return: 0, -ENOBUFS. */
static int copy_output(struct kvc_ring *r, struct kvc_request *q, int32_t res)
{
	const uint8_t *out = r->ring.out + q->out_off;
	size_t n = (size_t)res;

	if (q->opcode == KVD_OP_DETOKENIZE) {
		if (n <= q->out_len && n <= q->cap && q->out)
			memcpy(q->out, out, n);
	} else if (q->opcode == KVD_OP_TOKENIZE) {
		if (n <= q->out_len / 4 && n <= q->cap && q->out)
			memcpy(q->out, out, 4 * n);
	} else if (q->opcode == KVD_OP_SCORE) {
		if (n > q->out_len / 8 || n > q->cap)
			return 0;
		if (q->out)
			memcpy(q->out, out, 4 * n);
		if (q->out2)
			memcpy(q->out2, out + 4 * n, 4 * n);
		if (q->score.top)
			return copy_top(r, q, n);
	}
	return 0;
}

/* What becomes of a CQE. */
enum taken { TAKEN_GIVE, TAKEN_DROP, TAKEN_BAD };

/* r->cqe is @q's final one. */
static void accept_final(struct kvc_ring *r, struct kvc_request *q)
{
	struct kvd_cqe *cqe = &r->cqe;
	bool late = q->replay && cqe->res >= 0; /* ends before it was where it had been */

	if (q->doomed || late) {
		memset(&cqe->u, 0, sizeof(cqe->u));
		cqe->res = KVD_E_RESTARTED;
		cqe->u.usage.finish_reason = KVD_FINISH_ERROR;
	}
	if (cqe->res > 0 && q->out_len && copy_output(r, q, cqe->res) < 0)
		cqe->res = -ENOBUFS;
	request_release(r, q);
}

/* r->cqe has the wire's user_data. */
static enum taken accept_cqe(struct kvc_ring *r)
{
	uint64_t wire = r->cqe.user_data;
	uint32_t i = (uint32_t)wire;
	struct kvc_request *q;

	if (wire == WIRE_NOBODY && r->n_cancels) {
		r->n_cancels--;
		return TAKEN_DROP;
	}
	if (i >= r->n_reqs)
		return TAKEN_BAD;
	q = &r->reqs[i];
	if (!q->used || q->serial != (uint32_t)(wire >> 32))
		return TAKEN_BAD;

	r->cqe.user_data = q->user_data;
	if (r->cqe.flags & KVD_CQE_MORE) {
		if (!(r->cqe.flags & KVD_CQE_END) &&
		    r->cqe.u.token.n_bytes > KVD_CQE_BYTES)
			return TAKEN_BAD;
		return ring_progress(r, q) ? TAKEN_GIVE : TAKEN_DROP;
	}
	if (r->cqe.res < 0 && ring_refused(r, q))
		return TAKEN_DROP;
	/* What came out otherwise than before is counted, as the daemon does, but is not
	 * what the caller means. */
	if (q->keep && sqe_was_kept(&r->cqe))
		r->kept[r->n_kept++ % KVD_MAX_KEPT] = (struct kept){
			q->user_data, q->doomed || q->replay ? WIRE_LOST : wire};
	accept_final(r, q);
	return TAKEN_GIVE;
}

/* Give out a request that was ended on this side. */
static void take_ended(struct kvc_ring *r)
{
	struct kvc_request *q = &r->reqs[r->ended_head - 1];

	r->ended_head = q->next;
	if (!r->ended_head)
		r->ended_tail = 0;
	memset(&r->cqe, 0, sizeof(r->cqe));
	r->cqe.user_data = q->user_data;
	r->cqe.res = q->res;
	r->cqe.u.usage.detail = q->detail;
	if (q->opcode == KVD_OP_GENERATE || q->opcode == KVD_OP_FORK) {
		r->cqe.u.usage.finish_reason =
			q->res == -ECANCELED ? KVD_FINISH_CANCELLED : KVD_FINISH_ERROR;
		r->cqe.u.usage.generated_tokens = q->given.n_tokens;
	}
	request_release(r, q);
}

/* The daemon is gone: end everything that is not ended yet. */
static void end_all(struct kvc_ring *r, int res)
{
	uint32_t i;

	for (i = 0; i < r->n_reqs; i++)
		if (r->reqs[i].used && !r->reqs[i].ended)
			request_end(r, &r->reqs[i], res);
}

void ring_hup(struct kvc_ring *r)
{
	if (r->hup)
		return;
	r->hup = true;
	/* It would be readable from now on. */
	if (r->epoll_fd >= 0)
		(void)epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, r->ring.fd_complete, NULL);
}

/* No CQE of a dead daemon is left. Return: 0: look again; -EAGAIN; or why the ring ended. */
static int refresh(struct kvc_ring *r)
{
	int rc;

	(void)client_attend(r);
	if (client_state(r->client) == CLIENT_DEAD) {
		end_all(r, -ECONNRESET);
		return r->ended_head ? 0 : -ECONNRESET;
	}
	rc = ring_reopen(r);
	if (rc < 0 && rc != -EAGAIN) {
		r->fault = rc;
		end_all(r, KVD_E_RESTARTED);
		return r->ended_head ? 0 : rc;
	}
	return rc;
}

/* Look whether the daemon died, or speaks on the socket. */
static void look_around(struct kvc_ring *r)
{
	struct pollfd p = {.fd = r->hup ? -1 : r->ring.fd_complete, .events = 0};

	if (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)))
		ring_hup(r);
	(void)client_attend(r);
}

/* Fill r->cqe. Return: 0, -EAGAIN, or the code that ended the ring. */
static int next_cqe(struct kvc_ring *r)
{
	enum ring_status st;
	bool stale;
	int rc;

	for (;;) {
		if (r->has_cqe)
			return 0;
		if (r->ended_head) {
			take_ended(r);
			r->has_cqe = true;
			return 0;
		}
		if ((r->n_unsent || r->n_held) && !r->fault)
			ring_pump(r);

		/* First the verdict, then the look: what came before the end is found. */
		stale = ring_stale(r);
		st = r->fault ? RING_EMPTY : ring_client_take(&r->ring, &r->cqe);
		switch (st) {
		case RING_OK:
			switch (accept_cqe(r)) {
			case TAKEN_GIVE:
				r->has_cqe = true;
				return 0;
			case TAKEN_DROP:
				continue;
			default:
				r->fault = KVD_E_PROTO;
			}
			break;
		case RING_GONE:
		case RING_FAULT:
			/* A daemon that ends a session wipes its rings, and then hangs up:
			 * that may show now or in a moment. */
			if (!stale) {
				look_around(r);
				stale = ring_stale(r);
			}
			if (!stale && st == RING_FAULT)
				r->fault = KVD_E_PROTO;
			break;
		default:
			break;
		}
		if (r->fault) {
			end_all(r, r->fault);
			if (!r->ended_head)
				return r->fault;
			continue;
		}
		if (!stale)
			return -EAGAIN;
		rc = refresh(r);
		if (rc < 0)
			return rc;
	}
}

/* Of a few milliseconds' resolution, which makes it cheap enough for each empty peek. */
static uint64_t coarse_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Is it time to look at the socket? */
static bool look_is_due(struct kvc_ring *r)
{
	uint64_t now = coarse_ns();

	if (now - r->looked_ns < PEEK_LOOK_NS)
		return false;
	r->looked_ns = now;
	return true;
}

/* Fill r->cqe without ever waiting. */
static int peek(struct kvc_ring *r)
{
	int rc;

	rc = next_cqe(r);
	if (rc == -EAGAIN && look_is_due(r)) {
		look_around(r);
		if (ring_stale(r))
			rc = next_cqe(r);
	}
	if (rc < 0 && rc != -EAGAIN)
		kvc_fail_status(rc, 0);
	return rc;
}

/* The one to be given out next; only where there is one. */
static const struct kvd_cqe *first_cqe(const struct kvc_ring *r)
{
	return r->n_ready ? &r->ready[r->ready_at] : &r->cqe;
}

int kvc_ring_peek_cqe(struct kvc_ring *r, const struct kvd_cqe **ret_cqe)
{
	int rc;

	if (client_forked(r->client))
		return kvc_fail_status(-EOWNERDEAD, 0);
	rc = r->n_ready ? 0 : peek(r);
	if (rc == 0)
		*ret_cqe = first_cqe(r);
	return rc;
}

int kvc_ring_peek_batch(struct kvc_ring *r, const struct kvd_cqe **ret_cqes, unsigned cap)
{
	uint32_t mask = r->ring.cq_entries - 1;
	unsigned n;
	int rc = 0;

	if (client_forked(r->client))
		return kvc_fail_status(-EOWNERDEAD, 0);
	if (!r->ready)
		r->ready = calloc(r->ring.cq_entries, sizeof(*r->ready));
	if (!r->ready)
		return kvc_fail_status(-ENOMEM, 0);
	cap = min_u32(cap, r->ring.cq_entries);
	while (r->n_ready < cap && (rc = peek(r)) == 0) {
		r->ready[(r->ready_at + r->n_ready++) & mask] = r->cqe;
		r->has_cqe = false;
	}
	for (n = 0; n < cap && n < r->n_ready; n++)
		ret_cqes[n] = &r->ready[(r->ready_at + n) & mask];
	return n || rc == -EAGAIN ? (int)n : rc;
}

void kvc_ring_cq_advance(struct kvc_ring *r, unsigned n)
{
	uint32_t of_ready = min_u32(n, r->n_ready);

	r->ready_at = (r->ready_at + of_ready) & (r->ring.cq_entries - 1);
	r->n_ready -= of_ready;
	if (n > of_ready)
		r->has_cqe = false;
}

void kvc_ring_cqe_seen(struct kvc_ring *r)
{
	kvc_ring_cq_advance(r, 1);
}

int kvc_ring_for_each_cqe(struct kvc_ring *r, kvc_cqe_fn fn, void *userdata)
{
	const struct kvd_cqe *cqe;
	int n = 0, rc, stop = 0;

	while (!stop && n < INT32_MAX && (rc = kvc_ring_peek_cqe(r, &cqe)) == 0) {
		stop = fn(userdata, cqe);
		kvc_ring_cqe_seen(r);
		n++;
	}
	return n || rc == -EAGAIN ? n : rc;
}

/* Poll for a while. True if something is there. */
static bool spin(struct kvc_ring *r, uint64_t deadline_ns)
{
	int64_t full = r->client->spin_ns;
	uint64_t start, now;
	int i;

	if (full == 0)
		return false;
	for (i = 0; i < SPIN_HOT; i++)
		if (ring_client_pending(&r->ring))
			return true;

	start = clock_ns();
	if (!r->wait_ns)
		r->wait_ns = start;
	do {
		for (i = 0; i < SPIN_BATCH; i++) {
			if (ring_client_pending(&r->ring)) {
				r->spin_now =
					r->spin_now * 2 < full ? r->spin_now * 2 : full;
				r->spin_doubts = 0;
				r->spin_doubted = 0;
				return true;
			}
			cpu_relax();
		}
		now = clock_ns();
	} while (now - start < (uint64_t)r->spin_now &&
		 (!deadline_ns || now < deadline_ns));
	r->spin_now /= 2;
	if (r->spin_now < full >> SPIN_FLOOR_SHIFT)
		r->spin_now = full >> SPIN_FLOOR_SHIFT;
	return false;
}

/* A wait with a sleep in it has ended: would polling for the full time have done? */
static void spin_learn(struct kvc_ring *r)
{
	if (!r->wait_ns || clock_ns() - r->wait_ns > (uint64_t)r->client->spin_ns)
		return;
	if (r->spin_doubted < r->spin_doubts) {
		r->spin_doubted++;
		return;
	}
	r->spin_now = r->client->spin_ns;
	r->spin_doubts = min_u32(2 * r->spin_doubts + 1, SPIN_MAX_DOUBTS);
	r->spin_doubted = 0;
}

bool ring_has_ready(const struct kvc_ring *r, unsigned n)
{
	const struct ring_client *c = &r->ring;
	unsigned have = r->has_cqe + r->n_ready;
	uint64_t pos = c->cq_pos;
	uint32_t id;

	for (id = r->ended_head; id && have < n; id = r->reqs[id - 1].next)
		have++;
	while (have < n &&
	       shm_load_u64(&c->cq[pos & (c->cq_entries - 1)].seq) == pos + 1) {
		have++;
		pos++;
	}
	return have >= n;
}

/* Nanoseconds until something that is held back has to be submitted. */
static uint64_t until_let_go(const struct kvc_ring *r)
{
	uint64_t now = clock_ns();

	return now < r->hold_ns ? r->hold_ns - now : 0;
}

/*
 * Sleep until the doorbell, a word on the socket, or the deadline; not at all if
 * @n CQEs are there. Every CQE signals, so this may return with fewer.
 */
static int sleep_on(struct kvc_ring *r, unsigned n, uint64_t deadline_ns)
{
	bool gone = client_state(r->client) == CLIENT_GONE;
	struct pollfd p[2] = {
		{.fd = r->hup ? -1 : r->ring.fd_complete, .events = POLLIN},
		{.fd = gone ? -1 : r->client->sock, .events = POLLIN | POLLRDHUP},
	};
	bool want_sq = (r->sqe_head != r->sqe_tail || r->n_unsent) &&
		       ring_client_sq_space(&r->ring) == 0;
	uint64_t now = 0, left = UINT64_MAX;
	struct timespec ts;
	int rc = 1, err = 0;

	ring_client_arm(&r->ring, want_sq);
	if (!ring_has_ready(r, n) && !(want_sq && ring_client_sq_space(&r->ring) > 0)) {
		if (deadline_ns) {
			now = clock_ns();
			left = now < deadline_ns ? deadline_ns - now : 0;
		}
		if (ring_stale(r) && left > TICK_LOST_NS)
			left = TICK_LOST_NS;
		else if (r->n_held && left > until_let_go(r))
			left = until_let_go(r);
		ts.tv_sec = (time_t)(left / 1000000000u);
		ts.tv_nsec = (long)(left % 1000000000u);
		rc = ppoll(p, 2, left == UINT64_MAX ? NULL : &ts, NULL);
		err = errno;
		if (rc == 0 && deadline_ns && now + left >= deadline_ns)
			err = ETIME;
		else if (rc == 0)
			rc = 1;
	}
	ring_client_disarm(&r->ring, p[0].revents & POLLIN);
	if (r->epoll_fd >= 0)
		ring_client_arm(&r->ring, r->n_unsent > 0);
	if (p[0].revents & (POLLHUP | POLLERR))
		ring_hup(r);
	if (p[1].revents && !client_attend(r)) {
		ts = (struct timespec){.tv_nsec = TICK_BUSY_NS};
		(void)ppoll(p, 1, &ts, NULL);
	}
	return rc > 0 || err == EINTR ? 0 : -err;
}

/* Wait for @n CQEs, or as many as can come. Return: 0, -ETIME, -ENODATA, ... */
static int wait_ready(struct kvc_ring *r, unsigned n, uint64_t deadline_ns)
{
	bool slept = false;
	int rc;

	r->wait_ns = 0;
	for (;;) {
		rc = next_cqe(r);
		if (rc != 0 && rc != -EAGAIN)
			return rc;
		if (rc == 0 && slept)
			spin_learn(r);
		slept = false;
		/* One that came between these two looks must be taken as well. What a
		 * restart made come twice is not given out. */
		if (ring_has_ready(r, n)) {
			rc = next_cqe(r);
			if (rc != -EAGAIN)
				return rc;
			continue;
		}
		/* The rest comes on another ring. */
		if ((r->has_cqe || r->n_ready) && ring_stale(r))
			return 0;
		if (r->sqe_head != r->sqe_tail) {
			if (kvc_ring_submit(r) > 0)
				continue;
		} else if (r->in_flight == 0) {
			return r->has_cqe || r->n_ready ? 0 : -ENODATA;
		}
		if (!r->has_cqe && !ring_stale(r) && spin(r, deadline_ns))
			continue;
		rc = sleep_on(r, n, deadline_ns);
		slept = true;
		if (rc == -ETIME && ring_has_ready(r, n))
			continue;
		if (rc < 0)
			return rc;
	}
}

int ring_wait_until(struct kvc_ring *r, const struct kvd_cqe **ret_cqe,
		    uint64_t deadline_ns)
{
	int rc;

	if (client_forked(r->client))
		return kvc_fail_status(-EOWNERDEAD, 0);
	rc = r->n_ready ? 0 : next_cqe(r);
	if (rc == -EAGAIN)
		rc = wait_ready(r, 1, deadline_ns);
	if (rc < 0)
		return kvc_fail_status(rc, 0);
	*ret_cqe = first_cqe(r);
	return 0;
}

int kvc_ring_wait_cqe(struct kvc_ring *r, const struct kvd_cqe **ret_cqe,
		      int64_t timeout_ns)
{
	return ring_wait_until(r, ret_cqe, deadline_after(timeout_ns));
}

int kvc_ring_submit_and_wait(struct kvc_ring *r, unsigned n, int64_t timeout_ns)
{
	int submitted, rc;

	submitted = kvc_ring_submit(r);
	if (submitted < 0 && submitted != -EAGAIN && submitted != -ENOBUFS)
		return submitted;
	if (n > r->ring.cq_entries)
		n = r->ring.cq_entries;
	if (n > r->n_ready) {
		/* What a restart made come twice is ready, but not given out. */
		rc = next_cqe(r);
		if (rc == -EAGAIN || (rc == 0 && !ring_has_ready(r, n)))
			rc = wait_ready(r, n, deadline_after(timeout_ns));
		if (rc < 0 && rc != -ENODATA)
			return kvc_fail_status(rc, 0);
	}
	return submitted > 0 ? submitted : 0;
}
