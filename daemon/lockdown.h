/* SPDX-License-Identifier: MIT */
/*
 * The second stage of the sandbox: a filter that the daemon sets itself, once its ring is made.
 *
 * kvd.service has to permit io_uring for the loop, and what an io_uring does passes by the
 * filter of the unit. So the loop's ring is restricted to a few operations (loop_uring.c), and
 * from here on nobody in this process can make or change a ring. Main thread, before there are
 * others: they and child processes inherit the filter, which cannot be taken back. Owns
 * nothing, logs nothing.
 */
#ifndef KVD_DAEMON_LOCKDOWN_H
#define KVD_DAEMON_LOCKDOWN_H

#include <stdbool.h>

/**
 * lockdown_io_uring() - refuse io_uring_setup and io_uring_register with EPERM from now on
 * @enter_too: there is no ring that io_uring_enter would be needed for
 *
 * Sets NO_NEW_PRIVS, without which the kernel takes no filter from a plain user.
 *
 * Return: 0 or -errno.
 */
int lockdown_io_uring(bool enter_too);

#endif
