/* SPDX-License-Identifier: MIT */
/*
 * The event loop of the daemon: readiness, accepted connections, timers, signals,
 * deferred calls, and a hook that decides how to wait.
 *
 * Owns the kernel object that it waits on (an io_uring or an epoll descriptor), a
 * table of watches and a heap of timers. Everything here belongs to one thread, the one
 * that called loop_new(); other threads wake it through an eventfd of their own.
 * Relies on nothing but libc, Linux and liburing. It does no I/O on the watched
 * descriptors except accept(), closes none of them, and logs nothing.
 *
 * Two back ends sit behind this interface and behave alike:
 *
 *   io_uring  one-shot POLL_ADD, re-armed when its callback has returned; multishot
 *             ACCEPT. The ring is created disabled, restricted to exactly the
 *             operations used here and then enabled, because a ring is not subject
 *             to the seccomp filter of the unit. Spinning costs no system call.
 *   epoll     where io_uring is forbidden, absent or not wanted.
 *
 * Watches are level triggered: as long as a condition holds and its watch is armed,
 * the callback is called in every iteration.
 *
 * Objects of the caller (struct loop_io and its kin) are embedded in what they serve.
 * The kernel is never given their address: it gets a table index and a generation.
 * So after loop_x_remove() has returned, also inside any callback, the callback is not
 * called again and the memory may be reused at once. The descriptor may then be closed;
 * remove first, close second. With io_uring the open file behind a closed descriptor
 * stays referenced until the loop next submits, before it next sleeps.
 *
 * One iteration:
 *
 *   +-> now -> due timers -> deferred -> prepare hook -> arm, wait -> now -> callbacks -+
 *   +-----------------------------------------------------------------------------------+
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
	LOOP_BACKEND_AUTO,     /* io_uring if the kernel lets us, else epoll */
	LOOP_BACKEND_IO_URING, /* or an error from loop_new() */
	LOOP_BACKEND_EPOLL,
};

/* Readiness bits. HUP and ERROR are reported whether asked for or not. */
enum {
	LOOP_READ = 1 << 0,
	LOOP_WRITE = 1 << 1,
	LOOP_HUP = 1 << 2,   /* the peer closed its side, or all of it */
	LOOP_ERROR = 1 << 3, /* error pending, or the descriptor cannot be watched */
};

/* Answers of the prepare hook that are not a number of nanoseconds. */
#define LOOP_POLL_AGAIN                                                                  \
	UINT64_C(0) /* look for events, do not block, call the hook again */
#define LOOP_SLEEP_FOREVER UINT64_MAX /* until an event or a timer */

typedef void (*loop_io_fn)(struct loop_io *io, uint32_t events);
/* @fd: an accepted connection, CLOEXEC and NONBLOCK, now the callee's; or -errno. */
typedef void (*loop_accept_fn)(struct loop_accept *accept, int fd);
/* A one-shot timer is idle by now, a periodic one already set to its next due time. */
typedef void (*loop_timer_fn)(struct loop_timer *timer, uint64_t now_ns);
typedef void (*loop_signal_fn)(struct loop_signal *signal, int signo);
typedef void (*loop_defer_fn)(struct loop_defer *defer);
/* Return: how long the loop may sleep, in ns; see LOOP_POLL_AGAIN, LOOP_SLEEP_FOREVER. */
typedef uint64_t (*loop_prepare_fn)(struct loop *loop, void *userdata);

/*
 * All of these are the caller's memory, zeroed before first use (a zeroed one is idle and
 * removing it is a no-op). The fields are the loop's; read them, do not write them.
 */
struct loop_io {
	struct loop *loop; /* NULL while idle */
	loop_io_fn fn;
	int fd;
	uint32_t events;
	uint32_t slot;
};

struct loop_timer {
	struct loop *loop; /* NULL while idle */
	loop_timer_fn fn;
	uint64_t due_ns;
	uint64_t period_ns; /* 0: one-shot */
	size_t position;    /* in the heap */
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
	struct loop *loop; /* NULL while not queued */
	loop_defer_fn fn;
	struct loop_defer *prev, *next;
};

/**
 * loop_new() - make a loop for the calling thread
 * @ret_loop: the loop, on success
 * @backend: which back end; AUTO also obeys $KVD_IO_BACKEND (io_uring or epoll)
 *
 * When AUTO ends up with epoll because io_uring was refused, the reason is kept for
 * loop_fallback(), so that the caller can log it.
 *
 * Return: 0, -EINVAL for an unknown back end, or the -errno of the step that failed.
 */
int loop_new(struct loop **ret_loop, enum loop_backend backend);

