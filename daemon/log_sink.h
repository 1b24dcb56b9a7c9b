/* SPDX-License-Identifier: MIT */
/*
 * Where the bytes of the log go, without ever waiting for who reads them.
 *
 * Owns two descriptors of the process: one for standard error, with an open file description
 * of its own so that O_NONBLOCK is nobody else's, and one for the journal's socket. Belongs to
 * log.c and so to the loop thread. Knows nothing of entries: what finds no room is reported to
 * the caller, who counts it.
 */
#ifndef KVD_DAEMON_LOG_SINK_H
#define KVD_DAEMON_LOG_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/**
 * log_sink_stderr() - one line to standard error
 * @len: where the description is shared and a pipe, what is beyond PIPE_BUF is cut off
 *
 * Return: 0; -EAGAIN: no room now; -errno.
 */
int log_sink_stderr(const char *line, size_t len);

/**
 * log_sink_journal() - one entry to the journal, in its native protocol
 * @fields: [n] "NAME=value" each, without newlines; n at most LOG_SINK_FIELDS
 *
 * Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
 *
 * Return: 0; -EAGAIN: no room now; -errno: there is no journal.
 */
int log_sink_journal(const struct iovec *fields, int n);

#define LOG_SINK_FIELDS 16

/* Whether somebody has the journal's socket. */
bool log_sink_has_journal(void);

#endif
