/* SPDX-License-Identifier: MIT */
/* Connections and their rings, from accept to the last close. See session.h. */
#include "daemon/serve/session.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/control.h"
#include "daemon/serve/monitor.h"
#include "daemon/serve/op.h"
#include "daemon/serve/ring_watch.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

/* Sessions freed before rings and others get their turn. */
#define REAP_BATCH 16

static void sessions_reap(struct loop_defer *reap);

void sessions_init(struct sessions *sessions, struct loop *loop,
		   const struct config *config, struct engine *engine,
		   struct fdstore *store)
{
	*sessions = (struct sessions){
		.loop = loop,
		.config = config,
		.engine = engine,
		.store = store,
		.users = {.config = config},
		.next_id = 1,
		.started_ns = loop_now(loop),
	};
}

int session_charge(struct session *session, uint64_t bytes)
{
	if (session->user && user_charge_arena(session->user, bytes))
		return -EDQUOT;
	session->charged += bytes;
	return 0;
}

void session_uncharge(struct session *session, uint64_t bytes)
{
	assert(session->charged >= bytes);
	session->charged -= bytes;
	if (session->user)
		user_uncharge_arena(session->user, bytes);
}

static void kept_remove(struct session_ring *ring, uint32_t i)
{
	struct session_kept *kept = &ring->kept[i];

	session_uncharge(ring->session, kept->n_tokens * sizeof(kept->tokens[0]));
	explicit_bzero(kept->tokens, kept->n_tokens * sizeof(kept->tokens[0]));
	free(kept->tokens);
	memmove(kept, kept + 1, (--ring->n_kept - i) * sizeof(*kept));
}

void session_ring_keep(struct session_ring *ring, struct op *op)
{
	size_t size = sizeof(op->kept[0]);
	int32_t *cut = reallocarray(op->kept, op->n_kept, size);

	if (ring->n_kept == KVD_MAX_KEPT)
		kept_remove(ring, 0);
	/* the charge goes along, less the room that the answer did not take */
	session_uncharge(ring->session, (op->cap_kept - op->n_kept) * size);
	ring->kept[ring->n_kept++] = (struct session_kept){
		op->user_data, op->salt, cut ? cut : op->kept, op->n_kept};
	op->kept = NULL;
	op->n_kept = op->cap_kept = 0;
}

const struct session_kept *session_ring_find_kept(const struct session_ring *ring,
						  uint64_t user_data)
{
	for (uint32_t i = ring->n_kept; i--;)
		if (ring->kept[i].user_data == user_data)
			return &ring->kept[i];
	return NULL;
}

int session_ring_forget_kept(struct session_ring *ring, uint64_t user_data)
{
	int n = 0;

	for (uint32_t i = ring->n_kept; i--;)
		if (ring->kept[i].user_data == user_data) {
			kept_remove(ring, i);
			n++;
		}
	return n;
}

/* Cut operations off and end the ring. */
static void session_ring_free(struct session_ring *ring)
{
	struct sessions *sessions = ring->session->sessions;
	struct op *op;

	encoder_forget(&sessions->engine->encoder, ring);
	while ((op = ring->ops)) {
		op_detach(op);
		if (op->seq_id)
			engine_cancel(sessions->engine, op);
		else
			op_free(op);
	}
	while (ring->n_kept)
		kept_remove(ring, ring->n_kept - 1);
	ring_watch_forget(ring);
	loop_io_remove(&ring->doorbell);
	if (sessions->ending)
		ring_daemon_leave(&ring->ring);
	else
		ring_daemon_deinit(&ring->ring);
	session_uncharge(ring->session, ring->charged);
	ring->session->n_rings--;
	sessions->n_rings--;
	free(ring);
}

int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring)
{
	struct sessions *sessions = session->sessions;
	struct session_ring *ring;
	int r;

	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return -ENOMEM;
	ring->session = session;
	ring->charged = msg->in_bytes + msg->out_bytes;
	if (session_charge(session, ring->charged)) {
		free(ring);
		return -EDQUOT;
	}
	r = ring_daemon_init(&ring->ring, msg->sq_entries, msg->cq_entries, msg->in_bytes,
			     msg->out_bytes);
	if (!r) {
		r = ring_watch_add(ring);
		if (r)
			ring_daemon_deinit(&ring->ring);
	}
	if (r) {
		session_uncharge(session, ring->charged);
		free(ring);
		return r;
	}
	ring->id = ++session->next_ring_id;
	ring->next = session->rings;
	session->rings = ring;
	session->n_rings++;
	sessions->n_rings++;
	*ret_ring = ring;
	return 0;
}