/* Cancels everything that is armed, closes what the loop owns. NULL is fine. Not to be
 * called from inside loop_run(). Return: NULL. */
struct loop *loop_free(struct loop *loop);

/* The back end in use, never AUTO, and its name as in the configuration. */
enum loop_backend loop_backend_of(const struct loop *loop);
const char *loop_backend_name(enum loop_backend backend);

/**
 * loop_fallback() - why AUTO did not choose io_uring
 * @ret_step: the step that was refused, a constant such as "io_uring_setup"
 *
 * Return: 0 if io_uring was not tried or works, else the -errno of that step.
 */
int loop_fallback(const struct loop *loop, const char **ret_step);

/**
 * loop_run() - dispatch events until loop_exit()
 *
 * Return: the code given to loop_exit(), which should be >= 0; or -errno if waiting
 * fails.
 */
int loop_run(struct loop *loop);

/* Makes loop_run() return @code at the end of the current iteration: callbacks whose
 * events were already collected still run, timers and deferred calls that are due do
 * not. */
void loop_exit(struct loop *loop, int code);

/* CLOCK_MONOTONIC in ns, read once or twice per iteration. */
uint64_t loop_now(const struct loop *loop);

/* Reads the clock again, after long work inside a callback. Return: the new loop_now().
 * */
uint64_t loop_now_refresh(struct loop *loop);

/**
 * loop_set_prepare() - install the hook that is asked before every wait
 * @fn: the hook, or NULL for "sleep until an event or a timer"
 *
 * The hook may add and remove anything and may do work. It is called with a fresh
 * loop_now(). A hook that wants to be woken by memory that others write must set its
 * NEED_WAKEUP flags, then look at the memory again, before it answers other than
 * LOOP_POLL_AGAIN.
 */
void loop_set_prepare(struct loop *loop, loop_prepare_fn fn, void *userdata);

/**
 * loop_io_add() - watch a descriptor
 * @io: idle watch
 * @fd: open descriptor; at most one watch for each descriptor
 * @events: LOOP_READ, LOOP_WRITE, LOOP_HUP; 0 makes a watch that is disarmed, so that not
 *          even HUP is reported
 * @fn: called with the events that hold; LOOP_HUP and LOOP_ERROR recur until the watch is
 *      removed or disarmed
 *
 * Return: 0; -ENOMEM; or what epoll says (io_uring reports a bad fd as LOOP_ERROR).
 */
int loop_io_add(struct loop *loop, struct loop_io *io, int fd, uint32_t events,
		loop_io_fn fn);

void loop_io_remove(struct loop_io *io);

/**
 * loop_accept_add() - accept connections
 * @fd: listening socket. Its O_NONBLOCK flag is set or cleared as the back end needs: with
 *      io_uring a non-blocking one would complete with -EAGAIN at once, for ever.
 * @fn: called for each connection, and with -errno for failures. After -EMFILE, -ENFILE,
 *      -ENOMEM and -ENOBUFS accepting pauses for 100 ms; connections wait in the backlog.
 *
 * Return: 0 or -errno.
 */
int loop_accept_add(struct loop *loop, struct loop_accept *accept, int fd,
		    loop_accept_fn fn);
void loop_accept_remove(struct loop_accept *accept);

/**
 * loop_timer_start() - call @fn once at @due_ns, and every @period_ns after
 * @timer: idle or running; a running one is moved
 * @due_ns: absolute, in loop_now() time; the past means the next iteration
 * @period_ns: 0 for one-shot. Periods that were missed are skipped, not made up for.
 *
 * Timers that are due at once run in order of due time. Moving a running timer cannot
 * fail.
 *
 * Return: 0 or -ENOMEM.
 */
int loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t due_ns,
		     uint64_t period_ns, loop_timer_fn fn);
void loop_timer_stop(struct loop_timer *timer);

/**
 * loop_signal_add() - call @fn when the process gets @signo
 *
 * Blocks the signal in the calling thread, so call it before other threads start. It
 * stays blocked after loop_signal_remove(). Signals of one number that arrive together
 * may be reported once. One handler for each signal.
 *
 * Return: 0, -EBUSY if @signo is taken, -EINVAL, -errno.
 */
int loop_signal_add(struct loop *loop, struct loop_signal *signal, int signo,
		    loop_signal_fn fn);
void loop_signal_remove(struct loop_signal *signal);

/**
 * loop_defer() - call @fn once, in this iteration, when the callbacks have returned
 *
 * Queued twice, it runs once. Queued by a deferred call, it runs in the next iteration,
 * which then does not block.
 */
void loop_defer(struct loop *loop, struct loop_defer *defer, loop_defer_fn fn);
void loop_defer_cancel(struct loop_defer *defer);

#endif
