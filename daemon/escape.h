/* SPDX-License-Identifier: MIT */
/* Text made harmless for one line of a log, a message or a terminal. Pure functions, any thread. */
#ifndef KVD_DAEMON_ESCAPE_H
#define KVD_DAEMON_ESCAPE_H

#include <stddef.h>

/* A client's text: printable ASCII stays, a backslash doubles, the rest becomes \xNN. @size: at
 * least 1; cut with "..." between characters. Return: the length of the result. */
size_t escape_bytes(char *dst, size_t size, const char *src, size_t len);

/* Text of our own: well-formed UTF-8 stays as well, except hidden characters and backslashes. */
size_t escape_controls(char *dst, size_t size, const char *src, size_t len);

#endif
