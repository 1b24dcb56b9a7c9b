/* SPDX-License-Identifier: MIT */
/* What one user can hold at most, as it follows from a configuration: kvd --limits. Any thread. */
#ifndef KVD_DAEMON_USER_LIMITS_H
#define KVD_DAEMON_USER_LIMITS_H

#include <stdint.h>
#include <stdio.h>

struct config;

/* Value of a row without a limit. */
#define USER_LIMITS_NONE UINT64_MAX

enum user_limits_what {
	USER_LIMITS_CONNECTIONS,
	USER_LIMITS_RINGS,
	USER_LIMITS_FILES,
	USER_LIMITS_STORE,
	USER_LIMITS_MEMORY,
	USER_LIMITS_IN_FLIGHT,
	USER_LIMITS_WAITING,
	USER_LIMITS_RUNNING,
	USER_LIMITS_BLOCKS,
	USER_LIMITS_LINES,
	USER_LIMITS_N,
};

/* @one: of a user without a section of its own; @all: of all users together */
struct user_limits_row {
	const char *what;
	const char *key;
	uint64_t one;
	uint64_t all;
};

/* @config: checked; @ret_rows: [USER_LIMITS_N] */
void user_limits_init(const struct config *config, struct user_limits_row *ret_rows);

void user_limits_print(const struct config *config, FILE *out);

#endif
