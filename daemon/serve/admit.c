/* SPDX-License-Identifier: MIT */
/* See admit.h. */
#include "daemon/serve/admit.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "daemon/config.h"
#include "daemon/msgid.h"
#include "daemon/serve/session.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

#define HELLO_S 10

void admit_set_files(struct sessions *sessions, unsigned long long n_files)
{
	/* The kernel gives the lowest number that is free, so it tells how many are left. */
	n_files -= n_files / 2 < ADMIT_RESERVE ? n_files / 2 : ADMIT_RESERVE;
	sessions->client_files = n_files < INT_MAX ? (int)n_files : INT_MAX;
}

/* Before HELLO: it learns why, and the log does. */
static void tell_refused(struct sessions *sessions, int fd, const struct peer_cred *cred,
			 int32_t status, uint64_t limit, const char *text)
{
	struct kvd_msg_error msg;

	proto_error_init(&msg, KVD_MSG_REJECT, 0, status, limit, text);
	fdpass_send(fd, &msg, sizeof(msg), NULL, 0);
	log_event(LOG_WARNING,
		  LOG_FIELDS(.message_id = MSGID_CLIENT_REFUSED, .uid = cred->uid,
			     .has_uid = true),
		  "a client of uid %u was turned away: %s", (unsigned)cred->uid, text);
	monitor_event(&sessions->monitor, (struct kvd_event){.kind = KVD_EVENT_LIMIT,
							     .status = status,
							     .uid = cred->uid});
}

void admit_part(struct sessions *sessions, int fd, uid_t uid)
{
	parting_add(&sessions->partings, fd, NULL, uid, fdpass_refuse(fd) != 0, false);
}

static void refuse(struct sessions *sessions, int fd, const struct peer_cred *cred,
		   int32_t status, uint64_t limit, const char *text)
{
	tell_refused(sessions, fd, cred, status, limit, text);
	admit_part(sessions, fd, cred->uid);
}

static void refuse_one_more(struct sessions *sessions, int fd,
			    const struct peer_cred *cred, const char *key, uint64_t limit)
{
	char text[KVD_TEXT_MAX];

	snprintf(text, sizeof(text), "too many connections: %s is %llu", key,
		 (unsigned long long)limit);
	refuse(sessions, fd, cred, KVD_E_QUOTA, limit, text);
}

/* What user_connect() said. */
static void refuse_user(struct sessions *sessions, int fd, const struct peer_cred *cred,
			int r, const struct user *user)
{
	switch (r) {
	case -EDQUOT:
		refuse_one_more(sessions, fd, cred,
				"max_connections of this user ([quota], or [daemon] "
				"max_clients_per_uid)",
				user->max_connections);
		return;
	case -EADDRNOTAVAIL:
		refuse(sessions, fd, cred, -EPERM, 0,
		       "kvd runs in a user namespace where this uid is not mapped, so it "
		       "cannot tell whose requests these are");
		return;
	default:
		sessions_warn(sessions, r, "cannot serve a user; refused");
		admit_part(sessions, fd, cred->uid);
	}
}

/* Of the users above an even share the one with most; of its connections the newest that has
 * not said HELLO. A client that a restart left asleep has said it before. */
static struct session *find_silent(const struct sessions *sessions, uint32_t share)
{
	struct session *found = NULL;

	for (struct session *s = sessions->list_tail; s; s = s->prev)
		if (s->state == SESSION_NEW && !s->hello_tag && !s->by_admin_socket &&
		    s->user->n_connections > share &&
		    (!found || s->user->n_connections > found->user->n_connections))
			found = s;
	return found;
}

/* The pot is full, and @user is charged already. Return: whether there is a place for it. */
static bool make_place(struct sessions *sessions, const struct user *user)
{
	uint32_t n_users = 0, share;
	struct session *silent;

	for (const struct user *u = sessions->users.list; u; u = u->next)
		n_users += u->n_connections > 0;
	share = sessions->config->daemon.max_clients / n_users;
	if (user->n_connections > share)
		return false;
	silent = find_silent(sessions, share);
	if (!silent)
		return false;
	tell_refused(
		sessions, silent->fd, &silent->cred, KVD_E_QUOTA,
		sessions->config->daemon.max_clients,
		"all connections are taken, and another user needs one; this one has "
		"said nothing");
	session_close(silent);
	return true;
}

struct user *admit(struct sessions *sessions, int fd, const struct peer_cred *cred,
		   bool admin)
{
	uint32_t max = sessions->config->daemon.max_clients;
	struct user *user = NULL;
	int r = user_connect(&sessions->users, fd, cred->uid, cred->gid, admin, &user);

	if (r) {
		refuse_user(sessions, fd, cred, r, user);
		return NULL;
	}
	if (admin)
		return user;
	if (fd >= sessions->client_files)
		refuse(sessions, fd, cred, -EMFILE, 0,
		       "kvd has too many open files; raise LimitNOFILE=");
	else if (sessions->n_sessions >= max && !make_place(sessions, user))
		refuse_one_more(sessions, fd, cred, "[daemon] max_clients", max);
	else
		return user;
	user_disconnect(&sessions->users, user);
	return NULL;
}

static void hello_late(struct loop_timer *timer, uint64_t now_ns)
{
	struct session *session = container_of(timer, struct session, hello_timer);

	if (session->state != SESSION_NEW)
		return;
	tell_refused(session->sessions, session->fd, &session->cred, -ETIMEDOUT, HELLO_S,
		     "it has not said HELLO for 10 seconds");
	session_close(session);
}

void admit_await_hello(struct session *session)
{
	struct sessions *sessions = session->sessions;
	uint64_t due_ns = loop_now(sessions->loop) + HELLO_S * UINT64_C(1000000000);

	/* Without memory for the timer it is not hurried. */
	(void)loop_timer_start(sessions->loop, &session->hello_timer, due_ns, 0,
			       hello_late);
}
