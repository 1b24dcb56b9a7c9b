/* SPDX-License-Identifier: MIT */
/* See monitor.h. */
#include "daemon/serve/monitor.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "ipc/proto.h"

/* Shaped as the reply, so that emptying it is sending it. */
struct monitor_packet {
	struct kvd_msg_events_reply head;
	struct kvd_event events[KVD_EVENTS_PAGE];
};

_Static_assert(sizeof(struct monitor_packet) <= KVD_MSG_MAX, "a queue is one packet");

struct monitor_queue {
	struct monitor_queue *prev, *next;
	struct monitor_packet packet;
};

static void queue_event(struct monitor *monitor, struct kvd_event *event)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	event->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	for (struct monitor_queue *q = monitor->queues; q; q = q->next) {
		struct monitor_packet *packet = &q->packet;

		/* The oldest stay, so that what was lost lies behind all of them. */
		if (packet->head.n == KVD_EVENTS_PAGE)
			packet->head.lost++;
		else
			packet->events[packet->head.n++] = *event;
	}
}

/* Evictions since the last event: they come in the middle of the scheduler's work. */
static void queue_evictions(struct monitor *monitor)
{
	uint64_t now = engine_evicted_blocks(monitor->engine);
	struct kvd_event event = {
		.kind = KVD_EVENT_EVICT,
		.blocks = now - monitor->evictions,
	};

	monitor->evictions = now;
	if (event.blocks)
		queue_event(monitor, &event);
}

void monitor_event(struct monitor *monitor, struct kvd_event event)
{
	if (!monitor->queues)
		return;
	queue_evictions(monitor);
	queue_event(monitor, &event);
}

int monitor_watch(struct monitor *monitor, struct monitor_queue **queue)
{
	struct monitor_queue *q;

	if (*queue)
		return 0;
	q = calloc(1, sizeof(*q));
	if (!q)
		return error_origin(-ENOMEM);
	q->packet.head.entry_size = sizeof(struct kvd_event);
	/* while nobody watched, nobody counted */
	if (!monitor->queues)
		monitor->evictions = engine_evicted_blocks(monitor->engine);
	q->next = monitor->queues;
	if (q->next)
		q->next->prev = q;
	monitor->queues = q;
	*queue = q;
	return 0;
}

const void *monitor_reply(struct monitor *monitor, struct monitor_queue *queue,
			  uint32_t tag, size_t *ret_len)
{
	struct monitor_packet *packet = &queue->packet;

	queue_evictions(monitor);
	*ret_len = sizeof(packet->head) + packet->head.n * sizeof(packet->events[0]);
	proto_hdr_init(&packet->head.hdr, KVD_MSG_EVENTS_REPLY, *ret_len, tag, 0);
	return packet;
}

void monitor_clear(struct monitor_queue *queue)
{
	queue->packet.head.n = 0;
	queue->packet.head.lost = 0;
}

void monitor_forget(struct monitor *monitor, struct monitor_queue **queue)
{
	struct monitor_queue *q = *queue;

	if (!q)
		return;
	if (q->next)
		q->next->prev = q->prev;
	if (q->prev)
		q->prev->next = q->next;
	else
		monitor->queues = q->next;
	free(q);
	*queue = NULL;
}
