/* SPDX-License-Identifier: MIT */
/*
 * See sessions.h. A connection that asked for it in HELLO (KVD_FEATURE_KEEP) lies in the service
 * manager's FD store as client-ID or admin-ID and outlives the daemon. The next one makes it a
 * session in state NEW, says that it is another one, and waits for HELLO as long as it takes: the
 * client may be asleep. What a client had is gone; its rings are files that only the dead daemon
 * could write.
 */
#include "daemon/serve/sessions.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/fdstore.h"
#include "daemon/msgid.h"
#include "daemon/serve/admit.h"
#include "daemon/serve/control.h"
#include "daemon/serve/ring_open.h"
#include "daemon/serve/ring_watch.h"
#include "daemon/serve/session_keep.h"
#include "daemon/serve/submit.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

/* Packets of one session in one turn, so that all of its user's get theirs. */
#define SESSION_BATCH 16

/* By then what ran for a user that has gone has ended. It bounds how often, too. */
#define TRIM_NS UINT64_C(1000000000)

/* Its client may have left descriptors in the socket, or not received those that the daemon sent.
 * At the end of the daemon only the former matter, and what is stored stays as it is. */
static void session_part(struct session *session)
{
	struct sessions *sessions = session->sessions;

	if (!sessions->ending) {
		parting_add(&sessions->partings, session->fd, session->user,
			    session->cred.uid, session->wary, session->sent_fds);
		return;
	}
	if (session->wary && !session->stored && !fdpass_end(session->fd))
		(void)fdpass_drain(session->fd);
	close(session->fd);
	user_disconnect(&sessions->users, session->user);
}

/* Of many requests that waited the allocator would keep what lies between others' pieces. */
static void sessions_trim(struct loop_timer *timer, uint64_t now_ns)
{
	(void)malloc_trim(0);
}

static void session_free(struct session *session)
{
	struct sessions *sessions = session->sessions;
	bool last = session->user->n_connections == 1;

	session_rings_free(session);
	job_cancel(session);
	turn_stop(&session->turn);
	loop_io_remove(&session->io);
	loop_timer_stop(&session->hello_timer);
	session_unkeep(session);
	monitor_forget(&sessions->monitor, &session->monitor);
	if (session->prev)
		session->prev->next = session->next;
	else
		sessions->list = session->next;
	if (session->next)
		session->next->prev = session->prev;
	else
		sessions->list_tail = session->prev;
	sessions->n_sessions--;
	session_part(session);
	free(session);
	if (last && !sessions->ending && !sessions->trim.loop)
		(void)loop_timer_start(sessions->loop, &sessions->trim,
				       loop_now(sessions->loop) + TRIM_NS, 0,
				       sessions_trim);
}

/* What runs for it stops at once, not only when the session is freed. */
static void session_closing(struct session *session)
{
	session_rings_cancel(session);
	job_cancel(session);
	loop_io_remove(&session->io);
	session_turn(session);
}

/* Its rings first, each in turns of its own; the last one starts this turn again. */
static void session_end(struct session *session)
{
	if (session_rings_close(session))
		turn_stop(&session->turn);
	else
		session_free(session);
}

/*
 * A packet of a kept connection before its HELLO: a leftover that the dead daemon did not
 * read, or of a client that has not seen the notice. Return: whether it is HELLO.
 */
static bool session_greets(struct session *session, const void *packet, size_t len)
{
	struct kvd_msg_hdr h;

	if (len < sizeof(h)) {
		session_fault(session, "malformed packet");
		return false;
	}
	memcpy(&h, packet, sizeof(h));
	if (h.type == KVD_MSG_HELLO) {
		if (h.tag == session->hello_tag)
			return true;
		/* It answers the notice of a daemon between that one and this. */
		return false;
	}
	if (h.len != len || h.flags || !h.tag || h.status)
		session_fault(session, "malformed packet");
	else
		session_reply_error(
			session, &h, KVD_E_RESTARTED, 0,
			"kvd restarted; say HELLO with the tag of its notice");
	return false;
}

