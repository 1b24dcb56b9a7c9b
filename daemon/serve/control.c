/* SPDX-License-Identifier: MIT */
/* See control.h. */
#include "daemon/serve/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/control_parts.h"
#include "daemon/serve/op_generate.h"
#include "daemon/serve/ring_open.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_keep.h"
#include "daemon/serve/session_ring.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

static uint64_t control_features(const struct session *session)
{
	const struct engine *engine = session->sessions->engine;
	uint64_t features = 0;

	if (engine->model) {
		features |=
			KVD_FEATURE_GENERATE | KVD_FEATURE_FORK | KVD_FEATURE_SCORE_TOP;
		if (engine->text.tokenizer)
			features |= KVD_FEATURE_TEXT;
		if (engine->text.chat)
			features |= KVD_FEATURE_CHAT;
	}
	if (session->admin)
		features |= KVD_FEATURE_ADMIN;
	if (session->keep)
		features |= KVD_FEATURE_KEEP;
	return features;
}

static void control_hello(struct session *session, const struct proto_request *request)
{
	const struct sessions *sessions = session->sessions;
	const struct config *config = sessions->config;
	struct kvd_msg_welcome msg;

	session_keep(session, request->u.hello.features & KVD_FEATURE_KEEP);
	msg = (struct kvd_msg_welcome){
		.server =
			{
				.version = KVD_ABI_VERSION,
				.max_rings = config->daemon.max_rings_per_client,
				.max_sq_entries = KVD_MAX_SQ_ENTRIES,
				.max_cq_entries = KVD_MAX_CQ_ENTRIES,
				.max_in_flight =
					min_u32(config->daemon.max_inflight_per_client,
						KVD_MAX_IN_FLIGHT),
				.max_msg = KVD_MSG_MAX,
				.features = control_features(session),
				.generation = sessions->generation,
				.max_in_bytes = config->daemon.max_arena_per_ring,
				.max_out_bytes = config->daemon.max_arena_per_ring,
			},
		.model = sessions->engine->info,
	};

	memcpy(session->name, request->u.hello.name, sizeof(session->name));
	session->state = SESSION_READY;
	proto_set_string(msg.server.release, sizeof(msg.server.release), KVD_VERSION);
	proto_hdr_init(&msg.hdr, KVD_MSG_WELCOME, sizeof(msg), request->hdr.tag, 0);
	log_event(LOG_DEBUG,
		  LOG_FIELDS(.message_id = MSGID_CLIENT_CONNECTED,
			     .client_id = session->id, .uid = session->cred.uid,
			     .has_uid = true, .detail = session->name,
			     .detail_len = strlen(session->name)),
		  "client %llu of uid %u connected", (unsigned long long)session->id,
		  (unsigned)session->cred.uid);
	session_event(session, (struct kvd_event){.kind = KVD_EVENT_CONNECT});
	session_reply(session, &msg, sizeof(msg));
}

/* What a ring takes that the system did not give: memfd_create(2), eventfd(2), pipe(2). */
static const char *ring_lacks(int error)
{
	switch (-error) {
	case EFBIG:
		return "its memory is larger than RLIMIT_FSIZE (LimitFSIZE=) permits";
	case EMFILE:
		return "it has too many open files; raise LimitNOFILE=";
	case ENOSYS:
	case EPERM:
		return "memfd_create, eventfd2 or pipe2 is refused, by the kernel or a "
		       "filter of system calls";
	}
	return strerror(-error);
}

/* Of the two limits that a ring may meet, the number of rings says so first. */
static void control_beyond_quota(struct session *session,
				 const struct proto_request *request)
{
	const struct user *user = session->user;
	uint64_t max = user->max[USER_RINGS];
	char text[KVD_TEXT_MAX];

	if (max && user->used[USER_RINGS] >= max) {
		snprintf(
			text, sizeof(text),
			"too many rings of this user, with those whose memory it has not "
			"let go of: [quota] max_rings is %llu",
			(unsigned long long)max);
	} else {
		max = user->max[USER_BYTES];
		snprintf(text, sizeof(text),
			 "the rings of this user take too much memory, with what it has "
			 "not let go of: [quota] max_arena is %llu bytes",
			 (unsigned long long)max);
	}
	session_reply_error(session, &request->hdr, KVD_E_QUOTA, max, text);
}

