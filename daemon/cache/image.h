/* SPDX-License-Identifier: MIT */
/*
 * The image: what a later process needs to find the blocks of this one again. Loop thread.
 *
 * Owns the layout of a piece of memory that outlives the process, beside the pool that does so too,
 * and a list of blocks that wait for their record. The memory is the caller's. prefix.c says when a
 * block is published or goes, prefix_image.c reads what came back.
 *
 * A record counts only while its commit word is right, so the writer may die at any instruction.
 * What comes back is a stranger's word: every field is checked, none is used as an index before,
 * and a block's bytes are compared at the first hit. Only the version that wrote an image takes it
 * back.
 */
#ifndef KVD_CACHE_IMAGE_H
#define KVD_CACHE_IMAGE_H

#include "daemon/cache/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_VERSION 4

/* Starts that may fail in a row with one image, before it is taken for the cause. */
#define IMAGE_MAX_ATTEMPTS 3

/* What this process would write. @base digests the identity; @secret: of its keys, which an image
 * that comes back has its own of; the rest is for people. */
struct image_model {
	struct prefix_key base;
	struct prefix_secret secret;
	uint8_t fingerprint[32];
	const char *k_format;
	const char *v_format;
	const char *backend;
	uint64_t block_bytes;
	uint32_t n_blocks;
	uint32_t block_tokens;
};

/* A file as it was when its fingerprint was made; only one that agrees in all of it is the same. */
struct image_file {
	uint64_t dev;
	uint64_t ino;
	uint64_t size;
	int64_t mtime_ns;
	int64_t ctime_ns;
};

/* Named conditions of image_check(): why an image is of no use here. */
enum image_condition {
	IMAGE_DAMAGED = 1, /* no image, or its header is not what was written */
	IMAGE_OTHER_VERSION,
	IMAGE_OTHER_MODEL, /* other weights, or settings of theirs */
	IMAGE_OTHER_FORMAT,
	IMAGE_OTHER_BACKEND, /* arithmetic that gives other bits */
	IMAGE_OTHER_SIZE,
	IMAGE_CRASHES, /* several starts with it failed */
};

/* One block; tokens follow, then zeros up to record_bytes. @commit: checksum of all that follows,
 * or 0. @sum: XXH3 of the block's bytes. @node, @life: its name, as in the index; @life is 0 where
 * none was ever written. @parent, @parent_life: name of the node before, or NODE_NONE */
struct image_record {
	uint64_t commit;
	uint64_t sum;
	uint32_t life;
	uint32_t parent;
	uint32_t parent_life;
	uint32_t domain;
	uint32_t flags;
	uint32_t node;
	struct prefix_key root;
	struct prefix_key key;
	int32_t tokens[];
};

enum { IMAGE_PINNED = 1 };

/* @header, @records, @uses: in the caller's memory; @blocks: the pool's bytes. @pending: [n_blocks]
 * a ring: @n_pending from @first_pending on wait for their record; @queued: [n_blocks] whether it
 * is there. @clock: counts uses. @n_bad: blocks that came back with wrong bytes; @n_lost: those and
 * what hung below */
struct image {
	struct image_header *header;
	uint8_t *records;
	uint64_t *uses;
	const uint8_t *blocks;
	size_t block_bytes;
	size_t record_bytes;
	uint32_t n_blocks;
	uint32_t block_tokens;
	uint32_t *pending;
	bool *queued;
	uint32_t first_pending;
	uint32_t n_pending;
	uint64_t clock;
	uint64_t n_bad;
	uint64_t n_lost;
};

/* Return: 0 if that is beyond size_t. */
size_t image_bytes(const struct image_model *model);

/* An image without a record, in image_bytes() of zeros, 8-byte aligned. */
void image_format(void *map, const struct image_model *model, uint64_t generation);

/* Whether @size bytes that came back are of such a pool. Return: 0, or enum image_condition. */
int image_check(const void *map, size_t size, const struct image_model *model);

/* One clause that says so, for a log line. */
const char *image_condition_text(int condition);

/* The generation that the image names, if image_check() accepts it. */
uint64_t image_generation(const void *map);

/* Of which file the header's fingerprint is; NULL: of none that could be told again. */
void image_note_file(void *map, const struct image_file *file);

/* The fingerprint [32] of just that file, if @size bytes that came back say it, image_check() may
 * refuse them otherwise, and not several starts failed with them. Return: whether it is known. */
bool image_recall(const void *map, size_t size, const struct image_file *file,
		  uint8_t *ret_fingerprint);

/* Borrowed: the secret that the image's keys follow from. */
const struct prefix_secret *image_secret(const struct image *image);

/* A name was given, by number; later processes give later ones. */
void image_set_lives(struct image *image, uint32_t lives);
uint32_t image_lives(const struct image *image);

/* A start begins, with this generation: it counts as failed until image_succeed(). */
void image_begin(void *map, uint64_t generation);
void image_succeed(void *map);

/* Uses an image that was formatted or checked; @map and @blocks outlive it. Return: 0 or -ENOMEM.
 * image_deinit() is safe after failure, and leaves the memory as it is. */
int image_init(struct image *image, void *map, const struct image_model *model,
	       const void *blocks);
void image_deinit(struct image *image);

static inline struct image_record *image_record(const struct image *image, uint32_t id)
{
	return (void *)(image->records + (size_t)id * image->record_bytes);
}

/* Whether a record is committed, and all of it as it was written. */
bool image_is_committed(const struct image *image, uint32_t id);

/* Writes a record from @fields (all but commit, sum and tokens) and @tokens, with the sum of the
 * block's bytes, unless @keep_sum says that they are the same as before. */
void image_commit(struct image *image, uint32_t id, const struct image_record *fields,
		  const int32_t *tokens, bool keep_sum);

/* The block has no record from now on. */
void image_clear(struct image *image, uint32_t id);

/* Whether the block's bytes are those that the record speaks of. */
bool image_bytes_match(const struct image *image, uint32_t id);

/* The block waits for its record; once, even if it is put there again. */
void image_put_pending(struct image *image, uint32_t id);

/* Takes the one that waits longest: parents come first. Return: BLOCK_NONE when there is none. */
uint32_t image_take_pending(struct image *image);

/* The block was published, or found (@frequent): it is the latest. */
static inline void image_use(struct image *image, uint32_t id, bool frequent)
{
	image->uses[id] = ++image->clock << 1 | frequent;
}

#endif
