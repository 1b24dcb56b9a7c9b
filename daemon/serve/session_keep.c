/* SPDX-License-Identifier: MIT */
/* See session_keep.h. */
#include "daemon/serve/session_keep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/fdstore.h"
#include "daemon/serve/session.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

/*
 * How old a connection is before it is stored, and how often that is tried again while it fails.
 * Connections come and go as fast as clients like; so each user makes no more messages to the
 * service manager in a second than it may have connections, twice.
 */
#define KEEP_PERIOD_NS UINT64_C(1000000000)

static void session_store_name(const struct session *session, char *ret_name)
{
	snprintf(ret_name, FDSTORE_NAME_MAX, "%s%llu",
		 session->by_admin_socket ? FDSTORE_ADMIN : FDSTORE_CLIENT,
		 (unsigned long long)session->id);
}

static void session_store(struct loop_timer *timer, uint64_t now_ns)
{
	struct session *session = container_of(timer, struct session, keep_timer);
	char name[FDSTORE_NAME_MAX];

	session_store_name(session, name);
	/* What is not kept yet ends with the daemon, and its client connects again. */
	session->stored = session->state == SESSION_READY &&
			  !fdstore_push(session->sessions->store, name, session->fd);
	if (session->stored || session->state != SESSION_READY)
		loop_timer_stop(timer);
}

void session_keep(struct session *session, bool wanted)
{
	struct sessions *sessions = session->sessions;
	char name[FDSTORE_NAME_MAX];

	if (!wanted && session->stored) {
		session_store_name(session, name);
		session->stored = fdstore_remove(sessions->store, name) != 0;
	}
	if (!wanted || !sessions->store || !fdstore_is_there(sessions->store))
		return;
	session->keep = session->stored ||
			!loop_timer_start(sessions->loop, &session->keep_timer,
					  loop_now(sessions->loop) + KEEP_PERIOD_NS,
					  KEEP_PERIOD_NS, session_store);
}

void session_unkeep(struct session *session)
{
	struct sessions *sessions = session->sessions;
	char name[FDSTORE_NAME_MAX];

	loop_timer_stop(&session->keep_timer);
	if (!session->stored || sessions->ending)
		return;
	session->stored = false;
	session_store_name(session, name);
	/* The duplicate in the store would keep it open for a while. */
	shutdown(session->fd, SHUT_RDWR);
	fdstore_leave(sessions->store, name);
}

void session_keep_tell(struct session *session)
{
	uint64_t generation = session->sessions->generation;
	struct kvd_msg_notice msg = {
		.kind = KVD_NOTICE_RESTARTED,
		/* Differs from those of the daemons just before. */
		.hello_tag = (uint32_t)generation ? (uint32_t)generation : 1,
		.generation = generation,
	};

	proto_hdr_init(&msg.hdr, KVD_MSG_NOTICE, sizeof(msg), 0, 0);
	session->hello_tag = msg.hello_tag;
	/* One that has slept through so many restarts that it does not fit is closed. */
	if (fdpass_send(session->fd, &msg, sizeof(msg), NULL, 0) < 0)
		session_close(session);
}

bool session_keep_parse(const char *name, bool *ret_admin, uint64_t *ret_id)
{
	bool admin = strncmp(name, FDSTORE_ADMIN, strlen(FDSTORE_ADMIN)) == 0;
	const char *digits = name + strlen(admin ? FDSTORE_ADMIN : FDSTORE_CLIENT);
	unsigned long long id;
	char *end;

	errno = 0;
	id = strtoull(digits, &end, 10);
	if (errno || *end || id == 0 || id == UINT64_MAX)
		return false;
	*ret_admin = admin;
	*ret_id = id;
	return true;
}
