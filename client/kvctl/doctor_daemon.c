/* SPDX-License-Identifier: MIT */
/* What the daemon's own numbers must satisfy. See doctor.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvctl/doctor.h"
#include "client/kvctl/lists.h"

#define STR(field) (int)strnlen((field), sizeof(field)), (field)

/* Lists are not of the same instant as the statistics: compare this many times. */
#define TRIES    25
#define PAUSE_NS 40000000

/* Everything the equations speak of. */
struct sample {
	struct kvd_stats stats;
	struct list clients, users;
};

static int fetch(struct sample *s, struct kvc_client *client)
{
	int r;

	s->stats = (struct kvd_stats){.size = sizeof(s->stats)};
	r = kvc_stats(client, &s->stats);
	if (r == 0)
		r = list_clients(&s->clients, client);
	if (r == 0)
		r = list_users(&s->users, client);
	return r;
}

/*
 * Sums over clients and users against the daemon's own counts; blocks that nobody has.
 * Return: whether they are even; if not, @why says what is not.
 */
static bool is_even(const struct sample *s, char *why, size_t size)
{
	const struct kvd_client_info *clients = s->clients.items;
	const struct kvd_quota_info *users = s->users.items;
	const struct kvd_stats *stats = &s->stats;
	uint64_t rings = 0, connections = 0, running = 0, waiting = 0;

	for (size_t i = 0; i < s->clients.n; i++)
		rings += clients[i].rings;
	for (size_t i = 0; i < s->users.n; i++) {
		connections += users[i].connections;
		running += users[i].running;
		waiting += users[i].waiting;
	}
	if (rings != stats->rings)
		snprintf(why, size,
			 "clients have %" PRIu64 " rings, %" PRIu64 " are open", rings,
			 stats->rings);
	else if (connections != stats->clients)
		snprintf(why, size,
			 "users have %" PRIu64 " connections, %" PRIu64 " are there",
			 connections, stats->clients);
	else if (running != stats->requests_running || waiting != stats->requests_waiting)
		snprintf(why, size,
			 "users have %" PRIu64 " running and %" PRIu64
			 " waiting requests, there are %" PRIu64 " and %" PRIu64,
			 running, waiting, stats->requests_running,
			 stats->requests_waiting);
	else if (!stats->requests_running && !stats->requests_waiting &&
		 stats->blocks_active > stats->blocks_pinned)
		snprintf(why, size,
			 "%" PRIu64 " blocks are in use, but no request runs or waits",
			 stats->blocks_active - stats->blocks_pinned);
	else
		return true;
	return false;
}

static bool same(const struct kvd_stats *a, const struct kvd_stats *b)
{
	return a->clients == b->clients && a->rings == b->rings &&
	       a->requests_running == b->requests_running &&
	       a->requests_waiting == b->requests_waiting &&
	       a->requests_completed == b->requests_completed;
}

static void check_sums(struct doctor *doctor, struct kvc_client *client, struct sample *s)
{
	char why[200] = "the daemon was too busy to compare its lists";
	bool still = false;

	for (int i = 0; i < TRIES; i++) {
		const struct timespec pause = {.tv_nsec = PAUSE_NS};
		struct kvd_stats after = {.size = sizeof(after)};
		int r = fetch(s, client);

		if (r == 0)
			r = kvc_stats(client, &after);
		if (r < 0) {
			doctor_add(doctor, "sums", DOCTOR_FAIL,
				   "the lists cannot be read: %s", kvc_strerror(r));
			return;
		}
		if (same(&s->stats, &after)) {
			still = true;
			if (is_even(s, why, sizeof(why))) {
				doctor_add(doctor, "sums", DOCTOR_OK,
					   "%zu clients of %zu users: rings and requests "
					   "add up",
					   s->clients.n, s->users.n);
				return;
			}
		}
		nanosleep(&pause, NULL);
	}
	doctor_add(doctor, "sums", still ? DOCTOR_FAIL : DOCTOR_SKIP, "%s", why);
	if (still)
		doctor_fix(doctor, "this is a defect of kvd: please report it; "
				   "'systemctl restart kvd' starts afresh");
}

static void check_blocks(struct doctor *doctor)
{
	const struct kvd_stats *s = &doctor->stats;
	bool even =
		s->blocks_free + s->blocks_cached + s->blocks_active == s->blocks_total;
	bool ordered = s->blocks_pinned <= s->blocks_active &&
		       s->hit_tokens <= s->queried_tokens &&
		       s->shared_hit_tokens <= s->hit_tokens;
	bool sized = s->pool_bytes == s->blocks_total * s->model.block_bytes;

	doctor_add(doctor, "blocks", even ? DOCTOR_OK : DOCTOR_FAIL,
		   "free %" PRIu64 " + cached %" PRIu64 " + active %" PRIu64
		   " %s total %" PRIu64,
		   s->blocks_free, s->blocks_cached, s->blocks_active,
		   even ? "=" : "!=", s->blocks_total);
	if (even && ordered && sized)
		return;
	if (even)
		doctor_add(doctor, "counters", DOCTOR_FAIL,
			   "pinned %" PRIu64 ", looked up %" PRIu64 ", hits %" PRIu64
			   ", shared %" PRIu64 ", pool of %" PRIu64
			   " bytes do not fit each other",
			   s->blocks_pinned, s->queried_tokens, s->hit_tokens,
			   s->shared_hit_tokens, s->pool_bytes);
	doctor_fix(doctor, "this is a defect of kvd: please report it; "
			   "'systemctl restart kvd' starts afresh");
}

