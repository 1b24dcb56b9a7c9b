/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_EVENT_H
#define KVD_DAEMON_SERVE_OP_EVENT_H

/* What happens to a sequence goes to the operation that is its cookie. Thread: loop. */

#include <stdint.h>

struct sched_event;

/* engine_event_fn; frees the operation when it is detached. @sessions: struct sessions */
void op_event(void *sessions, const struct sched_event *event, const uint32_t *dist);

#endif
