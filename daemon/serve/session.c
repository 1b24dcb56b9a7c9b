/* SPDX-License-Identifier: MIT */
/* See session.h. */
#include "daemon/serve/session.h"

#include <errno.h>
#include <string.h>

#include "daemon/msgid.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

void sessions_warn(struct sessions *sessions, int error, const char *what)
{
	if (log_due(&sessions->warned, error, loop_now(sessions->loop)))
		log_errno(LOG_WARNING, error, "%s", what);
}

void session_event(struct session *session, struct kvd_event event)
{
	if (!session->sessions->monitor.queues)
		return;
	event.client_id = session->id;
	event.uid = session->cred.uid;
	memcpy(event.name, session->name, sizeof(event.name));
	monitor_event(&session->sessions->monitor, event);
}

void session_turn(struct session *session)
{
	struct sessions *sessions = session->sessions;

	turn_start(&sessions->turns, &session->user->turns, &session->turn,
		   sessions->session_turn);
}

void session_count_end(struct session *session, uint32_t finish)
{
	struct sessions *sessions = session->sessions;
	struct user_counts *counts = &session->user->counts;

	if (finish == KVD_FINISH_CANCELLED) {
		sessions->n_cancelled++;
		counts->requests_cancelled++;
	} else if (finish == KVD_FINISH_ERROR) {
		sessions->n_failed++;
		counts->requests_failed++;
	} else {
		sessions->n_completed++;
		counts->requests_completed++;
	}
}

void session_close(struct session *session)
{
	if (session->state == SESSION_CLOSING)
		return;
	if (session->state == SESSION_READY) {
		session_event(session, (struct kvd_event){.kind = KVD_EVENT_DISCONNECT,
							  .requests = session->n_ops});
		log_event(LOG_DEBUG,
			  LOG_FIELDS(.message_id = MSGID_CLIENT_GONE,
				     .client_id = session->id, .uid = session->cred.uid,
				     .has_uid = true),
			  "client %llu disconnected", (unsigned long long)session->id);
	}
	session->state = SESSION_CLOSING;
	session->sessions->closing_fn(session);
}

void session_fault(struct session *session, const char *what)
{
	if (session->state == SESSION_CLOSING)
		return;
	session->sessions->n_faulty++;
	session->user->counts.sessions_faulty++;
	session_event(session, (struct kvd_event){.kind = KVD_EVENT_FAULT});
	log_event(LOG_WARNING,
		  LOG_FIELDS(.message_id = MSGID_CLIENT_PROTOCOL,
			     .client_id = session->id, .uid = session->cred.uid,
			     .has_uid = true, .detail = session->name,
			     .detail_len = strlen(session->name)),
		  "client %llu of uid %u broke the contract (%s) and was disconnected",
		  (unsigned long long)session->id, (unsigned)session->cred.uid, what);
	session_close(session);
}

void session_fail(struct session *session, int error)
{
	sessions_warn(session->sessions, error, "a client is disconnected");
	session_close(session);
}

/* Each reply answers a request of its own, so the daemon keeps no queue for a slow reader. */
bool session_reply_fds(struct session *session, const void *msg, size_t len,
		       const int *fds, size_t n_fds)
{
	int r = fdpass_send(session->fd, msg, len, fds, n_fds);

	if (r == -ETOOMANYREFS && n_fds)
		return false;
	if (r == -EAGAIN)
		session_fault(session, "does not read its socket");
	else if (r == -EPIPE || r == -ECONNRESET)
		session_close(session);
	else if (r < 0)
		session_fail(session, r);
	else if (n_fds)
		session->sent_fds = true;
	return true;
}

void session_reply(struct session *session, const void *msg, size_t len)
{
	(void)session_reply_fds(session, msg, len, NULL, 0);
}

void session_reply_error(struct session *session, const struct kvd_msg_hdr *request,
			 int32_t status, uint64_t detail, const char *text)
{
	bool hello = request->type == KVD_MSG_HELLO;
	struct kvd_msg_error msg;

	if (status == KVD_E_QUOTA)
		session_event(session, (struct kvd_event){.kind = KVD_EVENT_LIMIT,
							  .status = status});
	proto_error_init(&msg, hello ? KVD_MSG_REJECT : KVD_MSG_ERROR, request->tag,
			 status, detail, text);
	session_reply(session, &msg, sizeof(msg));
	if (hello)
		session_close(session);
}
