/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_INTERNAL_H
#define KVD_CLIENT_INTERNAL_H

/*
 * What lies behind the handles of <kvclient.h>.
 *
 * Locks: client.ctl_lock serialises the socket (one request and its reply at a
 * time) and guards the list of rings; client.pool_lock guards the hidden rings
 * of the blocking calls. ctl_lock may be taken inside of no other lock but
 * nothing is taken inside of it. A ring has no lock; it belongs to one thread.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvclient.h>

#include "client/arena.h"
#include "ipc/ring.h"

/**
 * struct kvc_client - one connection
 * @guard:    a page that fork() gives to the child as zeros: 1 in the process
 *            that connected
 * @dead:     the socket is at its end; set by any thread, never cleared
 * @buf:      [KVD_MSG_MAX] for replies, under ctl_lock
 * @rings:    every open ring, also hidden ones, under ctl_lock
 * @idle:     hidden rings that no call uses, linked by next_idle, under pool_lock
 * @n_hidden: hidden rings open, idle or in use
 */
struct kvc_client {
	int sock;
	const uint32_t *guard;
	int dead;
	int64_t timeout_ns;
	int64_t spin_ns;
	struct kvd_server_info server;
	struct kvd_model_info model;

	pthread_mutex_t ctl_lock;
	uint32_t next_tag;
	uint8_t *buf;
	struct kvc_ring *rings;

	pthread_mutex_t pool_lock;
	pthread_cond_t pool_cond;
	struct kvc_ring *idle;
	unsigned n_hidden;
};

/**
 * struct kvc_sqe - a request being prepared
 * @out, @out2: where the output goes: SCORE: ids and logprobs; else @out only
 * @cap:        elements there
 * @top:        SCORE: alternatives, or NULL
 */
struct kvc_sqe {
	uint64_t user_data;
	uint8_t opcode;
	uint8_t flags;
	struct kvc_input input;
	const struct kvc_gen_opts *opts;
	void *out;
	void *out2;
	size_t cap;
	const struct kvc_top *top;
	uint64_t target;
};

/**
 * struct request - one in flight
 * @serial: goes to the wire beside the index, so that a stray CQE is noticed
 * @top:    SCORE: copy of what was asked for; top.top 0: nothing
 * @res:    of a request that this side ended, which @ended tells
 * @next:   in the free list or the list of ended ones; index + 1, 0 ends it
 */
struct request {
	uint64_t user_data;
	uint64_t in_off;
	uint64_t out_off;
	uint32_t in_len;
	uint32_t out_len;
	void *out;
	void *out2;
	size_t cap;
	struct kvc_top top;
	uint32_t serial;
	uint32_t next;
	int32_t res;
	uint8_t opcode;
	bool used;
	bool ended;
	bool keep;
};

/* A request that ended and that the daemon keeps for FORK: what it is called there. */
struct kept {
	uint64_t user_data;
	uint64_t wire;
};

/**
 * struct kvc_ring - one ring
 * @sqes:       [ring.sq_entries] prepared entries, from sqe_head to sqe_tail
 * @reqs:       [n_reqs]
 * @free_req:   free list
 * @kept, @n_kept: the last KVD_MAX_KEPT that were kept, round and round
 * @ended_head, @ended_tail: requests that this side ended, to be given out
 * @cqe:        given out and not yet seen
 * @faulty:     KVD_E_PROTO: the daemon's words made no sense
 * @epoll_fd:   kvc_ring_event_fd(), -1 before; holds the doorbell, the socket and
 *              @wake_fd, an eventfd for requests that this side ended
 * @spin_now:   nanoseconds to poll before sleeping; learned
 * @n_empty:    empty peeks since the socket was looked at
 */
struct kvc_ring {
	struct kvc_client *client;
	struct ring_client ring;
	struct kvc_sqe *sqes;
	uint32_t sqe_head;
	uint32_t sqe_tail;
	struct request *reqs;
	uint32_t n_reqs;
	uint32_t free_req;
	uint32_t ended_head;
	uint32_t ended_tail;
	uint32_t in_flight;
	struct kept kept[KVD_MAX_KEPT];
	uint32_t n_kept;
	bool has_cqe;
	bool faulty;
	struct kvd_cqe cqe;
	struct arena in;
	struct arena out;
	int64_t spin_now;
	uint32_t n_empty;
	uint32_t ring_id;
	int epoll_fd;
	int wake_fd;
	struct kvc_ring *next;
	struct kvc_ring *prev;
	struct kvc_ring *next_idle;
};

/* error.c: note what went wrong for kvc_errmsg(), and return @rc. */
int kvc_fail(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with the code's own text, and the number that explains it if any. */
int kvc_fail_status(int rc, uint64_t detail);

/* client.c */
static inline bool client_forked(const struct kvc_client *c)
{
	return *(const volatile uint32_t *)c->guard != 1;
}

static inline bool client_dead(const struct kvc_client *c)
{
	return __atomic_load_n(&c->dead, __ATOMIC_RELAXED);
}

static inline void client_set_dead(struct kvc_client *c)
{
	__atomic_store_n(&c->dead, 1, __ATOMIC_RELAXED);
}

/* 0, or -EOWNERDEAD, -ECONNRESET with the text set. */
int client_check(struct kvc_client *c);

/* Look at the socket without waiting: has the daemon hung up? */
bool client_poll_dead(struct kvc_client *c);

/**
 * ctl_call() - control.c: one request and its reply
 * @msg:   [len], starts with a header, whose len, type and tag are filled in
 * @reply: expected type; an ERROR fails with its status and text
 * @min:   least length of the reply
 * @ret:   [size] the reply
 * @fds:   [KVD_RING_N_FDS] descriptors that must come, or NULL for none
 *
 * Takes ctl_lock. Return: 0, -ETIME, -ECONNRESET, the daemon's status.
 */
int ctl_call(struct kvc_client *c, void *msg, size_t len, uint16_t type, uint16_t reply,
	     size_t min, void *ret, size_t size, int *fds);

/* The same with ctl_lock held; the reply is in c->buf, its length is returned. */
int ctl_call_locked(struct kvc_client *c, void *msg, size_t len, uint16_t type,
		    uint16_t reply, int *fds);

/* ring.c */
int ring_open(struct kvc_client *c, struct kvc_ring **ret, uint32_t sq_entries,
	      uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes);
/* In a child after fork(), or with the connection gone: tell nobody. */
void ring_free(struct kvc_ring *r, bool forked);

/* submit.c: bytes that a prepared entry takes in the input arena; 0: too many. */
uint64_t input_bytes(const struct kvc_sqe *sqe);
/* Bytes that its output takes at most in the output arena. */
uint64_t output_bytes(const struct kvc_sqe *sqe);

/* ring.c: the request has ended; free what it held. */
void request_release(struct kvc_ring *r, struct request *q);
/* End it from this side with @res; a CQE will be given out. */
void request_end(struct kvc_ring *r, struct request *q, int res);

#endif
