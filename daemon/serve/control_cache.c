/* SPDX-License-Identifier: MIT */
/* Listings and flushes of the cache, a piece in each turn (job.h), see control_parts.h. */
#include "daemon/serve/control_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/serve/control_parts.h"
#include "daemon/serve/job.h"
#include "daemon/serve/session.h"
#include "ipc/base.h"
#include "ipc/proto.h"

/* What is done of one of them in one turn. */
#define JOB_WORK PREFIX_TURN_WORK

/**
 * struct list_job - one page of a listing
 * @list: where it is
 */
struct list_job {
	struct job job;
	struct cache_list list;
	struct {
		struct kvd_msg_cache_list_reply head;
		struct kvd_prefix_info info[KVD_CLIENTS_PAGE];
	} msg;
};

static void put_prefix(const struct sessions *sessions,
		       const struct cache_prefix_info *prefix,
		       struct kvd_prefix_info *info)
{
	*info = (struct kvd_prefix_info){
		.id = prefix->id,
		.tokens = prefix->tokens,
		.own_blocks = prefix->own_blocks,
		.readers = prefix->readers,
		.pins = prefix->pins,
		.frequent = prefix->frequent,
	};
	users_print_domain(&sessions->users, prefix->domain, info->domain,
			   sizeof(info->domain));
}

static bool list_step(struct job *job)
{
	struct list_job *l = container_of(job, struct list_job, job);
	struct sessions *sessions = job->session->sessions;
	struct cache_prefix_info prefix;
	uint32_t work = JOB_WORK;
	size_t len;
	int r = CACHE_LIST_ENTRY;

	while (l->msg.head.n < KVD_CLIENTS_PAGE && r == CACHE_LIST_ENTRY) {
		r = cache_list_next(&sessions->engine->cache, &l->list, &work, &prefix);
		if (r == CACHE_LIST_ENTRY)
			put_prefix(sessions, &prefix, &l->msg.info[l->msg.head.n++]);
	}
	if (r == CACHE_LIST_MORE)
		return false;
	/* the next page begins behind the last entry, and may be empty */
	if (r == CACHE_LIST_ENTRY)
		l->msg.head.next = cache_list_place(&sessions->engine->cache, &l->list);
	len = sizeof(l->msg.head) + l->msg.head.n * sizeof(l->msg.info[0]);
	proto_hdr_init(&l->msg.head.hdr, KVD_MSG_CACHE_LIST_REPLY, len, job->request.tag,
		       0);
	session_reply(job->session, &l->msg, len);
	return true;
}

static void list_drop(struct job *job)
{
	free(container_of(job, struct list_job, job));
}

void control_cache_list(struct session *session, const struct proto_request *request)
{
	static const struct job_kind kind = {list_step, list_drop};
	uint64_t after = request->u.cache_list.after;
	struct list_job *l;

	if (job_is_busy(session, &request->hdr))
		return;
	l = calloc(1, sizeof(*l));
	if (!l) {
		session_reply_error(session, &request->hdr, -ENOMEM, 0, NULL);
		return;
	}
	cache_list_begin(&session->sessions->engine->cache, &l->list,
			 &(struct cache_view){session->admin, session->user->domain},
			 after);
	l->msg.head.entry_size = sizeof(l->msg.info[0]);
	job_start(session, &l->job, &kind, &request->hdr);
}

/**
 * struct flush_job - one flush
 * @tokens: of the prefix that is flushed; @prefix: that is what it is
 */
struct flush_job {
	struct job job;
	struct prefix_flush flush;
	bool prefix;
	uint64_t tokens;
};

static void flush_reply(const struct flush_job *f, const struct kvd_flush_counts *counts)
{
	uint32_t tag = f->job.request.tag;
	struct kvd_msg_prefix_control_reply prefix = {.tokens = f->tokens,
						      .counts = *counts};
	struct kvd_msg_cache_flush_reply cache = {.counts = *counts};

	if (f->prefix) {
		proto_hdr_init(&prefix.hdr, KVD_MSG_PREFIX_CONTROL_REPLY, sizeof(prefix),
			       tag, 0);
		session_reply(f->job.session, &prefix, sizeof(prefix));
	} else {
		proto_hdr_init(&cache.hdr, KVD_MSG_CACHE_FLUSH_REPLY, sizeof(cache), tag,
			       0);
		session_reply(f->job.session, &cache, sizeof(cache));
	}
}

static bool flush_step(struct job *job)
{
	struct flush_job *f = container_of(job, struct flush_job, job);
	struct session *session = job->session;
	struct engine *engine = session->sessions->engine;
	const struct prefix_flush_result *result = &f->flush.result;
	struct kvd_flush_counts counts;

	if (f->flush.index && !prefix_flush_step(&f->flush, JOB_WORK))
		return false;
	counts = (struct kvd_flush_counts){
		.flushed_blocks = result->flushed,
		.flushed_bytes = (uint64_t)result->flushed * engine->cache.block_bytes,
		.kept_pinned = result->kept_pinned,
		.kept_active = result->kept_active,
		.remaining = result->remaining,
	};
	engine_kick(engine);
	log_event(LOG_INFO,
		  LOG_FIELDS(.message_id = MSGID_CACHE_FLUSHED, .client_id = session->id,
			     .uid = session->cred.uid, .has_uid = true),
		  "%s flushed: %llu blocks freed, %llu in use, %llu pinned",
		  f->prefix ? "prefix" : "cache",
		  (unsigned long long)counts.flushed_blocks,
		  (unsigned long long)counts.kept_active,
		  (unsigned long long)counts.kept_pinned);
	session_event(session, (struct kvd_event){.kind = KVD_EVENT_FLUSH,
						  .blocks = counts.flushed_blocks});
	flush_reply(f, &counts);
	return true;
}

static void flush_drop(struct job *job)
{
	struct flush_job *f = container_of(job, struct flush_job, job);

	prefix_flush_end(&f->flush);
	free(f);
}

void control_cache_flush(struct session *session, const struct kvd_msg_hdr *request,
			 const struct cache_flush_what *what, uint64_t tokens)
{
	static const struct job_kind kind = {flush_step, flush_drop};
	struct cache *cache = &session->sessions->engine->cache;
	struct flush_job *f;
	int r = 0;

	if (job_is_busy(session, request))
		return;
	f = calloc(1, sizeof(*f));
	if (!f)
		r = error_origin(-ENOMEM);
	else if (cache_is_open(cache))
		r = cache_flush(cache, what, &f->flush);
	if (r) {
		session_reply_error(session, request, r, 0, NULL);
		free(f);
		return;
	}
	f->prefix = what->id;
	f->tokens = tokens;
	job_start(session, &f->job, &kind, request);
}
