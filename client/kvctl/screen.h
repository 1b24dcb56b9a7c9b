/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_SCREEN_H
#define KVD_CLIENT_KVCTL_SCREEN_H

/*
 * A terminal that shows one text after the other and hands over keys, by plain ANSI
 * sequences. Owns the terminal's modes between screen_open() and screen_close(), and the
 * handling of SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGTSTP and SIGWINCH for the rest of the
 * process; one for each process. For those who write to no terminal it only waits, and
 * signals do what they always do: a reader that stops must not make them wait. One thread.
 */
#include <stdbool.h>
#include <stddef.h>

/* What screen_wait() tells beside keys, which are positive. */
enum screen_event {
	SCREEN_TIME = 0,     /* the time is over */
	SCREEN_RESIZED = -1, /* show it again */
	SCREEN_END = -2,     /* a signal wants the process to end */
	SCREEN_TIMEOUT = -3, /* --timeout */
};

/* Takes over the terminal on stdin and stdout, and the signals. */
void screen_open(void);

/* Gives the terminal back. May be called twice. */
void screen_close(void);

/* Shows the first lines of @text that fit, each cut at the right margin. */
void screen_show(const char *text);

/* Waits for @seconds at most. Return: a key, or enum screen_event. */
int screen_wait(double seconds);

#endif
