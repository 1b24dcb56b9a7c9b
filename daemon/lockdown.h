/* SPDX-License-Identifier: MIT */
/* The second stage of the sandbox: a filter that the daemon sets itself once its ring is made. Main
 * thread, before there are others, which inherit it. Cannot be taken back. Logs nothing. */
#ifndef KVD_DAEMON_LOCKDOWN_H
#define KVD_DAEMON_LOCKDOWN_H

#include <stdbool.h>

/* Refuses io_uring_setup and io_uring_register from now on, and io_uring_enter if @enter_too: there
 * is no ring that needs it. Return: 0 or -errno. */
int lockdown_io_uring(bool enter_too);

#endif
