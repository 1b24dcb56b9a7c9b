/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_JOB_H
#define KVD_DAEMON_SERVE_JOB_H

/*
 * Requests on the socket that take longer than one turn of the loop may: a piece of one of them
 * is done in each turn, and the reply is sent at the end.
 *
 * Owns: the list of jobs in hand, one of a session at most. A session that ends takes its job
 * with it. Thread: loop.
 */

#include <stdbool.h>

#include <kvd/proto.h>

#include "daemon/loop.h"

struct job;
struct session;

/**
 * struct job_kind - one sort of request
 * @step: does a piece. Return: whether it was the last one, and the reply is sent
 * @drop: lets go of what the job has; in the end, or when its session does
 */
struct job_kind {
	bool (*step)(struct job *job);
	void (*drop)(struct job *job);
};

/* A part of what a kind needs. */
struct job {
	struct job *next;
	const struct job_kind *kind;
	struct session *session;
	struct kvd_msg_hdr request;
};

/* The jobs in hand; the first one is next. All zero but @loop: none. */
struct jobs {
	struct loop *loop;
	struct job *first;
	struct job *last;
	struct loop_defer defer;
};

/* Whether the session has one, and is told so in place of an answer. */
bool job_is_busy(struct session *session, const struct kvd_msg_hdr *request);

/* Does the first piece, and the others later. @job: filled in by its kind. */
void job_start(struct session *session, struct job *job, const struct job_kind *kind,
	       const struct kvd_msg_hdr *request);

/* The session ends. Idempotent. */
void job_cancel(struct session *session);

#endif
