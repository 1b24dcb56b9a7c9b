/* SPDX-License-Identifier: MIT */
/*
 * The image, from its start:
 *
 *   0            header: what all records have in common, the generation, and of which file
 *                the weights' fingerprint was made
 *   4096         records: [n_blocks] of record_bytes, by block id
 *   + records    uses: [n_blocks] u64, when a block was last asked for; a hint
 *
 * The writer may die at any instruction, so a record counts only while its commit word is right:
 * the checksum of the rest of the record, by block id. It is cleared before anything that the
 * record speaks of changes, and stored last:
 *
 *   publish   bytes are complete; fields, then commit               image_commit()
 *   evict     commit = 0; then the block is free                    image_clear()
 *   take      commit is 0 already; then the block is zeroed or written
 *   move      commit = 0; key, root and domain change; fields, then commit
 *
 * One thread stores, in this order; a killed process leaves what it has stored, in the order of the
 * program, as long as the compiler keeps it (release stores and fences see to that). The worker
 * writes into a block only after the loop thread, which cleared its record, has handed it over by a
 * lock.
 *
 * A block's bytes are compared with the checksum in its record at the first hit, since reading a
 * whole pool takes longer than everything else at the start. Summing up the bytes of a block takes
 * some ten microseconds, so a block that was published waits in a list until prefix_save(), which
 * the engine calls while the worker computes. What waits when the process dies is lost, and is a
 * miss.
 *
 * A change to the layout, or to what a field means, steps IMAGE_VERSION; an image of another
 * version is dropped, and the cache starts cold. That costs one computation of what was cached,
 * once for an upgrade; a converter would be code that runs once and is never tried. What makes
 * bytes differ (weights, formats, arithmetic of the backend) is compared as well, by the digest
 * that is in every key.
 */
#include "daemon/cache/image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/cache/block.h"

/* "kvdimage" */
#define IMAGE_MAGIC UINT64_C(0x6567616d6964766b)

#define HEADER_BYTES 4096
#define RECORD_ALIGN 64

/* Numbers of more than this can be neither a clock's milliseconds nor a count. */
#define MAX_GENERATION (UINT64_C(1) << 62)

/**
 * struct image_header - at the start
 * @magic: stored last
 * @check: checksum from @version up to @check
 * @generation: of the daemon that writes; @attempts: starts with it that did not succeed yet
 * @lives: of the node that was published last; a hint
 * @file: that @fingerprint was made of; @file_check: checksum of both, or 0
 */
struct image_header {
	uint64_t magic;
	uint64_t check;
	uint32_t version;
	uint32_t record_bytes;
	uint32_t n_blocks;
	uint32_t block_tokens;
	uint64_t block_bytes;
	struct prefix_key base;
	struct prefix_secret secret;
	uint8_t fingerprint[32];
	char k_format[16];
	char v_format[16];
	char backend[48];
	uint64_t end[0];
	uint64_t generation;
	uint64_t attempts;
	struct image_file file;
	uint64_t file_check;
	uint64_t lives;
};

_Static_assert(sizeof(struct image_header) <= HEADER_BYTES, "header fits its page");
_Static_assert(sizeof(struct image_file) == 40, "no padding, whose bytes would differ");
_Static_assert(offsetof(struct image_record, tokens) == 8 * 5 + 2 * PREFIX_KEY_LEN,
	       "no padding, whose bytes the checksum would read");

static uint64_t header_sum(const struct image_header *h)
{
	const size_t from = offsetof(struct image_header, version);

	return XXH3_64bits((const uint8_t *)h + from,
			   offsetof(struct image_header, end) - from);
}

/* Never 0, which means that there is none. */
static uint64_t file_sum(const struct image_header *h)
{
	uint64_t seed = XXH3_64bits(h->fingerprint, sizeof(h->fingerprint)),
		 sum = XXH3_64bits_withSeed(&h->file, sizeof(h->file), seed);

	return sum ? sum : 1;
}

