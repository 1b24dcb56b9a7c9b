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

static bool job_turn_run(struct turn *turn)
{
	struct job *job = container_of(turn, struct job, turn);

	/* its session may end by the reply */
	job->session->job = NULL;
	if (job->kind->step(job)) {
		turn_stop(turn);
		job->kind->drop(job);
	} else {
		job->session->job = job;
	}
	return true;
}

static const struct turn_kind job_turn = {job_turn_run, NULL};

void job_start(struct session *session, struct job *job, const struct job_kind *kind,
	       const struct kvd_msg_hdr *request)
{
	*job = (struct job){.kind = kind, .session = session, .request = *request};
	if (kind->step(job)) {
		kind->drop(job);
		return;
	}
	session->job = job;
	turn_start(&session->sessions->turns, &session->user->turns, &job->turn,
		   &job_turn);
}

void job_cancel(struct session *session)
{
	struct job *job = session->job;

	if (!job)
		return;
	session->job = NULL;
	turn_stop(&job->turn);
	job->kind->drop(job);
}
