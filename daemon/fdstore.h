/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that outlive this process: the service manager's FD store.
 *
 * Owns what came back at the start, until somebody takes it, and the names of what lies in the
 * store. Loop thread only. Relies on daemon/notify.h and on the names of daemon/listener.h,
 * whose sockets it leaves alone. Without a store all calls succeed and do nothing. Logs nothing.
 *
 *   start:  fdstore_init(), fdstore_take() by name, fdstore_drop() what nobody took
 *   later:  fdstore_push(), fdstore_remove(), fdstore_leave(), fdstore_barrier()
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

/**
 * struct fdstore_entry - one that lies in the store
 * @fd: of one that came back; -1: taken, or pushed by this process
 * @cut: the name is longer than this, so nobody knows it, and nobody can remove it
 */
struct fdstore_entry {
	int fd;
	bool cut;
	char name[FDSTORE_NAME_MAX];
};

/**
 * struct fdstore - see above
 * @max: what the store holds; 0: there is none
 * @no_wait: clients are served: a message that finds the manager's queue full is not sent
 * @entries: [n_entries] what lies in it as far as this side knows, first what came back, by the
 *	numbers at the end of the names
 */
struct fdstore {
	uint32_t max;
	bool no_wait;
	struct fdstore_entry *entries;
	uint32_t n_entries;
};

/* Take over what came back, once, at the start. Return: 0 or -errno; fdstore_deinit() is safe
 * after failure. */
int fdstore_init(struct fdstore *store);

/* Closes what nobody took; it stays in the store. Idempotent. */
void fdstore_deinit(struct fdstore *store);

/* Whether descriptors pushed now outlive this process. */
static inline bool fdstore_is_there(const struct fdstore *store)
{
	return store->max > 0;
}

/* Return: the descriptor, now the caller's and still in the store; -ENOENT; -EEXIST: two of one
 * name, which cannot be told apart. */
int fdstore_take(struct fdstore *store, const char *name);

/**
 * fdstore_take_next() - of names that begin with a prefix, the one of lowest number
 * @prefixes: up to NULL
 * @ret_name: [FDSTORE_NAME_MAX]
 *
 * Return: as fdstore_take(); -ENOENT when there is no more.
 */
int fdstore_take_next(struct fdstore *store, const char *const *prefixes, char *ret_name);

/* What nobody took leaves the store and is closed. @ret_name: [FDSTORE_NAME_MAX] one of them.
 * Return: how many. */
uint32_t fdstore_drop(struct fdstore *store, char *ret_name);

/**
 * fdstore_push() - keep a descriptor over the end of this process
 * @name: 1 .. FDSTORE_NAME_MAX - 1 printable bytes without a colon; not in use
 * @fd: stays the caller's; the store has a duplicate
 *
 * Return: 0; FDSTORE_FULL: not kept; -EAGAIN: not now; -EINVAL; -errno of sending.
 */
int fdstore_push(struct fdstore *store, const char *name, int fd);

/* The store forgets what lies there by this name, also of a former daemon, and what was not
 * taken is closed. Return: 0 or -errno. */
int fdstore_remove(struct fdstore *store, const char *name);

/* Likewise a socket that was shut down, which the manager lets go of by itself, too. */
void fdstore_leave(struct fdstore *store, const char *name);

/* Wait until the manager has acted on everything sent so far. Return: 0; -ETIMEDOUT; -errno. */
int fdstore_barrier(struct fdstore *store, uint64_t timeout_ns);

#endif
