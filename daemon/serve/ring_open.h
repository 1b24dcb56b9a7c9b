/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_OPEN_H
#define KVD_DAEMON_SERVE_RING_OPEN_H

/* What RING_OPEN and RING_CLOSE do, and the rings of a session that ends. Thread: loop. */

#include <stdint.h>

#include <kvd/proto.h>

struct session;
struct session_ring;

/*
 * Makes a ring and watches it. @msg: within the limits of WELCOME; the shape is checked here.
 * Return: 0, -EDQUOT beyond max_arena of its user, or as ring_daemon_init().
 */
int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring);

/* Return: 0, -ENOENT. */
int session_ring_close(struct session *session, uint32_t id);

/* Cancels what runs; each operation gets its SCHED_FINISHED as usual. */
void session_rings_cancel(struct session *session);

/* Detaches all operations and ends all rings. */
void session_rings_close(struct session *session);

#endif
