/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_PREFIX_H
#define KVD_CLIENT_KVCTL_PREFIX_H

/* kvctl cache pin, unpin and flush of one prefix, and how the command line names it. */
#include "client/kvctl/kvctl.h"

enum prefix_option {
	PREFIX_TEXT,
	PREFIX_FILE,
	PREFIX_SYSTEM,
	PREFIX_SYSTEM_FILE,
	PREFIX_TOKENS,
	PREFIX_ID
};

/* @value: NULL: no option was given. */
struct prefix_args {
	enum prefix_option option;
	const char *value;
};

/* One option; a second one is a usage error. */
void prefix_option(struct prefix_args *args, int option, const char *value);

/* Return: exit codes. */
int prefix_pin(struct kvctl *ctl, const struct prefix_args *args, bool make_public);
int prefix_unpin(struct kvctl *ctl, const struct prefix_args *args);

/* Return: 0 with the counts, or the exit code after a message. */
int prefix_flush(struct kvctl *ctl, const struct prefix_args *args,
		 struct kvd_flush_counts *ret_counts);

#endif
