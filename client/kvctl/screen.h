/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_SCREEN_H
#define KVD_CLIENT_KVCTL_SCREEN_H

/*
 * A terminal that shows texts and reads keys. Owns the terminal's modes until screen_close(), and
 * the handling of SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGTSTP and SIGWINCH for the rest of the
 * process. Without a terminal it only waits, with the default signals. One thread.
 */
#include <stdbool.h>
#include <stddef.h>

/* Beside keys, which are positive. TIME: the wait is over; END: by a signal; TIMEOUT: --timeout. */
enum screen_event {
	SCREEN_TIME = 0,
	SCREEN_RESIZED = -1,
	SCREEN_END = -2,
	SCREEN_TIMEOUT = -3,
};

/* On stdin and stdout. */
void screen_open(void);

/* Idempotent. */
void screen_close(void);

/* Shows the first lines of @text that fit, each cut at the right margin. */
void screen_show(const char *text);

/* Return: a key, or enum screen_event. */
int screen_wait(double seconds);

#endif
