/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_INTERNAL_H
#define KVD_CLIENT_INTERNAL_H

/*
 * What is behind the handles of <kvclient.h>. What happens when the daemon dies is in recover.c.
 *
 * Locks: client.ctl_lock serialises the socket (one request and its reply at a time) and guards
 * the state, what WELCOME said, the list of rings, their memory and descriptors. It may be held
 * for as long as the daemon takes to answer: threads that look for completions only try it, and
 * readers of what WELCOME said take client.info_lock. client.pool_lock guards the hidden rings of
 * the blocking calls. ctl_lock is taken inside no other lock, and only info_lock inside it. A
 * ring has no lock; it belongs to one thread, which also opens it again after a restart.
 *
 * Files call downwards only (lint): call, event, client; complete; submit; resend | ring, control;
 * recover; reopen; request, opts, link, arena, error.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvclient.h>

#include "client/arena.h"
#include "ipc/base.h"
#include "ipc/ring.h"

/* Where a connection stands. Written under ctl_lock, read by any thread; DEAD is for good. */
enum client_state {
	CLIENT_OK,
	CLIENT_SILENT,
	CLIENT_HELLO,
	CLIENT_GONE,
	CLIENT_DEAD,
};

/**
 * struct kvc_client - one connection
 * @sock: keeps its number for ever; a new connection is put behind it
 * @guard: 1 in the process that connected, 0 in children: fork() zeroes the page
 * @state: enum client_state
 * @epoch: counts the handshakes that succeeded; a ring belongs to one of them
 * @reconnect_ns: how long to try with @reconnect; negative: for ever
 * @lost_ns: when the state was last OK
 * @retry_ns: GONE: when to connect next
 * @pause_ns: how long a request that was lost too often is held back at first
 * @hello_tag, @hello_ns: HELLO: what WELCOME will repeat, and when it was sent
 * @slow: SILENT only because RING_OPEN was not answered in time
 * @notice_tag: of the newest notice that is not answered; 0: none
 * @timer_fd: for event loops, -1 before: when to look with no descriptor ready
 * @missed: some ring's is set
 * @info_lock: guards server and model, besides ctl_lock
 * @buf: [KVD_MSG_MAX] for replies, under ctl_lock
 * @rings: open ones, hidden ones included, under ctl_lock
 * @idle, @dropped: hidden rings, linked by next_idle under pool_lock: that no call uses; that
 *	could not be closed in time
 * @n_hidden: hidden rings open, in any state
 */
struct kvc_client {
	int sock;
	const uint32_t *guard;
	int state;
	uint32_t epoch;
	bool reconnect;
	int64_t reconnect_ns;
	uint64_t lost_ns;
	uint64_t retry_ns;
	uint64_t pause_ns;
	uint32_t hello_tag;
	uint64_t hello_ns;
	bool slow;
	uint32_t notice_tag;
	int timer_fd;
	int64_t timeout_ns;
	int64_t spin_ns;
	char *path;
	char name[KVD_NAME_MAX];
	struct kvd_server_info server;
	struct kvd_model_info model;

	pthread_mutex_t ctl_lock;
	pthread_mutex_t info_lock;
	bool missed;
	uint32_t next_tag;
	uint8_t *buf;
	struct kvc_ring *rings;

	pthread_mutex_t pool_lock;
	pthread_cond_t pool_cond;
	struct kvc_ring *idle;
	struct kvc_ring *dropped;
	unsigned n_hidden;
};

/* out, out2: [cap] ids and logprobs of SCORE; else out only. score_opts have their own outputs. */
struct kvc_sqe {
	uint64_t user_data;
	uint8_t opcode;
	uint32_t flags;
	struct kvc_input input;
	const struct kvc_gen_opts *opts;
	const struct kvc_score_opts *score_opts;
	void *out;
	void *out2;
	size_t cap;
	uint64_t target;
};

/* How much of an answer was given out, and a hash that does not depend on where it was cut. */
struct progress {
	uint64_t token_hash;
	uint64_t byte_hash;
	uint64_t n_bytes;
	uint32_t n_tokens;
};

/**
 * struct kvc_request - one in flight
 * @wire: as it was submitted, for resending; user_data is @serial << 32 | index, so that a stray
 *	CQE is noticed
 * @deadline_ns: of GENERATE and FORK with timeout_ms, else 0
 * @given: of the answer, to the caller
 * @again: of the answer after a restart; what @given has is skipped
 * @res, @detail: of a request that this side has @ended, or will end
 * @n_lost: restarts (@n_lives) and refusals (@n_refused) since a CQE was given out, weighted
 * @n_seqs: GENERATE and FORK: sequences of it that have not ended
 * @next: in the free list or the list of ended ones; index + 1, 0 ends it
 * @shown: CQEs with MORE were given out
 * @replay: @again has not caught up with @given
 * @unsent: to be submitted when there is room
 * @held: until hold_ns; then unsent
 * @resent: to another daemon than the first
 * @doomed: the answer has changed: swallow it, then end with @res
 */
