/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_OPEN_H
#define KVD_DAEMON_SERVE_RING_OPEN_H

/*
 * Rings from the first to the last moment: what RING_OPEN and RING_CLOSE do, and the end of
 * a session with operations in flight. Thread: loop.
 */

#include <stdint.h>

#include <kvd/proto.h>

struct session;
struct session_ring;

/**
 * session_ring_open() - make a ring and watch it
 * @msg: within the limits of WELCOME; the shape is checked here
 *
 * Return: 0; -EDQUOT: beyond max_arena of its user; -EINVAL and others as
 * ring_daemon_init().
 */
int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring);

/* Return: 0, -ENOENT. */
int session_ring_close(struct session *session, uint32_t id);

/* Cancel what runs for the session; its operations end by the usual way. */
void session_rings_cancel(struct session *session);

/* Cut operations off and end all rings. */
void session_rings_close(struct session *session);

#endif
