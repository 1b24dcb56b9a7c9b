/* SPDX-License-Identifier: MIT */
/* See ring_open.h. */
#include "daemon/serve/ring_open.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/lent.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "ipc/base.h"
#include "ipc/proto.h"

/* Bytes that are zeroed before the clock is looked at. */
#define SCRUB_SLICE (64u << 10)

/* Cuts operations off. What is left of the ring is its memory. */
static void session_ring_detach(struct session_ring *ring)
{
	struct op *op;

	if (ring->held_op)
		encoder_forget(&ring->session->sessions->encoder, &ring->encoding);
	ring->held_op = NULL;
	token_list_deinit(&ring->encoded.list);
	output_deinit(&ring->output);
	while ((op = ring->ops)) {
		op_detach(op);
		if (op->seq_id)
			op_cancel(op);
		else
			op_free(op);
	}
	session_ring_forget_all(ring);
	session_ring_unwatch(ring);
}

static void session_ring_free(struct session_ring *ring)
{
	struct session *session = ring->session;
	struct session_ring **at = &session->rings;

	while (*at != ring)
		at = &(*at)->next;
	*at = ring->next;
	turn_stop(&ring->turn);
	if (session->sessions->ending)
		ring_daemon_leave(&ring->ring);
	else
		ring_daemon_deinit(&ring->ring);
	lent_end(ring->lent);
	user_charge_deinit(&ring->charge);
	session->n_rings--;
	session->sessions->n_rings--;
	session->user->counts.rings--;
	free(ring);
}

/* The memory of a ring that ends is wiped, in as many turns as that takes, and given back; who
 * waits for that learns it. */
static bool session_ring_end_run(struct turn *turn)
{
	struct session_ring *ring = container_of(turn, struct session_ring, turn);
	struct session *session = ring->session;
	struct kvd_msg_hdr msg;

	while (!ring_daemon_scrub(&ring->ring, SCRUB_SLICE))
		if (turns_due(&session->sessions->turns))
			return true;
	proto_hdr_init(&msg, KVD_MSG_RING_CLOSED, sizeof(msg), ring->close_tag, 0);
	session_ring_free(ring);
	if (session->state == SESSION_CLOSING) {
		if (!session->rings)
			session_turn(session);
	} else {
		session->n_ending--;
		session_reply(session, &msg, sizeof(msg));
	}
	return true;
}

static void session_ring_end(struct session_ring *ring)
{
	static const struct turn_kind kind = {session_ring_end_run, NULL};
	struct session *session = ring->session;

	if (ring->ending)
		return;
	ring->ending = true;
	session_ring_detach(ring);
	turn_start(&session->sessions->turns, &session->user->turns, &ring->turn, &kind);
}

/* The last descriptors are kept for administrators. */
static bool session_ring_fits(const struct session_ring *ring)
{
	const struct session *session = ring->session;
	int fds[KVD_RING_N_FDS];

	if (session->by_admin_socket)
		return true;
	ring_daemon_get_fds(&ring->ring, fds);
	for (int i = 0; i < KVD_RING_N_FDS; i++)
		if (fds[i] >= session->sessions->client_files)
			return false;
	return true;
}

static int session_ring_make(struct session_ring *ring,
			     const struct kvd_msg_ring_open *msg)
{
	int r = ring_daemon_init(&ring->ring, msg->sq_entries, msg->cq_entries,
				 msg->in_bytes, msg->out_bytes);

	if (r)
		return r;
	r = session_ring_fits(ring) ? session_ring_watch(ring) : -EMFILE;
	if (r)
		ring_daemon_deinit(&ring->ring);
	else
		lent_watch(ring->lent, ring->ring.d2c.fd);
	return r;
}

/* What only the daemon keeps goes with the ring; what the client reads, when it lets go. */
static int session_ring_charge(struct session_ring *ring,
			       const struct kvd_ring_geometry *geometry)
{
	struct session *session = ring->session;
	int r = lent_new(&session->sessions->lent, session->user, geometry->d2c_bytes,
			 &ring->lent);

	if (r)
		return r;
	return user_charge(&ring->charge, session->user, USER_BYTES, geometry->c2d_bytes);
}

int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring)
{
	struct sessions *sessions = session->sessions;
	struct kvd_ring_geometry geometry;
	struct session_ring *ring;
	int r;

	r = ring_geometry_init(&geometry, msg->sq_entries, msg->cq_entries, msg->in_bytes,
			       msg->out_bytes);
	if (r)
		return r;
	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return error_origin(-ENOMEM);
	ring->session = session;
	r = session_ring_charge(ring, &geometry);
	if (!r)
		r = session_ring_make(ring, msg);
	if (r) {
		if (ring->lent)
			lent_end(ring->lent);
		user_charge_deinit(&ring->charge);
		free(ring);
		return r;
	}
	ring->id = ++session->next_ring_id;
	ring->next = session->rings;
	session->rings = ring;
	session->n_rings++;
	sessions->n_rings++;
	session->user->counts.rings++;
	*ret_ring = ring;
	return 0;
}

void session_ring_drop(struct session_ring *ring)
{
	session_ring_detach(ring);
	session_ring_free(ring);
}

int session_ring_close(struct session *session, uint32_t id, uint32_t tag)
{
	for (struct session_ring *ring = session->rings; ring; ring = ring->next) {
		if (ring->id != id || ring->ending)
			continue;
		ring->close_tag = tag;
		session->n_ending++;
		session_ring_end(ring);
		return 0;
	}
	return -ENOENT;
}

void session_rings_cancel(struct session *session)
{
	for (struct session_ring *ring = session->rings; ring; ring = ring->next)
		for (struct op *op = ring->ops; op; op = op->next)
			op_cancel(op);
}

bool session_rings_close(struct session *session)
{
	for (struct session_ring *ring = session->rings; ring; ring = ring->next)
		session_ring_end(ring);
	return session->rings;
}

void session_rings_free(struct session *session)
{
	while (session->rings) {
		session_ring_end(session->rings);
		session_ring_free(session->rings);
	}
}
