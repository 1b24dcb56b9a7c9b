/* SPDX-License-Identifier: MIT */
/* sd_notify(3) states and the watchdog. Loop thread. Waits for nobody: while the manager's queue is
 * full, readiness, status and a ping are kept for notify_flush(). Without $NOTIFY_SOCKET all calls
 * succeed and do nothing. */
#ifndef KVD_DAEMON_NOTIFY_H
#define KVD_DAEMON_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Return (all): 1 sent; 0 no service manager; -EAGAIN: its queue is full; -errno. */
int notify_ready(const char *format, ...) __attribute__((format(printf, 1, 2)));
int notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* These two are not sent again. */
int notify_reloading(void);
int notify_stopping(void);

/* The period for notify_watchdog(), half of what the manager waits; 0: no watchdog. */
uint64_t notify_watchdog_period_ns(void);

int notify_watchdog(void);

/* What the manager had no room for. @alive: false: a ping would no longer be true. */
bool notify_pending(void);
int notify_flush(bool alive);

/* One message. @fd: goes along; -1: none. @wait: for room in the queue. */
int notify_send(const char *text, int fd, bool wait);

#endif
