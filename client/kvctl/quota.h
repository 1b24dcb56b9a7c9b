/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_QUOTA_H
#define KVD_CLIENT_KVCTL_QUOTA_H

/* kvctl cache quota: limits and use of each user, and setting limits. Owns nothing; one thread.
 * Relies on the connection of kvctl.h and prints its own messages. */
#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/lists.h"

/* Options as cmd_cache.c numbers them. */
enum quota_option {
	QUOTA_USER,
	QUOTA_GUARANTEED,
	QUOTA_BLOCKS,
	QUOTA_RUNNING,
	QUOTA_WAITING,
	QUOTA_CONNECTIONS,
	QUOTA_ARENA,
};

struct quota_args {
	bool has_user;
	uint32_t uid;
	uint32_t set;
	struct kvd_quota quota;
};

/* Notes one option; a bad value is a usage error. */
void quota_option(struct quota_args *args, int option, const char *text);

/* The array "users" in JSON, or a table. Return: 0 or -ENOMEM. */
void quota_print_users(struct json *json, const struct list *list);
int quota_print_table(const struct list *list);

/* Return: the exit code. */
int quota_run(struct kvctl *ctl, const struct quota_args *args);

#endif