static void control_ring_open(struct session *session,
			      const struct proto_request *request)
{
	const struct config *config = session->sessions->config;
	const struct kvd_msg_ring_open *open = &request->u.ring_open;
	struct kvd_msg_ring_opened msg = {0};
	struct session_ring *ring;
	int fds[KVD_RING_N_FDS];
	char text[KVD_TEXT_MAX];
	int r;

	/* So a client has at most those of one ring to receive yet, which count against
	 * what this daemon may have sent to all. */
	if (fdpass_unread(session->fd)) {
		session_reply_error(session, &request->hdr, KVD_E_BUSY, 0,
				    "read what was sent before, then open a ring");
		return;
	}
	if (session->n_rings >= config->daemon.max_rings_per_client) {
		snprintf(text, sizeof(text),
			 "too many rings: [daemon] max_rings_per_client is %u",
			 config->daemon.max_rings_per_client);
		session_reply_error(session, &request->hdr, KVD_E_QUOTA,
				    config->daemon.max_rings_per_client, text);
		return;
	}
	if (open->in_bytes > config->daemon.max_arena_per_ring ||
	    open->out_bytes > config->daemon.max_arena_per_ring) {
		snprintf(text, sizeof(text),
			 "arena too large: [daemon] max_arena_per_ring is %llu bytes",
			 (unsigned long long)config->daemon.max_arena_per_ring);
		session_reply_error(session, &request->hdr, KVD_E_QUOTA,
				    config->daemon.max_arena_per_ring, text);
		return;
	}
	r = session_ring_open(session, open, &ring);
	if (r == -EDQUOT) {
		control_beyond_quota(session, request);
		return;
	}
	if (r) {
		snprintf(text, sizeof(text), "the daemon cannot make the ring: %s",
			 ring_lacks(r));
		session_reply_error(session, &request->hdr, r, 0, text);
		return;
	}
	msg.ring_id = ring->id;
	msg.geometry = ring->ring.geometry;
	proto_hdr_init(&msg.hdr, KVD_MSG_RING_OPENED, sizeof(msg), request->hdr.tag, 0);
	ring_daemon_get_fds(&ring->ring, fds);
	if (!session_reply_fds(session, &msg, sizeof(msg), fds, KVD_RING_N_FDS)) {
		session_ring_drop(ring);
		session_reply_error(session, &request->hdr, -ETOOMANYREFS, 0,
				    "clients have not received too many descriptors; "
				    "try again later");
		return;
	}
	ring_daemon_close_files(&ring->ring);
}

static void control_ring_close(struct session *session,
			       const struct proto_request *request)
{
	int r = session_ring_close(session, request->u.ring_close.ring_id,
				   request->hdr.tag);

	if (r)
		session_reply_error(session, &request->hdr, r, 0, "no such ring");
}

/* What it is charged at. */
static uint64_t op_bytes(struct op *op)
{
	const struct op_generate *g = op_generate(op);

	return g ? g->charge.amount[USER_BYTES] : 0;
}

/* @id: as the one who asks knows it */
static void control_describe_client(const struct session *client, uint64_t id,
				    struct kvd_client_info *info)
{
	const struct engine *engine = client->sessions->engine;

