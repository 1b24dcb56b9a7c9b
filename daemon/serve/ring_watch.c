/* SPDX-License-Identifier: MIT */
/*
 * See ring_watch.h. A warm ring is polled by the prepare hook of the loop, for as long as its
 * traffic comes in quick succession and the compute threads leave the CPU free; a cold one is
 * armed and costs nothing until its doorbell rings:
 *
 *       doorbell, or an SQE found while polling
 *   COLD ------------------------------------> WARM
 *    ^                                           |  nothing for spin_ns
 *    +-------------------------------------------+  (ring_daemon_arm())
 *
 * All rings with news for their client (CQEs posted, room in the SQ) are collected in a list,
 * and each is notified once in a turn of the loop, after the next step went to the worker:
 * waking a client costs more than anything else that is done for it.
 */
#include "daemon/serve/ring_watch.h"

#include "daemon/engine/engine.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit.h"

/* SQEs of one ring in one turn, so that all rings get theirs. */
#define RING_WATCH_BATCH 32

/* Bytes of input that end a turn of all rings: what is not long enough for encoder.h is
 * tokenized on this thread, at some 10 ns a byte for prose and 200 ns for the worst text. */
#define RING_WATCH_BYTES (64u << 10)

/* A ring whose traffic never came while it was polled is still polled this long. */
#define RING_WATCH_MIN_SPIN_NS 1000

/* Looks at all warm rings before the loop's own business is looked at again. */
#define RING_WATCH_LOOKS 128

/* The client made room: post what waited. Return: whether anything moved. */
static bool ring_watch_resume(struct session_ring *ring)
{
	uint32_t before = ring->n_blocked;

	if (!before)
		return false;
	/* As far as one for which there is no room: that sets CQ_FULL, which the post of
	 * another may have taken back, and nothing may be posted after that. */
	for (struct op *op = ring->ops, *next; op; op = next) {
		next = op->next;
		if (op->blocked && !op_flush(op) && op->blocked)
			break;
	}
	return ring->n_blocked != before;
}

/* Take a batch, as far as @budget bytes of input reach. Return: whether there was
 * anything. */
static bool ring_watch_take(struct session_ring *ring, uint64_t *budget)
{
	struct sessions *sessions = ring->session->sessions;
	bool any = false;

	for (unsigned i = 0; i < RING_WATCH_BATCH && *budget && !ring->encoded_op; i++) {
		struct kvd_sqe sqe;
		uint64_t bytes;

		switch (ring_daemon_take(&ring->ring, &sqe)) {
		case RING_OK:
			any = true;
			bytes = (uint64_t)sqe.in_len + sqe.params_len;
			*budget -= bytes < *budget ? bytes : *budget;
			session_ring_dirty(ring);
			submit_sqe(ring, &sqe, loop_now(sessions->loop));
			if (ring->session->state == SESSION_CLOSING)
				return true;
			break;
		case RING_FAULT:
			session_fault(ring->session, "impossible entry in its submission "
						     "queue");
			return any;
		default:
			return any;
		}
	}
	return any;
}

/* One turn of one warm ring. Return: whether it found work. */
static bool ring_watch_poll(struct session_ring *ring, uint64_t now_ns, uint64_t *budget)
{
	struct sessions *sessions = ring->session->sessions;
	bool worked;

	if (ring->session->state == SESSION_CLOSING) {
		session_ring_cool(ring);
		return false;
	}
	worked = ring_watch_resume(ring);
	worked |= ring_watch_take(ring, budget);
	if (worked) {
		ring->spin_ns = session_ring_max_spin_ns(ring);
		ring->cool_ns = now_ns + ring->spin_ns;
		return true;
	}
	if (ring->encoded_op) {
		/* Nothing is taken until submit_encoded(), so it is not armed; a client
		 * that makes room for what waits signals nevertheless. */
		session_ring_cool(ring);
		return false;
	}
	/* While a step runs, the CPUs belong to it. */
	if (now_ns < ring->cool_ns && !engine_busy(sessions->engine))
		return false;
	switch (ring_daemon_arm(&ring->ring)) {
	case RING_OK:
		if (ring->spin_ns / 2 >= RING_WATCH_MIN_SPIN_NS)
			ring->spin_ns /= 2;
		session_ring_cool(ring);
		return false;
	case RING_BUSY:
		return true;
	default:
		session_fault(ring->session, "impossible position in its rings");
		session_ring_cool(ring);
		return false;
	}
}

static void ring_watch_notify(struct sessions *sessions)
{
	struct session_ring *ring;

	while ((ring = sessions->dirty)) {
		sessions->dirty = ring->dirty_next;
		ring->dirty = false;
		ring_daemon_notify(&ring->ring);
	}
}

static bool ring_watch_any_pending(const struct sessions *sessions)
{
	for (const struct session_ring *ring = sessions->warm; ring;
	     ring = ring->warm_next)
		if (ring_daemon_pending(&ring->ring))
			return true;
	return false;
}

/* The next turn begins with @ring, which is warm. */
static void ring_watch_begin_with(struct sessions *sessions, struct session_ring *ring)
{
	struct session_ring *tail = ring;

	if (ring == sessions->warm)
		return;
	while (tail->warm_next)
		tail = tail->warm_next;
	tail->warm_next = sessions->warm;
	sessions->warm->warm_prev = tail;
	ring->warm_prev->warm_next = NULL;
	ring->warm_prev = NULL;
	sessions->warm = ring;
}

uint64_t ring_watch_prepare(struct sessions *sessions)
{
	uint64_t now_ns = loop_now(sessions->loop);
	uint64_t budget = RING_WATCH_BYTES;
	bool worked = false;

	for (struct session_ring *ring = sessions->warm, *next; ring; ring = next) {
		next = ring->warm_next;
		worked |= ring_watch_poll(ring, now_ns, &budget);
		if (!budget && next) {
			ring_watch_begin_with(sessions, next);
			break;
		}
	}
	ring_watch_notify(sessions);
	if (!worked && !sessions->warm)
		return LOOP_SLEEP_FOREVER;
	/* Something comes soon, as it looks: waiting here saves the round through the
	 * loop, which takes longer than the answer to a NOP. */
	for (unsigned i = 0; i < RING_WATCH_LOOKS; i++)
		if (ring_watch_any_pending(sessions))
			break;
	return LOOP_POLL_AGAIN;
}
