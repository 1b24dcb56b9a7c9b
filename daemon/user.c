/* SPDX-License-Identifier: MIT */
/*
 * See user.h. The scheduler takes back what it charged (preemption), which nothing here ever does.
 * A named domain's number is a hash, so that it means the same after a restart; the name itself is
 * hashed into every key. A user that cannot be resolved has a domain of its own, which is never
 * less safe.
 */
#include "daemon/user.h"

#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <kvd/proto_admin.h>

#include "daemon/config.h"
#include "daemon/escape.h"
#include "daemon/log.h"

/* Groups of a peer that are looked at; the kernel knows no more of one process. */
#define MAX_GROUPS 65536

/* 16 bits of FNV-1a. */
static uint32_t name_number(const char *name)
{
	uint32_t h = UINT32_C(2166136261);

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * UINT32_C(16777619);
	/* the last ones mean nobody and everybody */
	return USER_DOMAIN_NAMED + ((h >> 16 ^ h) & 0xffff) % 0xfff0;
}

/* A name or a number. Return: false if there is no such user or group. */
static bool resolve(const char *word, bool group, uint32_t *ret_id)
{
	unsigned long id;
	char *end;

	if (*word >= '0' && *word <= '9') {
		errno = 0;
		id = strtoul(word, &end, 10);
		*ret_id = (uint32_t)id;
		return !errno && !*end && id < USER_DOMAIN_NAMED;
	}
	if (group) {
		const struct group *gr = getgrnam(word);

		if (gr)
			*ret_id = gr->gr_gid;
		return gr;
	} else {
		const struct passwd *pw = getpwnam(word);

		if (pw)
			*ret_id = pw->pw_uid;
		return pw;
	}
}

/* A list of names to numbers. What cannot be resolved is reported and left out. */
static int resolve_list(const struct config_domain *domain, bool group,
			uint32_t **ret_ids, size_t *ret_n, struct config_report *report)
{
	char *copy = strdup(group ? domain->groups : domain->users), *at = copy, *word;
	const char *where = group ? domain->groups_where : domain->users_where;
	char shown[64];
	int r = copy ? 0 : error_origin(-ENOMEM);

	while (!r && (word = strsep(&at, ", \t"))) {
		uint32_t *grown;

		if (!*word)
			continue;
		grown = reallocarray(*ret_ids, *ret_n + 1, sizeof(*grown));
		if (!grown) {
			r = error_origin(-ENOMEM);
			break;
		}
		*ret_ids = grown;
		if (resolve(word, group, &grown[*ret_n])) {
			++*ret_n;
			continue;
		}
		escape_bytes(shown, sizeof(shown), word, strlen(word));
		config_report_error(report, where, "[domain %s]: no %s '%s'",
				    domain->name, group ? "group" : "user", shown);
	}
	free(copy);
	return r;
}

/* What no later look-up would mend. Return: 0 or USERS_BAD_DOMAIN. */
static int check_name(const struct users *users, const struct user_domain *d,
		      struct config_report *report)
{
	if (strcmp(d->config->name, USER_DOMAIN_PUBLIC) == 0) {
		config_report_error(
			report, NULL,
			"[domain %s]: this name means what everybody may read; "
			"choose another",
			d->config->name);
		return USERS_BAD_DOMAIN;
	}
	for (const struct user_domain *k = users->domains; k < d; k++)
		if (k->number == d->number) {
			config_report_error(
				report, NULL,
				"[domain %s]: its name cannot be told from that of "
				"[domain %s]; choose another",
				d->config->name, k->config->name);
			return USERS_BAD_DOMAIN;
		}
	return 0;
}

/* A uid that is listed twice belongs to the first of the domains. */
static void report_twice(const struct users *users, const struct user_domain *d,
			 struct config_report *report)
{
	for (size_t i = 0; i < d->n_uids; i++)
		for (const struct user_domain *k = users->domains; k < d; k++)
			for (size_t n = 0; n < k->n_uids; n++)
				if (k->uids[n] == d->uids[i])
					config_report_error(
						report, d->config->users_where,
						"[domain %s]: uid %u belongs to [domain "
						"%s] already",
						d->config->name, (unsigned)d->uids[i],
						k->config->name);
}

int users_init(struct users *users, const struct config *config,
	       struct config_report *report)
{
	int r, bad = 0;

