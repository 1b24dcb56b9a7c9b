/* SPDX-License-Identifier: MIT */
/*
 * Packed weights that outlive the process: a memory file in the service manager's FD store.
 *
 * Owns: the file's descriptor, during the load of a model. Loop thread. Relies on
 * daemon/fdstore.h for keeping, and on weights_begin() of the backend for what lies where.
 * Does not look at weights: that they are what was packed is the kernel's word, since the
 * file is sealed against every change before it goes into the store.
 *
 *   0                    the mark: of which executable, which model file and which digest
 *   KV_WEIGHTS_ALIGN     the backend's
 *
 * Packing reads the whole model and is most of a warm start; a daemon that finds the file of its
 * own executable and of the same model maps it instead. Any other is dropped: the packed form
 * is no format that another build would know.
 *
 *   weights_keep_begin()   before the first weight
 *   weights_keep_end()     after the last one
 *   weights_keep_push()    new ones go into the store: once all else of the start has gone
 *                          well, and after the pool, which has the first claim to a small store
 *   weights_keep_close()   in any case
 */
#ifndef KVD_DAEMON_WEIGHTS_KEEP_H
#define KVD_DAEMON_WEIGHTS_KEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/cache/image.h"
#include "daemon/fdstore.h"
#include "kernels/backend.h"

/**
 * struct weights_mark - the head of the file
 * @magic: WEIGHTS_MAGIC
 * @version: of kvd, cut to what there is room for
 * @exe: the executable that packed them
 * @model: the file that they were read from; @fingerprint: of that file
 */
struct weights_mark {
	uint64_t magic;
	char version[32];
	struct image_file exe;
	struct image_file model;
	uint8_t fingerprint[32];
};

/**
 * struct weights_keep - see above; zeroed: nothing is kept
 * @fd: -1: none
 * @filled: what came back is used
 * @sealed: new ones are complete
 */
struct weights_keep {
	struct fdstore *store;
	const struct kv_backend *backend;
	struct kv_device *dev;
	struct weights_mark mark;
	int fd;
	bool filled;
	bool sealed;
};

/**
 * weights_keep_begin() - the weights made from now on come from the store, or can go there
 * @keep: caller's memory
 * @store: NULL: nothing is kept
 * @file: of the model; NULL: it cannot be told again, and nothing is kept
 * @fingerprint: [32] of that file, if it is known; NULL: what came back is dropped
 */
void weights_keep_begin(struct weights_keep *keep, struct fdstore *store,
			const struct kv_backend *backend, struct kv_device *dev,
			const struct image_file *file, const uint8_t *fingerprint);

/**
 * weights_keep_end() - all weights are there
 * @fingerprint: [32] of the model's file
 *
 * What came back and could not be used leaves the store.
 *
 * Return: 0, also when they cannot be kept, which costs time at the next start; -ENOMEM: they
 * cannot be used.
 */
int weights_keep_end(struct weights_keep *keep, const uint8_t *fingerprint);

/* Into the store, if they are new and complete. */
void weights_keep_push(struct weights_keep *keep);

/* Idempotent; what lies in the store stays there. */
void weights_keep_close(struct weights_keep *keep);

/* What came back is of no use: there is no model. */
void weights_keep_discard(struct fdstore *store);

#endif
