/* SPDX-License-Identifier: MIT */
/* The daemon in numbers. See control_parts.h. */
#include "daemon/serve/control_parts.h"

#include "daemon/engine/engine.h"
#include "daemon/serve/session.h"
#include "ipc/proto.h"

static void put_all(const struct sessions *sessions, struct kvd_stats *stats)
{
	stats->requests_completed = sessions->n_completed;
	stats->requests_failed = sessions->n_failed;
	stats->requests_cancelled = sessions->n_cancelled;
	stats->clients = sessions->n_sessions;
	stats->rings = sessions->n_rings;
	stats->sessions_faulty = sessions->n_faulty;
}

/*
 * What is its own, in place of what all of them did: by the difference between two answers it would
 * see prompts of others, token by token. Blocks that none of its requests holds are free as far as
 * it is concerned.
 */
static void put_own(const struct session *session, struct kvd_stats *stats)
{
	const struct sessions *sessions = session->sessions;
	const struct user *user = session->user;
	const struct user_counts *counts = &user->counts;
	struct sched_usage usage;

	engine_usage(sessions->engine, user->uid, &usage);
	/* a shared one counts for each of its requests */
	stats->blocks_active =
		usage.blocks < stats->blocks_total ? usage.blocks : stats->blocks_total;
	stats->blocks_free = stats->blocks_total - stats->blocks_active;
	stats->blocks_cached = stats->blocks_pinned = stats->evicted_blocks = 0;
	stats->shared_hit_tokens = 0;
	stats->requests_running = usage.running;
	stats->requests_waiting = usage.waiting;
	stats->requests_completed = counts->requests_completed;
	stats->requests_failed = counts->requests_failed;
	stats->requests_cancelled = counts->requests_cancelled;
	stats->queried_tokens = stats->tokens_prompt = counts->tokens_prompt;
	stats->hit_tokens = counts->tokens_cached;
	stats->tokens_generated = counts->tokens_generated;
	stats->clients = user->n_connections;
	stats->sessions_faulty = counts->sessions_faulty;
	stats->rings = counts->rings;
}

void control_stats(struct session *session, const struct proto_request *request)
{
	const struct sessions *sessions = session->sessions;
	struct kvd_msg_stats_reply msg = {0};
	struct kvd_stats *stats = &msg.stats;

	stats->size = sizeof(*stats);
	stats->generation = sessions->generation;
	stats->uptime_ns = loop_now(sessions->loop) - sessions->started_ns;
	proto_set_string(stats->release, sizeof(stats->release), KVD_VERSION);
	stats->model = sessions->engine->info;
	stats->draining = sessions->draining;
	engine_stats(sessions->engine, stats);
	if (session->admin)
		put_all(sessions, stats);
	else
		put_own(session, stats);
	proto_hdr_init(&msg.hdr, KVD_MSG_STATS_REPLY, sizeof(msg), request->hdr.tag, 0);
	session_reply(session, &msg, sizeof(msg));
}
