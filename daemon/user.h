/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_USER_H
#define KVD_DAEMON_USER_H

/*
 * Users: which domain a uid shares in, what it may have, and what its sessions hold. Owns a struct
 * user for each uid with a session, with a charge that outlasts its sessions, or with limits that
 * an administrator set. The scheduler charges
 * blocks and requests itself. Relies on the configuration; users_init() resolves its names. Thread:
 * loop.
 *
 *   domain of a uid   the first [domain NAME] that lists it or one of its groups, as the
 *                     kernel attests them (SO_PEERGROUPS); else a domain of its own
 *   number            its own: the uid; a named one: USER_DOMAIN_NAMED and 16 bits of a
 *                     hash of the name. uids in that range are not let in.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/sched/request.h"
#include "daemon/turns.h"
#include "daemon/user_map.h"

struct config;
struct config_domain;
struct config_report;

#define USER_DOMAIN_NAMED UINT32_C(0xffff0000)

/* Name of PREFIX_DOMAIN_PUBLIC, where pinned prefixes lie that all may read. */
#define USER_DOMAIN_PUBLIC "public"

/* Beside blocks; USER_BYTES: memory of rings, queues and arenas; tokens kept for FORK.
 * USER_RINGS: those that are open, and ended ones whose memory the client still holds. */
enum user_resource {
	USER_BYTES,
	USER_RINGS,
	USER_N_RESOURCES,
};

/* What sessions count for a user, who is told no other counts: since the first of its connections
 * that are open; @rings: open now. @tokens_cached: of its prompts' tokens, found in the cache */
struct user_counts {
	uint64_t requests_completed;
	uint64_t requests_failed;
	uint64_t requests_cancelled;
	uint64_t tokens_prompt;
	uint64_t tokens_cached;
	uint64_t tokens_generated;
	uint64_t sessions;
	uint64_t sessions_faulty;
	uint64_t rings;
};

/**
 * struct user - one uid
 * @users: NULL once they ended: then it ends with its last charge
 * @member: the domain of the configuration that it is in, or NULL
 * @domain: number; @domain_name: of a named one, else NULL
 * @quota: what the scheduler enforces
 * @max_connections, @max: what sessions enforce; 0: no limit
 * @n_connections, @used: charged now
 * @turns: what is to be done for it
 * @set: KVD_QUOTA_* of the limits that an administrator set; they outlast its connections
 */
struct user {
	struct user *next;
	struct users *users;
	const struct user_domain *member;
	uint32_t uid;
	uint32_t domain;
	const char *domain_name;
	struct sched_quota quota;
	uint32_t max_connections;
	uint32_t n_connections;
	uint64_t max[USER_N_RESOURCES];
	uint64_t used[USER_N_RESOURCES];
	struct turn_user turns;
	uint32_t set;
	struct user_counts counts;
};

/* What one object costs its user, embedded in it. All zero: nothing was charged. */
struct user_charge {
	struct user *user;
	uint64_t amount[USER_N_RESOURCES];
};

/* A domain of the configuration with its members resolved. */
struct user_domain {
	const struct config_domain *config;
	uint32_t number;
	uid_t *uids;
	size_t n_uids;
	gid_t *gids;
	size_t n_gids;
};

/* @map: which ids of peers are somebody's; @list: by rising uid */
struct users {
	const struct config *config;
	struct user_map map;
	struct user_domain *domains;
	uint32_t n_domains;
	struct user *list;
};

enum { USERS_BAD_DOMAIN = 1 };

/*
 * Resolves the names in the configuration. @report: each that is not there, and each uid that two
 * domains list: the first has it. Return: 0, also with reports; USERS_BAD_DOMAIN: the name of a
 * domain cannot be used; -ENOMEM. users_deinit() is safe after each.
 */
int users_init(struct users *users, const struct config *config,
	       struct config_report *report);
void users_deinit(struct users *users);

/* Limits of all users follow the reloaded configuration; domains stay as they are. */
void users_reload(struct users *users);

/**
 * user_connect() - charge one connection to a peer
 * @fd: its socket, for its groups
 * @admin: by the administrators' socket: counted, but let in beyond the limit
 *
 * Return: 0; -EDQUOT with *ret_user borrowed: too many connections; -EPERM: a reserved uid;
 * -EADDRNOTAVAIL: a uid that is nobody in particular (user_map.h); -ENOMEM.
 */
int user_connect(struct users *users, int fd, uid_t uid, gid_t gid, bool admin,
		 struct user **ret_user);
void user_disconnect(struct users *users, struct user *user);

/* @charge: empty, or of the same user. Return: 0; -EDQUOT with @charge as it was. */
int user_charge(struct user_charge *charge, struct user *user,
		enum user_resource resource, uint64_t n);

/* The object became smaller: keeps @n of what it was charged. */
void user_charge_shrink(struct user_charge *charge, enum user_resource resource,
			uint64_t n);

/* The charge goes along with what it is for; @from is empty afterwards. */
struct user_charge user_charge_take(struct user_charge *from);

/* Gives everything back; the user ends with it if nothing else is left of it. Idempotent. */
void user_charge_deinit(struct user_charge *charge);

/* Made with the limits of the configuration if need be; NULL: out of memory. */
struct user *users_get(struct users *users, uid_t uid);

/* "uid:1000", "public", or the name of a domain. Return: false for anything else. */
bool users_parse_domain(const struct users *users, const char *text,
			uint32_t *ret_domain);

void users_print_domain(const struct users *users, uint32_t domain, char *text,
			size_t size);

#endif