/* One packet. Return: whether there may be more. */
static bool session_receive(struct session *session)
{
	static char packet[KVD_MSG_MAX];
	struct proto_request request;
	ssize_t len;

	len = session->wary ? fdpass_recv_wary(session->fd, packet, sizeof(packet))
			    : fdpass_recv(session->fd, packet, sizeof(packet));
	if (len == -EAGAIN || len == -EINTR)
		return false;
	if (len == 0 || len == -ECONNRESET || len == -EPIPE) {
		session_close(session);
		return false;
	}
	if (len == -EBADMSG || len == -EMSGSIZE) {
		session_fault(session, len == -EBADMSG ? "sent file descriptors"
						       : "packet too long");
		return false;
	}
	if (len < 0) {
		session_fail(session, (int)len);
		return false;
	}
	if (session->state == SESSION_NEW && session->hello_tag &&
	    !session_greets(session, packet, (size_t)len))
		return session->state != SESSION_CLOSING;
	switch (proto_parse_request(packet, (size_t)len, session->state == SESSION_READY,
				    &request)) {
	case PROTO_OK:
		control_request(session, &request);
		break;
	case PROTO_ERROR:
		session_reply_error(session, &request.hdr, request.status, 0, NULL);
		break;
	default:
		session_fault(session, "malformed packet");
	}
	return session->state != SESSION_CLOSING;
}

/* No packet is there. */
static void session_quiet(struct session *session)
{
	int r = 0;

	turn_stop(&session->turn);
	if (session->hung_up)
		session_close(session);
	else if (!session->io.events)
		r = loop_io_modify(&session->io, LOOP_READ | LOOP_HUP);
	if (r)
		session_fail(session, r);
}

static bool session_turn_run(struct turn *turn)
{
	struct session *session = container_of(turn, struct session, turn);
	struct turns *turns = &session->sessions->turns;
	unsigned n = 0;

	if (session->state == SESSION_CLOSING) {
		session_end(session);
		return true;
	}
	if (session->n_ending)
		return false;
	while (session_receive(session))
		if (session->n_ending || ++n == SESSION_BATCH || turns_due(turns))
			return true;
	if (session->state != SESSION_CLOSING)
		session_quiet(session);
	return true;
}

static const struct turn_kind session_turn_kind = {session_turn_run, NULL};

/* Packets are not asked for again before those that wait are read. */
static void session_readable(struct loop_io *io, uint32_t events)
{
	struct session *session = container_of(io, struct session, io);

	if (session->turn.user)
		(void)loop_io_modify(io, 0);
	if (!(events & LOOP_READ))
		session->hung_up = true;
	session_turn(session);
}

/* By rising id; new ones have the highest. */
static void session_link(struct session *session)
{
	struct sessions *sessions = session->sessions;
	struct session *after = sessions->list_tail;

	while (after && after->id > session->id)
		after = after->prev;
	session->prev = after;
	session->next = after ? after->next : sessions->list;
	if (after)
		after->next = session;
	else
		sessions->list = session;
	if (session->next)
		session->next->prev = session;
	else
		sessions->list_tail = session;
	sessions->n_sessions++;
}

/* A connection of any daemon's. @id: its number, or 0: the next one. Return: NULL: turned
 * away, and closed. */
