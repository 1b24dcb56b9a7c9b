/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_MONITOR_H
#define KVD_DAEMON_SERVE_MONITOR_H

/*
 * What happens, for administrators who watch: each of them has a queue of bounded size, which
 * its next question empties. One that asks too rarely loses what does not fit and learns how
 * much; nothing ever waits for it. Where nobody watches an event costs one comparison.
 *
 * Owns the queues. Thread: loop. Knows neither sessions nor contents of requests, so it can
 * give none away.
 */
#include <stddef.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

struct engine;
struct monitor_queue;

/* @evictions: that those who watch know of */
struct monitor {
	const struct engine *engine;
	struct monitor_queue *queues;
	uint64_t evictions;
};

/* Queue an event for everyone who watches; the time is filled in here. */
void monitor_event(struct monitor *monitor, struct kvd_event event);

/* Begin to watch; nothing if *queue is one already. Return: 0 or -ENOMEM. */
int monitor_watch(struct monitor *monitor, struct monitor_queue **queue);

/**
 * monitor_reply() - the answer to EVENTS with what is queued
 *
 * Return: the packet, until the next call for this queue, with its size in *ret_len.
 */
const void *monitor_reply(struct monitor *monitor, struct monitor_queue *queue,
			  uint32_t tag, size_t *ret_len);

/* What monitor_reply() gave is sent. */
void monitor_clear(struct monitor_queue *queue);

/* End to watch; *queue becomes NULL. Idempotent. */
void monitor_forget(struct monitor *monitor, struct monitor_queue **queue);

#endif
