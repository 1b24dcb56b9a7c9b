/* SPDX-License-Identifier: MIT */
/*
 * The socket that clients connect to, and who they are.
 *
 * A listener owns one listening AF_UNIX SOCK_SEQPACKET socket: handed over by the service
 * manager (an activated descriptor, found by its name), or made here at the configured
 * path. In the second case it also owns the name in the file system and a lock file beside it
 * (PATH.lock), and removes the name again. Loop thread only. Relies on daemon/loop.h for
 * accepting. It knows nothing of what is said on a connection, and logs nothing.
 *
 * A name that is left over from a daemon that died is taken over, but only when the lock
 * was free and a probe connection was refused: whoever still answers keeps its socket.
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

struct listener {
	int fd;      /* -1: closed */
	int lock_fd; /* -1: none */
	char *path;  /* name to remove at the end; NULL if the manager owns it */
	dev_t dev;   /* of that name, so that only ours is removed */
	ino_t ino;
	bool activated;
	struct loop_accept accept; /* for the owner: container_of() in its callback */
	char error[256];           /* one line that says why listener_open() failed */
};

/* An idle listener: fd and lock_fd -1. listener_deinit() on it is a no-op. */
void listener_init(struct listener *listener);

/**
 * listener_take() - get a socket that the service manager handed over
 * @listener: initialised
 * @name: FileDescriptorName= of its socket unit
 *
 * Before any of what was handed over is closed: libsystemd looks at all of them. One that is
 * not what it should be is an error, so that a mistake in kvd.socket is seen.
 *
 * Return: 1; 0 if there is none of this name; -errno with listener->error filled: -ENOTSOCK
 * or -EPROTOTYPE: wrong kind of descriptor; -EEXIST: two of them.
 */
int listener_take(struct listener *listener, const char *name);

/**
 * listener_reserve() - all that listener_open() does but for the socket itself
 *
 * Takes the lock and sees that the name can be used, so that a mistake shows before anything
 * takes long. Return: as listener_open().
 */
int listener_reserve(struct listener *listener, const char *path);

/**
 * listener_open() - get the listening socket
 * @listener: initialised; what listener_take() found stays
 * @path: where to make it if none was handed over; at most 107 bytes; its folder exists
 *
 * The new socket has mode 0660 and LISTENER_BACKLOG.
 *
 * Return: 0; on failure -errno with listener->error filled: -EADDRINUSE (another daemon
 * serves there), -ENAMETOOLONG, -EEXIST (a file that is no socket is in the way), -ENOENT, -EACCES, ...
 */
int listener_open(struct listener *listener, const char *path);

/* Starts accepting: @fn is called by the loop as described at loop_accept_add(). */
int listener_start(struct listener *listener, struct loop *loop, loop_accept_fn fn);

/* Stops accepting and closes; removes the name if it was made here and is still ours.
 * Idempotent. */
void listener_deinit(struct listener *listener);

/* Identity of a peer as the kernel recorded it at connect(). Decisions use uid and gid
 * only: a pid may have been reused, it is for display. */
struct peer_cred {
	uid_t uid;
	gid_t gid;
	pid_t pid;
};

/* SO_PEERCRED of a connected AF_UNIX socket. Any thread. Return: 0 or -errno. */
int peer_cred_get(int fd, struct peer_cred *ret_cred);

#endif