int session_ring_close(struct session *session, uint32_t id)
{
	for (struct session_ring **at = &session->rings; *at; at = &(*at)->next) {
		struct session_ring *ring = *at;

		if (ring->id != id)
			continue;
		*at = ring->next;
		session_ring_free(ring);
		return 0;
	}
	return -ENOENT;
}

static void session_free(struct session *session)
{
	struct sessions *sessions = session->sessions;
	struct session_ring *ring;

	while ((ring = session->rings)) {
		session->rings = ring->next;
		session_ring_free(ring);
	}
	loop_io_remove(&session->io);
	session_unkeep(session);
	close(session->fd);
	monitor_forget(session);
	if (session->prev)
		session->prev->next = session->next;
	else
		sessions->list = session->next;
	if (session->next)
		session->next->prev = session->prev;
	else
		sessions->list_tail = session->prev;
	sessions->n_sessions--;
	user_disconnect(&sessions->users, session->user);
	free(session);
}

static void sessions_reap(struct loop_defer *reap)
{
	struct sessions *sessions = container_of(reap, struct sessions, reap);
	struct session *session;

	for (unsigned int n = 0; (session = sessions->closing) && n < REAP_BATCH; n++) {
		sessions->closing = session->next_closing;
		session_free(session);
	}
	if (sessions->closing)
		loop_defer(sessions->loop, reap, sessions_reap);
}

void session_close(struct session *session)
{
	if (session->state == SESSION_CLOSING)
		return;
	if (session->state == SESSION_READY)
		monitor_session(session, (struct kvd_event){.kind = KVD_EVENT_DISCONNECT,
							    .requests = session->n_ops});
	if (session->state == SESSION_READY)
		log_event(LOG_DEBUG,
			  LOG_FIELDS(.message_id = MSGID_CLIENT_GONE,
				     .client_id = session->id, .uid = session->cred.uid,
				     .has_uid = true),
			  "client %llu disconnected", (unsigned long long)session->id);
	session->state = SESSION_CLOSING;
	session->next_closing = session->sessions->closing;
	session->sessions->closing = session;
	/* Its operations stop at once, not only when the session is freed. */
	for (struct session_ring *ring = session->rings; ring; ring = ring->next)
		for (struct op *op = ring->ops; op; op = op->next)
			engine_cancel(session->sessions->engine, op);
	loop_defer(session->sessions->loop, &session->sessions->reap, sessions_reap);
}

void session_fault(struct session *session, const char *what)
{
	if (session->state == SESSION_CLOSING)
		return;
	session->sessions->n_faulty++;
	monitor_session(session, (struct kvd_event){.kind = KVD_EVENT_FAULT});
	log_event(LOG_WARNING,
		  LOG_FIELDS(.message_id = MSGID_CLIENT_PROTOCOL,
			     .client_id = session->id, .uid = session->cred.uid,
			     .has_uid = true, .detail = session->name,
			     .detail_len = strlen(session->name)),
		  "client %llu of uid %u broke the contract (%s) and was disconnected",
		  (unsigned long long)session->id, (unsigned)session->cred.uid, what);
	session_close(session);
}

void sessions_warn(struct sessions *sessions, int error, const char *what)
{
	if (log_due(&sessions->warned, error, loop_now(sessions->loop)))
		log_errno(LOG_WARNING, error, "%s", what);
}

/* Its connection failed by no fault of its own. */
static void session_fail(struct session *session, int error)
{
	sessions_warn(session->sessions, error, "a client is disconnected");
	session_close(session);
}

void session_reply(struct session *session, const void *msg, size_t len, const int *fds,
		   size_t n_fds)
{
	int r = fdpass_send(session->fd, msg, len, fds, n_fds);

	if (r == -EAGAIN)
		session_fault(session, "does not read its socket");
	else if (r == -EPIPE || r == -ECONNRESET)
		session_close(session);
	else if (r < 0)
		session_fail(session, r);
}

