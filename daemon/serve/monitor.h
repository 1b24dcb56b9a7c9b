/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_MONITOR_H
#define KVD_DAEMON_SERVE_MONITOR_H

/*
 * Events for administrators who watch: each has a bounded queue, owned here, which EVENTS empties;
 * what does not fit is lost and counted. Knows neither sessions nor requests. Thread: loop.
 */
#include <stddef.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

struct engine;
struct monitor_queue;

/* @evictions: already reported */
struct monitor {
	const struct engine *engine;
	struct monitor_queue *queues;
	uint64_t evictions;
};

/* Queues an event for all who watch; the time is filled in here. */
void monitor_event(struct monitor *monitor, struct kvd_event event);

/* No-op if *@queue exists. Return: 0 or -ENOMEM. */
int monitor_watch(struct monitor *monitor, struct monitor_queue **queue);

/* The reply to EVENTS with what is queued, valid until the next call for this queue. */
const void *monitor_reply(struct monitor *monitor, struct monitor_queue *queue,
			  uint32_t tag, size_t *ret_len);

/* What monitor_reply() gave was sent. */
void monitor_clear(struct monitor_queue *queue);

/* *@queue becomes NULL. Idempotent. */
void monitor_forget(struct monitor *monitor, struct monitor_queue **queue);

#endif