struct kvc_request {
	uint64_t user_data;
	uint32_t serial;
	uint32_t next;
	uint64_t in_off;
	uint64_t out_off;
	uint32_t in_len;
	uint32_t out_len;
	void *out;
	void *out2;
	size_t cap;
	int32_t res;
	uint64_t detail;
	uint8_t opcode;
	uint8_t n_lost;
	uint8_t n_lives;
	uint8_t n_refused;
	uint8_t n_seqs;
	bool used;
	bool ended;
	bool keep;
	bool several;
	bool shown;
	bool replay;
	bool unsent;
	bool held;
	bool resent;
	bool doomed;
	uint64_t hold_ns;
	uint64_t deadline_ns;
	struct progress given;
	struct progress again;
	struct kvd_sqe wire;
	struct kvc_score_opts score;
};

/* user_data on the wire that no request has: of this side's CANCEL; of a kept request that a
 * restart has lost. */
#define WIRE_NOBODY UINT64_MAX
#define WIRE_LOST   (UINT64_MAX - 1)

/* A request that ended and that the daemon keeps for FORK. */
struct kept {
	uint64_t user_data;
	uint64_t wire;
};

/* A RING_OPEN that nobody waits for, under ctl_lock, sent in @epoch; @tag 0: none is pending.
 * look_ns: when to give up, or with tag 0 to try again; 0: never. status: 1: opened and fds are the
 * answer; negative: refused; 0: none yet. */
struct reopen {
	uint32_t tag;
	uint32_t epoch;
	uint64_t look_ns;
	int status;
	struct kvd_msg_ring_opened opened;
	int fds[KVD_RING_N_FDS];
};

/**
 * struct kvc_ring - one ring
 * @sqes: [ring.sq_entries] prepared entries, from sqe_head to sqe_tail
 * @reqs: [n_reqs], with a free list from @free_req
 * @ended_head, @ended_tail: requests that this side ended, to be given out
 * @n_cancels: CANCELs of this side whose CQE has not come
 * @n_unsent: requests to be submitted again, from @unsent_at on
 * @n_held: requests held back; the first until @hold_ns, 0: look; @hold_fd is a timer for that
 *	in @epoll_fd, or -1
 * @kept, @n_kept: a ring of the last KVD_MAX_KEPT
 * @hup: its pipe has hung up: the daemon that made it is dead
 * @fault: 0, or why the ring cannot be used any more
 * @cqe: given out and not yet seen, while @has_cqe
 * @ready: [ring.cq_entries] from the first batch on: CQEs given out together and not yet seen,
 *	@n_ready of them from @ready_at on, before @cqe
 * @missed: it found ctl_lock taken, and is to be woken when that is free
 * @spin_now: nanoseconds to poll before sleeping; learned
 * @spin_doubts: how many short sleeps are let pass before the full time is tried again,
 *	@spin_doubted of them so far
 * @wait_ns: when the wait at hand began to poll, 0: not yet
 * @looked_ns: when a peek last looked at the socket
 * @epoch, @n_vocab, @fingerprint: of the client and the model when it was opened
 * @epoll_fd: kvc_ring_event_fd(), -1 before: the doorbell, the socket, the client's timer and
 *	@wake_fd, an eventfd for this side's events. Set once, by the ring's thread; other
 *	threads load them whole
 * @unwatched: @epoll_fd lacks the client's descriptors
 */
struct kvc_ring {
	struct kvc_client *client;
	struct ring_client ring;
	struct kvc_sqe *sqes;
	uint32_t sqe_head;
	uint32_t sqe_tail;
	struct kvc_request *reqs;
	uint32_t n_reqs;
	uint32_t free_req;
	uint32_t ended_head;
	uint32_t ended_tail;
	uint32_t in_flight;
	uint32_t n_cancels;
	uint32_t n_unsent;
	uint32_t unsent_at;
	uint32_t n_held;
	uint64_t hold_ns;
	int hold_fd;
	struct kept kept[KVD_MAX_KEPT];
	uint32_t n_kept;
	bool has_cqe;
	bool hup;
	int fault;
	struct kvd_cqe cqe;
	struct kvd_cqe *ready;
	uint32_t ready_at;
	uint32_t n_ready;
	struct arena in;
	struct arena out;
	bool missed;
	int64_t spin_now;
	uint32_t spin_doubts;
	uint32_t spin_doubted;
	uint64_t wait_ns;
	uint64_t looked_ns;
	uint32_t ring_id;
	uint32_t epoch;
	uint64_t opened_ns;
	struct reopen reopen;
	uint32_t n_vocab;
	uint8_t fingerprint[32];
	int epoll_fd;
	int wake_fd;
	bool unwatched;
	struct kvc_ring *next;
	struct kvc_ring *prev;
	struct kvc_ring *next_idle;
};

