/* SPDX-License-Identifier: MIT */
#include "daemon/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ipc/base.h"

#include "daemon/escape.h"
#include "daemon/log_format.h"
#include "daemon/log_rate.h"
#include "daemon/log_sink.h"
#include "daemon/msgid.h"

/* Between two lines about the same trouble. */
#define REPEAT_NS UINT64_C(30000000000)

static struct {
	enum log_target target;
	int level;
	struct log_rate rate;
	uint64_t n_lost; /* since the last entry that was written */
} log_state = {
	.target = LOG_TARGET_STDERR,
	.level = LOG_INFO,
	.rate = {.interval_ns = UINT64_C(30000000000), .burst = 100},
};

/* $JOURNAL_STREAM names device and inode of the stream that the service manager gave us;
 * if standard error was redirected since, it is not the journal. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;
	char rest;

	return stream && sscanf(stream, "%llu:%llu%c", &dev, &ino, &rest) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == (dev_t)dev &&
	       st.st_ino == (ino_t)ino;
}

enum log_target log_open(enum log_target target, int level)
{
	if (target == LOG_TARGET_AUTO)
		target = stderr_is_journal() ? LOG_TARGET_JOURNAL : LOG_TARGET_STDERR;
	if (target == LOG_TARGET_JOURNAL && !log_sink_has_journal())
		target = LOG_TARGET_STDERR;
	log_state.target = target;
	log_state.level = level;
	return target;
}

void log_set_rate_limit(uint64_t interval_ns, unsigned int burst)
{
	log_state.rate = (struct log_rate){.interval_ns = interval_ns, .burst = burst};
}

bool log_due(struct log_last *last, int error, uint64_t now_ns)
{
	if (error == last->error && now_ns - last->at_ns < REPEAT_NS)
		return false;
	*last = (struct log_last){error, now_ns};
	return true;
}

bool log_enabled(int level)
{
	return level <= log_state.level;
}

/* Fields for log_sink_journal(): numbers are put together in one buffer. */
struct journal_entry {
	struct iovec iov[LOG_SINK_FIELDS];
	int n;
	char numbers[512];
	size_t used;
};

static void journal_add(struct journal_entry *journal, const char *text, size_t len)
{
	journal->iov[journal->n++] = (struct iovec){(void *)text, len};
}

static __attribute__((format(printf, 2, 3))) void
journal_format(struct journal_entry *journal, const char *format, ...)
{
	char *start = journal->numbers + journal->used;
	size_t room = sizeof(journal->numbers) - journal->used;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(start, room, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= room)
		return;
	journal->used += (size_t)n + 1;
	journal_add(journal, start, (size_t)n);
}

static int write_journal(const struct log_entry *entry)
{
	const struct log_fields *fields = entry->fields;
	char message[sizeof("MESSAGE=") + 4 * LOG_MESSAGE_MAX + 128];
	char detail[sizeof("KVD_DETAIL=") + 4 * LOG_DETAIL_MAX];
	struct journal_entry journal = {0};
	int error = fields->error < 0 ? -fields->error : fields->error, n;

	n = snprintf(message, sizeof(message), "MESSAGE=%s%s%s", entry->message,
		     error ? ": " : "", error ? strerror(error) : "");
	if (n < 0)
		return -EINVAL;
	journal_add(&journal, message,
		    (size_t)n < sizeof(message) ? (size_t)n : sizeof(message) - 1);
	journal_format(&journal, "PRIORITY=%d", entry->level);
	journal_format(&journal, "SYSLOG_IDENTIFIER=kvd");
	if (fields->message_id)
		journal_format(&journal, "MESSAGE_ID=%s", fields->message_id);
	if (fields->client_id)
		journal_format(&journal, "KVD_CLIENT=%" PRIu64, fields->client_id);
	if (fields->request_id)
		journal_format(&journal, "KVD_REQUEST=%" PRIu64, fields->request_id);
	if (fields->has_uid)
		journal_format(&journal, "KVD_UID=%u", (unsigned int)fields->uid);
	if (error)
		journal_format(&journal, "KVD_ERRNO=%d", error);
	if (entry->detail) {
		n = snprintf(detail, sizeof(detail), "KVD_DETAIL=%s", entry->detail);
		if (n > 0 && (size_t)n < sizeof(detail))
			journal_add(&journal, detail, (size_t)n);
	}
	journal_format(&journal, "CODE_FILE=%s", log_file_name(entry->file));
	journal_format(&journal, "CODE_LINE=%d", entry->line);
	journal_format(&journal, "CODE_FUNC=%s", entry->func);
	return log_sink_journal(journal.iov, journal.n);
}

