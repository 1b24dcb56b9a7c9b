/* SPDX-License-Identifier: MIT */
/*
 * The socket that clients connect to, and who they are. Loop thread. Logs nothing.
 *
 * Owns one listening AF_UNIX SOCK_SEQPACKET socket, handed over by the service manager or made at
 * the configured path; then also that name and a lock file beside it (PATH.lock).
 */
#ifndef KVD_DAEMON_LISTENER_H
#define KVD_DAEMON_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/loop.h"

/* FileDescriptorName= in kvd.socket and kvd-admin.socket; their order may change at each start. */
#define LISTENER_FD_NAME       "kvd"
#define LISTENER_ADMIN_FD_NAME "kvd-admin"

#define LISTENER_BACKLOG 4096

/* @fd, @lock_fd: -1: none. @path: removed at the end, while @dev and @ino are those of our socket;
 * NULL: the manager owns it. @error: one line that says why a call failed */
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

/* An idle listener, which listener_deinit() may get. */
void listener_init(struct listener *listener);

/* Gets the socket that the service manager handed over as @name, before anything handed over is
 * closed, since libsystemd looks at all of it. Return: 1; 0: there is none; -errno: it is not what
 * it should be. */
int listener_take(struct listener *listener, const char *name);

/* Takes the lock and checks the name, before anything takes long. Return: as listener_open(). */
int listener_reserve(struct listener *listener, const char *path);

/* Makes the socket, of mode 0660, unless one was handed over. @path: at most 107 bytes. Return: 0;
 * -EADDRINUSE: another daemon serves there; -EEXIST: a file that is no socket is in the way;
 * -ENAMETOOLONG; -errno. */
int listener_open(struct listener *listener, const char *path);

int listener_start(struct listener *listener, struct loop *loop, loop_accept_fn fn);

/* Closes, and removes the name if it was made here and is still ours. Idempotent. */
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
