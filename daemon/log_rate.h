/* SPDX-License-Identifier: MIT */
/* How many entries each uid may cause: a token bucket each, in a table of fixed size, so that one
 * client cannot silence the others. Pure, given the time; its owner is log.c. */
#ifndef KVD_DAEMON_LOG_RATE_H
#define KVD_DAEMON_LOG_RATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LOG_RATE_UIDS 64

struct log_rate_bucket {
	uid_t uid;
	bool used;
	uint64_t credit_ns;
	uint64_t seen_ns;
	uint64_t n_suppressed; /* since the last entry that passed */
};

struct log_rate {
	uint64_t interval_ns; /* 0: no limit */
	unsigned int burst;
	struct log_rate_bucket buckets[LOG_RATE_UIDS + 1]; /* the last: of all others */
};

/* What is owed to the log about one uid; @many: about several, @uid is one of them. */
struct log_rate_note {
	uid_t uid;
	bool many;
	uint64_t n_suppressed; /* 0: nothing */
};

/* Whether @uid may cause one more entry now. @ret_note: what was left out: of @uid, if the entry
 * passes, or of the uid that was forgotten to make room. */
bool log_rate_take(struct log_rate *rate, uid_t uid, uint64_t now_ns,
		   struct log_rate_note *ret_note);

/* Takes out one note that is owed. Return: false if there is none. */
bool log_rate_drain(struct log_rate *rate, struct log_rate_note *ret_note);

#endif
