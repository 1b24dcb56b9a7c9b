/* SPDX-License-Identifier: MIT */
/*
 * The image: what a later process needs to find the blocks of this one again.
 *
 * Owns: the layout of a piece of memory that outlives the process, beside the pool that
 * does so too, and a list of blocks that wait for their record. Runs on the loop thread.
 * Relies on its caller for the memory and for its lifetime; prefix.c says when a block is
 * published or goes, prefix_image.c reads what came back. Pure memory: no descriptors.
 *
 *   0            header: what all records have in common, the generation, and of which file
 *                the weights' fingerprint was made
 *   4096         records: [n_blocks] of record_bytes, by block id
 *   + records    uses: [n_blocks] u64, when a block was last asked for; a hint
 *
 * The writer may die at any instruction, so a record counts only while its commit word is
 * right: the checksum of the rest of the record, by block id. It is cleared before anything
 * that the record speaks of changes, and stored last:
 *
 *   publish   bytes are complete; fields, then commit               image_commit()
 *   evict     commit = 0; then the block is free                    image_clear()
 *   take      commit is 0 already; then the block is zeroed or written
 *   move      commit = 0; key, root and domain change; fields, then commit
 *
 * One thread stores, in this order; a killed process leaves what it has stored, in the order
 * of the program, as long as the compiler keeps it (release stores and fences see to that).
 * The worker writes into a block only after the loop thread, which cleared its record, has
 * handed it over by a lock.
 *
 * What comes back is a stranger's word all the same: every field is checked, none is used
 * as an index before. Of the bytes of a block the record holds the XXH3 checksum; it is
 * compared at the first hit, since reading a whole pool takes longer than everything else
 * at the start.
 *
 * When records are written: summing up the bytes of a block takes some ten microseconds,
 * so a block that was published waits in a list until prefix_save(), which the engine calls
 * while the worker computes. What waits when the process dies is lost, and is a miss.
 *
 * Versions: an image is taken back by the version that wrote it and by no other. A change
 * to the layout, or to what a field means, steps IMAGE_VERSION; an image of another one is
 * dropped, and the cache starts cold. That costs one computation of what was cached, once
 * for an upgrade; a converter would be code that runs once and is never tried. What makes
 * bytes differ (weights, formats, arithmetic of the backend) is compared as well, by the
 * digest that is in every key.
 */
#ifndef KVD_CACHE_IMAGE_H
#define KVD_CACHE_IMAGE_H

#include "daemon/cache/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_VERSION 3

/* Starts that may fail in a row with one image, before it is taken for the reason. */
#define IMAGE_MAX_ATTEMPTS 3

/**
 * struct image_model - what this process would write
 * @base: of the keyer: digest of all that makes bytes differ
 * @fingerprint: of the weights, a part of @base, and so are the next three; here they tell
 *	people what has changed
 * @k_format, @v_format, @backend: cut to what the header has room for
 * @block_bytes, @n_blocks, @block_tokens: the pool
 */
struct image_model {
	struct prefix_key base;
	uint8_t fingerprint[32];
	const char *k_format;
	const char *v_format;
	const char *backend;
	uint64_t block_bytes;
	uint32_t n_blocks;
	uint32_t block_tokens;
};

/**
 * struct image_file - a file as it was when its fingerprint was made
 *
 * Only a file that agrees in all of it is taken for the same one. Whoever writes to a file
 * moves its ctime, which nobody can set (but through a mapping that is kept); one that changed just before it was looked at could
 * change again within the same tick, and must not be noted.
 */
struct image_file {
	uint64_t dev;
	uint64_t ino;
	uint64_t size;
	int64_t mtime_ns;
	int64_t ctime_ns;
};

/* Named conditions of image_check(): why an image is of no use here. */
enum image_condition {
	IMAGE_DAMAGED = 1,   /* no image, or its header is not what was written */
	IMAGE_OTHER_VERSION, /* of another version of kvd */
	IMAGE_OTHER_MODEL,   /* other weights, or settings of theirs */
	IMAGE_OTHER_FORMAT,  /* other KV formats */
	IMAGE_OTHER_BACKEND, /* arithmetic that gives other bits */
	IMAGE_OTHER_SIZE,    /* other number or size of blocks */
	IMAGE_CRASHES,       /* several starts with it failed */
};

