/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_PARTING_H
#define KVD_DAEMON_SERVE_PARTING_H

/*
 * Sockets of sessions that have ended and that cannot be closed yet: descriptors lie in them.
 *
 *   what lies there           why it is kept                        until
 *   ours, unread by the peer  the kernel counts them against the    the peer has read or closed
 *                             daemon: nobody would pay for them
 *   the peer's, unread by us  closing the last of a TCP connection  a thread has closed them
 *                             may wait, by SO_LINGER
 *
 * The connection stays charged to its user until then. Thread: loop; and "kvd-closer" on kernels
 * before 6.16, from the first connection on.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/engine/worker.h"
#include "daemon/loop.h"

struct parting;
struct user;
struct users;

/* @list: oldest first; @draining: the one that the worker has */
struct partings {
	struct loop *loop;
	struct users *users;
	struct parting *list;
	struct parting *draining;
	struct loop_timer timer;
	struct worker worker;
	struct loop_io io;
};

/* There are peers who may send descriptors: makes the thread, once. Return: 0 or -errno. */
int partings_be_wary(struct partings *partings);

/**
 * parting_add() - shut a socket down, and close it when that costs nothing
 * @fd:      taken
 * @user:    disconnected when it is closed; NULL: none was charged
 * @uid:     for the log
 * @wary:    fdpass_refuse() could not
 * @has_fds: the daemon sent descriptors through it
 */
void parting_add(struct partings *partings, int fd, struct user *user, uid_t uid,
		 bool wary, bool has_fds);

/* Closes all, but for what the thread does not come to an end with. Idempotent. */
void partings_deinit(struct partings *partings);

#endif
