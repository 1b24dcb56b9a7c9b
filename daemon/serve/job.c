/* SPDX-License-Identifier: MIT */
/* See job.h. */
#include "daemon/serve/job.h"

#include "daemon/serve/session.h"
#include "ipc/base.h"

bool job_is_busy(struct session *session, const struct kvd_msg_hdr *request)
{
	if (!session->job)
		return false;
	session_reply_error(session, request, KVD_E_BUSY, 0,
			    "a flush or a listing of this connection is not done yet");
	return true;
}

static void job_end(struct job *job)
{
	job->session->job = NULL;
	job->kind->drop(job);
}

static void jobs_append(struct jobs *jobs, struct job *job)
{
	job->next = NULL;
	if (jobs->last)
		jobs->last->next = job;
	else
		jobs->first = job;
	jobs->last = job;
}

static void jobs_remove(struct jobs *jobs, struct job *job)
{
	struct job *prev = NULL;

	for (struct job *j = jobs->first; j != job; j = j->next)
		prev = j;
	if (prev)
		prev->next = job->next;
	else
		jobs->first = job->next;
	if (jobs->last == job)
		jobs->last = prev;
}

/* A piece of one of them: turns stay short however many there are. */
static void jobs_run(struct loop_defer *defer)
{
	struct jobs *jobs = container_of(defer, struct jobs, defer);
	struct job *job = jobs->first;

	jobs_remove(jobs, job);
	/* its session may end by the reply */
	job->session->job = NULL;
	if (job->kind->step(job)) {
		job->kind->drop(job);
	} else {
		job->session->job = job;
		jobs_append(jobs, job);
	}
	if (jobs->first)
		loop_defer(jobs->loop, &jobs->defer, jobs_run);
}

void job_start(struct session *session, struct job *job, const struct job_kind *kind,
	       const struct kvd_msg_hdr *request)
{
	struct jobs *jobs = &session->sessions->jobs;

	*job = (struct job){.kind = kind, .session = session, .request = *request};
	if (kind->step(job)) {
		kind->drop(job);
		return;
	}
	session->job = job;
	jobs_append(jobs, job);
	loop_defer(jobs->loop, &jobs->defer, jobs_run);
}

void job_cancel(struct session *session)
{
	struct jobs *jobs = &session->sessions->jobs;

	if (!session->job)
		return;
	jobs_remove(jobs, session->job);
	job_end(session->job);
	if (!jobs->first)
		loop_defer_cancel(&jobs->defer);
}