static struct session *session_new(struct sessions *sessions, int fd, bool admin,
				   uint64_t id)
{
	struct session *session;
	struct peer_cred cred;
	struct user *user;
	bool wary;
	int r;

	r = peer_cred_get(fd, &cred);
	if (r) {
		sessions_warn(sessions, r, "cannot tell who connected; refused");
		admit_part(sessions, fd, (uid_t)-1);
		return NULL;
	}
	wary = fdpass_refuse(fd) != 0;
	if (wary && partings_be_wary(&sessions->partings))
		sessions_warn(sessions, -ENOMEM, "cannot make the thread kvd-closer");
	user = admit(sessions, fd, &cred, admin);
	if (!user)
		return NULL;
	session = calloc(1, sizeof(*session));
	if (!session) {
		sessions_warn(sessions, -ENOMEM, "cannot serve a client; refused");
		user_disconnect(&sessions->users, user);
		admit_part(sessions, fd, cred.uid);
		return NULL;
	}
	session->user = user;
	session->sessions = sessions;
	session->fd = fd;
	session->cred = cred;
	session->number = ++user->counts.sessions;
	session->id = id ? id : sessions->next_id;
	if (session->id >= sessions->next_id)
		sessions->next_id = session->id + 1;
	/* A pid of another namespace reads as 0: then each connection is its own. */
	session->owner =
		cred.pid > 0 ? (uint64_t)cred.pid : (UINT64_C(1) << 32) + session->id;
	session->admin = admin || cred.uid == 0 || cred.uid == geteuid();
	session->by_admin_socket = admin;
	session->wary = wary;
	session->connected_ns = loop_now(sessions->loop);
	r = loop_io_add(sessions->loop, &session->io, fd, LOOP_READ | LOOP_HUP,
			session_readable);
	if (r) {
		sessions_warn(sessions, r, "cannot watch a connection; refused");
		user_disconnect(&sessions->users, user);
		admit_part(sessions, fd, cred.uid);
		free(session);
		return NULL;
	}
	session_link(session);
	return session;
}

/* Who may open the administrators' socket gets in when clients have used up max_clients. */
void sessions_accept(struct sessions *sessions, int fd, bool admin)
{
	struct session *session = session_new(sessions, fd, admin, 0);

	if (session)
		admit_await_hello(session);
}

uint32_t sessions_adopt(struct sessions *sessions)
{
	static const char *const prefixes[] = {FDSTORE_ADMIN, FDSTORE_CLIENT, NULL};
	char name[FDSTORE_NAME_MAX];
	struct session *session;
	uint32_t n = 0;
	int fd;

	if (!sessions->store)
		return 0;
	/* By rising id, as they came: then who had a place has one, and the same connection
	 * as before decides on the domain of its user. */
	while ((fd = fdstore_take_next(sessions->store, prefixes, name)) >= 0) {
		uint64_t id;
		bool admin;

		session = NULL;
		if (session_keep_parse(name, &admin, &id))
			session = session_new(sessions, fd, admin, id);
		else
			close(fd);
		if (!session) {
			(void)fdstore_remove(sessions->store, name);
			continue;
		}
		session->stored = true;
		session_keep_tell(session);
		n++;
	}
	return n;
}

void sessions_init(struct sessions *sessions, struct loop *loop,
		   const struct config *config, struct engine *engine,
		   struct fdstore *store)
{
	*sessions = (struct sessions){
		.loop = loop,
		.config = config,
		.engine = engine,
		.store = store,
		.closing_fn = session_closing,
		.ring_turn = &ring_watch_turn,
		.session_turn = &session_turn_kind,
		.users = {.config = config},
		.partings = {.loop = loop, .users = &sessions->users},
		.monitor = {.engine = engine},
		.next_id = 1,
		.client_files = INT_MAX,
	};
	turns_init(&sessions->turns, clock_ns, clock_cpu_ns);
	lent_files_init(&sessions->lent, loop);
}

int sessions_start(struct sessions *sessions)
{
	const struct model_text *text = &sessions->engine->text;

	sessions->started_ns = loop_now(sessions->loop);
	if (!text->tokenizer)
		return 0;
	return encoder_init(&sessions->encoder, sessions->loop, text, submit_encoded);
}

void sessions_reload(struct sessions *sessions)
{
	users_reload(&sessions->users);
	for (const struct user *user = sessions->users.list; user; user = user->next)
		engine_set_quota(sessions->engine, user->uid, &user->quota);
}

void sessions_deinit(struct sessions *sessions)
{
	if (!sessions->loop)
		return;
	sessions->ending = true;
	while (sessions->list)
		session_free(sessions->list);
	loop_timer_stop(&sessions->trim);
	encoder_deinit(&sessions->encoder);
	lent_files_deinit(&sessions->lent);
	partings_deinit(&sessions->partings);
	users_deinit(&sessions->users);
	sessions->loop = NULL;
}
