/* SPDX-License-Identifier: MIT */
/*
 * Text of others made harmless for one line of a log, a message or a terminal. Pure functions,
 * any thread.
 *
 * Both cut at a whole character, with "..." where something is missing, and return the length
 * of the result, which is NUL-terminated.
 */
#ifndef KVD_DAEMON_ESCAPE_H
#define KVD_DAEMON_ESCAPE_H

#include <stddef.h>

/**
 * escape_bytes() - of a client, who may send anything
 * @size: of @dst; at least 1
 *
 * Printable ASCII stays, a backslash doubles, the rest becomes \xNN.
 */
size_t escape_bytes(char *dst, size_t size, const char *src, size_t len);

/**
 * escape_controls() - of our own, which may name files
 *
 * As above, but well-formed UTF-8 other than control characters stays, and so do backslashes.
 */
size_t escape_controls(char *dst, size_t size, const char *src, size_t len);

#endif
