/* SPDX-License-Identifier: MIT */
/* Messages about prefixes: what the cache holds, pinning, flushing one. See control_parts.h. */
#include "daemon/serve/control_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/session.h"
#include "ipc/proto.h"

static bool is_own(const struct session *session, const struct block *block)
{
	return session->admin || block->domain == session->user->domain;
}

static bool may_see(const struct session *session, const struct block *block)
{
	return is_own(session, block) || block->domain == PREFIX_DOMAIN_PUBLIC;
}

/* The chain that ends at block @id. */
static void describe_prefix(const struct sessions *sessions, uint32_t id,
			    struct kvd_prefix_info *info)
{
	const struct prefix_index *index = &sessions->engine->index;
	const struct block *b = block_pool_get(index->pool, id);
	bool own = index->nodes[id].n_children == 0;
	uint32_t end = id;

	*info = (struct kvd_prefix_info){
		.id = engine_prefix_id(sessions->engine, id),
		.readers = b->refs,
		.pins = b->pins,
		.often = index->pool->evict.blocks[id].list == EVICT_OFTEN,
	};
	users_print_domain(&sessions->users, b->domain, info->domain,
			   sizeof(info->domain));
	for (; id != BLOCK_NONE; id = index->nodes[id].parent) {
		info->tokens += index->nodes[id].n_rows;
		own &= index->nodes[id].n_children < 2 &&
		       (id == end || !index->nodes[id].held);
		info->own_blocks += own;
	}
}

void control_cache_list(struct session *session, const struct proto_request *request)
{
	const struct engine *engine = session->sessions->engine;
	uint64_t id = request->u.cache_list.after;
	struct {
		struct kvd_msg_cache_list_reply head;
		struct kvd_prefix_info info[KVD_CLIENTS_PAGE];
	} *msg = calloc(1, sizeof(*msg));
	size_t len;

	if (!msg) {
		session_reply_error(session, &request->hdr, -ENOMEM, 0, NULL);
		return;
	}
	msg->head.entry_size = sizeof(msg->info[0]);
	for (; engine->have_index && id < engine->pool.n_blocks; id++) {
		const struct block *b = block_pool_get(&engine->pool, (uint32_t)id);

		if (!b->indexed ||
		    (engine->index.nodes[id].n_children &&
		     !engine->index.nodes[id].held) ||
		    !may_see(session, b))
			continue;
		if (msg->head.n == KVD_CLIENTS_PAGE) {
			msg->head.next = id;
			break;
		}
		describe_prefix(session->sessions, (uint32_t)id,
				&msg->info[msg->head.n++]);
	}
	len = sizeof(msg->head) + msg->head.n * sizeof(msg->info[0]);
	proto_hdr_init(&msg->head.hdr, KVD_MSG_CACHE_LIST_REPLY, len, request->hdr.tag,
		       0);
	session_reply(session, msg, len, NULL, 0);
	free(msg);
}

/* Pins leave half of the pool to the requests, and what users are sure of. */
static uint32_t max_pinned(const struct sessions *sessions)
{
	uint32_t n_blocks = sessions->engine->pool.n_blocks;
	uint64_t keep = n_blocks - n_blocks / 2, guaranteed = 0;

	for (const struct user *u = sessions->users.list; u; u = u->next)
		guaranteed += u->quota.min_blocks;
	if (keep < guaranteed)
		keep = guaranteed;
	return keep < n_blocks ? n_blocks - (uint32_t)keep : 0;
}

