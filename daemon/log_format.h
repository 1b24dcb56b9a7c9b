/* SPDX-License-Identifier: MIT */
/* An entry as text, private to log.c and its tests. Pure, any thread. */
#ifndef KVD_DAEMON_LOG_FORMAT_H
#define KVD_DAEMON_LOG_FORMAT_H

#include <time.h>

#include "daemon/log.h"

/* Room for any entry: messages are cut at LOG_MESSAGE_MAX, details at LOG_DETAIL_MAX. */
#define LOG_MESSAGE_MAX 1024
#define LOG_LINE_MAX    12288

/* @fields: never NULL; @message: clean; @detail: escaped, or NULL */
struct log_entry {
	int level;
	const struct log_fields *fields;
	const char *file, *func;
	int line;
	const char *message;
	const char *detail;
};

const char *log_level_name(int level);

/* A path without the leading "../" that a build folder adds. */
const char *log_file_name(const char *file);

/* One line with its newline, into @buf of LOG_LINE_MAX bytes. Return: its length. */
size_t log_format_text(char *buf, const struct log_entry *entry);
size_t log_format_json(char *buf, const struct log_entry *entry,
		       const struct timespec *now);

#endif
