/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_JOB_H
#define KVD_DAEMON_SERVE_JOB_H

/*
 * Requests on the socket that take more than one turn of the loop: a piece of one is done in each
 * turn, the reply comes at the end. A session has one at most, which ends with it. Thread: loop.
 */

#include <stdbool.h>

#include <kvd/proto.h>

#include "daemon/loop.h"

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
	struct job *next;
	const struct job_kind *kind;
	struct session *session;
	struct kvd_msg_hdr request;
};

/* All zero but @loop: none. */
struct jobs {
	struct loop *loop;
	struct job *first;
	struct job *last;
	struct loop_defer defer;
};

/* Whether the session has one; then KVD_E_BUSY is the reply to @request. */
bool job_is_busy(struct session *session, const struct kvd_msg_hdr *request);

/* Does the first piece at once. @job: all but this part is filled in */
void job_start(struct session *session, struct job *job, const struct job_kind *kind,
	       const struct kvd_msg_hdr *request);

/* Idempotent. */
void job_cancel(struct session *session);

#endif
