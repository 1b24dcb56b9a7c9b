/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_EVENT_H
#define KVD_DAEMON_SERVE_OP_EVENT_H

/*
 * What happens to a sequence becomes what its operation says: the engine's callback. An
 * operation is the cookie of its sequence and outlives SCHED_FINISHED. Thread: loop.
 */

#include <stdint.h>

struct sched_event;

/* engine_event_fn. @sessions: struct sessions, whose counters it moves */
void op_event(void *sessions, const struct sched_event *event, const uint32_t *dist);

#endif
