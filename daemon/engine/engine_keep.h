/* SPDX-License-Identifier: MIT */
/*
 * What of the engine outlives the process: the pool's memory and its image, two memfds in the
 * service manager's FD store. Owns them and the mapping of the image; decides whether the start is
 * warm, and logs it. Thread: loop. Order: take, recall, open, restore, save between steps, close.
 */
#ifndef KVD_DAEMON_ENGINE_KEEP_H
#define KVD_DAEMON_ENGINE_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/cache/cache.h"
#include "daemon/engine/pool_pages.h"
#include "daemon/fdstore.h"

/*
 * @pool_fd: -1: the pool is private memory, as none could be kept. @map: of the image, or NULL;
 * unchecked until engine_keep_open(). @map_error: why what came back is not mapped; 0: it is, or
 * cannot be used anyway. @settled: the index follows the image; until then a failed start is the
 * image's doing. @generation: of this daemon; 0: no image says. @came_back_end: bytes up to the end
 * of the last block that a former daemon used.
 */
struct engine_keep {
	struct fdstore *store;
	int pool_fd;
	int image_fd;
	void *map;
	size_t map_bytes;
	int map_error;
	bool warm;
	bool settled;
	uint64_t generation;
	uint64_t begin_ns;
	uint64_t n_lost;
	struct pool_pages pages;
	uint64_t came_back_end;
};

/* What came back stays stored until engine_keep_open(). @store: outlives @keep; NULL: none */
void engine_keep_take(struct engine_keep *keep, struct fdstore *store);

/* As image_recall(), of what came back. */
bool engine_keep_recall(const struct engine_keep *keep, const struct image_file *file,
			uint8_t *ret_fingerprint);

/* Memory of pool and image, back or new. @file: of its fingerprint; NULL: cannot be identified */
void engine_keep_open(struct engine_keep *keep, const struct image_model *model,
		      const struct image_file *file);

/* Drops what came back; @why goes into the log. */
void engine_keep_discard(struct fdstore *store, const char *why);

/*
 * Rebuilds the index from the image. @cache: empty; writes to the image from now on.
 * @blocks: the pool's bytes. Return: 0, -ENOMEM, or -EAGAIN (no thread): the start fails.
 */
int engine_keep_restore(struct engine_keep *keep, struct cache *cache,
			const struct image_model *model, const void *blocks);

/* The daemon serves: a crash from now on is not the image's doing. */
void engine_keep_succeed(struct engine_keep *keep);

/* Writes some of what was published. Return: whether there is more. */
bool engine_keep_save(struct engine_keep *keep, struct cache *cache);

/* Idempotent. Writes all that was published; it stays in the store. */
void engine_keep_close(struct engine_keep *keep, struct cache *cache);

#endif