void session_reply_error(struct session *session, const struct kvd_msg_hdr *request,
			 int32_t status, uint64_t detail, const char *text)
{
	bool hello = request->type == KVD_MSG_HELLO;
	struct kvd_msg_error msg;

	if (status == KVD_E_QUOTA)
		monitor_session(session, (struct kvd_event){.kind = KVD_EVENT_LIMIT,
							    .status = status});
	proto_error_init(&msg, hello ? KVD_MSG_REJECT : KVD_MSG_ERROR, request->tag,
			 status, detail, text);
	session_reply(session, &msg, sizeof(msg), NULL, 0);
	if (hello)
		session_close(session);
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

	len = fdpass_recv(session->fd, packet, sizeof(packet));
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

static void session_readable(struct loop_io *io, uint32_t events)
{
	struct session *session = container_of(io, struct session, io);
	/* A bound, so that one client's packets do not hold the others up. */
	unsigned budget = 16;

	/* Events may come between the mark and the deferred call that frees it. */
	if (session->state == SESSION_CLOSING)
		return;
	if (events & LOOP_READ)
		while (budget-- && session_receive(session))
			;
	else if (events & (LOOP_HUP | LOOP_ERROR))
		session_close(session);
}

/* Turned away before HELLO: it learns why, and the log does. */
static void sessions_refuse(struct sessions *sessions, int fd,
			    const struct peer_cred *cred, const char *key, uint64_t limit)
{
	struct kvd_msg_error msg;
	char text[KVD_TEXT_MAX];

	snprintf(text, sizeof(text), "too many connections: %s is %llu", key,
		 (unsigned long long)limit);
	proto_error_init(&msg, KVD_MSG_REJECT, 0, KVD_E_QUOTA, limit, text);
	fdpass_send(fd, &msg, sizeof(msg), NULL, 0);
	shutdown(fd, SHUT_RDWR); /* the store may have a duplicate */
	close(fd);
	log_event(LOG_WARNING,
		  LOG_FIELDS(.message_id = MSGID_CLIENT_REFUSED, .uid = cred->uid,
			     .has_uid = true),
		  "a client of uid %u was turned away: %s", (unsigned)cred->uid, text);
	monitor_event(sessions, (struct kvd_event){.kind = KVD_EVENT_LIMIT,
						   .status = KVD_E_QUOTA,
						   .uid = cred->uid});
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

struct session *session_new(struct sessions *sessions, int fd, bool admin, uint64_t id)
{
	const struct config *config = sessions->config;
	struct session *session;
	struct peer_cred cred;
	struct user *user;
	int r;

	r = peer_cred_get(fd, &cred);
	if (r) {
		sessions_warn(sessions, r, "cannot tell who connected; refused");
		close(fd);
		return NULL;
	}
	fdpass_refuse(fd);
	if (!admin && sessions->n_sessions >= config->daemon.max_clients) {
		sessions_refuse(sessions, fd, &cred, "[daemon] max_clients",
				config->daemon.max_clients);
		return NULL;
	}
	r = user_connect(&sessions->users, fd, cred.uid, cred.gid, admin, &user);
	if (r == -EDQUOT) {
		sessions_refuse(sessions, fd, &cred,
				"max_connections of this user ([quota], or [daemon] "
				"max_clients_per_uid)",
				user->max_connections);
		return NULL;
	}
	if (r) {
		sessions_warn(sessions, r, "cannot serve a user; refused");
		close(fd);
		return NULL;
	}
	session = calloc(1, sizeof(*session));
	if (!session) {
		sessions_warn(sessions, -ENOMEM, "cannot serve a client; refused");
		user_disconnect(&sessions->users, user);
		close(fd);
		return NULL;
	}
	session->user = user;
	session->sessions = sessions;
	session->fd = fd;
	session->cred = cred;
	session->id = id ? id : sessions->next_id;
	if (session->id >= sessions->next_id)
		sessions->next_id = session->id + 1;
	/* A pid of another namespace reads as 0: then each connection is its own. */
	session->owner =
		cred.pid > 0 ? (uint64_t)cred.pid : (UINT64_C(1) << 32) + session->id;
	session->admin = admin || cred.uid == 0 || cred.uid == geteuid();
	session->by_admin_socket = admin;
	session->connected_ns = loop_now(sessions->loop);
	r = loop_io_add(sessions->loop, &session->io, fd, LOOP_READ | LOOP_HUP,
			session_readable);
	if (r) {
		sessions_warn(sessions, r, "cannot watch a connection; refused");
		user_disconnect(&sessions->users, user);
		close(fd);
		free(session);
		return NULL;
	}
	session_link(session);
	return session;
}

void sessions_accept(struct sessions *sessions, int fd, bool admin)
{
	(void)session_new(sessions, fd, admin, 0);
}

void sessions_deinit(struct sessions *sessions)
{
	if (!sessions->loop)
		return;
	sessions->ending = true;
	while (sessions->list)
		session_free(sessions->list);
	sessions->closing = NULL;
	loop_defer_cancel(&sessions->reap);
	users_deinit(&sessions->users);
	sessions->loop = NULL;
}
