/* SPDX-License-Identifier: MIT */
/*
 * What the daemon says to the people who run it. Loop thread: workers and libraries return errors.
 *
 * Owns the process-wide target and level, and the rate limit of each uid. Never waits for its
 * reader: an entry that finds no room is dropped and counted. An entry never holds prompts,
 * answers, tokens or addresses; what a client chose goes to `detail`, escaped and cut.
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
	LOG_TARGET_STDERR, /* kvd: error: message: No such file or directory */
	LOG_TARGET_JSON,   /* to stderr, an object a line with the journal's fields */
};

/* What an entry is about; 0 or NULL: not known. @message_id: from msgid.h. @has_uid: it counts
 * against the rate limit of @uid. @error: errno or -errno, whose text is appended. @detail:
 * [detail_len] untrusted bytes */
struct log_fields {
	const char *message_id;
	uint64_t client_id;
	uint64_t request_id;
	uid_t uid;
	bool has_uid;
	int error;
	const char *detail;
	size_t detail_len;
};

/* Chooses where entries go, now or again; those less important than @level are dropped. Return:
 * where they go: what AUTO stands for, STDERR for a JOURNAL that is not there. */
enum log_target log_open(enum log_target target, int level);

/* At most @burst entries per @interval_ns for each uid; interval 0: no limit. */
void log_set_rate_limit(uint64_t interval_ns, unsigned int burst);

/* Writes how many entries were lost, once there is room; to be called now and then. */
void log_catch_up(void);

/* Writes the notes that are still owed and forgets all uids. */
void log_close(void);

bool log_enabled(int level);

/* Use the macros below. @format: a sentence in lower case, without a full stop. Keeps errno. */
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

/* Logs, for debugging, where a negative code comes from, and gives it. Not for libraries below. */
#define error_origin(code)                                                               \
	({                                                                               \
		int code_ = (code);                                                      \
		log_debug("%s:%d: error %d", __func__, __LINE__, code_);                 \
		code_;                                                                   \
	})

/* As log_event() with an error code of either sign: "message: No such file or directory". */
#define log_errno(level, code, ...)                                                      \
	log_event(level, LOG_FIELDS(.error = (code)), __VA_ARGS__)

/* What was said last about one kind of trouble; all zero: nothing. */
struct log_last {
	int error;
	uint64_t at_ns;
};

/* Whether to log @error, not 0, of trouble that may last: not the last one, or 30 s after it. */
bool log_due(struct log_last *last, int error, uint64_t now_ns);

#endif
