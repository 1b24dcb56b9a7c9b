/* SPDX-License-Identifier: MIT */
/*
 * Packed weights that outlive the process: a memory file in the service manager's FD store, sealed
 * against every change: struct weights_mark, and the backend's from KV_WEIGHTS_ALIGN. Owns the
 * descriptor during the load of a model. Thread: loop.
 */
#ifndef KVD_DAEMON_WEIGHTS_KEEP_H
#define KVD_DAEMON_WEIGHTS_KEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/cache/image.h"
#include "daemon/fdstore.h"
#include "kernels/backend.h"

/* @exe: the executable that packed them; @model: the file they are from; @fingerprint: of that */
struct weights_mark {
	uint64_t magic;
	char version[32];
	struct image_file exe;
	struct image_file model;
	uint8_t fingerprint[32];
};

/* @fd: -1: none. @filled: what came back is used. @sealed: new ones are complete */
struct weights_keep {
	struct fdstore *store;
	const struct kv_backend *backend;
	struct kv_device *dev;
	struct weights_mark mark;
	int fd;
	bool filled;
	bool sealed;
};

/*
 * Weights made from now on come from the store, or can go there. @store, @file: NULL: none is kept.
 * @fingerprint: [32] of the model's file; NULL: unknown, what came back is dropped.
 */
void weights_keep_begin(struct weights_keep *keep, struct fdstore *store,
			const struct kv_backend *backend, struct kv_device *dev,
			const struct image_file *file, const uint8_t *fingerprint);

/* @fingerprint: [32]. Return: 0, also when they cannot be kept; -ENOMEM: they cannot be used. */
int weights_keep_end(struct weights_keep *keep, const uint8_t *fingerprint);

/* Puts new, complete ones into the store; after the pool, which has the first claim to it. */
void weights_keep_push(struct weights_keep *keep);

/* Idempotent; what lies in the store stays there. */
void weights_keep_close(struct weights_keep *keep);

void weights_keep_discard(struct fdstore *store);

#endif