	*users = (struct users){.config = config};
	user_map_read(&users->map);
	if (!config->n_domains)
		return 0;
	users->domains = calloc(config->n_domains, sizeof(*users->domains));
	if (!users->domains)
		return error_origin(-ENOMEM);
	for (uint32_t i = 0; i < config->n_domains; i++) {
		struct user_domain *d = &users->domains[users->n_domains++];

		d->config = &config->domains[i];
		d->number = name_number(d->config->name);
		bad |= check_name(users, d, report);
		r = resolve_list(d->config, false, &d->uids, &d->n_uids, report);
		if (!r)
			r = resolve_list(d->config, true, &d->gids, &d->n_gids, report);
		if (r)
			return r;
		report_twice(users, d, report);
	}
	return bad;
}

/* Frees it if nothing is left of it. */
static void user_put(struct user *user)
{
	struct user **at;

	if (user->n_connections || user->set)
		return;
	for (int i = 0; i < USER_N_RESOURCES; i++)
		if (user->used[i])
			return;
	if (user->users) {
		for (at = &user->users->list; *at != user;)
			at = &(*at)->next;
		*at = user->next;
	}
	turn_user_deinit(&user->turns);
	free(user);
}

void users_deinit(struct users *users)
{
	for (uint32_t i = 0; i < users->n_domains; i++) {
		free(users->domains[i].uids);
		free(users->domains[i].gids);
	}
	free(users->domains);
	while (users->list) {
		struct user *user = users->list;

		users->list = user->next;
		turn_user_deinit(&user->turns);
		user->users = NULL;
		user->n_connections = user->set = 0;
		user_put(user);
	}
	memset(users, 0, sizeof(*users));
}

static bool is_member(const struct user_domain *d, uid_t uid, const gid_t *gids, size_t n)
{
	for (size_t i = 0; i < d->n_uids; i++)
		if (d->uids[i] == uid)
			return true;
	for (size_t i = 0; i < d->n_gids; i++)
		for (size_t k = 0; k < n; k++)
			if (d->gids[i] == gids[k])
				return true;
	return false;
}

/* The nearest counts: the administrator's, the domain's, [quota], [daemon]. */
static void set_limits(const struct users *users, struct user *user)
{
	struct config_quota q = users->config->quota;

	if (user->member) {
		const struct config_domain *d = user->member->config;

#define OWN(bit, field) q.field = d->quota_set & 1u << (bit) ? d->quota.field : q.field
		OWN(0, guaranteed_blocks);
		OWN(1, max_blocks);
		OWN(2, max_running);
		OWN(3, max_waiting);
		OWN(4, max_connections);
		OWN(5, max_rings);
		OWN(6, max_arena);
#undef OWN
	}
	if (!q.max_connections)
		q.max_connections = users->config->daemon.max_clients_per_uid;
	/* room for others to start at once */
	if (!q.max_running)
		q.max_running = users->config->scheduler.max_num_seqs / 4;
	if (!q.max_running)
		q.max_running = 1;
#define TAKE(bit, to, from) to = user->set & KVD_QUOTA_##bit ? to : q.from
	TAKE(GUARANTEED, user->quota.min_blocks, guaranteed_blocks);
	TAKE(BLOCKS, user->quota.max_blocks, max_blocks);
	TAKE(RUNNING, user->quota.max_running, max_running);
	TAKE(WAITING, user->quota.max_waiting, max_waiting);
	TAKE(CONNECTIONS, user->max_connections, max_connections);
	TAKE(ARENA, user->max[USER_BYTES], max_arena);
#undef TAKE
	user->max[USER_RINGS] = q.max_rings;
}

static void set_domain(const struct users *users, struct user *user, const gid_t *gids,
		       size_t n_gids)
{
	user->member = NULL;
	for (uint32_t i = 0; i < users->n_domains && !user->member; i++)
		if (is_member(&users->domains[i], user->uid, gids, n_gids))
			user->member = &users->domains[i];
	user->domain = user->member ? user->member->number : user->uid;
	user->domain_name = user->member ? user->member->config->name : NULL;
	set_limits(users, user);
}

void users_reload(struct users *users)
{
	for (struct user *user = users->list; user; user = user->next)
		set_limits(users, user);
}

static struct user *user_find(const struct users *users, uid_t uid)
{
	struct user *user = users->list;

	while (user && user->uid < uid)
		user = user->next;
	return user && user->uid == uid ? user : NULL;
}

struct user *users_get(struct users *users, uid_t uid)
{
	struct user *user = user_find(users, uid), **at = &users->list;

