/* SPDX-License-Identifier: MIT */
#include "daemon/loop.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "daemon/log.h"
#include "ipc/base.h"

#include "daemon/loop_backend.h"

#define ACCEPT_PAUSE_NS UINT64_C(100000000)
#define MAX_SLOTS       (UINT32_C(1) << 24)

const char *loop_backend_name(enum loop_backend backend)
{
	switch (backend) {
	case LOOP_BACKEND_AUTO:
		return "auto";
	case LOOP_BACKEND_IO_URING:
		return "io_uring";
	case LOOP_BACKEND_EPOLL:
		return "epoll";
	}
	return "unknown";
}

static int backend_open(struct loop *loop, enum loop_backend backend)
{
	bool uring = backend == LOOP_BACKEND_IO_URING;
	const char *step;
	int r;

	loop->ops = uring ? &loop_uring_ops : &loop_epoll_ops;
	r = loop->ops->open(loop, &step);
	if (r < 0) {
		loop->fallback_step = step;
		return r;
	}
	loop->backend = backend;
	return 0;
}

static int backend_choose(struct loop *loop, enum loop_backend backend)
{
	const char *wish;
	int r;

	if (backend == LOOP_BACKEND_AUTO) {
		wish = getenv("KVD_IO_BACKEND");
		if (wish && strcmp(wish, "io_uring") == 0)
			backend = LOOP_BACKEND_IO_URING;
		else if (wish && strcmp(wish, "epoll") == 0)
			backend = LOOP_BACKEND_EPOLL;
	}
	if (backend != LOOP_BACKEND_AUTO)
		return backend_open(loop, backend);
	r = backend_open(loop, LOOP_BACKEND_IO_URING);
	if (r == 0)
		return 0;
	/* Whatever stands in the way of io_uring does not stand in the way of epoll. */
	loop->fallback = r;
	return backend_open(loop, LOOP_BACKEND_EPOLL);
}

int loop_new(struct loop **ret_loop, enum loop_backend backend)
{
	struct loop *loop;
	int r;

	if (backend != LOOP_BACKEND_AUTO && backend != LOOP_BACKEND_IO_URING &&
	    backend != LOOP_BACKEND_EPOLL)
		return error_origin(-EINVAL);
	loop = calloc(1, sizeof(*loop));
	if (!loop)
		return error_origin(-ENOMEM);
	loop->free_slot = LOOP_NO_SLOT;
	loop->signal_fd = -1;
	loop->deferred.next = loop->deferred.prev = &loop->deferred;
	loop->running.next = loop->running.prev = &loop->running;
	sigemptyset(&loop->signal_mask);
	loop_now_refresh(loop);
	r = backend_choose(loop, backend);
	if (r < 0) {
		free(loop);
		return r;
	}
	*ret_loop = loop;
	return 0;
}

struct loop *loop_free(struct loop *loop)
{
	if (!loop)
		return NULL;
	loop_io_remove(&loop->signal_io);
	loop->ops->close(loop);
	if (loop->signal_fd >= 0)
		close(loop->signal_fd);
	free(loop->timers);
	free(loop->slots);
	free(loop);
	return NULL;
}

enum loop_backend loop_backend_of(const struct loop *loop)
{
	return loop->backend;
}

int loop_fallback(const struct loop *loop, const char **ret_step)
{
	if (loop->fallback && ret_step)
		*ret_step = loop->fallback_step;
	return loop->fallback;
}

uint64_t loop_now(const struct loop *loop)
{
	return loop->now_ns;
}

uint64_t loop_now_refresh(struct loop *loop)
{
	loop->now_ns = clock_ns();
	return loop->now_ns;
}

void loop_set_prepare(struct loop *loop, loop_prepare_fn fn, void *userdata)
{
	loop->prepare = fn;
	loop->prepare_userdata = userdata;
}

void loop_exit(struct loop *loop, int code)
{
	loop->exiting = true;
	loop->exit_code = code;
}

/* Deferred calls. */

static void defer_unlink(struct loop_defer *defer)
{
	defer->prev->next = defer->next;
	defer->next->prev = defer->prev;
	defer->next = defer->prev = NULL;
	defer->loop = NULL;
}

void loop_defer(struct loop *loop, struct loop_defer *defer, loop_defer_fn fn)
{
	defer->fn = fn;
	if (defer->loop)
		return;
	defer->loop = loop;
	defer->prev = loop->deferred.prev;
	defer->next = &loop->deferred;
	defer->prev->next = defer->next->prev = defer;
}

void loop_defer_cancel(struct loop_defer *defer)
{
	if (defer->loop)
		defer_unlink(defer);
}

static bool defer_pending(const struct loop *loop)
{
	return loop->deferred.next != &loop->deferred;
}

