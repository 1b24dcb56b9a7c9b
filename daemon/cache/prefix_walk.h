/* SPDX-License-Identifier: MIT */
/* Where flushes stand, for prefix_node.c, which reports nodes that go. Loop thread. Such a place is
 * a node that the flush does next; it moves on before that node is freed or moved. */
#ifndef KVD_CACHE_PREFIX_WALK_H
#define KVD_CACHE_PREFIX_WALK_H

#include "daemon/cache/prefix_flush.h"

/* On from its place, which is @flush->at, without doing anything to it. */
void walk_advance(struct prefix_flush *flush);

/* As walk_advance(), of a node that stays. */
void walk_keep(struct prefix_flush *flush);

/* A node is about to be freed: no flush stands there any more. */
void walks_leave(struct prefix_index *index, uint32_t id);

/* A node is about to get another parent: no flush of a tree that it leaves stands below it. */
void walks_lose(struct prefix_index *index, uint32_t id);

#endif
