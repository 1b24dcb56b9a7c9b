/* SPDX-License-Identifier: MIT */
/* Messages about the cache: what it holds, pinning, flushing. See control_parts.h. */
#include "daemon/serve/control_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/control_cache.h"
#include "daemon/serve/session.h"
#include "ipc/proto.h"

static bool is_own(const struct session *session, uint32_t domain)
{
	return session->admin || domain == session->user->domain;
}

static bool may_see(const struct session *session, uint32_t domain)
{
	return is_own(session, domain) || domain == PREFIX_DOMAIN_PUBLIC;
}

/* By its name, or by the first digits of its fingerprint. */
static bool is_model(const struct engine *engine, const char *text)
{
	char digits[2 * sizeof(engine->info.fingerprint) + 1];
	size_t len = strlen(text);

	if (!engine->model)
		return false;
	if (strcmp(text, engine->info.name) == 0)
		return true;
	for (size_t i = 0; i < sizeof(engine->info.fingerprint); i++)
		snprintf(digits + 2 * i, 3, "%02x", engine->info.fingerprint[i]);
	return len >= KVD_MODEL_DIGITS && len < sizeof(digits) &&
	       strncmp(text, digits, len) == 0;
}

void control_flush(struct session *session, const struct proto_request *request)
{
	const struct kvd_msg_cache_flush *ask = &request->u.flush;
	struct engine *engine = session->sessions->engine;
	uint32_t domain = session->user->domain;
	bool all = session->admin && !ask->domain[0];
	char text[KVD_TEXT_MAX];

	if (ask->domain[0] &&
	    !users_parse_domain(&session->sessions->users, ask->domain, &domain)) {
		session_reply_error(session, &request->hdr, -EINVAL, 0,
				    "no such domain; it is written uid:NUMBER, or is the "
				    "NAME of a [domain NAME], or public");
		return;
	}
	if (!session->admin && domain != session->user->domain) {
		session_reply_error(
			session, &request->hdr, -EPERM, 0,
			"only an administrator may flush the domain of others");
		return;
	}
	if (ask->model[0] && !is_model(engine, ask->model)) {
		snprintf(text, sizeof(text),
			 engine->model ? "no such model is loaded; the one that is "
					 "served is called %s"
				       : "no model is loaded%s",
			 engine->info.name);
		session_reply_error(session, &request->hdr, -ENOENT, 0, text);
		return;
	}
	control_cache_flush(session, &request->hdr,
			    &(struct cache_flush_what){.all = all, .domain = domain}, 0);
}

/* Pins leave half of the pool to the requests, and what users are sure of. */
static uint32_t max_pinned(const struct sessions *sessions)
{
	uint32_t n_blocks = sessions->engine->cache.pool.n_blocks;
	uint64_t keep = n_blocks - n_blocks / 2, guaranteed = 0;

	for (const struct user *u = sessions->users.list; u; u = u->next)
		guaranteed += u->quota.min_blocks;
	if (keep < guaranteed)
		keep = guaranteed;
	return keep < n_blocks ? n_blocks - (uint32_t)keep : 0;
}

static int pin(struct session *session, const struct proto_request *request,
	       uint64_t *ret_tokens)
{
	const struct kvd_msg_prefix_control *ask = &request->u.prefix;
	struct cache *cache = &session->sessions->engine->cache;
	uint32_t max = max_pinned(session->sessions);
	const char *why = NULL;
	char text[KVD_TEXT_MAX];
	uint64_t detail = 0;
	int r;

	if (ask->action == KVD_PREFIX_UNPIN)
		r = cache_unpin(cache, ask->id, ret_tokens);
	else
		r = cache_pin(cache, ask->id, ask->flags & KVD_PREFIX_PUBLIC, max,
			      ret_tokens);
	if (!r)
		return 0;
	if (r == -ENOENT) {
		why = "this prefix is not pinned";
	} else if (r == -EINVAL) {
		why = "a prefix of less than one block cannot be pinned";
	} else if (r == -EDQUOT) {
		snprintf(text, sizeof(text),
			 "at most %u blocks may be pinned, and %u are: half of the pool, "
			 "or what users are guaranteed, is for requests",
			 max, cache->pool.n_pinned);
		why = text;
		detail = max;
		r = KVD_E_QUOTA;
	} else if (r == -EBUSY) {
		why = "the beginning of this prefix is public already, and requests read "
		      "the rest: pin it when they have ended";
	}
	session_reply_error(session, &request->hdr, r, detail, why);
	return r;
}

void control_prefix(struct session *session, const struct proto_request *request)
{
	const struct kvd_msg_prefix_control *ask = &request->u.prefix;
	struct engine *engine = session->sessions->engine;
	struct kvd_msg_prefix_control_reply msg = {0};
	bool flush = ask->action == KVD_PREFIX_FLUSH;
	struct cache_prefix_info prefix;

	if (!flush && !session->admin) {
		session_reply_error(session, &request->hdr, -EPERM, 0,
				    "only an administrator may pin and unpin");
		return;
	}
	/* others' prefixes are not there, so that nobody can try ids out */
	if (!cache_describe(&engine->cache, ask->id, &prefix) ||
	    !may_see(session, prefix.domain)) {
		session_reply_error(session, &request->hdr, -ENOENT, 0,
				    "no such prefix, or it is cached no more");
		return;
	}
	if (!is_own(session, prefix.domain)) {
		session_reply_error(session, &request->hdr, -EPERM, 0,
				    "only an administrator may flush a public prefix");
		return;
	}
	if (flush) {
		control_cache_flush(session, &request->hdr,
				    &(struct cache_flush_what){
					    .id = ask->id,
					    .tree = ask->flags & KVD_PREFIX_TREE,
				    },
				    prefix.tokens);
		return;
	}
	if (pin(session, request, &msg.tokens))
		return;
	engine_kick(engine);
	log_event(LOG_NOTICE,
		  LOG_FIELDS(.message_id = ask->action == KVD_PREFIX_PIN
						   ? MSGID_PREFIX_PINNED
						   : MSGID_PREFIX_UNPINNED,
			     .client_id = session->id, .uid = session->cred.uid,
			     .has_uid = true),
		  "prefix of %llu tokens %s", (unsigned long long)msg.tokens,
		  ask->action == KVD_PREFIX_PIN ? "pinned" : "unpinned");
	proto_hdr_init(&msg.hdr, KVD_MSG_PREFIX_CONTROL_REPLY, sizeof(msg),
		       request->hdr.tag, 0);
	session_reply(session, &msg, sizeof(msg));
}
