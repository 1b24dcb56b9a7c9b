/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_USER_MAP_H
#define KVD_DAEMON_USER_MAP_H

/* Which ids of a peer are somebody's. A user namespace that does not map all ids gives one number,
 * the overflow id, for every id that it lacks: many users who look like one, and must not share a
 * cache, limits or rights. Thread: any; read once. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* @hidden_uids, @hidden_gids: some have no number of their own here */
struct user_map {
	bool hidden_uids;
	bool hidden_gids;
	uint32_t overflow_uid;
	uint32_t overflow_gid;
};

/* As /proc says of this process; where it cannot be read, all ids count as mapped. */
void user_map_read(struct user_map *map);

/* Whether the text of a uid_map or gid_map leaves ids out. */
bool user_map_is_partial(const char *text);

static inline bool user_map_hides_uid(const struct user_map *map, uint32_t uid)
{
	return map->hidden_uids && uid == map->overflow_uid;
}

static inline bool user_map_hides_gid(const struct user_map *map, uint32_t gid)
{
	return map->hidden_gids && gid == map->overflow_gid;
}

#endif
