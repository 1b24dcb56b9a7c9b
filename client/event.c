/* SPDX-License-Identifier: MIT */
/*
 * A ring in an event loop: one descriptor that is readable when there is something to
 * look at. It is an epoll that holds the completion doorbell, an eventfd for what this
 * side has to tell, and the client's socket and timer.
 *
 * Making it never waits. The client's descriptors are put in under ctl_lock; where another
 * thread holds that, they follow when it is free: the eventfd then wakes the loop, and
 * kvc_ring_event_ack() puts them in. Until then that other thread reads the socket.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "ipc/doorbell.h"

/* Now, or when ctl_lock is free. */
static int try_to_watch(struct kvc_ring *r)
{
	int rc;

	if (!r->unwatched || !client_trylock(r))
		return 0;
	rc = client_watch(r->client, r);
	if (rc >= 0)
		r->unwatched = false;
	client_unlock(r->client);
	return rc;
}

int kvc_ring_event_fd(struct kvc_ring *r)
{
	_cleanup_(closep) int epoll_fd = -1;
	_cleanup_(closep) int wake_fd = -1;
	struct epoll_event in = {.events = EPOLLIN};
	int rc;

	if (client_forked(r->client))
		return kvc_fail_status(-EOWNERDEAD, 0);
	if (r->epoll_fd >= 0) {
		rc = try_to_watch(r);
		return rc < 0 ? kvc_fail_status(rc, 0) : r->epoll_fd;
	}
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		return kvc_fail_status(-errno, 0);
	if (doorbell_init_submit(&wake_fd) < 0 ||
	    (!r->hup &&
	     epoll_ctl(epoll_fd, EPOLL_CTL_ADD, r->ring.fd_complete, &in) < 0) ||
	    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &in) < 0)
		return kvc_fail_status(-errno, 0);

	__atomic_store_n(&r->wake_fd, wake_fd, __ATOMIC_RELAXED);
	__atomic_store_n(&r->epoll_fd, epoll_fd, __ATOMIC_RELEASE);
	r->unwatched = true;
	(void)fd_steal(&wake_fd);
	(void)fd_steal(&epoll_fd);
	rc = try_to_watch(r);
	if (rc < 0)
		return kvc_fail_status(rc, 0);
	/* What is held back is looked through again, and sets its alarm. */
	r->hold_ns = 0;
	ring_client_arm(&r->ring, r->n_unsent > 0);
	/* What lies ready already must show too. */
	if (ring_has_ready(r, 1) || ring_stale(r) || r->n_held)
		ring_wake(r);
	return r->epoll_fd;
}

int kvc_ring_event_ack(struct kvc_ring *r)
{
	int rc;

	if (client_forked(r->client))
		return kvc_fail_status(-EOWNERDEAD, 0);
	if (r->epoll_fd < 0)
		return kvc_fail(-EINVAL, "kvc_ring_event_fd() was not called");
	doorbell_clear_submit(r->wake_fd);
	ring_clear_alarm(r);
	if (!r->hup && !doorbell_clear_complete(r->ring.fd_complete))
		ring_hup(r);
	rc = try_to_watch(r);
	(void)client_attend(r);
	ring_client_arm(&r->ring, r->n_unsent > 0);
	return rc < 0 ? kvc_fail_status(rc, 0) : 0;
}
