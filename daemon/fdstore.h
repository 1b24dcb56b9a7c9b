/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that outlive this process: the service manager's FD store. Loop thread.
 *
 * Owns what came back at the start, until it is taken, and the names of what lies in the store.
 * Relies on notify.h; leaves the sockets that listener.h names alone. Without a store all calls
 * succeed and do nothing. Logs nothing.
 */
#ifndef KVD_DAEMON_FDSTORE_H
#define KVD_DAEMON_FDSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FDSTORE_NAME_MAX 32

#define FDSTORE_POOL    "kvpool"
#define FDSTORE_IMAGE   "kvimage"
#define FDSTORE_WEIGHTS "kvweights"
/* Kept connections, with their numbers. */
#define FDSTORE_CLIENT "client-"
#define FDSTORE_ADMIN  "admin-"

/* Named condition of fdstore_push(). */
enum { FDSTORE_FULL = 1 };

/* One that lies in the store. @fd: of one that came back; -1: taken, or pushed by this process.
 * @cut: its name is longer than this: it is unknown here, and cannot be removed */
struct fdstore_entry {
	int fd;
	bool cut;
	char name[FDSTORE_NAME_MAX];
};

/* @max: what the store holds; 0: there is none. @no_wait: clients are served: a message that finds
 * the manager's queue full is not sent. @entries: [n_entries] what came back, by the numbers at the
 * end of the names, then what was pushed */
struct fdstore {
	uint32_t max;
	bool no_wait;
	struct fdstore_entry *entries;
	uint32_t n_entries;
};

/* Takes over what came back, once, at the start. Return: 0 or -errno; fdstore_deinit() is safe
 * after failure. */
int fdstore_init(struct fdstore *store);

/* Closes what nobody took; it stays in the store. Idempotent. */
void fdstore_deinit(struct fdstore *store);

static inline bool fdstore_is_there(const struct fdstore *store)
{
	return store->max > 0;
}

/* Return: the descriptor, now the caller's and still in the store; -ENOENT; -EEXIST: two of it. */
int fdstore_take(struct fdstore *store, const char *name);

/* Of the names that begin with one of @prefixes, up to NULL, the one of lowest number. @ret_name:
 * [FDSTORE_NAME_MAX]. Return: as fdstore_take(). */
int fdstore_take_next(struct fdstore *store, const char *const *prefixes, char *ret_name);

/* What nobody took leaves the store and is closed. @ret_name: [FDSTORE_NAME_MAX] one of them.
 * Return: how many. */
uint32_t fdstore_drop(struct fdstore *store, char *ret_name);

/* Keeps a duplicate of @fd over the end of this process. @name: 1 .. FDSTORE_NAME_MAX - 1 printable
 * bytes without a colon, not in use. Return: 0; FDSTORE_FULL; -EAGAIN: not now; -EINVAL; -errno. */
int fdstore_push(struct fdstore *store, const char *name, int fd);

/* Forgets what lies there by this name, also of a former daemon, and closes what was not taken.
 * Return: 0 or -errno. */
int fdstore_remove(struct fdstore *store, const char *name);

/* The same for a socket that was shut down, which the manager also drops by itself. */
void fdstore_leave(struct fdstore *store, const char *name);

/* Waits until the manager has acted on everything sent so far. Return: 0; -ETIMEDOUT; -errno. */
int fdstore_barrier(struct fdstore *store, uint64_t timeout_ns);

#endif
