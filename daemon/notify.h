/* SPDX-License-Identifier: MIT */
/*
 * What the daemon tells the service manager: sd_notify(3) states and the watchdog.
 *
 * Owns nothing; the state is the manager's. Loop thread only. Does nothing, and succeeds,
 * when $NOTIFY_SOCKET is not set. Errors are returned for completeness: a daemon that
 * cannot reach its manager keeps serving.
 *
 * Reload is announced as RELOADING=1 with MONOTONIC_USEC= followed by READY=1, which both
 * Type=notify and Type=notify-reload understand.
 */
#ifndef KVD_DAEMON_NOTIFY_H
#define KVD_DAEMON_NOTIFY_H

#include <stdint.h>

/* Return (all): 1 sent, 0 no service manager, -errno. @format: one line for `systemctl
 * status`; its newlines become spaces so that it cannot smuggle in a second field. */
int notify_ready(const char *format, ...) __attribute__((format(printf, 1, 2)));
int notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
int notify_reloading(void);
int notify_stopping(void);

/* Half of $WATCHDOG_USEC in ns, the period for notify_watchdog(); 0 if no watchdog is set
 * for this process. */
uint64_t notify_watchdog_period_ns(void);

/* WATCHDOG=1. To be called from a timer of the loop, so that it proves that the loop
 * turns. */
int notify_watchdog(void);

#endif
