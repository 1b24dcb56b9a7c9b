/* SPDX-License-Identifier: MIT */
/* Administrative messages about users' limits and what the cache holds. See control_parts.h. */
#include "daemon/serve/control_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/session.h"
#include "ipc/proto.h"

static void set_quota(struct user *user, uint32_t set, const struct kvd_quota *quota)
{
	if (set & KVD_QUOTA_GUARANTEED)
		user->quota.min_blocks = quota->guaranteed_blocks;
	if (set & KVD_QUOTA_BLOCKS)
		user->quota.max_blocks = quota->max_blocks;
	if (set & KVD_QUOTA_RUNNING)
		user->quota.max_running = quota->max_running;
	if (set & KVD_QUOTA_WAITING)
		user->quota.max_waiting = quota->max_waiting;
	if (set & KVD_QUOTA_CONNECTIONS)
		user->max_connections = quota->max_connections;
	if (set & KVD_QUOTA_ARENA)
		user->max[USER_BYTES] = quota->max_arena;
	user->set |= set;
}

static void describe_user(const struct sessions *sessions, const struct user *user,
			  struct kvd_quota_info *info)
{
	struct sched_usage usage;

	engine_usage(sessions->engine, user->uid, &usage);
	*info = (struct kvd_quota_info){
		.uid = user->uid,
		.quota =
			{
				.guaranteed_blocks = user->quota.min_blocks,
				.max_blocks = user->quota.max_blocks,
				.max_running = user->quota.max_running,
				.max_waiting = user->quota.max_waiting,
				.max_connections = user->max_connections,
				.max_arena = user->max[USER_BYTES],
			},
		.blocks = usage.blocks,
		.running = usage.running,
		.waiting = usage.waiting,
		.connections = user->n_connections,
		.arena = user->used[USER_BYTES],
	};
	users_print_domain(&sessions->users, user->domain, info->domain,
			   sizeof(info->domain));
}

void control_quota(struct session *session, const struct proto_request *request)
{
	const struct kvd_msg_quota *ask = &request->u.quota;
	struct sessions *sessions = session->sessions;
	uint64_t from = ask->after_uid ? (uint64_t)ask->after_uid + 1 : 0;
	struct {
		struct kvd_msg_quota_reply head;
		struct kvd_quota_info info[KVD_CLIENTS_PAGE];
	} * msg;
	size_t len;

	if (ask->set) {
		struct user *target;

		if (!session->admin) {
			session_reply_error(session, &request->hdr, -EPERM, 0,
					    "only an administrator may set limits");
			return;
		}
		target = users_get(&sessions->users, ask->uid);
		if (!target) {
			session_reply_error(session, &request->hdr, -ENOMEM, 0, NULL);
			return;
		}
		set_quota(target, ask->set, &ask->quota);
		engine_set_quota(sessions->engine, target->uid, &target->quota);
		monitor_event(
			&sessions->monitor,
			(struct kvd_event){.kind = KVD_EVENT_QUOTA, .uid = target->uid});
		log_event(LOG_NOTICE,
			  LOG_FIELDS(.message_id = MSGID_QUOTA_CHANGED,
				     .client_id = session->id, .uid = session->cred.uid,
				     .has_uid = true),
			  "limits of uid %u changed", (unsigned)target->uid);
	}
	msg = calloc(1, sizeof(*msg));
	if (!msg) {
		session_reply_error(session, &request->hdr, -ENOMEM, 0, NULL);
		return;
	}
	msg->head.entry_size = sizeof(msg->info[0]);
	if (!session->admin) {
		describe_user(sessions, session->user, &msg->info[msg->head.n++]);
	} else {
		for (const struct user *user = sessions->users.list; user;
		     user = user->next) {
			if (user->uid < from)
				continue;
			if (msg->head.n == KVD_CLIENTS_PAGE) {
				msg->head.next_uid = msg->info[msg->head.n - 1].uid;
				break;
			}
			describe_user(sessions, user, &msg->info[msg->head.n++]);
		}
	}
	len = sizeof(msg->head) + msg->head.n * sizeof(msg->info[0]);
	proto_hdr_init(&msg->head.hdr, KVD_MSG_QUOTA_REPLY, len, request->hdr.tag, 0);
	session_reply(session, msg, len);
	free(msg);
}
