/* SPDX-License-Identifier: MIT */
/* See monitor.h. */
#include "daemon/monitor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/engine.h"
#include "daemon/session.h"
#include "ipc/proto.h"

/* Shaped as the reply, so that emptying it is sending it. */
struct monitor_queue {
	struct kvd_msg_monitor_reply head;
	struct kvd_event events[KVD_EVENTS_PAGE];
};

_Static_assert(sizeof(struct monitor_queue) <= KVD_MSG_MAX, "a queue is one packet");

static void queue_event(struct sessions *sessions, struct kvd_event *event)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	event->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	for (struct session *s = sessions->list; s; s = s->next) {
		struct monitor_queue *queue = s->monitor;

		if (!queue)
			continue;
		/* The oldest stay, so that what was lost lies behind all of them. */
		if (queue->head.n == KVD_EVENTS_PAGE)
			queue->head.lost++;
		else
			queue->events[queue->head.n++] = *event;
	}
}

/* Evictions since the last event: they come in the middle of the scheduler's work. */
static void queue_evictions(struct sessions *sessions)
{
	const struct engine *engine = sessions->engine;
	struct kvd_event event = {.kind = KVD_EVENT_EVICT};
	uint64_t now;

	if (!engine->have_index)
		return;
	now = engine->index.counters.evicted_blocks;
	event.blocks = now - sessions->evictions_told;
	sessions->evictions_told = now;
	if (event.blocks)
		queue_event(sessions, &event);
}

void monitor_event(struct sessions *sessions, struct kvd_event event)
{
	if (!sessions->n_monitors)
		return;
	queue_evictions(sessions);
	queue_event(sessions, &event);
}

void monitor_session(struct session *session, struct kvd_event event)
{
	if (!session->sessions->n_monitors)
		return;
	event.client_id = session->id;
	event.uid = session->cred.uid;
	memcpy(event.name, session->name, sizeof(event.name));
	monitor_event(session->sessions, event);
}

static bool begin(struct session *session)
{
	struct sessions *sessions = session->sessions;

	session->monitor = calloc(1, sizeof(*session->monitor));
	if (!session->monitor)
		return false;
	session->monitor->head.entry_size = sizeof(struct kvd_event);
	if (!sessions->n_monitors++ && sessions->engine->have_index)
		sessions->evictions_told =
			sessions->engine->index.counters.evicted_blocks;
	return true;
}

void monitor_reply(struct session *session, uint32_t tag)
{
	const struct kvd_msg_hdr request = {.type = KVD_MSG_MONITOR, .tag = tag};
	struct monitor_queue *queue;
	size_t len;

	if (!session->admin) {
		session_reply_error(session, &request, -EPERM, 0,
				    "only an administrator may watch others");
		return;
	}
	if (!session->monitor && !begin(session)) {
		session_reply_error(session, &request, -ENOMEM, 0, NULL);
		return;
	}
	queue_evictions(session->sessions);
	queue = session->monitor;
	len = sizeof(queue->head) + queue->head.n * sizeof(queue->events[0]);
	proto_hdr_init(&queue->head.hdr, KVD_MSG_MONITOR_REPLY, len, tag, 0);
	session_reply(session, queue, len, NULL, 0);
	queue->head.n = 0;
	queue->head.lost = 0;
}

void monitor_forget(struct session *session)
{
	if (!session->monitor)
		return;
	free(session->monitor);
	session->monitor = NULL;
	session->sessions->n_monitors--;
}
