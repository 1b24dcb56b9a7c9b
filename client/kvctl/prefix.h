/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_PREFIX_H
#define KVD_CLIENT_KVCTL_PREFIX_H

/*
 * kvctl cache pin, unpin and flush of one prefix: how the command line names a prefix, as
 * text, as the system prompt of conversations, as tokens or by its id in the list.
 */
#include "client/kvctl/kvctl.h"

enum prefix_option {
	PREFIX_TEXT,
	PREFIX_FILE,
	PREFIX_SYSTEM,
	PREFIX_SYSTEM_FILE,
	PREFIX_TOKENS,
	PREFIX_ID
};

/**
 * struct prefix_args - which prefix
 * @value: of the option; NULL: none was given
 */
struct prefix_args {
	enum prefix_option option;
	const char *value;
};

/* One option; a second one is a usage error. */
void prefix_option(struct prefix_args *args, int option, const char *value);

/* Return: exit codes. */
int prefix_pin(struct kvctl *ctl, const struct prefix_args *args, bool make_public);
int prefix_unpin(struct kvctl *ctl, const struct prefix_args *args);

/* Return: 0 with the counts, or the exit code after saying why not. */
int prefix_flush(struct kvctl *ctl, const struct prefix_args *args,
		 struct kvd_flush_counts *ret_counts);

#endif
