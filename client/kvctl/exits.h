/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_EXITS_H
#define KVD_CLIENT_KVCTL_EXITS_H

/* Exit codes of kvctl. Scripts rely on them, so a number never changes its meaning. */
enum {
	EXIT_OK = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_NOT_RUNNING = 3,
	EXIT_PERMISSION = 4,
	EXIT_NOT_FOUND = 5,
	EXIT_TIMED_OUT = 6,
	EXIT_BUSY = 7,
};

#endif
