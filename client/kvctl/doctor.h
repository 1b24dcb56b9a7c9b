/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_DOCTOR_H
#define KVD_CLIENT_KVCTL_DOCTOR_H

/* kvctl doctor: checks and their results. doctor_daemon.c asks the daemon, doctor_host.c reads
 * /proc, /sys and the socket; neither changes anything. Owns the list of checks; one thread. */
#include <kvclient.h>
#include <stdint.h>
#include <sys/types.h>

/* SKIP: cannot be found out from here; WARN: kvd works, but not as it could; FAIL: it is broken. */
enum doctor_state {
	DOCTOR_OK,
	DOCTOR_SKIP,
	DOCTOR_WARN,
	DOCTOR_FAIL,
};

enum { DOCTOR_MAX_CHECKS = 48 };

/* @fix: what to do about it; may be empty. */
struct doctor_check {
	const char *name;
	enum doctor_state state;
	char text[256];
	char fix[256];
};

/**
 * struct doctor - the checks so far, and what they share
 * @path: of the socket
 * @pid: of the daemon; 0: not known
 * @stats: size is 0 when the daemon could not be asked
 * @root: "", or a folder that holds proc and sys
 */
struct doctor {
	struct doctor_check checks[DOCTOR_MAX_CHECKS];
	unsigned n_checks;
	const char *path;
	pid_t pid;
	struct kvd_stats stats;
	const char *root;
};

/* Drops what is beyond the array. */
void doctor_add(struct doctor *doctor, const char *name, enum doctor_state state,
		const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Of the check that was added last. */
void doctor_fix(struct doctor *doctor, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Sets doctor->stats. */
void doctor_ask_daemon(struct doctor *doctor, struct kvc_client *client);

/* Before connecting. */
void doctor_look_at_socket(struct doctor *doctor);

/* Sets doctor->pid if it can be found out. */
void doctor_find_daemon(struct doctor *doctor);

void doctor_look_at_host(struct doctor *doctor);

#endif
