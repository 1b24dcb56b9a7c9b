/* SPDX-License-Identifier: MIT */
/*
 * What the daemon says to the people who run it.
 *
 * Owns the process-wide choice of target and level and the per-uid rate limit. Belongs to
 * the loop thread: workers hand errors back in their results. Only the daemon's shell
 * logs; libraries below return errors. Never waits for who reads the log: an entry that finds
 * no room is dropped and counted, and one line says how many once there is room again.
 *
 * Three forms of one entry:
 *
 *   journal  native fields: MESSAGE=, PRIORITY=, MESSAGE_ID=, CODE_FILE=, CODE_LINE=,
 *            CODE_FUNC=, KVD_CLIENT=, KVD_REQUEST=, KVD_UID=, KVD_ERRNO=, KVD_DETAIL=
 *   stderr   kvd: error: message: No such file or directory
 *   json     one object a line with the same fields in lower case
 *
 * An entry never holds prompts, generated text, tokens or addresses. Text that a client
 * chose goes to `detail`, whose control and non-ASCII bytes are escaped and which is cut
 * at LOG_DETAIL_MAX bytes. Control bytes in the message itself (file names) are escaped
 * too.
 */
#ifndef KVD_DAEMON_LOG_H
#define KVD_DAEMON_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <syslog.h>

#define LOG_DETAIL_MAX 256

enum log_target {
	LOG_TARGET_AUTO, /* journal if stderr is the journal, else stderr */
	LOG_TARGET_JOURNAL,
	LOG_TARGET_STDERR,
	LOG_TARGET_JSON, /* to stderr */
};

/*
 * What an entry is about. All-zero means nothing but the message; name what you know:
 *
 *   log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_CLIENT_PROTOCOL,
 *                                     .client_id = id, .uid = uid, .has_uid = true),
 *             "client sent a bad packet");
 *
 * Entries with has_uid are counted against that uid's rate limit; others are not limited.
 */
struct log_fields {
	const char *message_id; /* from daemon/msgid.h, or NULL */
	uint64_t client_id;     /* 0: none */
	uint64_t request_id;    /* 0: none */
	uid_t uid;              /* of the client, if has_uid */
	bool has_uid;
	int error;          /* errno or -errno; its text is appended on stderr; 0: none */
	const char *detail; /* untrusted text or bytes, NULL: none */
	size_t detail_len;
};

/**
 * log_open() - choose where entries go
 * @target: AUTO looks at $JOURNAL_STREAM
 * @level: syslog priority; less important entries are dropped (LOG_DEBUG keeps all)
 *
 * May be called again at any time. Before the first call entries go to stderr at
 * LOG_INFO.
 *
 * Return: where entries go now: what AUTO stands for, STDERR where JOURNAL was asked for and
 * there is none, else @target.
 */
enum log_target log_open(enum log_target target, int level);

/* At most @burst entries per @interval_ns for each uid; interval 0 switches the limit
 * off. Default: 100 in 30 s. */
void log_set_rate_limit(uint64_t interval_ns, unsigned int burst);

/* Writes how many entries found no room, once there is some; to be called now and then. */
void log_catch_up(void);

/* Writes the "suppressed N" notes that are still owed and forgets all uids. */
void log_close(void);

/* Whether an entry of this level would be written. */
bool log_enabled(int level);

/**
 * log_write() - write one entry; use the macros below
 * @fields: NULL for none
 * @format: one sentence without a full stop or newline, starting in lower case
 *
 * Keeps errno. Cannot fail in a way that matters to the caller.
 */
void log_write(int level, const struct log_fields *fields, const char *file, int line,
	       const char *func, const char *format, ...)
	__attribute__((format(printf, 6, 7)));

#define LOG_FIELDS(...) (&(const struct log_fields){__VA_ARGS__})

#define log_event(level, fields, ...)                                                    \
	(log_enabled(level) ? log_write((level), (fields), __FILE__, __LINE__, __func__, \
					__VA_ARGS__)                                     \
			    : (void)0)

#define log_error(...)   log_event(LOG_ERR, NULL, __VA_ARGS__)
#define log_warning(...) log_event(LOG_WARNING, NULL, __VA_ARGS__)
#define log_notice(...)  log_event(LOG_NOTICE, NULL, __VA_ARGS__)
#define log_info(...)    log_event(LOG_INFO, NULL, __VA_ARGS__)
#define log_debug(...)   log_event(LOG_DEBUG, NULL, __VA_ARGS__)

/* As log_event() with an error code (either sign): "message: No such file or directory".
 * */
#define log_errno(level, code, ...)                                                      \
	log_event(level, LOG_FIELDS(.error = (code)), __VA_ARGS__)

/* What was said last about one kind of trouble; all zero: nothing. */
struct log_last {
	int error;
	uint64_t at_ns;
};

/**
 * log_due() - whether trouble that may last is to be logged
 * @last: noted here where it is
 * @error: not 0
 *
 * Return: true for another error than the last one, and for the same one when 30 s have
 * passed, so that it is one line in the log and yet seen when it comes back.
 */
bool log_due(struct log_last *last, int error, uint64_t now_ns);

#endif