/**
 * struct image_record - one block; tokens follow
 * @commit: checksum of all that follows, or 0
 * @sum: XXH3 of the block's bytes
 * @life: of its node: number of its publication; 0: none was ever written here
 * @parent: node before, or NODE_NONE; @parent_life: of the same
 * @domain: whose block it is
 * @flags: IMAGE_PINNED
 * @node: its node
 * @root, @key: as in the index
 * @tokens: [block_tokens], then zeros up to record_bytes
 */
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

/**
 * struct image - an image in use
 * @header, @records, @uses: in the caller's memory
 * @blocks: the pool's bytes
 * @pending: [n_blocks] a ring; @n_pending from @first_pending on wait for their record
 * @queued: [n_blocks] whether a block is in that list
 * @clock: counts uses
 * @n_bad: blocks that came back and whose bytes were wrong; @n_lost: those and what hung below
 */
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

/* Bytes that the image of such a pool takes. Return: 0 if that is beyond size_t. */
size_t image_bytes(const struct image_model *model);

/**
 * image_format() - an image without a record
 * @map: image_bytes() of zeros, 8-byte aligned
 * @generation: of this daemon
 */
void image_format(void *map, const struct image_model *model, uint64_t generation);

/**
 * image_check() - is this the image of such a pool?
 * @map: @size bytes that came back
 *
 * Return: 0, or enum image_condition.
 */
int image_check(const void *map, size_t size, const struct image_model *model);

/* One clause that says so, for a log line. */
const char *image_condition_text(int condition);

/* The generation that the image names. Of one that image_check() likes. */
uint64_t image_generation(const void *map);

/**
 * image_note_file() - of which file the header's fingerprint is
 * @file: NULL: of none that could be told again
 *
 * A process that dies in between leaves a note that image_recall() does not believe.
 */
void image_note_file(void *map, const struct image_file *file);

/**
 * image_recall() - the fingerprint of a file that has not changed
 * @map: @size bytes that came back; image_check() may find them of no use otherwise
 * @ret_fingerprint: [32]
 *
 * Return: whether it is known: the image is of this version, complete, of just that file, and
 * not one with which several starts failed.
 */
bool image_recall(const void *map, size_t size, const struct image_file *file,
		  uint8_t *ret_fingerprint);

/* A name was given, by number; later processes give later ones. */
void image_set_lives(struct image *image, uint32_t lives);
uint32_t image_lives(const struct image *image);

/* A start begins, with this generation: it counts as failed until image_succeed(). */
void image_begin(void *map, uint64_t generation);
void image_succeed(void *map);

/**
 * image_init() - use an image that was formatted or checked
 * @image: caller's memory
 * @map: outlives @image
 * @blocks: [n_blocks * block_bytes] the pool; outlives @image
 *
 * Return: 0 or -ENOMEM. image_deinit() is right after both and leaves the memory as it is.
 */
int image_init(struct image *image, void *map, const struct image_model *model,
	       const void *blocks);
void image_deinit(struct image *image);

static inline struct image_record *image_record(const struct image *image, uint32_t id)
{
	return (void *)(image->records + (size_t)id * image->record_bytes);
}

/* Whether a record is committed, and all of it as it was written. */
bool image_is_committed(const struct image *image, uint32_t id);

/* Writes a record from @fields (all but commit, sum and tokens) and @tokens; sums up the
 * block's bytes, unless @keep_sum says that they are the same as before. */
void image_commit(struct image *image, uint32_t id, const struct image_record *fields,
		  const int32_t *tokens, bool keep_sum);

/* The block has no record from now on. */
void image_clear(struct image *image, uint32_t id);

/* Whether the block's bytes are those that the record speaks of. */
bool image_bytes_match(const struct image *image, uint32_t id);

/* The block waits for its record; once, however often it is put there. */
void image_put_pending(struct image *image, uint32_t id);

/* Takes the one that waits longest: parents come first. Return: BLOCK_NONE when there is none. */
uint32_t image_take_pending(struct image *image);

/* The block was published or found: it is the latest. @frequent: found. */
static inline void image_use(struct image *image, uint32_t id, bool frequent)
{
	image->uses[id] = ++image->clock << 1 | frequent;
}

#endif