static void defer_run(struct loop *loop)
{
	struct loop_defer *defer;

	if (defer_pending(loop)) {
		/* Those queued from here on belong to the next iteration. A former run
		 * that was cut short by loop_exit() may have left some: they go first. */
		loop->deferred.next->prev = loop->running.prev;
		loop->running.prev->next = loop->deferred.next;
		loop->deferred.prev->next = &loop->running;
		loop->running.prev = loop->deferred.prev;
		loop->deferred.next = loop->deferred.prev = &loop->deferred;
	}
	while (!loop->exiting && loop->running.next != &loop->running) {
		defer = loop->running.next;
		defer_unlink(defer);
		defer->fn(defer);
	}
}

/*
 * One iteration:
 *
 *   +-> now -> due timers -> deferred -> prepare hook -> arm, wait -> now -> callbacks -+
 *   +-----------------------------------------------------------------------------------+
 */
int loop_run(struct loop *loop)
{
	uint64_t timeout, due;
	bool late;
	int r;

	loop->exiting = false;
	loop->exit_code = 0;
	while (!loop->exiting) {
		loop_now_refresh(loop);
		late = defer_pending(loop) || loop_timers_next(loop) <= loop->now_ns;
		loop_timers_run(loop);
		defer_run(loop);
		if (loop->exiting)
			break;
		if (late)
			loop_now_refresh(loop);
		timeout = LOOP_SLEEP_FOREVER;
		if (loop->prepare)
			timeout = loop->prepare(loop, loop->prepare_userdata);
		if (loop->exiting)
			break;
		if (defer_pending(loop))
			timeout = 0;
		due = loop_timers_next(loop);
		if (due <= loop->now_ns)
			timeout = 0;
		else if (due != UINT64_MAX && due - loop->now_ns < timeout)
			timeout = due - loop->now_ns;
		r = loop->ops->wait(loop, timeout);
		if (r < 0)
			return r;
	}
	return loop->exit_code;
}

/* Watches. */

static int slots_grow(struct loop *loop)
{
	uint32_t n = loop->n_slots ? loop->n_slots * 2 : 64;
	struct loop_slot *slots;

	if (n > MAX_SLOTS)
		return error_origin(-ENOMEM);
	slots = reallocarray(loop->slots, n, sizeof(*slots));
	if (!slots)
		return error_origin(-ENOMEM);
	loop->slots = slots;
	for (uint32_t i = n; i-- > loop->n_slots;) {
		slots[i] = (struct loop_slot){
			.generation = 1,
			.next = loop->free_slot,
			.fd = -1,
		};
		loop->free_slot = i;
	}
	loop->n_slots = n;
	return 0;
}

/* The key stays valid for the kernel until slot_release(). */
static int slot_acquire(struct loop *loop, void *watch, int fd, uint32_t events,
			bool is_accept, uint32_t *ret_index)
{
	struct loop_slot *slot;
	uint32_t index;
	int r;

	if (loop->free_slot == LOOP_NO_SLOT) {
		r = slots_grow(loop);
		if (r < 0)
			return r;
	}
	index = loop->free_slot;
	slot = &loop->slots[index];
	loop->free_slot = slot->next;
	assert(!slot->watch && !slot->armed);
	slot->watch = watch;
	slot->fd = fd;
	slot->events = events;
	slot->is_accept = is_accept;
	r = loop->ops->add(loop, index);
	if (r < 0) {
		slot->watch = NULL;
		slot->next = loop->free_slot;
		loop->free_slot = index;
		return r;
	}
	*ret_index = index;
	return 0;
}

static void slot_release(struct loop *loop, uint32_t index)
{
	struct loop_slot *slot = &loop->slots[index];

	assert(slot->watch);
	loop->ops->remove(loop, index);
	loop_slot_renew(slot);
	slot->watch = NULL;
	slot->armed = false;
	slot->next = loop->free_slot;
	loop->free_slot = index;
}

int loop_io_add(struct loop *loop, struct loop_io *io, int fd, uint32_t events,
		loop_io_fn fn)
{
	uint32_t index;
	int r;

	assert(!io->loop);
	if (fd < 0)
		return error_origin(-EBADF);
	r = slot_acquire(loop, io, fd, events, false, &index);
	if (r < 0)
		return r;
	*io = (struct loop_io){
		.loop = loop, .fn = fn, .fd = fd, .events = events, .slot = index};
	return 0;
}

int loop_io_modify(struct loop_io *io, uint32_t events)
{
	io->events = events;
	io->loop->slots[io->slot].events = events;
	return io->loop->ops->modify(io->loop, io->slot);
}

void loop_io_remove(struct loop_io *io)
{
	if (!io->loop)
		return;
	slot_release(io->loop, io->slot);
	io->loop = NULL;
}

void loop_dispatch_io(struct loop *loop, uint64_t key, uint32_t events)
{
	struct loop_slot *slot = loop_slot_find(loop, key);

	if (slot && !slot->is_accept)
		slot->io->fn(slot->io, events);
}

