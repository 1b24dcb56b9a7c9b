/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_JOB_H
#define KVD_DAEMON_SERVE_JOB_H

/*
 * Requests on the socket that take more than one turn (turns.h): a piece of one is done in each
 * of its own, the reply comes at the end. A session has one at most, which ends with it. Thread:
 * loop.
 */

#include <stdbool.h>

#include <kvd/proto.h>

#include "daemon/turns.h"

struct job;
struct session;

/*
 * @step: does a piece. Return: true when it was the last and the reply is sent.
 * @drop: frees the job, at its end or when its session ends.
 */
struct job_kind {
	bool (*step)(struct job *job);
	void (*drop)(struct job *job);
};

/* Embedded in what a kind needs. */
struct job {
	struct turn turn;
	const struct job_kind *kind;
	struct session *session;
	struct kvd_msg_hdr request;
};

/* Whether the session has one; then KVD_E_BUSY is the reply to @request. */
bool job_is_busy(struct session *session, const struct kvd_msg_hdr *request);

/* Does the first piece at once. @job: all but this part is filled in */
void job_start(struct session *session, struct job *job, const struct job_kind *kind,
	       const struct kvd_msg_hdr *request);

/* Idempotent. */
void job_cancel(struct session *session);

#endif
