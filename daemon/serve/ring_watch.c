/* SPDX-License-Identifier: MIT */
/*
 * See ring_watch.h. A warm ring is polled in its turn, for as long as its traffic comes in quick
 * succession and the compute threads leave the CPU free; a cold one is armed and costs nothing
 * until its doorbell rings:
 *
 *       doorbell, or an SQE found while polling
 *   COLD ------------------------------------> WARM
 *    ^                                           |  nothing for spin_ns
 *    +-------------------------------------------+  (ring_daemon_arm())
 *
 * A ring with news for its client (CQEs posted, room in the SQ) notifies it once at the end of its
 * turn: waking a client costs more than anything else that is done for it, and that is its
 * user's time too.
 */
#include "daemon/serve/ring_watch.h"

#include "daemon/engine/engine.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit.h"
#include "ipc/base.h"

/* SQEs of one ring in one turn, so that all rings of a user get theirs. */
#define RING_WATCH_BATCH 32

/* A ring whose traffic never came while it was polled is still polled this long. */
#define RING_WATCH_MIN_SPIN_NS 1000

/* Looks at warm rings before the loop's own business is looked at again. */
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

/* Take a batch, as far as the time reaches. Return: whether there was anything. */
static bool ring_watch_take(struct session_ring *ring)
{
	struct sessions *sessions = ring->session->sessions;
	bool any = false;

	for (unsigned i = 0; i < RING_WATCH_BATCH && !ring->held_op; i++) {
		struct kvd_sqe sqe;

		switch (ring_daemon_take(&ring->ring, &sqe)) {
		case RING_OK:
			any = true;
			session_ring_dirty(ring);
			submit_sqe(ring, &sqe, loop_now(sessions->loop));
			if (ring->session->state == SESSION_CLOSING)
				return true;
			/* A batch of NOPs takes a few microseconds. */
			if (sqe.opcode != KVD_OP_NOP && turns_due(&sessions->turns))
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

static void ring_watch_fault(struct session_ring *ring)
{
	session_fault(ring->session, ring_daemon_is_slow(&ring->ring)
					     ? "its doorbell takes too long"
					     : "impossible position in its rings");
	ring->warm = false;
}

/* Looks at a warm ring. Return: whether it found work. */
static bool ring_watch_poll(struct session_ring *ring, uint64_t now_ns)
{
	struct sessions *sessions = ring->session->sessions;
	bool worked;

	if (ring->session->state == SESSION_CLOSING) {
		ring->warm = false;
		return false;
	}
	worked = ring_watch_resume(ring);
	worked |= submit_go_on(ring);
	worked |= ring_watch_take(ring);
	if (worked) {
		ring->spin_ns = session_ring_max_spin_ns(ring);
		ring->cool_ns = now_ns + ring->spin_ns;
		return true;
	}
	if (ring->held_op) {
		/* Nothing is taken until submit_encoded(), so it is not armed; a client
		 * that makes room for what waits signals nevertheless. */
		ring->warm = false;
		return false;
	}
	/* While a step runs, the CPUs belong to it. */
	if (now_ns < ring->cool_ns && !engine_busy(sessions->engine))
		return false;
	switch (ring_daemon_arm(&ring->ring)) {
	case RING_OK:
		if (ring->spin_ns / 2 >= RING_WATCH_MIN_SPIN_NS)
			ring->spin_ns /= 2;
		ring->warm = false;
		return false;
	case RING_BUSY:
		return true;
	default:
		ring_watch_fault(ring);
		return false;
	}
}

static bool ring_watch_run(struct turn *turn)
{
	struct session_ring *ring = container_of(turn, struct session_ring, turn);
	bool worked = false;

	if (ring->rung)
		session_ring_hear(ring);
	if (ring->warm)
		worked |= ring_watch_poll(ring, loop_now(ring->session->sessions->loop));
	if (ring->dirty) {
		worked = true;
		ring->dirty = false;
		if (ring_daemon_notify(&ring->ring) == RING_FAULT)
			ring_watch_fault(ring);
	}
	if (!ring->warm)
		turn_stop(turn);
	return worked;
}

static bool ring_watch_pending(struct turn *turn)
{
	const struct session_ring *ring = container_of(turn, struct session_ring, turn);

	return ring_daemon_pending(&ring->ring);
}

const struct turn_kind ring_watch_turn = {ring_watch_run, ring_watch_pending};

uint64_t ring_watch_prepare(struct sessions *sessions)
{
	switch (turns_run(&sessions->turns, loop_now(sessions->loop))) {
	case TURNS_NONE:
		return LOOP_SLEEP_FOREVER;
	case TURNS_LOOK:
		/* Something comes soon, as it looks: waiting here saves the round through
		 * the loop, which takes longer than the answer to a NOP. */
		(void)turns_look(&sessions->turns, RING_WATCH_LOOKS);
		break;
	case TURNS_MORE:
		break;
	}
	return LOOP_POLL_AGAIN;
}
