/* SPDX-License-Identifier: MIT */
#include "daemon/log_format.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Appends what fits; the sizes in the header make everything fit. */
struct line {
	char *buf;
	size_t len;
};

static __attribute__((format(printf, 2, 3))) void line_add(struct line *line,
							   const char *format, ...)
{
	size_t room = LOG_LINE_MAX - line->len;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line->buf + line->len, room, format, args);
	va_end(args);
	if (n > 0)
		line->len += (size_t)n < room ? (size_t)n : room - 1;
}

const char *log_level_name(int level)
{
	static const char *const names[] = {"emergency", "alert",  "critical", "error",
					    "warning",   "notice", "info",     "debug"};

	return level >= 0 && level <= LOG_DEBUG ? names[level] : "error";
}

const char *log_file_name(const char *file)
{
	while (strncmp(file, "../", 3) == 0)
		file += 3;
	return file;
}

static int fields_errno(const struct log_fields *fields)
{
	return fields->error < 0 ? -fields->error : fields->error;
}

size_t log_format_text(char *buf, const struct log_entry *entry)
{
	const struct log_fields *fields = entry->fields;
	struct line line = {.buf = buf};
	const char *open = " (";

	line_add(&line, "kvd: %s: %s", log_level_name(entry->level), entry->message);
	if (fields->error)
		line_add(&line, ": %s", strerror(fields_errno(fields)));
	if (fields->client_id) {
		line_add(&line, "%sclient %" PRIu64, open, fields->client_id);
		open = ", ";
	}
	if (fields->request_id) {
		line_add(&line, "%srequest %" PRIu64, open, fields->request_id);
		open = ", ";
	}
	if (fields->has_uid) {
		line_add(&line, "%suid %u", open, (unsigned int)fields->uid);
		open = ", ";
	}
	if (open[0] == ',')
		line_add(&line, ")");
	if (entry->detail)
		line_add(&line, ": \"%s\"", entry->detail);
	line_add(&line, "\n");
	return line.len;
}

/* @text is clean, so that quotes and backslashes are all that JSON minds. */
static void line_add_json(struct line *line, const char *name, const char *text)
{
	line_add(line, ",\"%s\":\"", name);
	for (; *text; text++)
		line_add(line, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
	line_add(line, "\"");
}

size_t log_format_json(char *buf, const struct log_entry *entry,
		       const struct timespec *now)
{
	const struct log_fields *fields = entry->fields;
	struct line line = {.buf = buf};
	struct tm tm = {0};

	gmtime_r(&now->tv_sec, &tm);
	line_add(&line, "{\"time\":\"%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ\"",
		 tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
		 tm.tm_sec, now->tv_nsec / 1000);
	line_add(&line, ",\"priority\":%d", entry->level);
	line_add_json(&line, "level", log_level_name(entry->level));
	line_add_json(&line, "message", entry->message);
	if (fields->message_id)
		line_add_json(&line, "message_id", fields->message_id);
	if (fields->client_id)
		line_add(&line, ",\"kvd_client\":%" PRIu64, fields->client_id);
	if (fields->request_id)
		line_add(&line, ",\"kvd_request\":%" PRIu64, fields->request_id);
	if (fields->has_uid)
		line_add(&line, ",\"kvd_uid\":%u", (unsigned int)fields->uid);
	if (fields->error) {
		line_add(&line, ",\"kvd_errno\":%d", fields_errno(fields));
		line_add_json(&line, "error", strerror(fields_errno(fields)));
	}
	if (entry->detail)
		line_add_json(&line, "kvd_detail", entry->detail);
	line_add_json(&line, "code_file", log_file_name(entry->file));
	line_add(&line, ",\"code_line\":%d", entry->line);
	line_add_json(&line, "code_func", entry->func);
	line_add(&line, "}\n");
	return line.len;
}