static size_t record_bytes(uint32_t block_tokens)
{
	size_t bytes = sizeof(struct image_record) + (size_t)block_tokens * 4;

	return (bytes + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

size_t image_bytes(const struct image_model *model)
{
	size_t each = record_bytes(model->block_tokens) + sizeof(uint64_t), bytes;

	if (__builtin_mul_overflow(each, (size_t)model->n_blocks, &bytes) ||
	    __builtin_add_overflow(bytes, (size_t)HEADER_BYTES, &bytes))
		return 0;
	return bytes;
}

static void put_name(char *field, size_t size, const char *name)
{
	size_t len = name ? strlen(name) : 0;

	memset(field, 0, size);
	memcpy(field, name ? name : "", len < size ? len : size);
}

static void header_fill(struct image_header *h, const struct image_model *model)
{
	memset(h, 0, sizeof(*h));
	h->version = IMAGE_VERSION;
	h->record_bytes = (uint32_t)record_bytes(model->block_tokens);
	h->n_blocks = model->n_blocks;
	h->block_tokens = model->block_tokens;
	h->block_bytes = model->block_bytes;
	h->base = model->base;
	h->secret = model->secret;
	memcpy(h->fingerprint, model->fingerprint, sizeof(h->fingerprint));
	put_name(h->k_format, sizeof(h->k_format), model->k_format);
	put_name(h->v_format, sizeof(h->v_format), model->v_format);
	put_name(h->backend, sizeof(h->backend), model->backend);
	h->check = header_sum(h);
}

void image_format(void *map, const struct image_model *model, uint64_t generation)
{
	struct image_header *h = map;

	header_fill(h, model);
	h->generation = generation;
	h->attempts = 1;
	__atomic_store_n(&h->magic, IMAGE_MAGIC, __ATOMIC_RELEASE);
}

/* Whether the header is as it was written. Return: 0, or enum image_condition. */
static int header_check(const struct image_header *h, size_t size)
{
	if (size < HEADER_BYTES || h->magic != IMAGE_MAGIC)
		return IMAGE_DAMAGED;
	/* the checksum of another version may cover other fields */
	if (h->version != IMAGE_VERSION)
		return IMAGE_OTHER_VERSION;
	if (h->check != header_sum(h) || h->generation > MAX_GENERATION)
		return IMAGE_DAMAGED;
	return 0;
}

int image_check(const void *map, size_t size, const struct image_model *model)
{
	const struct image_header *h = map;
	struct image_header want;
	int r = header_check(h, size);

	if (r)
		return r;
	header_fill(&want, model);
	if (memcmp(h->k_format, want.k_format, sizeof(want.k_format)) ||
	    memcmp(h->v_format, want.v_format, sizeof(want.v_format)))
		return IMAGE_OTHER_FORMAT;
	if (memcmp(h->backend, want.backend, sizeof(want.backend)))
		return IMAGE_OTHER_BACKEND;
	if (memcmp(h->fingerprint, want.fingerprint, sizeof(want.fingerprint)))
		return IMAGE_OTHER_MODEL;
	if (h->n_blocks != want.n_blocks || h->block_tokens != want.block_tokens ||
	    h->block_bytes != want.block_bytes || h->record_bytes != want.record_bytes ||
	    size != image_bytes(model))
		return IMAGE_OTHER_SIZE;
	if (memcmp(&h->base, &want.base, sizeof(want.base)))
		return IMAGE_OTHER_MODEL;
	if (h->attempts >= IMAGE_MAX_ATTEMPTS)
		return IMAGE_CRASHES;
	return 0;
}

const char *image_condition_text(int condition)
{
	switch (condition) {
	case IMAGE_DAMAGED:
		return "what the service manager kept is damaged";
	case IMAGE_OTHER_VERSION:
		return "another version of kvd left it";
	case IMAGE_OTHER_MODEL:
		return "it is of another model";
	case IMAGE_OTHER_FORMAT:
		return "kv_cache_dtype is another";
	case IMAGE_OTHER_BACKEND:
		return "it is of another backend";
	case IMAGE_OTHER_SIZE:
		return "the cache has another size";
	case IMAGE_CRASHES:
		return "the last starts with it failed";
	default:
		return "it cannot be used";
	}
}

uint64_t image_generation(const void *map)
{
	return ((const struct image_header *)map)->generation;
}

void image_note_file(void *map, const struct image_file *file)
{
	struct image_header *h = map;

	__atomic_store_n(&h->file_check, 0, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	h->file = file ? *file : (struct image_file){0};
	if (file)
		__atomic_store_n(&h->file_check, file_sum(h), __ATOMIC_RELEASE);
}

bool image_recall(const void *map, size_t size, const struct image_file *file,
		  uint8_t *ret_fingerprint)
{
	const struct image_header *h = map;

	if (header_check(h, size) || h->attempts >= IMAGE_MAX_ATTEMPTS ||
	    h->file_check != file_sum(h) || memcmp(&h->file, file, sizeof(*file)))
		return false;
	memcpy(ret_fingerprint, h->fingerprint, sizeof(h->fingerprint));
	return true;
}

const struct prefix_secret *image_secret(const struct image *image)
{
	return &image->header->secret;
}

void image_set_lives(struct image *image, uint32_t lives)
{
	__atomic_store_n(&image->header->lives, lives, __ATOMIC_RELAXED);
}

uint32_t image_lives(const struct image *image)
{
	return (uint32_t)image->header->lives;
}

void image_begin(void *map, uint64_t generation)
{
	struct image_header *h = map;

	__atomic_store_n(&h->attempts, h->attempts + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&h->generation, generation, __ATOMIC_RELEASE);
}

void image_succeed(void *map)
{
	struct image_header *h = map;

	__atomic_store_n(&h->attempts, 0, __ATOMIC_RELEASE);
}

int image_init(struct image *image, void *map, const struct image_model *model,
	       const void *blocks)
{
	*image = (struct image){
		.header = map,
		.records = (uint8_t *)map + HEADER_BYTES,
		.blocks = blocks,
		.block_bytes = model->block_bytes,
		.record_bytes = record_bytes(model->block_tokens),
		.n_blocks = model->n_blocks,
		.block_tokens = model->block_tokens,
	};
	image->uses =
		(void *)(image->records + (size_t)image->n_blocks * image->record_bytes);
	image->pending = calloc(image->n_blocks, sizeof(*image->pending));
	image->queued = calloc(image->n_blocks, sizeof(*image->queued));
	return image->pending && image->queued ? 0 : -ENOMEM;
}

void image_deinit(struct image *image)
{
	free(image->pending);
	free(image->queued);
	*image = (struct image){0};
}

/* Never 0, which means that there is none. */
static uint64_t record_sum(const struct image *image, uint32_t id)
{
	const struct image_record *r = image_record(image, id);
	uint64_t sum = XXH3_64bits_withSeed((const uint8_t *)r + sizeof(r->commit),
					    image->record_bytes - sizeof(r->commit), id);

	return sum ? sum : 1;
}

static uint64_t block_sum(const struct image *image, uint32_t id)
{
	return XXH3_64bits(image->blocks + (size_t)id * image->block_bytes,
			   image->block_bytes);
}

bool image_is_committed(const struct image *image, uint32_t id)
{
	uint64_t commit =
		__atomic_load_n(&image_record(image, id)->commit, __ATOMIC_ACQUIRE);

	return commit && commit == record_sum(image, id);
}

void image_clear(struct image *image, uint32_t id)
{
	__atomic_store_n(&image_record(image, id)->commit, 0, __ATOMIC_RELAXED);
	/* nothing that follows, here or in who is told of it, comes before */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	/* prompts are kept no longer than they are of use */
	memset(image_record(image, id)->tokens, 0,
	       image->block_tokens * sizeof(*image_record(image, id)->tokens));
}

void image_commit(struct image *image, uint32_t id, const struct image_record *fields,
		  const int32_t *tokens, bool keep_sum)
{
	struct image_record *r = image_record(image, id);
	size_t tokens_bytes = (size_t)image->block_tokens * sizeof(*tokens);
	uint64_t sum = keep_sum ? r->sum : block_sum(image, id);

	image_clear(image, id);
	r->sum = sum;
	r->life = fields->life;
	r->parent = fields->parent;
	r->parent_life = fields->parent_life;
	r->domain = fields->domain;
	r->flags = fields->flags;
	r->node = fields->node;
	r->root = fields->root;
	r->key = fields->key;
	memcpy(r->tokens, tokens, tokens_bytes);
	memset((uint8_t *)r->tokens + tokens_bytes, 0,
	       image->record_bytes - sizeof(*r) - tokens_bytes);
	__atomic_store_n(&r->commit, record_sum(image, id), __ATOMIC_RELEASE);
}

bool image_bytes_match(const struct image *image, uint32_t id)
{
	return image_record(image, id)->sum == block_sum(image, id);
}

void image_put_pending(struct image *image, uint32_t id)
{
	if (image->queued[id])
		return;
	image->queued[id] = true;
	image->pending[(image->first_pending + image->n_pending++) % image->n_blocks] =
		id;
}

uint32_t image_take_pending(struct image *image)
{
	uint32_t id;

	if (!image->n_pending)
		return BLOCK_NONE;
	id = image->pending[image->first_pending];
	image->first_pending = (image->first_pending + 1) % image->n_blocks;
	image->n_pending--;
	image->queued[id] = false;
	return id;
}
