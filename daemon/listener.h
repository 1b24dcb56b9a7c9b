/* SPDX-License-Identifier: MIT */
/*
 * The socket that clients connect to, and who they are.
 *
 * Owns one listening AF_UNIX SOCK_SEQPACKET socket, handed over by the service manager or made
 * at the configured path; then also that name and a lock file beside it (PATH.lock). Loop
 * thread. Knows nothing of what is said on a connection, and logs nothing.
 */
#ifndef KVD_DAEMON_LISTENER_H
#define KVD_DAEMON_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/loop.h"

/* FileDescriptorName= in kvd.socket and in kvd-admin.socket. The order in which sockets
 * are handed over changes from start to start. */
#define LISTENER_FD_NAME       "kvd"
#define LISTENER_ADMIN_FD_NAME "kvd-admin"

#define LISTENER_BACKLOG 4096

/**
 * struct listener - see above
 * @fd, @lock_fd: -1: none
 * @path: name to remove at the end, while @dev and @ino are those of our socket; NULL if the
 *	manager owns it
 * @error: one line that says why a call failed
 */
struct listener {
	int fd;
	int lock_fd;
	char *path;
	dev_t dev;
	ino_t ino;
	bool activated;
	struct loop_accept accept;
	char error[256];
};

/* An idle listener: fd and lock_fd -1. listener_deinit() on it is a no-op. */
void listener_init(struct listener *listener);

/**
 * listener_take() - get a socket that the service manager handed over
 * @name: FileDescriptorName= of its socket unit
 *
 * Before anything that was handed over is closed: libsystemd looks at all of it.
 *
 * Return: 1; 0 if there is none of this name; -errno for one that is not what it should be.
 */
int listener_take(struct listener *listener, const char *name);

/* Takes the lock and sees that the name can be used, before anything takes long. Return: as
 * listener_open(). */
int listener_reserve(struct listener *listener, const char *path);

/**
 * listener_open() - get the listening socket, unless one was handed over
 * @path: at most 107 bytes; the socket gets mode 0660
 *
 * Return: 0; -EADDRINUSE: another daemon serves there; -EEXIST: a file that is no socket is in
 * the way; -ENAMETOOLONG; -errno.
 */
int listener_open(struct listener *listener, const char *path);

int listener_start(struct listener *listener, struct loop *loop, loop_accept_fn fn);

/* Stops accepting and closes; removes the name if it was made here and is still ours.
 * Idempotent. */
void listener_deinit(struct listener *listener);

/* As the kernel recorded it at connect(). A pid may have been reused: it is for display. */
struct peer_cred {
	uid_t uid;
	gid_t gid;
	pid_t pid;
};

/* SO_PEERCRED of a connected AF_UNIX socket. Any thread. Return: 0 or -errno. */
int peer_cred_get(int fd, struct peer_cred *ret_cred);

#endif