	if (user)
		return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->users = users;
	user->uid = uid;
	user->turns.uid = uid;
	set_domain(users, user, NULL, 0);
	while (*at && (*at)->uid < uid)
		at = &(*at)->next;
	user->next = *at;
	*at = user;
	return user;
}

/* Groups of a peer, those that stand for a group only. Return: how many are in @gids. */
static size_t peer_groups(const struct users *users, int fd, gid_t gid, gid_t *gids)
{
	socklen_t len = MAX_GROUPS * sizeof(*gids);
	size_t n, n_known = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, gids, &len) < 0)
		len = 0;
	n = len / sizeof(*gids);
	gids[n++] = gid;
	for (size_t i = 0; i < n; i++)
		if (!user_map_hides_gid(&users->map, gids[i]))
			gids[n_known++] = gids[i];
	return n_known;
}

int user_connect(struct users *users, int fd, uid_t uid, gid_t gid, bool admin,
		 struct user **ret_user)
{
	struct user *user;
	gid_t *gids;

	if (uid >= USER_DOMAIN_NAMED)
		return -EPERM;
	if (user_map_hides_uid(&users->map, uid))
		return -EADDRNOTAVAIL;
	user = users_get(users, uid);
	if (!user)
		return error_origin(-ENOMEM);
	*ret_user = user;
	if (!admin && user->max_connections &&
	    user->n_connections >= user->max_connections)
		return -EDQUOT;
	/* what decides is the first connection of those that are open: one uid, one domain */
	if (!user->n_connections && users->n_domains) {
		gids = malloc((MAX_GROUPS + 1) * sizeof(*gids));
		if (!gids) {
			user_put(user);
			return error_origin(-ENOMEM);
		}
		set_domain(users, user, gids, peer_groups(users, fd, gid, gids));
		free(gids);
	}
	user->n_connections++;
	return 0;
}

void user_disconnect(struct users *users, struct user *user)
{
	assert(user->n_connections);
	user->n_connections--;
	user_put(user);
}

int user_charge(struct user_charge *charge, struct user *user,
		enum user_resource resource, uint64_t n)
{
	uint64_t max = user->max[resource], used = user->used[resource];

	assert(!charge->user || charge->user == user);
	if (max && (used > max || n > max - used))
		return -EDQUOT;
	charge->user = user;
	charge->amount[resource] += n;
	user->used[resource] += n;
	return 0;
}

void user_charge_shrink(struct user_charge *charge, enum user_resource resource,
			uint64_t n)
{
	uint64_t back = charge->amount[resource] - n;

	assert(n <= charge->amount[resource]);
	if (!charge->user)
		return;
	assert(charge->user->used[resource] >= back);
	charge->user->used[resource] -= back;
	charge->amount[resource] = n;
}

struct user_charge user_charge_take(struct user_charge *from)
{
	struct user_charge taken = *from;

	*from = (struct user_charge){0};
	return taken;
}

void user_charge_deinit(struct user_charge *charge)
{
	for (int i = 0; i < USER_N_RESOURCES; i++)
		user_charge_shrink(charge, (enum user_resource)i, 0);
	if (charge->user)
		user_put(charge->user);
	charge->user = NULL;
}

bool users_parse_domain(const struct users *users, const char *text, uint32_t *ret_domain)
{
	char *end;
	unsigned long uid;

	for (uint32_t i = 0; i < users->n_domains; i++)
		if (strcmp(users->domains[i].config->name, text) == 0) {
			*ret_domain = users->domains[i].number;
			return true;
		}
	if (strcmp(text, USER_DOMAIN_PUBLIC) == 0) {
		*ret_domain = PREFIX_DOMAIN_PUBLIC;
		return true;
	}
	if (strncmp(text, "uid:", 4) != 0 || text[4] < '0' || text[4] > '9')
		return false;
	errno = 0;
	uid = strtoul(text + 4, &end, 10);
	if (errno || *end || uid >= USER_DOMAIN_NAMED)
		return false;
	*ret_domain = (uint32_t)uid;
	return true;
}

void users_print_domain(const struct users *users, uint32_t domain, char *text,
			size_t size)
{
	for (uint32_t i = 0; i < users->n_domains; i++)
		if (users->domains[i].number == domain) {
			snprintf(text, size, "%s", users->domains[i].config->name);
			return;
		}
	if (domain == PREFIX_DOMAIN_PUBLIC)
		snprintf(text, size, USER_DOMAIN_PUBLIC);
	else
		snprintf(text, size, "uid:%u", domain);
}