/* Accepting. */

int loop_accept_add(struct loop *loop, struct loop_accept *accept, int fd,
		    loop_accept_fn fn)
{
	uint32_t index;
	int r;

	assert(!accept->loop);
	if (fd < 0)
		return error_origin(-EBADF);
	r = loop->ops->prepare_accept(fd);
	if (r < 0)
		return r;
	r = slot_acquire(loop, accept, fd, LOOP_READ, true, &index);
	if (r < 0)
		return r;
	*accept = (struct loop_accept){.loop = loop, .fn = fn, .fd = fd, .slot = index};
	return 0;
}

void loop_accept_remove(struct loop_accept *accept)
{
	if (!accept->loop)
		return;
	loop_timer_stop(&accept->pause);
	slot_release(accept->loop, accept->slot);
	accept->loop = NULL;
}

static int accept_listen(struct loop_accept *accept, uint32_t events)
{
	accept->loop->slots[accept->slot].events = events;
	return accept->loop->ops->modify(accept->loop, accept->slot);
}

static void accept_resume(struct loop_timer *timer, uint64_t now_ns)
{
	struct loop_accept *accept = container_of(timer, struct loop_accept, pause);

	/* Memory may still be short; try again later rather than never. */
	if (accept_listen(accept, LOOP_READ) < 0)
		(void)loop_timer_start(accept->loop, timer, now_ns + ACCEPT_PAUSE_NS, 0,
				       accept_resume);
}

void loop_dispatch_accept(struct loop *loop, uint64_t key, int fd)
{
	struct loop_slot *slot = loop_slot_find(loop, key);
	struct loop_accept *accept;

	if (!slot || !slot->is_accept) {
		if (fd >= 0)
			close(fd);
		return;
	}
	accept = slot->accept;
	if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS) {
		/* The condition that woke us stays true, so waiting for it would spin. */
		if (loop_timer_start(loop, &accept->pause, loop->now_ns + ACCEPT_PAUSE_NS,
				     0, accept_resume) == 0)
			(void)accept_listen(accept, 0);
	}
	accept->fn(accept, fd);
}

/* Signals. */

static void signals_read(struct loop_io *io, uint32_t events)
{
	struct loop *loop = container_of(io, struct loop, signal_io);
	struct signalfd_siginfo info;
	struct loop_signal *signal;

	while (read(loop->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		signal = info.ssi_signo < 65 ? loop->signals[info.ssi_signo] : NULL;
		if (signal)
			signal->fn(signal, (int)info.ssi_signo);
	}
}

int loop_signal_add(struct loop *loop, struct loop_signal *signal, int signo,
		    loop_signal_fn fn)
{
	sigset_t mask = loop->signal_mask;
	int fd, r;

	assert(!signal->loop);
	if (signo < 1 || signo > 64)
		return error_origin(-EINVAL);
	if (loop->signals[signo])
		return error_origin(-EBUSY);
	sigaddset(&mask, signo);
	r = pthread_sigmask(SIG_BLOCK, &mask, NULL);
	if (r != 0)
		return -r;
	fd = signalfd(loop->signal_fd, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return error_origin(-errno);
	loop->signal_fd = fd;
	if (!loop->signal_io.loop) {
		r = loop_io_add(loop, &loop->signal_io, fd, LOOP_READ, signals_read);
		if (r < 0)
			return r;
	}
	loop->signal_mask = mask;
	loop->signals[signo] = signal;
	*signal = (struct loop_signal){.loop = loop, .fn = fn, .signo = signo};
	return 0;
}

void loop_signal_remove(struct loop_signal *signal)
{
	struct loop *loop = signal->loop;

	if (!loop)
		return;
	sigdelset(&loop->signal_mask, signal->signo);
	/* Cannot fail: the descriptor is a signalfd and the mask is ours. */
	(void)signalfd(loop->signal_fd, &loop->signal_mask, 0);
	loop->signals[signal->signo] = NULL;
	signal->loop = NULL;
}

/* Event bits. */

uint32_t loop_events_to_poll(uint32_t events)
{
	/* io_uring reports RDHUP unasked, so that epoll has to be asked. */
	return (events & LOOP_READ ? POLLIN : 0) | (events & LOOP_WRITE ? POLLOUT : 0) |
	       POLLRDHUP;
}

uint32_t loop_events_from_poll(uint32_t poll_events)
{
	return (poll_events & POLLIN ? LOOP_READ : 0) |
	       (poll_events & POLLOUT ? LOOP_WRITE : 0) |
	       (poll_events & (POLLRDHUP | POLLHUP) ? LOOP_HUP : 0) |
	       (poll_events & (POLLERR | POLLNVAL) ? LOOP_ERROR : 0);
}