/* error.c: text for kvc_errmsg(). Return: @rc. */
int kvc_fail(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with the code's own text, and its number if any. */
int kvc_fail_status(int rc, uint64_t detail);
int kvc_fail_usage(int rc, const struct kvd_cqe_usage *usage);

/* link.c */
static inline bool client_forked(const struct kvc_client *c)
{
	return *(const volatile uint32_t *)c->guard != 1;
}

static inline enum client_state client_state(const struct kvc_client *c)
{
	return (enum client_state)__atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
}

static inline uint32_t client_epoch(const struct kvc_client *c)
{
	return __atomic_load_n(&c->epoch, __ATOMIC_ACQUIRE);
}

/* Has the daemon of this ring gone? */
static inline bool ring_stale(const struct kvc_ring *r)
{
	return r->hup || client_state(r->client) != CLIENT_OK ||
	       client_epoch(r->client) != r->epoch;
}

/* Deadlines are monotonic; 0: never. */
static inline uint64_t deadline_after(int64_t timeout_ns)
{
	return timeout_ns < 0 ? 0 : clock_ns() + (uint64_t)timeout_ns;
}

static inline uint64_t deadline_sooner(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

/* ctl_lock. client_lock_until(): 0, -ETIME. */
void client_lock(struct kvc_client *c);
int client_lock_until(struct kvc_client *c, uint64_t deadline_ns);
/* Also wakes the event loops of rings that missed it. */
void client_unlock(struct kvc_client *c);
/* Never waits. If the lock is taken and @r is stale, its event loop will be woken. */
bool client_trylock(struct kvc_ring *r);
/* Wake the event loop of @r, if it has one. Any thread. */
void ring_wake(struct kvc_ring *r);

/* Return: 0, or with the text set -EOWNERDEAD, -ECONNRESET. */
int client_check(struct kvc_client *c);
/* @wait: while the daemon's backlog is full, until @deadline_ns. Return: 0, -errno with the text
 * set. */
int client_open_socket(struct kvc_client *c, bool wait, uint64_t deadline_ns,
		       int *ret_sock);
void client_hello_init(const struct kvc_client *c, struct kvd_msg_hello *hello);
/* Under ctl_lock. Return: 0, KVD_E_VERSION. */
int client_welcome(struct kvc_client *c, const struct kvd_msg_welcome *welcome);
/* The largest arenas that the daemon grants, in bytes of whole pages. */
void client_max_arenas(const struct kvc_client *c, uint64_t *ret_in, uint64_t *ret_out);
/* To the handshake and the model that are current. Under ctl_lock. */
void ring_bind(struct kvc_ring *r);

/* request.c */
void request_release(struct kvc_ring *r, struct kvc_request *q);
/* From this side: a CQE with @res will be given out. */
void request_end(struct kvc_ring *r, struct kvc_request *q, int res);

/* reopen.c: open a stale ring at the daemon that is there now. Under ctl_lock; nothing waits. */

/* The next step, by the ring's own thread: ask, or take the answer, which replaces r->ring.
 * Return: 0: it is open; -EAGAIN: not yet; else why it cannot be used any more. */
int reopen_step(struct kvc_ring *r, bool *ret_same_model);
/* A packet that no call waits for. Return: whether its descriptors are taken. */
bool reopen_answered(struct kvc_client *c, const void *packet, size_t len, const int *fds,
		     size_t n_fds);
/* The packet in c->buf, zeroed before, came without its descriptors, for which this process has
 * no room. Return: whether it was for a ring, and does not answer @own_tag. */
bool reopen_cut(struct kvc_client *c, uint32_t own_tag);
/* The daemon lives: pending requests get their full time again. */
void reopen_go_on(struct kvc_client *c);
/* RING_CLOSE, without waiting. */
void reopen_send_close(struct kvc_client *c, uint32_t ring_id);
/* When to call reopen_look(); 0: never. */
uint64_t reopen_next_look(const struct kvc_client *c);
/* Return: whether an answer is overdue. */
bool reopen_look(struct kvc_client *c);
/* @tell: close a ring that the daemon may have opened. */
void reopen_forget(struct kvc_ring *r, bool tell);

/* recover.c: a connection that is lost and made again. Under ctl_lock, or takes it. */

/* @state: SILENT or GONE. */
void client_lost(struct kvc_client *c, enum client_state state);
void client_noticed(struct kvc_client *c, const struct kvd_msg_notice *notice);
/* As reopen_answered() and reopen_cut(), for anything that shows that the daemon lives. */
bool client_took(struct kvc_client *c, const void *packet, size_t len, const int *fds,
		 size_t n_fds);
bool client_took_cut(struct kvc_client *c, uint32_t own_tag);
/* After a change of when client_attend() is due. */
void client_set_timer(struct kvc_client *c);
/* Put the client's descriptors into the epoll of @r. Return: 0, -errno. */
int client_watch(struct kvc_client *c, struct kvc_ring *r);

/* Read the socket, and do the next step if it is lost; a hang-up of @r shows that its daemon is
 * dead. Takes ctl_lock if it is free, never waits. Return: false if it was not free. */
bool client_attend(struct kvc_ring *r);
/* Wait until the state is OK. Takes ctl_lock. Return: 0, -ETIME, -ECONNRESET. */
int client_recover(struct kvc_client *c, uint64_t deadline_ns);

/**
 * ctl_call() - control.c: one request and its reply
 * @msg: [len], starts with a header, whose len, type and tag are filled in
 * @reply: expected type; an ERROR fails with its status and text
 * @min: least length of the reply
 * @ret: [size] the reply
 *
 * Takes ctl_lock. Waits for a daemon that is away, and repeats a request that changes nothing if
 * the daemon dies. Return: 0, -ETIME, -ECONNRESET, KVD_E_RESTARTED, the daemon's status.
 */
int ctl_call(struct kvc_client *c, void *msg, size_t len, uint16_t type, uint16_t reply,
	     size_t min, void *ret, size_t size);

/* The same up to the reply, which is in c->buf. @deadline_ns: of the caller, for all of it; each
 * answer has timeout_ns besides. @fds: [KVD_RING_N_FDS] descriptors that must come, or NULL.
 * Return: its length, with ctl_lock held until ctl_end(); or the failure, without it. */
int ctl_begin(struct kvc_client *c, void *msg, size_t len, uint16_t type, uint16_t reply,
	      uint64_t deadline_ns, int *fds);
void ctl_end(struct kvc_client *c);

/* Once, with ctl_lock held and the state OK. KVD_E_RESTARTED: lost meanwhile. */
int ctl_call_locked(struct kvc_client *c, void *msg, size_t len, uint16_t type,
		    uint16_t reply, uint64_t deadline_ns, int *fds);

/* ring.c */
int ring_open(struct kvc_client *c, struct kvc_ring **ret, uint32_t sq_entries,
	      uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes,
	      uint64_t deadline_ns);
/* Return: 0: it is gone; -ETIME: ctl_lock was taken, the ring is unchanged. */
int ring_close(struct kvc_ring *r, uint64_t deadline_ns);
/* Without the daemon: in a child after fork(), or with the connection gone. */
void ring_free(struct kvc_ring *r, bool forked);

/* resend.c: open a stale ring again and submit what is in flight; its CQ must be empty. Never
 * waits. Return: 0; -EAGAIN: not yet; else why the ring cannot be used any more. */
int ring_reopen(struct kvc_ring *r);
/* Submit unsent requests as far as there is room. */
void ring_pump(struct kvc_ring *r);
/* @q's final CQE, r->cqe, is a limit's refusal. Return: whether it will be submitted again. */
bool ring_refused(struct kvc_ring *r, struct kvc_request *q);
/* After hold_fd has expired. */
void ring_clear_alarm(struct kvc_ring *r);
/* Note r->cqe, one of @q with MORE, and cut from it what the caller has already. Return: false if
 * nothing remains. */
bool ring_progress(struct kvc_ring *r, struct kvc_request *q);

/* submit.c: what a prepared entry takes in the input arena, 0: too much; and at most in the output
 * arena. */
uint64_t input_bytes(const struct kvc_sqe *sqe);
uint64_t output_bytes(const struct kvc_sqe *sqe);

/* complete.c: the daemon that made the ring is dead. */
void ring_hup(struct kvc_ring *r);
bool ring_has_ready(const struct kvc_ring *r, unsigned n);
int ring_wait_until(struct kvc_ring *r, const struct kvd_cqe **ret_cqe,
		    uint64_t deadline_ns);

#endif
