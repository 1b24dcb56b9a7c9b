/* SPDX-License-Identifier: MIT */
/* Whether the sandbox of kvd.service holds: what it forbids is tried, not read. It does not say
 * that the sandbox is tight, only that none of these holes is open. Main thread, before there are
 * others, since it forks. Logs nothing. */
#ifndef KVD_DAEMON_SANDBOX_H
#define KVD_DAEMON_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

enum sandbox_level {
	SANDBOX_NONE, /* nothing: not started by kvd.service */
	SANDBOX_FULL,
	SANDBOX_GPU, /* without the rows that 50-gpu.conf gives up */
};

enum sandbox_result {
	SANDBOX_REFUSED,
	SANDBOX_PERMITTED, /* weaker than configured */
	SANDBOX_SKIPPED,   /* not expected at this level */
};

/* @act: what was tried: "open network sockets"; @setting: the line of the unit that forbids it */
struct sandbox_row {
	const char *act;
	const char *setting;
	enum sandbox_result result;
};

#define SANDBOX_MAX_ROWS 24

/* What $KVD_SANDBOX asks for: unset or empty is NONE, "gpu" is GPU, all else FULL. */
enum sandbox_level sandbox_expected(void);

/* Tries everything. @rows: [SANDBOX_MAX_ROWS]. Return: number of rows; -errno: no child process. */
int sandbox_probe(enum sandbox_level level, struct sandbox_row *rows,
		  unsigned int *ret_n_permitted);

/* The permitted rows: "open network sockets (RestrictAddressFamilies=), ...", cut to fit. */
void sandbox_describe(const struct sandbox_row *rows, int n_rows, char *text,
		      size_t size);

#endif
