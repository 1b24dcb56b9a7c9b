/* SPDX-License-Identifier: MIT */
/* See monitor.h. */
#include "daemon/serve/monitor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/engine/engine.h"
#include "daemon/serve/session.h"
#include "ipc/proto.h"

/* Shaped as the reply, so that emptying it is sending it. */
struct monitor_packet {
	struct kvd_msg_monitor_reply head;
	struct kvd_event events[KVD_EVENTS_PAGE];
};

_Static_assert(sizeof(struct monitor_packet) <= KVD_MSG_MAX, "a queue is one packet");

struct monitor_queue {
	struct monitor_queue *prev, *next;
	struct monitor_packet packet;
};

static void queue_event(struct sessions *sessions, struct kvd_event *event)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	event->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	for (struct monitor_queue *q = sessions->monitors; q; q = q->next) {
		struct monitor_packet *packet = &q->packet;

		/* The oldest stay, so that what was lost lies behind all of them. */
		if (packet->head.n == KVD_EVENTS_PAGE)
			packet->head.lost++;
		else
			packet->events[packet->head.n++] = *event;
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
	if (!sessions->monitors)
		return;
	queue_evictions(sessions);
	queue_event(sessions, &event);
}

void monitor_session(struct session *session, struct kvd_event event)
{
	if (!session->sessions->monitors)
		return;
	event.client_id = session->id;
	event.uid = session->cred.uid;
	memcpy(event.name, session->name, sizeof(event.name));
	monitor_event(session->sessions, event);
}

static bool begin(struct session *session)
{
	struct sessions *sessions = session->sessions;

	struct monitor_queue *queue = calloc(1, sizeof(*queue));

	if (!queue)
		return false;
	queue->packet.head.entry_size = sizeof(struct kvd_event);
	if (!sessions->monitors && sessions->engine->have_index)
		sessions->evictions_told =
			sessions->engine->index.counters.evicted_blocks;
	queue->next = sessions->monitors;
	if (queue->next)
		queue->next->prev = queue;
	sessions->monitors = queue;
	session->monitor = queue;
	return true;
}

void monitor_reply(struct session *session, uint32_t tag)
{
	const struct kvd_msg_hdr request = {.type = KVD_MSG_MONITOR, .tag = tag};
	struct monitor_packet *packet;
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
	packet = &session->monitor->packet;
	len = sizeof(packet->head) + packet->head.n * sizeof(packet->events[0]);
	proto_hdr_init(&packet->head.hdr, KVD_MSG_MONITOR_REPLY, len, tag, 0);
	session_reply(session, packet, len, NULL, 0);
	packet->head.n = 0;
	packet->head.lost = 0;
}

void monitor_forget(struct session *session)
{
	struct monitor_queue *queue = session->monitor;

	if (!queue)
		return;
	if (queue->next)
		queue->next->prev = queue->prev;
	if (queue->prev)
		queue->prev->next = queue->next;
	else
		session->sessions->monitors = queue->next;
	free(queue);
	session->monitor = NULL;
}
