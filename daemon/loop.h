/* SPDX-License-Identifier: MIT */
/*
 * The event loop: readiness, accepted connections, timers, signals, deferred calls, and a hook that
 * decides how to wait.
 *
 * Owns an io_uring or an epoll descriptor, the table of watches and the timers. One thread; others
 * wake it through an eventfd of their own. Does no I/O on watched descriptors but accept(), closes
 * none of them, logs nothing.
 *
 * Watches are level triggered, but for LOOP_EDGE, and embedded in what they serve. After
 * loop_x_remove(), also inside a callback, the callback is not called and the memory is free.
 * Remove first, close second.
 */
#ifndef KVD_DAEMON_LOOP_H
#define KVD_DAEMON_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;
struct loop_io;
struct loop_accept;
struct loop_timer;
struct loop_signal;
struct loop_defer;

enum loop_backend {
	LOOP_BACKEND_AUTO, /* io_uring if the kernel lets us, else epoll */
	LOOP_BACKEND_IO_URING,
	LOOP_BACKEND_EPOLL,
};

/* Readiness bits. HUP and ERROR are reported whether asked for or not. */
enum {
	LOOP_READ = 1 << 0,
	LOOP_WRITE = 1 << 1,
	LOOP_HUP = 1 << 2,   /* the peer closed its side, or all of it */
	LOOP_ERROR = 1 << 3, /* error pending, or the descriptor cannot be watched */
};

/* Beside LOOP_READ, of an eventfd: report each signal, once or several together, and not that it
 * can be read; so nobody has to read it. What was signalled before it is watched is reported. */
#define LOOP_EDGE (UINT32_C(1) << 4)

/*
 * Answers of the prepare hook that are not a number of nanoseconds: look for events, do not
 * block, call the hook again; sleep until an event or a timer.
 */
#define LOOP_POLL_AGAIN    UINT64_C(0)
#define LOOP_SLEEP_FOREVER UINT64_MAX

typedef void (*loop_io_fn)(struct loop_io *io, uint32_t events);
/* @fd: an accepted connection, CLOEXEC and NONBLOCK, now the callee's; or -errno. */
typedef void (*loop_accept_fn)(struct loop_accept *accept, int fd);
typedef void (*loop_timer_fn)(struct loop_timer *timer, uint64_t now_ns);
typedef void (*loop_signal_fn)(struct loop_signal *signal, int signo);
typedef void (*loop_defer_fn)(struct loop_defer *defer);
/* Return: how long the loop may sleep, in ns; or one of the above. */
typedef uint64_t (*loop_prepare_fn)(struct loop *loop, void *userdata);

/* These are the caller's memory, zeroed before first use. Fields are read, not written: they are
 * the loop's. @loop is NULL while idle. */
struct loop_io {
	struct loop *loop;
	loop_io_fn fn;
	int fd;
	uint32_t events;
	uint32_t slot;
};

struct loop_timer {
	struct loop *loop;
	loop_timer_fn fn;
	uint64_t due_ns;
	uint64_t period_ns; /* 0: one-shot */
	size_t position;
};

struct loop_accept {
	struct loop *loop;
	loop_accept_fn fn;
	int fd;
	uint32_t slot;
	struct loop_timer pause; /* runs while descriptors or memory are short */
};

struct loop_signal {
	struct loop *loop;
	loop_signal_fn fn;
	int signo;
};

struct loop_defer {
	struct loop *loop;
	loop_defer_fn fn;
	struct loop_defer *prev, *next;
};

/* A loop for the calling thread. AUTO also obeys $KVD_IO_BACKEND (io_uring or epoll). Return: 0;
 * -EINVAL: no such back end; -errno of the step that failed. */
int loop_new(struct loop **ret_loop, enum loop_backend backend);

/* Not from inside loop_run(). NULL is fine. Return: NULL. */
struct loop *loop_free(struct loop *loop);

/* The back end in use, never AUTO, and its name as in the configuration. */
enum loop_backend loop_backend_of(const struct loop *loop);
const char *loop_backend_name(enum loop_backend backend);

/* Why AUTO did not choose io_uring. @ret_step: what was refused, such as "io_uring_setup". Return:
 * 0: it was not tried, or works; -errno of that step. */
int loop_fallback(const struct loop *loop, const char **ret_step);

/* Dispatches until loop_exit(). Return: its code, or -errno if waiting fails. */
int loop_run(struct loop *loop);

/* Ends loop_run() after this iteration's callbacks; timers and deferred calls no longer run.
 * @code: >= 0. */
void loop_exit(struct loop *loop, int code);

/* CLOCK_MONOTONIC in ns, as of this iteration, and again when the prepare hook is called after
 * timers or deferred calls; or read again, after long work. */
uint64_t loop_now(const struct loop *loop);
uint64_t loop_now_refresh(struct loop *loop);

/* Installs the hook that is asked before every wait; NULL: sleep until an event or a timer. It may
 * add, remove and work. One that is woken by shared memory sets its NEED_WAKEUP flags, then looks
 * again, before it answers other than LOOP_POLL_AGAIN. */
void loop_set_prepare(struct loop *loop, loop_prepare_fn fn, void *userdata);

/* Watches @fd, which has no other watch. @events: LOOP_READ, LOOP_EDGE, LOOP_WRITE, LOOP_HUP; 0:
 * disarmed, not even HUP is reported. Return: 0; -ENOMEM; what epoll says (io_uring reports a bad
 * fd as LOOP_ERROR). */
int loop_io_add(struct loop *loop, struct loop_io *io, int fd, uint32_t events,
		loop_io_fn fn);
int loop_io_modify(struct loop_io *io, uint32_t events);
void loop_io_remove(struct loop_io *io);

/* Accepts connections. @fd: its O_NONBLOCK is set or cleared as the back end needs. @fn: also for
 * failures; accepting pauses for 100 ms while descriptors or memory are short. Return: 0 or
 * -errno. */
int loop_accept_add(struct loop *loop, struct loop_accept *accept, int fd,
		    loop_accept_fn fn);
void loop_accept_remove(struct loop_accept *accept);

/* Calls @fn at @due_ns, absolute (the past: in the next iteration), and every @period_ns after,
 * unless 0; missed periods are skipped. Moving a running timer cannot fail. Return: 0 or
 * -ENOMEM. */
int loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t due_ns,
		     uint64_t period_ns, loop_timer_fn fn);
void loop_timer_stop(struct loop_timer *timer);

/* Calls @fn when the process gets @signo, which stays blocked in the calling thread: call it before
 * other threads start. Return: 0; -EBUSY: @signo is taken; -EINVAL; -errno. */
int loop_signal_add(struct loop *loop, struct loop_signal *signal, int signo,
		    loop_signal_fn fn);
void loop_signal_remove(struct loop_signal *signal);

/* Calls @fn once, when the callbacks of this iteration have returned; queued by a deferred call, in
 * the next one. */
void loop_defer(struct loop *loop, struct loop_defer *defer, loop_defer_fn fn);
void loop_defer_cancel(struct loop_defer *defer);

#endif
