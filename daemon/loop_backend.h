/* SPDX-License-Identifier: MIT */
/*
 * What loop.c and its two back ends share; nobody else but tests includes this. Loop thread.
 *
 * loop.c decides what a slot should watch; a back end makes the kernel agree and turns what it says
 * into loop_dispatch_x() calls. The kernel has a key, (generation << 32 | index), never an address.
 * Every change of a slot steps its generation: a completion from before no longer matches.
 */
#ifndef KVD_DAEMON_LOOP_BACKEND_H
#define KVD_DAEMON_LOOP_BACKEND_H

#include <signal.h>

#include "daemon/loop.h"

#define LOOP_NO_SLOT UINT32_MAX

struct loop_slot {
	union {
		struct loop_io *io;
		struct loop_accept *accept;
		void *watch; /* NULL: slot is free */
	};
	uint32_t generation; /* never 0, so that no key is 0 */
	uint32_t next;       /* free slots */
	uint32_t next_dirty; /* io_uring: slots to arm before the next wait */
	uint32_t events;     /* wanted; 0: disarmed */
	int fd;
	bool is_accept;
	bool armed; /* the kernel holds a request or an entry for this generation */
	bool dirty; /* is in the dirty list */
};

/* Back ends get the index of a slot that loop.c has filled in. @open sets @ret_step on failure;
 * @prepare_accept: a descriptor for accepting; @add, @modify: the kernel is to agree with
 * slot->events; @remove: the slot is about to be freed; @wait: at most @timeout_ns, and dispatch.
 * Return: 0 or -errno. */
struct loop_backend_ops {
	int (*open)(struct loop *loop, const char **ret_step);
	void (*close)(struct loop *loop);
	int (*prepare_accept)(int fd);
	int (*add)(struct loop *loop, uint32_t index);
	int (*modify)(struct loop *loop, uint32_t index);
	void (*remove)(struct loop *loop, uint32_t index);
	int (*wait)(struct loop *loop, uint64_t timeout_ns);
};

extern const struct loop_backend_ops loop_uring_ops;
extern const struct loop_backend_ops loop_epoll_ops;

struct loop {
	const struct loop_backend_ops *ops;
	enum loop_backend backend;
	void *state;
	int fallback;
	const char *fallback_step;

	struct loop_slot *slots;
	uint32_t n_slots;
	uint32_t free_slot;

	uint64_t now_ns;
	bool exiting;
	int exit_code;

	loop_prepare_fn prepare;
	void *prepare_userdata;

	struct loop_timer **timers; /* binary heap, least due_ns first */
	size_t n_timers, max_timers;

	struct loop_defer deferred; /* head of a circular list */
	struct loop_defer running;  /* those taken by this iteration */

	struct loop_io signal_io;
	int signal_fd;
	sigset_t signal_mask;
	struct loop_signal *signals[65]; /* by number; 64 is SIGRTMAX */
};

static inline uint64_t loop_slot_key(const struct loop *loop, uint32_t index)
{
	return (uint64_t)loop->slots[index].generation << 32 | index;
}

/* Return: the slot if @key still means it, else NULL. */
static inline struct loop_slot *loop_slot_find(struct loop *loop, uint64_t key)
{
	uint32_t index = (uint32_t)key;

	if (index >= loop->n_slots || !loop->slots[index].watch ||
	    loop->slots[index].generation != key >> 32)
		return NULL;
	return &loop->slots[index];
}

static inline void loop_slot_renew(struct loop_slot *slot)
{
	if (++slot->generation == 0)
		slot->generation = 1;
}

/* Call the watch behind @key, if there still is one. Slots may move meanwhile. */
void loop_dispatch_io(struct loop *loop, uint64_t key, uint32_t events);
/* @fd: connection, or -errno. Closes the connection if nobody is there to take it. */
void loop_dispatch_accept(struct loop *loop, uint64_t key, int fd);

/* LOOP_* to and from POLLIN and its kin, which EPOLLIN and its kin equal. */
uint32_t loop_events_to_poll(uint32_t events);
uint32_t loop_events_from_poll(uint32_t poll_events);

/* Runs what is due at loop->now_ns; the due time of the next, or UINT64_MAX. */
void loop_timers_run(struct loop *loop);
uint64_t loop_timers_next(const struct loop *loop);

/* The struct io_uring behind a loop, so that a test can try what is forbidden. */
struct io_uring;
struct io_uring *loop_uring_ring(struct loop *loop);

#endif
