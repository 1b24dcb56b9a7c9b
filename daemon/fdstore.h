/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that outlive this process: the service manager's FD store.
 *
 * Owns: the descriptors that came back from the store at the start, until somebody takes
 * them, and the names of what lies in the store. Loop thread only. Relies on
 * daemon/notify.h and on the names of daemon/listener.h, whose sockets it leaves alone. Does not know what the
 * descriptors mean, and logs nothing.
 *
 *   "kvpool", "kvimage"        block pool and its image (daemon/engine/engine_keep.c)
 *   "kvweights"                packed weights (daemon/engine/weights_keep.c)
 *   "client-N", "admin-N"      kept connections
 *
 *   start:  fdstore_init()     everything that came back but the listening sockets
 *           fdstore_take()     whoever knows a name takes its descriptor
 *           fdstore_drop()     what nobody took leaves the store and is closed
 *   later:  fdstore_push(), fdstore_remove(), fdstore_leave(), fdstore_barrier()
 *
 * A descriptor lies in the store until fdstore_remove(), until the manager sees the other
 * end of a socket hang up, or until the unit is stopped (restarted: it stays). So one that
 * was taken need not be pushed again.
 *
 * The manager drops what is beyond FileDescriptorStoreMax= and tells nobody. How much that
 * is stands in $FDSTORE, since systemd 254; before, in $KVD_FDSTORE_MAX, which kvd.service
 * sets beside it. With neither, or without $NOTIFY_SOCKET, there is no store: all calls
 * succeed and do nothing.
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
#define FDSTORE_CLIENT  "client-"
#define FDSTORE_ADMIN   "admin-"

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
 * @max: what the store holds at most; 0: there is none
 * @no_wait: clients are served: while the manager's queue is full it is told nothing, where
 *	before a message waits for room
 * @entries: [n_entries] what lies in it, as far as this side knows: first what came back, by
 *	the numbers at the end of their names. Sockets whose peer has gone leave by
 *	themselves, and are counted until fdstore_remove()
 */
struct fdstore {
	uint32_t max;
	bool no_wait;
	struct fdstore_entry *entries;
	uint32_t n_entries;
};

/**
 * fdstore_init() - take over what came back
 *
 * To be called once, at the start. All of it is closed on exec.
 *
 * Return: 0 or -errno. fdstore_deinit() is right after both.
 */
int fdstore_init(struct fdstore *store);

/* Closes what nobody took; it stays in the store. Idempotent. */
void fdstore_deinit(struct fdstore *store);

/* Whether descriptors pushed now outlive this process. */
static inline bool fdstore_is_there(const struct fdstore *store)
{
	return store->max > 0;
}

/**
 * fdstore_take() - a descriptor that came back
 * @name: all of its name
 *
 * Two of one name cannot be told apart, and neither is handed out.
 *
 * Return: the descriptor, now the caller's and still in the store; -ENOENT; -EEXIST.
 */
int fdstore_take(struct fdstore *store, const char *name);

/**
 * fdstore_take_next() - of those whose names begin with a prefix, the one of lowest number
 * @prefixes: up to NULL
 * @ret_name: [FDSTORE_NAME_MAX] its name; two of one name come one after the other
 *
 * The number is what the name ends with. In which order they lie in the store says nothing.
 *
 * Return: as fdstore_take(); -ENOENT when there is no more.
 */
int fdstore_take_next(struct fdstore *store, const char *const *prefixes, char *ret_name);

/**
 * fdstore_drop() - what nobody took leaves the store and is closed
 * @ret_name: [FDSTORE_NAME_MAX] one of their names, when there was any
 *
 * Return: how many.
 */
uint32_t fdstore_drop(struct fdstore *store, char *ret_name);

/**
 * fdstore_push() - keep a descriptor over the end of this process
 * @name: 1 .. FDSTORE_NAME_MAX - 1 printable bytes without a colon; not in use
 * @fd: stays the caller's; the store has a duplicate
 *
 * The manager acts on it when it gets to it: see fdstore_barrier().
 *
 * Return: 0, also without a store; FDSTORE_FULL: not kept; -EINVAL: such a name, or no
 * descriptor; -EAGAIN: @store->no_wait, not kept now; -errno of sending.
 */
int fdstore_push(struct fdstore *store, const char *name, int fd);

/* The store forgets what lies there by this name, whoever pushed it: a former daemon, too.
 * What came back by it and was not taken is closed. Return: 0 or -errno. */
int fdstore_remove(struct fdstore *store, const char *name);

/* Likewise a socket that was shut down, of which the manager lets go by itself, too: it is not
 * counted any more, even if the message cannot be sent. */
void fdstore_leave(struct fdstore *store, const char *name);

/**
 * fdstore_barrier() - wait until the manager has acted on everything sent so far
 * @timeout_ns: how long at most; the manager may be reloading
 *
 * Return: 0; -ETIMEDOUT; -errno.
 */
int fdstore_barrier(struct fdstore *store, uint64_t timeout_ns);

#endif