/* Return: 0; -EAGAIN: who reads it has no room now; -errno. */
static int try_entry(const struct log_entry *entry)
{
	char buf[LOG_LINE_MAX];
	struct timespec now;
	int r;

	if (log_state.target == LOG_TARGET_JOURNAL) {
		r = write_journal(entry);
		if (!r || r == -EAGAIN)
			return r;
		/* Where the journal cannot be reached: better there than nowhere. */
	}
	if (log_state.target != LOG_TARGET_JSON)
		return log_sink_stderr(buf, log_format_text(buf, entry));
	clock_gettime(CLOCK_REALTIME, &now);
	return log_sink_stderr(buf, log_format_json(buf, entry, &now));
}

void log_catch_up(void)
{
	char message[80];

	if (!log_state.n_lost)
		return;
	(void)snprintf(message, sizeof(message),
		       "%" PRIu64 " message%s lost here: the log took no more",
		       log_state.n_lost, log_state.n_lost == 1 ? " was" : "s were");
	if (!try_entry(&(const struct log_entry){
		    .level = LOG_WARNING,
		    .fields = LOG_FIELDS(.message_id = MSGID_LOG_LOST),
		    .file = __FILE__,
		    .line = __LINE__,
		    .func = __func__,
		    .message = message,
	    }))
		log_state.n_lost = 0;
}

/* The loop never waits for who reads the log: what finds no room is counted. */
static void write_entry(const struct log_entry *entry)
{
	log_catch_up();
	if (log_state.n_lost || try_entry(entry))
		log_state.n_lost++;
}

static void write_note(const struct log_rate_note *note)
{
	char message[80];

	(void)snprintf(message, sizeof(message), "suppressed %" PRIu64 " message%s%s",
		       note->n_suppressed, note->n_suppressed == 1 ? "" : "s",
		       note->many ? " of many users" : "");
	write_entry(&(const struct log_entry){
		.level = LOG_WARNING,
		.fields = LOG_FIELDS(.message_id = MSGID_LOG_SUPPRESSED, .uid = note->uid,
				     .has_uid = !note->many),
		.file = __FILE__,
		.line = __LINE__,
		.func = __func__,
		.message = message,
	});
}

static bool rate_allows(const struct log_fields *fields)
{
	struct log_rate_note note;
	bool allowed;

	if (!fields->has_uid)
		return true;
	allowed = log_rate_take(&log_state.rate, fields->uid, clock_ns(), &note);
	if (note.n_suppressed)
		write_note(&note);
	return allowed;
}

void log_write(int level, const struct log_fields *fields, const char *file, int line,
	       const char *func, const char *format, ...)
{
	static const struct log_fields none;
	char raw[LOG_MESSAGE_MAX], message[4 * LOG_MESSAGE_MAX];
	char detail[4 * LOG_DETAIL_MAX];
	struct log_entry entry = {
		.level = level,
		.fields = fields ? fields : &none,
		.file = file,
		.line = line,
		.func = func,
		.message = message,
	};
	int saved_errno = errno;
	va_list args;

	if (log_enabled(level) && rate_allows(entry.fields)) {
		va_start(args, format);
		(void)vsnprintf(raw, sizeof(raw), format, args);
		va_end(args);
		escape_controls(message, sizeof(message), raw, strlen(raw));
		if (entry.fields->detail) {
			size_t len = entry.fields->detail_len;

			escape_bytes(detail, sizeof(detail), entry.fields->detail,
				     len < LOG_DETAIL_MAX ? len : LOG_DETAIL_MAX);
			entry.detail = detail;
		}
		write_entry(&entry);
	}
	errno = saved_errno;
}

void log_close(void)
{
	struct log_rate_note note;

	log_catch_up();
	while (log_rate_drain(&log_state.rate, &note))
		write_note(&note);
	log_set_rate_limit(log_state.rate.interval_ns, log_state.rate.burst);
}
