/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_MONITOR_H
#define KVD_DAEMON_SERVE_MONITOR_H

/*
 * What happens, for administrators who watch: each session that asked has a queue of
 * bounded size, which its next question empties. Whoever asks too rarely loses what does
 * not fit and is told how much; nothing ever waits for it. Without a session that watches
 * an event costs one comparison.
 *
 * Owns the queues. Thread: loop. Relies on session.h for the list of sessions. It knows no
 * contents of requests, so it cannot tell any.
 */
#include <stdbool.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

struct session;
struct sessions;

struct monitor_queue;

/**
 * monitor_event() - queue an event for everyone who watches
 * @event: kind and what belongs to it; the time is filled in here
 */
void monitor_event(struct sessions *sessions, struct kvd_event event);

/* The same about one session: client_id, uid and name are filled in. */
void monitor_session(struct session *session, struct kvd_event event);

/* Answers MONITOR: the first one begins to watch, each gets what is queued. */
void monitor_reply(struct session *session, uint32_t tag);

/* The session ends. */
void monitor_forget(struct session *session);

#endif
