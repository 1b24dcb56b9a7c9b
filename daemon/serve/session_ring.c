/* SPDX-License-Identifier: MIT */
/* See session_ring.h. */
#include "daemon/serve/session_ring.h"

#include <string.h>

#include "daemon/config.h"
#include "daemon/serve/lent.h"
#include "daemon/serve/session.h"
#include "ipc/base.h"

uint64_t session_ring_max_spin_ns(const struct session_ring *ring)
{
	return ring->session->sessions->config->daemon.spin_us * UINT64_C(1000);
}

static void session_ring_turn(struct session_ring *ring)
{
	struct session *session = ring->session;

	turn_start(&session->sessions->turns, &session->user->turns, &ring->turn,
		   session->sessions->ring_turn);
}

void session_ring_warm(struct session_ring *ring)
{
	ring->cool_ns = loop_now(ring->session->sessions->loop) + ring->spin_ns;
	ring->warm = true;
	session_ring_turn(ring);
}

void session_ring_dirty(struct session_ring *ring)
{
	ring->dirty = true;
	session_ring_turn(ring);
}

/*
 * A client signals that it made room only while it sees CQ_FULL, and a post that finds room takes
 * CQ_FULL back. If others still wait for room, or SQEs do, the signal may never come: so the ring
 * is looked at again before the loop blocks.
 */
enum ring_status session_ring_post(struct session_ring *ring, const struct kvd_cqe *cqe)
{
	bool was_full = ring_daemon_cq_full(&ring->ring);
	enum ring_status status = ring_daemon_post(&ring->ring, cqe);

	if (status != RING_OK)
		return status;
	session_ring_dirty(ring);
	if (was_full)
		session_ring_warm(ring);
	return RING_OK;
}

/* Nobody reads it. */
#define DOORBELL_EVENTS (LOOP_READ | LOOP_EDGE)

/* A client that rings again before the turn of its ring is heard after that: its signals cost a
 * callback each. */
static void session_ring_doorbell(struct loop_io *io, uint32_t events)
{
	struct session_ring *ring = container_of(io, struct session_ring, doorbell);

	if (ring->rung)
		(void)loop_io_modify(io, 0);
	ring->rung = true;
	ring_daemon_disarm(&ring->ring);
	session_ring_warm(ring);
}

void session_ring_hear(struct session_ring *ring)
{
	int r;

	ring->rung = false;
	if (ring->doorbell.events)
		return;
	/* This reports it once, as it was signalled before. */
	r = loop_io_modify(&ring->doorbell, DOORBELL_EVENTS);
	if (r)
		session_fail(ring->session, r);
}

int session_ring_watch(struct session_ring *ring)
{
	struct sessions *sessions = ring->session->sessions;

	ring->spin_ns = session_ring_max_spin_ns(ring);
	return loop_io_add(sessions->loop, &ring->doorbell,
			   ring_daemon_doorbell(&ring->ring), DOORBELL_EVENTS,
			   session_ring_doorbell);
}

void session_ring_unwatch(struct session_ring *ring)
{
	turn_stop(&ring->turn);
	loop_io_remove(&ring->doorbell);
}

static void kept_remove(struct session_ring *ring, uint32_t i)
{
	struct session_kept *kept = &ring->kept[i];

	user_charge_deinit(&kept->charge);
	secret_free(kept->tokens, kept->n_tokens * sizeof(kept->tokens[0]));
	memmove(kept, kept + 1, (--ring->n_kept - i) * sizeof(*kept));
}

uint64_t session_ring_bytes(const struct session_ring *ring)
{
	uint64_t n = ring->charge.amount[USER_BYTES] + lent_bytes(ring->lent);

	for (uint32_t i = 0; i < ring->n_kept; i++)
		n += ring->kept[i].charge.amount[USER_BYTES];
	return n;
}

void session_ring_keep(struct session_ring *ring, const struct session_kept *kept)
{
	if (ring->n_kept == KVD_MAX_KEPT)
		kept_remove(ring, 0);
	ring->kept[ring->n_kept++] = *kept;
}

const struct session_kept *session_ring_find_kept(const struct session_ring *ring,
						  uint64_t user_data)
{
	for (uint32_t i = ring->n_kept; i--;)
		if (ring->kept[i].user_data == user_data)
			return &ring->kept[i];
	return NULL;
}

int session_ring_forget_kept(struct session_ring *ring, uint64_t user_data)
{
	int n = 0;

	for (uint32_t i = ring->n_kept; i--;)
		if (ring->kept[i].user_data == user_data) {
			kept_remove(ring, i);
			n++;
		}
	return n;
}

void session_ring_forget_all(struct session_ring *ring)
{
	while (ring->n_kept)
		kept_remove(ring, ring->n_kept - 1);
}
