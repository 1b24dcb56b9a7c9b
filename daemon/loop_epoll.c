/* SPDX-License-Identifier: MIT */
/*
 * The loop over epoll: one entry for each armed watch. LOOP_EDGE is EPOLLET: each write to an
 * eventfd makes its entry ready, also while the counter is above zero.
 */
#include "daemon/log.h"
#include "daemon/loop_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS 1024
/* Connections taken from one socket before others get their turn. */
#define MAX_ACCEPTS 16
/* A system call in every turn of a spinning loop would double the latency that spinning
 * is for; descriptors may wait this long meanwhile. */
#define SPIN_CHECK_NS 2000

struct loop_epoll {
	int fd;
	bool no_pwait2; /* the kernel, or a filter, lacks nanosecond time-outs */
	uint64_t checked_ns;
	struct epoll_event events[MAX_EVENTS];
};

static int epoll_open(struct loop *loop, const char **ret_step)
{
	struct loop_epoll *epoll = calloc(1, sizeof(*epoll));

	*ret_step = "epoll_create1";
	if (!epoll)
		return error_origin(-ENOMEM);
	epoll->fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll->fd < 0) {
		int r = error_origin(-errno);

		free(epoll);
		return r;
	}
	loop->state = epoll;
	return 0;
}

static void epoll_close(struct loop *loop)
{
	struct loop_epoll *epoll = loop->state;

	close(epoll->fd);
	free(epoll);
	loop->state = NULL;
}

static int epoll_prepare_accept(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return error_origin(-errno);
	return 0;
}

/* An entry with no wanted events would still report HUP, so a disarmed watch has none. */
static int epoll_agree(struct loop *loop, uint32_t index)
{
	struct loop_epoll *epoll = loop->state;
	struct loop_slot *slot = &loop->slots[index];
	struct epoll_event event = {
		.events = loop_events_to_poll(slot->events) |
			  (slot->events & LOOP_EDGE ? (uint32_t)EPOLLET : 0),
		.data.u64 = loop_slot_key(loop, index),
	};
	int op;

	if (slot->events)
		op = slot->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	else if (slot->armed)
		op = EPOLL_CTL_DEL;
	else
		return 0;
	if (epoll_ctl(epoll->fd, op, slot->fd, &event) < 0)
		return error_origin(-errno);
	slot->armed = slot->events != 0;
	return 0;
}

static int epoll_modify(struct loop *loop, uint32_t index)
{
	/* Events of this batch that were collected for the former mask must not count. */
	loop_slot_renew(&loop->slots[index]);
	return epoll_agree(loop, index);
}

static void epoll_remove(struct loop *loop, uint32_t index)
{
	struct loop_epoll *epoll = loop->state;
	struct loop_slot *slot = &loop->slots[index];

	if (slot->armed)
		(void)epoll_ctl(epoll->fd, EPOLL_CTL_DEL, slot->fd, NULL);
}

static void epoll_accept(struct loop *loop, uint64_t key)
{
	struct loop_slot *slot;
	int fd, error;

	for (int i = 0; i < MAX_ACCEPTS; i++) {
		/* The callback may have removed or paused it. */
		slot = loop_slot_find(loop, key);
		if (!slot || !slot->events)
			return;
		fd = accept4(slot->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		error = errno;
		if (fd < 0 && error == EAGAIN)
			return;
		if (fd < 0 && (error == EINTR || error == ECONNABORTED))
			continue;
		loop_dispatch_accept(loop, key, fd >= 0 ? fd : -error);
		if (fd < 0)
			return;
	}
}

static int epoll_sleep(struct loop_epoll *epoll, uint64_t timeout_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000),
			      .tv_nsec = (long)(timeout_ns % 1000000000)};
	uint64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 != 0);
	bool forever = timeout_ns == LOOP_SLEEP_FOREVER;
	int n;

	if (!epoll->no_pwait2) {
		n = epoll_pwait2(epoll->fd, epoll->events, MAX_EVENTS,
				 forever ? NULL : &ts, NULL);
		if (n >= 0 || (errno != ENOSYS && errno != EPERM))
			return n;
		epoll->no_pwait2 = true;
	}
	return epoll_wait(epoll->fd, epoll->events, MAX_EVENTS,
			  forever ? -1 : (int)(ms < 1000000 ? ms : 1000000));
}

static int epoll_wait_dispatch(struct loop *loop, uint64_t timeout_ns)
{
	struct loop_epoll *epoll = loop->state;
	struct loop_slot *slot;
	uint64_t key;
	int n;

	if (timeout_ns == 0 && loop->now_ns - epoll->checked_ns < SPIN_CHECK_NS)
		return 0;
	n = epoll_sleep(epoll, timeout_ns);
	if (n < 0)
		return errno == EINTR ? 0 : error_origin(-errno);
	epoll->checked_ns = loop_now_refresh(loop);
	for (int i = 0; i < n; i++) {
		key = epoll->events[i].data.u64;
		slot = loop_slot_find(loop, key);
		if (!slot)
			continue;
		if (slot->is_accept)
			epoll_accept(loop, key);
		else
			loop_dispatch_io(loop, key,
					 loop_events_from_poll(epoll->events[i].events));
	}
	return 0;
}

const struct loop_backend_ops loop_epoll_ops = {
	.open = epoll_open,
	.close = epoll_close,
	.prepare_accept = epoll_prepare_accept,
	.add = epoll_agree,
	.modify = epoll_modify,
	.remove = epoll_remove,
	.wait = epoll_wait_dispatch,
};
