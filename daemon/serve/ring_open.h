/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_OPEN_H
#define KVD_DAEMON_SERVE_RING_OPEN_H

/* What RING_OPEN and RING_CLOSE do, and the rings of a session that ends. Thread: loop. */

#include <stdbool.h>
#include <stdint.h>

#include <kvd/proto.h>

struct session;
struct session_ring;

/*
 * Makes a ring and watches it. @msg: within the limits of WELCOME; the shape is checked here.
 * Return: 0, -EDQUOT beyond max_arena or max_rings of its user, or as ring_daemon_init().
 */
int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring);

/* One that its client never got. */
void session_ring_drop(struct session_ring *ring);

/* Its operations end now, its memory in turns of its own; then RING_CLOSED with @tag is sent.
 * Return: 0, -ENOENT. */
int session_ring_close(struct session *session, uint32_t id, uint32_t tag);

/* Cancels what runs; each operation gets its SCHED_FINISHED as usual. */
void session_rings_cancel(struct session *session);

/* The session ends: the same for all rings, and at last a turn of the session instead of a message.
 * Return: whether there are any. */
bool session_rings_close(struct session *session);

/* All of it at once. */
void session_rings_free(struct session *session);

#endif
