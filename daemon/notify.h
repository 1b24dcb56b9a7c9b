/* SPDX-License-Identifier: MIT */
/*
 * What the daemon tells the service manager: sd_notify(3) states and the watchdog.
 *
 * Owns what the manager has not taken yet. Loop thread only. Nothing here waits: the manager's
 * queue is shared by all services of the machine, and while it is full clients are served
 * nevertheless. What must not be lost then, readiness, status and a ping, is sent by
 * notify_flush(). Does nothing, and succeeds, when $NOTIFY_SOCKET is not set.
 *
 * Reload is announced as RELOADING=1 with MONOTONIC_USEC= followed by READY=1, which both
 * Type=notify and Type=notify-reload understand.
 */
#ifndef KVD_DAEMON_NOTIFY_H
#define KVD_DAEMON_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Return (all): 1 sent; 0 no service manager; -EAGAIN: its queue is full, see above; -errno.
 * @format: one line for `systemctl status`; its newlines become spaces so that it cannot
 * smuggle in a second field.
 */
int notify_ready(const char *format, ...) __attribute__((format(printf, 1, 2)));
int notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Not sent again: without them a reload is less exact and a stop is silent. */
int notify_reloading(void);
int notify_stopping(void);

/* Half of $WATCHDOG_USEC in ns, the period for notify_watchdog(); 0 if no watchdog is set
 * for this process. */
uint64_t notify_watchdog_period_ns(void);

/* WATCHDOG=1. To be called from a timer of the loop, so that it proves that the loop
 * turns. */
int notify_watchdog(void);

/* Whether something is still to be sent. */
bool notify_pending(void);

/**
 * notify_flush() - send what the manager had no room for, in one message
 * @alive: false: a ping that is still to be sent would no longer be true
 */
int notify_flush(bool alive);

/**
 * notify_send() - one message
 * @fd: goes along; -1: none
 * @wait: for room in the manager's queue
 */
int notify_send(const char *text, int fd, bool wait);

#endif
