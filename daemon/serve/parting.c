/* SPDX-License-Identifier: MIT */
/* See parting.h. */
#include "daemon/serve/parting.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/user.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"

/* What the thread may take at the end of the daemon. */
#define CLOSER_END_MS 1000

/* No event tells that the peer has read. */
#define LOOK_PERIOD_NS UINT64_C(100000000)

/* @drain: descriptors of the peer's lie in it */
struct parting {
	struct parting *next;
	struct user *user;
	int fd;
	bool drain;
};

static void parting_close(struct partings *partings, int fd, struct user *user)
{
	close(fd);
	if (user)
		user_disconnect(partings->users, user);
}

/* Thread: kvd-closer. */
static void closer_run(void *ctx)
{
	struct partings *partings = ctx;

	if (partings->draining)
		(void)fdpass_drain(partings->draining->fd);
}

static void closer_start(struct partings *partings)
{
	struct parting *p = partings->list;

	if (partings->worker.busy)
		return;
	while (p && !p->drain)
		p = p->next;
	partings->draining = p;
	if (p)
		worker_submit(&partings->worker);
}

/* Closes those in which nothing lies any more. */
static void partings_look(struct partings *partings)
{
	struct parting **at = &partings->list, *p;

	while ((p = *at)) {
		if (p->drain || fdpass_unread(p->fd)) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		parting_close(partings, p->fd, p->user);
		free(p);
	}
	if (!partings->list)
		loop_timer_stop(&partings->timer);
}

static void partings_timer(struct loop_timer *timer, uint64_t now_ns)
{
	partings_look(container_of(timer, struct partings, timer));
}

static void closer_stepped(struct loop_io *io, uint32_t events)
{
	struct partings *partings = container_of(io, struct partings, io);

	if (!worker_collect(&partings->worker))
		return;
	if (partings->draining)
		partings->draining->drain = false;
	partings->draining = NULL;
	partings_look(partings);
	closer_start(partings);
}

int partings_be_wary(struct partings *partings)
{
	int r;

	if (partings->worker.started)
		return 0;
	r = worker_init(&partings->worker, "kvd-closer", closer_run, partings);
	if (r)
		return r;
	r = loop_io_add(partings->loop, &partings->io, partings->worker.event_fd,
			LOOP_READ, closer_stepped);
	if (r)
		worker_deinit(&partings->worker);
	return r;
}

void parting_add(struct partings *partings, int fd, struct user *user, uid_t uid,
		 bool wary, bool has_fds)
{
	struct parting **at = &partings->list, *p;
	bool drain = wary && !fdpass_end(fd);

	shutdown(fd, SHUT_RDWR);
	if (!drain && !(has_fds && fdpass_unread(fd))) {
		parting_close(partings, fd, user);
		return;
	}
	if (drain)
		log_event(LOG_WARNING,
			  LOG_FIELDS(.message_id = MSGID_CLIENT_PROTOCOL, .uid = uid,
				     .has_uid = true),
			  "a client of uid %u sent file descriptors; they are closed on "
			  "a thread of their own",
			  (unsigned)uid);
	p = calloc(1, sizeof(*p));
	if (!p || (drain && partings_be_wary(partings)) ||
	    loop_timer_start(partings->loop, &partings->timer,
			     clock_ns() + LOOK_PERIOD_NS, LOOK_PERIOD_NS,
			     partings_timer)) {
		/* Short of memory: what may wait does it here, but not for long. */
		if (drain)
			(void)fdpass_drain(fd);
		parting_close(partings, fd, user);
		free(p);
		return;
	}
	*p = (struct parting){.user = user, .fd = fd, .drain = drain};
	while (*at)
		at = &(*at)->next;
	*at = p;
	if (drain)
		closer_start(partings);
}

/* A socket that came inside of another one lingers nevertheless. The end of the process is the end
 * of that, so the thread is left to it. Return: whether it has ended. */
static bool closer_ends(struct partings *partings)
{
	struct pollfd pfd = {.fd = partings->worker.event_fd, .events = POLLIN};

	if (partings->worker.busy && poll(&pfd, 1, CLOSER_END_MS) != 1)
		return false;
	worker_deinit(&partings->worker);
	return true;
}

void partings_deinit(struct partings *partings)
{
	struct parting *p;

	if (!partings->loop)
		return;
	loop_timer_stop(&partings->timer);
	loop_io_remove(&partings->io);
	if (!closer_ends(partings))
		return;
	partings->draining = NULL;
	while ((p = partings->list)) {
		partings->list = p->next;
		if (p->drain)
			(void)fdpass_drain(p->fd);
		parting_close(partings, p->fd, p->user);
		free(p);
	}
	partings->loop = NULL;
}
