/* SPDX-License-Identifier: MIT */
/* Where the bytes of the log go, without ever waiting for their reader. Owns a descriptor of its
 * own for standard error, and one for the journal. Loop thread, for log.c alone. */
#ifndef KVD_DAEMON_LOG_SINK_H
#define KVD_DAEMON_LOG_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* One line to standard error. Return: 0; -EAGAIN: no room now; -errno. */
int log_sink_stderr(const char *line, size_t len);

/* One entry to the journal. @fields: [n] "NAME=value" without newlines, n at most
 * LOG_SINK_FIELDS. Return: 0; -EAGAIN: no room now; -errno: there is no journal. */
int log_sink_journal(const struct iovec *fields, int n);

#define LOG_SINK_FIELDS 16

bool log_sink_has_journal(void);

#endif