static int pin(struct session *session, const struct proto_request *request,
	       uint32_t block)
{
	const struct kvd_msg_prefix *ask = &request->u.prefix;
	struct engine *engine = session->sessions->engine;
	uint32_t max = max_pinned(session->sessions);
	char text[KVD_TEXT_MAX];
	int r;

	if (ask->action == KVD_PREFIX_UNPIN) {
		r = prefix_release(&engine->index, block);
		if (r)
			session_reply_error(session, &request->hdr, r, 0,
					    r == -ENOENT ? "this prefix is not pinned"
							 : NULL);
		return r;
	}
	r = prefix_hold(&engine->index, block, ask->flags & KVD_PREFIX_PUBLIC, max);
	if (r == -EDQUOT) {
		snprintf(text, sizeof(text),
			 "at most %u blocks may be pinned, and %u are: half of the pool, "
			 "or what users are guaranteed, is for requests",
			 max, engine->pool.n_pinned);
		session_reply_error(session, &request->hdr, KVD_E_QUOTA, max, text);
	} else if (r == -EBUSY) {
		session_reply_error(
			session, &request->hdr, r, 0,
			"the beginning of this prefix is public already, and "
			"requests read the rest: pin it when they have ended");
	} else if (r) {
		session_reply_error(session, &request->hdr, r, 0, NULL);
	}
	return r;
}

static const char *message_id(uint32_t action)
{
	switch (action) {
	case KVD_PREFIX_PIN:
		return MSGID_PREFIX_PINNED;
	case KVD_PREFIX_UNPIN:
		return MSGID_PREFIX_UNPINNED;
	default:
		return MSGID_CACHE_FLUSHED;
	}
}

static void log_done(const struct session *session, uint32_t action, uint64_t tokens,
		     const struct kvd_flush_counts *counts)
{
	const struct log_fields *fields =
		LOG_FIELDS(.message_id = message_id(action), .client_id = session->id,
			   .uid = session->cred.uid, .has_uid = true);

	if (action == KVD_PREFIX_FLUSH)
		log_event(LOG_INFO, fields,
			  "prefix flushed: %llu blocks freed, %llu in use, %llu pinned",
			  (unsigned long long)counts->flushed_blocks,
			  (unsigned long long)counts->kept_active,
			  (unsigned long long)counts->kept_pinned);
	else
		log_event(LOG_NOTICE, fields, "prefix of %llu tokens %s",
			  (unsigned long long)tokens,
			  action == KVD_PREFIX_PIN ? "pinned" : "unpinned");
}

void control_prefix(struct session *session, const struct proto_request *request)
{
	const struct kvd_msg_prefix *ask = &request->u.prefix;
	struct engine *engine = session->sessions->engine;
	struct kvd_msg_prefix_reply msg = {0};
	bool flush = ask->action == KVD_PREFIX_FLUSH;
	uint32_t block;

	if (!flush && !session->admin) {
		session_reply_error(session, &request->hdr, -EPERM, 0,
				    "only an administrator may pin and unpin");
		return;
	}
	/* others' prefixes are not there, so that nobody can try ids out */
	if (!engine_prefix_block(engine, ask->id, &block) ||
	    !may_see(session, block_pool_get(&engine->pool, block))) {
		session_reply_error(session, &request->hdr, -ENOENT, 0,
				    "no such prefix, or it is cached no more");
		return;
	}
	if (!is_own(session, block_pool_get(&engine->pool, block))) {
		session_reply_error(session, &request->hdr, -EPERM, 0,
				    "only an administrator may flush a public prefix");
		return;
	}
	/* whole blocks only: the last one is still written, and is not kept over a restart */
	if (!flush && engine->index.nodes[block].n_rows < engine->index.block_tokens)
		block = engine->index.nodes[block].parent;
	if (block == BLOCK_NONE) {
		session_reply_error(session, &request->hdr, -EINVAL, 0,
				    "a prefix of less than one block cannot be pinned");
		return;
	}
	for (uint32_t id = block; id != BLOCK_NONE; id = engine->index.nodes[id].parent)
		msg.tokens += engine->index.nodes[id].n_rows;
	if (flush) {
		engine_flush_prefix(engine, block, ask->flags & KVD_PREFIX_TREE,
				    &msg.counts);
		session_event(session,
			      (struct kvd_event){.kind = KVD_EVENT_FLUSH,
						 .blocks = msg.counts.flushed_blocks});
	} else if (pin(session, request, block)) {
		return;
	}
	engine_kick(engine);
	log_done(session, ask->action, msg.tokens, &msg.counts);
	proto_hdr_init(&msg.hdr, KVD_MSG_PREFIX_REPLY, sizeof(msg), request->hdr.tag, 0);
	session_reply(session, &msg, sizeof(msg), NULL, 0);
}
