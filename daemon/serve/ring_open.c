/* SPDX-License-Identifier: MIT */
/* See ring_open.h. */
#include "daemon/serve/ring_open.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/engine/engine.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"

/* Cut operations off and end the ring. */
static void session_ring_free(struct session_ring *ring)
{
	struct sessions *sessions = ring->session->sessions;
	struct op *op;

	if (ring->encoded_op)
		encoder_forget(&sessions->encoder, &ring->encoding);
	while ((op = ring->ops)) {
		op_detach(op);
		if (op->seq_id)
			op_cancel(op);
		else
			op_free(op);
	}
	session_ring_forget_all(ring);
	session_ring_unwatch(ring);
	if (sessions->ending)
		ring_daemon_leave(&ring->ring);
	else
		ring_daemon_deinit(&ring->ring);
	user_charge_deinit(&ring->charge);
	ring->session->n_rings--;
	sessions->n_rings--;
	free(ring);
}

static int session_ring_make(struct session_ring *ring,
			     const struct kvd_msg_ring_open *msg)
{
	int r = ring_daemon_init(&ring->ring, msg->sq_entries, msg->cq_entries,
				 msg->in_bytes, msg->out_bytes);

	if (r)
		return r;
	r = session_ring_watch(ring);
	if (r)
		ring_daemon_deinit(&ring->ring);
	return r;
}

int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring)
{
	struct sessions *sessions = session->sessions;
	struct session_ring *ring;
	int r;

	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return -ENOMEM;
	ring->session = session;
	r = user_charge(&ring->charge, session->user, USER_BYTES,
			msg->in_bytes + msg->out_bytes);
	if (!r)
		r = session_ring_make(ring, msg);
	if (r) {
		user_charge_deinit(&ring->charge);
		free(ring);
		return r;
	}
	ring->id = ++session->next_ring_id;
	ring->next = session->rings;
	session->rings = ring;
	session->n_rings++;
	sessions->n_rings++;
	*ret_ring = ring;
	return 0;
}

int session_ring_close(struct session *session, uint32_t id)
{
	for (struct session_ring **at = &session->rings; *at; at = &(*at)->next) {
		struct session_ring *ring = *at;

		if (ring->id != id)
			continue;
		*at = ring->next;
		session_ring_free(ring);
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

void session_rings_close(struct session *session)
{
	struct session_ring *ring;

	while ((ring = session->rings)) {
		session->rings = ring->next;
		session_ring_free(ring);
	}
}
