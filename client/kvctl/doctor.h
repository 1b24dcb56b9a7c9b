/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_DOCTOR_H
#define KVD_CLIENT_KVCTL_DOCTOR_H

/*
 * kvctl doctor: what was looked at and what came of it. doctor_daemon.c asks the daemon,
 * doctor_host.c reads /proc, /sys and the socket; neither changes anything. Owns the list
 * of checks; one thread.
 */
#include <kvclient.h>
#include <stdint.h>
#include <sys/types.h>

enum doctor_state {
	DOCTOR_OK,
	DOCTOR_SKIP, /* cannot be told from here */
	DOCTOR_WARN, /* kvd works, but not as it could */
	DOCTOR_FAIL, /* something is broken */
};

enum { DOCTOR_MAX_CHECKS = 48 };

/**
 * struct doctor_check - one thing that was looked at
 * @fix: what to do about it; empty: nothing
 */
struct doctor_check {
	const char *name;
	enum doctor_state state;
	char text[256];
	char fix[256];
};

/**
 * struct doctor - the checks so far, and what they share
 * @path:  of the socket
 * @pid:   of the daemon; 0: not known
 * @stats: size is 0 when the daemon could not be asked
 * @root:  "", or a folder in which proc and sys are looked for
 */
struct doctor {
	struct doctor_check checks[DOCTOR_MAX_CHECKS];
	unsigned n_checks;
	const char *path;
	pid_t pid;
	struct kvd_stats stats;
	const char *root;
};

/* Adds a check. What is beyond the array is dropped. */
void doctor_add(struct doctor *doctor, const char *name, enum doctor_state state,
		const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Says what to do about the check that was added last. */
void doctor_fix(struct doctor *doctor, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* The daemon's numbers and limits. Sets doctor->stats. */
void doctor_ask_daemon(struct doctor *doctor, struct kvc_client *client);

/* The socket's rights, before connecting. */
void doctor_look_at_socket(struct doctor *doctor);

/* Sets doctor->pid where it can be found out. */
void doctor_find_daemon(struct doctor *doctor);

/* The machine, and what it grants the daemon. */
void doctor_look_at_host(struct doctor *doctor);

#endif