	*info = (struct kvd_client_info){
		.id = id,
		.uid = client->cred.uid,
		.gid = client->cred.gid,
		.pid = client->cred.pid,
		.rings = client->n_rings,
		.tokens_prompt = client->tokens_prompt,
		.tokens_generated = client->tokens_generated,
		.tokens_cached = client->tokens_cached,
		.connected_ns = loop_now(client->sessions->loop) - client->connected_ns,
		.requests_failed = client->requests_failed,
		.ttft_ns = client->ttft_ns,
	};
	memcpy(info->name, client->name, sizeof(info->name));
	if (client->state == SESSION_NEW && client->hello_tag)
		proto_set_string(info->name, sizeof(info->name), "(kept)");
	for (const struct session_ring *ring = client->rings; ring; ring = ring->next) {
		info->arena += session_ring_bytes(ring);
		for (struct op *op = ring->ops; op; op = op->next) {
			const struct request *request =
				engine_sequence(engine, op->seq_id);

			info->arena += op_bytes(op);

			if (!request)
				continue;
			if (request->state == REQUEST_WAITING)
				info->requests_waiting++;
			else
				info->requests_running++;
			info->blocks += request->table.n_blocks;
			info->tokens_generated += request->n_generated;
		}
	}
}

static void control_clients(struct session *session, const struct proto_request *request)
{
	const struct kvd_msg_clients *ask = &request->u.clients;
	uint32_t max =
		ask->max && ask->max < KVD_CLIENTS_PAGE ? ask->max : KVD_CLIENTS_PAGE;
	struct {
		struct kvd_msg_clients_reply head;
		struct kvd_client_info info[KVD_CLIENTS_PAGE];
	} * msg;
	size_t len;

	msg = calloc(1, sizeof(*msg));
	if (!msg) {
		session_reply_error(session, &request->hdr, -ENOMEM, 0, NULL);
		return;
	}
	msg->head.entry_size = sizeof(msg->info[0]);
	for (const struct session *s = session->sessions->list; s; s = s->next) {
		/* the numbers of all would tell how many others connect */
		uint64_t id = session->admin ? s->id : s->number;

		if (id <= ask->after_id || s->state == SESSION_CLOSING ||
		    (!session->admin &&
		     (s->state != SESSION_READY || s->cred.uid != session->cred.uid)))
			continue;
		if (msg->head.n == max) {
			msg->head.next_id = msg->info[max - 1].id;
			break;
		}
		control_describe_client(s, id, &msg->info[msg->head.n++]);
	}
	len = sizeof(msg->head) + msg->head.n * sizeof(msg->info[0]);
	proto_hdr_init(&msg->head.hdr, KVD_MSG_CLIENTS_REPLY, len, request->hdr.tag, 0);
	session_reply(session, msg, len);
	free(msg);
}

static void control_monitor(struct session *session, const struct proto_request *request)
{
	struct monitor *monitor = &session->sessions->monitor;
	const void *packet;
	size_t len;

	if (!session->admin) {
		session_reply_error(session, &request->hdr, -EPERM, 0,
				    "only an administrator may watch others");
		return;
	}
	if (monitor_watch(monitor, &session->monitor)) {
		session_reply_error(session, &request->hdr, -ENOMEM, 0, NULL);
		return;
	}
	packet = monitor_reply(monitor, session->monitor, request->hdr.tag, &len);
	session_reply(session, packet, len);
	monitor_clear(session->monitor);
}

void control_request(struct session *session, const struct proto_request *request)
{
	switch (request->hdr.type) {
	case KVD_MSG_HELLO:
		control_hello(session, request);
		break;
	case KVD_MSG_RING_OPEN:
		control_ring_open(session, request);
		break;
	case KVD_MSG_RING_CLOSE:
		control_ring_close(session, request);
		break;
	case KVD_MSG_STATS:
		control_stats(session, request);
		break;
	case KVD_MSG_CLIENTS:
		control_clients(session, request);
		break;
	case KVD_MSG_CACHE_FLUSH:
		control_flush(session, request);
		break;
	case KVD_MSG_QUOTA:
		control_quota(session, request);
		break;
	case KVD_MSG_PREFIX_CONTROL:
		control_prefix(session, request);
		break;
	case KVD_MSG_CACHE_LIST:
		control_cache_list(session, request);
		break;
	case KVD_MSG_DRAIN:
		control_drain(session, request);
		break;
	case KVD_MSG_EVENTS:
		control_monitor(session, request);
		break;
	default:
		session_fault(session, "unknown message");
	}
}
