/* SPDX-License-Identifier: MIT */
/*
 * The part of the engine that outlives the process: the pool's memory and its image, as two
 * memfds in the service manager's FD store.
 *
 * Owns: both descriptors, the mapping of the image, and the decision whether the start is a
 * warm one. Loop thread. Relies on daemon/fdstore.h for keeping and on daemon/cache/image.h
 * for what the image means; the backend maps the pool. Logs what it decides, once.
 *
 *   engine_keep_take()     what came back, before the weights are there
 *   engine_keep_recall()   their fingerprint, if the file is the one that the former daemon
 *                          read: hashing takes as long as all else at the start
 *   engine_keep_open()     take back, or create; or none, and the pool is private memory
 *   engine_keep_restore()  the index again, once pool and index are there
 *   engine_keep_save()     published blocks are written down; between steps
 *   engine_keep_close()    the end; what lies in the store stays there
 *
 * Parts of the pool that have come into use are put onto huge pages (pool_pages.h). Private
 * memory needs none of that.
 *
 * What comes back is used only if its seals forbid every change of its size, since a file
 * that shrinks kills who has mapped it.
 */
#ifndef KVD_DAEMON_ENGINE_KEEP_H
#define KVD_DAEMON_ENGINE_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/cache/cache.h"
#include "daemon/engine/pool_pages.h"
#include "daemon/fdstore.h"

/**
 * struct engine_keep - see above
 * @pool_fd: -1: the pool is private memory
 * @map: of the image, or NULL; until engine_keep_open() of what came back, whatever it is
 * @map_error: why what came back is not mapped; 0: it is, or cannot be used anyway
 * @warm: the pool came back
 * @generation: of this daemon; 0: no image says
 * @settled: the index follows the image; until then a failed start is the image's doing
 * @n_lost: image.n_lost as last reported
 * @pages: huge pages for the pool
 * @came_back_end: bytes of the pool up to the end of the last block that a former daemon used
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

/**
 * engine_keep_take() - take over what came back
 * @keep: caller's memory
 * @store: outlives @keep; NULL: nothing is kept
 *
 * engine_keep_close() is right after. Without engine_keep_open() in between all stays in the
 * store as it is.
 */
void engine_keep_take(struct engine_keep *keep, struct fdstore *store);

/* As image_recall(), of what came back. */
bool engine_keep_recall(const struct engine_keep *keep, const struct image_file *file,
			uint8_t *ret_fingerprint);

/**
 * engine_keep_open() - the memory of pool and image
 * @keep: after engine_keep_take()
 * @model: what the pool will hold
 * @file: that its fingerprint is of; NULL: it cannot be told again
 *
 * Says in the log why a start is cold where something had come back. Without a store, or
 * when the memory cannot be had, keep->pool_fd is -1. engine_keep_close() is right after.
 */
void engine_keep_open(struct engine_keep *keep, const struct image_model *model,
		      const struct image_file *file);

/* Nothing of what came back can be of use; @why goes into the log. */
void engine_keep_discard(struct fdstore *store, const char *why);

/**
 * engine_keep_restore() - take over what the image says
 * @cache: empty; writes to the image from now on
 * @blocks: the pool's bytes
 *
 * Return: 0, -ENOMEM, or -EAGAIN (no thread): the start fails, and the third of them drops what
 * was kept.
 */
int engine_keep_restore(struct engine_keep *keep, struct cache *cache,
			const struct image_model *model, const void *blocks);

/* The daemon serves: a crash from now on is not the image's doing. */
void engine_keep_succeed(struct engine_keep *keep);

/**
 * engine_keep_save() - write down some of what was published, report damage, huge pages
 *
 * To be called also when keep->pages.worker.event_fd is readable.
 *
 * Return: whether there is more to write.
 */
bool engine_keep_save(struct engine_keep *keep, struct cache *cache);

/* Idempotent. All that was published is written down first. */
void engine_keep_close(struct engine_keep *keep, struct cache *cache);

#endif