static void check_model(struct doctor *doctor)
{
	const struct kvd_stats *s = &doctor->stats;
	char library[32];

	snprintf(library, sizeof(library), "%d.%d.%d", KVC_VERSION_MAJOR,
		 KVC_VERSION_MINOR, KVC_VERSION_PATCH);
	if (strncmp(library, s->release, sizeof(s->release)) != 0) {
		doctor_add(doctor, "version", DOCTOR_WARN, "kvd is %.*s, kvctl is %s",
			   STR(s->release), library);
		doctor_fix(doctor, "systemctl restart kvd");
	}
	if (s->model.arch[0]) {
		doctor_add(doctor, "model", DOCTOR_OK, "%.*s", STR(s->model.name));
		return;
	}
	doctor_add(doctor, "model", DOCTOR_WARN, "none is loaded");
	doctor_fix(doctor,
		   "kvctl model fetch, or name a GGUF file as path below [model] in "
		   "kvd.conf; then systemctl restart kvd");
}

/* A row for each user that stands at a limit; one when nobody does. */
static void check_limits(struct doctor *doctor, const struct sample *s)
{
	const struct kvd_quota_info *users = s->users.items;
	uint64_t guaranteed = 0;
	bool any = false;

	for (const struct kvd_quota_info *u = users; u < users + s->users.n; u++) {
		const struct kvd_quota *q = &u->quota;
		const char *what = NULL, *option = NULL;

		guaranteed += q->guaranteed_blocks;
		if (q->max_connections && u->connections >= q->max_connections)
			what = "connections", option = "max-connections";
		else if (q->max_waiting && u->waiting >= q->max_waiting)
			what = "waiting requests", option = "max-waiting";
		else if (q->max_blocks && u->blocks >= q->max_blocks)
			what = "blocks", option = "max-blocks";
		else if (q->max_arena && u->arena >= q->max_arena)
			what = "memory of rings", option = "max-arena";
		if (!what)
			continue;
		any = true;
		doctor_add(doctor, "limits", DOCTOR_WARN, "user %u is at its limit of %s",
			   u->uid, what);
		doctor_fix(doctor,
			   "kvctl cache quota --user %u --%s N, or [quota] in "
			   "kvd.conf",
			   u->uid, option);
	}
	if (guaranteed > doctor->stats.blocks_total) {
		any = true;
		doctor_add(doctor, "limits", DOCTOR_WARN,
			   "%" PRIu64 " blocks are guaranteed, but there are %" PRIu64,
			   guaranteed, doctor->stats.blocks_total);
		doctor_fix(doctor, "lower the guarantees, or raise [cache] "
				   "kv_cache_memory");
	}
	if (!any)
		doctor_add(doctor, "limits", DOCTOR_OK, "no user is at a limit");
}

static void check_draining(struct doctor *doctor)
{
	if (!doctor->stats.draining)
		return;
	doctor_add(doctor, "draining", DOCTOR_WARN, "new requests are refused");
	doctor_fix(doctor, "sudo kvctl drain --off, once they may come again");
}

static void check_affinity(struct doctor *doctor)
{
	if (!doctor->stats.affinity_refused)
		return;
	doctor_add(doctor, "affinity", DOCTOR_WARN,
		   "[cpu] affinity has no effect: kvd may not bind its threads");
	doctor_fix(doctor,
		   "cp /usr/share/kvd/50-affinity.conf "
		   "/etc/systemd/system/kvd.service.d/, or CPUAffinity= instead; then "
		   "systemctl daemon-reload and restart kvd");
}

static void check_threads(struct doctor *doctor)
{
	const struct kvd_stats *s = &doctor->stats;

	if (!s->cpus || s->threads <= s->cpus)
		return;
	doctor_add(doctor, "threads", DOCTOR_WARN,
		   "%" PRIu64 " threads compute where CPUs and CPU quota have room for "
		   "%" PRIu64 ": they wait for each other",
		   s->threads, s->cpus);
	doctor_fix(doctor, "threads = 0 below [cpu] in kvd.conf, or a larger CPUQuota=");
}

void doctor_ask_daemon(struct doctor *doctor, struct kvc_client *client)
{
	struct kvd_server_info info;
	struct sample sample = {0};
	int r;

	doctor->stats = (struct kvd_stats){.size = sizeof(doctor->stats)};
	r = kvc_stats(client, &doctor->stats);
	if (r < 0) {
		doctor->stats.size = 0;
		doctor_add(doctor, "statistics", DOCTOR_FAIL, "cannot be read: %s",
			   kvc_strerror(r));
		return;
	}
	check_model(doctor);
	check_blocks(doctor);
	check_draining(doctor);
	check_affinity(doctor);
	check_threads(doctor);
	kvc_get_server_info(client, &info);
	if (info.features & KVD_FEATURE_ADMIN) {
		check_sums(doctor, client, &sample);
		check_limits(doctor, &sample);
	} else {
		doctor_add(doctor, "sums", DOCTOR_SKIP,
			   "needs an administrator's rights");
		doctor_fix(doctor, "sudo kvctl doctor");
	}
	if (doctor->stats.sessions_faulty) {
		doctor_add(doctor, "contract", DOCTOR_WARN,
			   "%" PRIu64
			   " connections ended because their clients broke the "
			   "contract",
			   doctor->stats.sessions_faulty);
		doctor_fix(doctor, "journalctl -u kvd -p warning names them");
	}
	list_deinit(&sample.clients);
	list_deinit(&sample.users);
}
