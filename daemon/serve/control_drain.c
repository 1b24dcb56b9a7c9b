/* SPDX-License-Identifier: MIT */
/* Drain: nothing new for the model begins, what runs finishes. See control_parts.h. */
#include "daemon/serve/control_parts.h"

#include <errno.h>

#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/session.h"
#include "ipc/proto.h"

/* Operations whose clients still wait for the final CQE; @user: whose, NULL: all. */
static uint32_t n_unfinished(const struct sessions *sessions, const struct user *user)
{
	uint32_t n = 0;

	for (const struct session *s = sessions->list; s; s = s->next)
		if (s->state != SESSION_CLOSING && (!user || s->user == user))
			n += s->n_ops;
	return n;
}

static void set_draining(struct session *session, bool draining)
{
	struct sessions *sessions = session->sessions;
	uint32_t n = n_unfinished(sessions, NULL);

	if (sessions->draining == draining)
		return;
	sessions->draining = draining;
	if (draining)
		log_event(LOG_NOTICE,
			  LOG_FIELDS(.message_id = MSGID_DRAINING,
				     .client_id = session->id, .uid = session->cred.uid,
				     .has_uid = true),
			  "draining: new requests are refused, %u go on to their end", n);
	else
		log_event(LOG_NOTICE,
			  LOG_FIELDS(.message_id = MSGID_DRAIN_ENDED,
				     .client_id = session->id, .uid = session->cred.uid,
				     .has_uid = true),
			  "draining ended: new requests are taken again");
	session_event(session, (struct kvd_event){.kind = KVD_EVENT_DRAIN,
						  .status = draining,
						  .requests = n});
}

void control_drain(struct session *session, const struct proto_request *request)
{
	const struct kvd_msg_drain *ask = &request->u.drain;
	struct sessions *sessions = session->sessions;
	struct kvd_msg_drain_reply msg = {0};

	if (ask->action != KVD_DRAIN_ASK) {
		if (!session->admin) {
			session_reply_error(session, &request->hdr, -EPERM, 0,
					    "only an administrator may drain kvd");
			return;
		}
		set_draining(session, ask->action == KVD_DRAIN_ON);
	}
	msg.draining = sessions->draining;
	msg.requests = n_unfinished(sessions, session->admin ? NULL : session->user);
	proto_hdr_init(&msg.hdr, KVD_MSG_DRAIN_REPLY, sizeof(msg), request->hdr.tag, 0);
	session_reply(session, &msg, sizeof(msg));
}
