/* SPDX-License-Identifier: MIT */
/*
 * See engine_keep.h. The fingerprint is recalled before the weights are read, since hashing takes
 * as long as all else at the start. Three failed starts in a row drop what was kept.
 *
 * Parts of the pool that have come into use are put onto huge pages (pool_pages.h); private memory
 * needs none of that.
 */
#include "daemon/engine/engine_keep.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/msgid.h"
#include "ipc/region.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* What is summed up to be written down in one turn of the loop: half a millisecond or one. */
#define SAVE_BYTES ((size_t)4 << 20)

static uint64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void unmap(struct engine_keep *keep)
{
	if (keep->map)
		munmap(keep->map, keep->map_bytes);
	keep->map = NULL;
}

static void forget(struct engine_keep *keep)
{
	unmap(keep);
	close_fd(&keep->pool_fd);
	close_fd(&keep->image_fd);
}

static int map_image(struct engine_keep *keep, size_t size)
{
	void *map =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, keep->image_fd, 0);

	if (map == MAP_FAILED)
		return error_origin(-errno);
	keep->map = map;
	keep->map_bytes = size;
	return 0;
}

/* Sealed against every change of size: a file that shrinks kills who has mapped it. */
static bool is_sealed(int fd, uint64_t *ret_size)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & SEALS) != SEALS ||
	    seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) || fstat(fd, &st) < 0 ||
	    st.st_size <= 0)
		return false;
	*ret_size = (uint64_t)st.st_size;
	return true;
}

static int make_file(const char *name, uint64_t size)
{
	int fd = memfd_sealable(name), r;

	if (fd < 0)
		return fd;
	if (size > INT64_MAX || ftruncate(fd, (off_t)size) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
		r = size > INT64_MAX ? error_origin(-EFBIG) : error_origin(-errno);
		close(fd);
		return r;
	}
	return fd;
}

/* Return: 0; a condition of image_check(); -errno. */
static int take_back(const struct engine_keep *keep, const struct image_model *model,
		     uint64_t pool_size)
{
	uint64_t size;
	int r;

	if (keep->map_error)
		return keep->map_error;
	if (!keep->map || keep->pool_fd < 0 || !is_sealed(keep->pool_fd, &size))
		return IMAGE_DAMAGED;
	r = image_check(keep->map, keep->map_bytes, model);
	return r || size == pool_size ? r : IMAGE_OTHER_SIZE;
}

static void log_cold(const char *why, int error)
{
	log_event(LOG_NOTICE, LOG_FIELDS(.message_id = MSGID_COLD_START, .error = error),
		  "the cache of the former daemon is dropped: %s", why);
}

/* What came back is of no use and must not come back again. */
static void drop(struct engine_keep *keep, const char *why, int error)
{
	log_cold(why, error);
	forget(keep);
	(void)fdstore_remove(keep->store, FDSTORE_POOL);
	(void)fdstore_remove(keep->store, FDSTORE_IMAGE);
}

static int push(struct engine_keep *keep)
{
	int r = fdstore_push(keep->store, FDSTORE_POOL, keep->pool_fd);

	if (r)
		return r < 0 ? r : error_origin(-ENOSPC);
	r = fdstore_push(keep->store, FDSTORE_IMAGE, keep->image_fd);
	if (r)
		(void)fdstore_remove(keep->store, FDSTORE_POOL);
	return r > 0 ? error_origin(-ENOSPC) : r;
}

/* Return: 0 or -errno, with no file open. */
static int create_files(struct engine_keep *keep, const struct image_model *model,
			uint64_t pool_size, const struct image_file *file)
{
	size_t image_size = image_bytes(model);
	int r;

	keep->pool_fd = make_file(FDSTORE_POOL, pool_size);
	r = keep->pool_fd < 0 ? keep->pool_fd : 0;
	if (!r) {
		keep->image_fd = image_size ? make_file(FDSTORE_IMAGE, image_size)
					    : error_origin(-EFBIG);
		r = keep->image_fd < 0 ? keep->image_fd : map_image(keep, image_size);
	}
	if (!r) {
		/* rises with each cold start as long as the clock does */
		keep->generation = now_ns(CLOCK_REALTIME) / 1000000;
		image_format(keep->map, model, keep->generation);
		image_note_file(keep->map, file);
		r = push(keep);
	}
	if (r)
		forget(keep);
	return r;
}

void engine_keep_take(struct engine_keep *keep, struct fdstore *store)
{
	uint64_t size;

	*keep = (struct engine_keep){
		.store = store,
		.pool_fd = -ENOENT,
		.image_fd = -ENOENT,
	};
	if (!store || !fdstore_is_there(store))
		return;
	keep->pool_fd = fdstore_take(store, FDSTORE_POOL);
	keep->image_fd = fdstore_take(store, FDSTORE_IMAGE);
	if (keep->image_fd >= 0 && is_sealed(keep->image_fd, &size) && size <= SIZE_MAX)
		keep->map_error = map_image(keep, (size_t)size);
}

bool engine_keep_recall(const struct engine_keep *keep, const struct image_file *file,
			uint8_t *ret_fingerprint)
{
	return keep->map &&
	       image_recall(keep->map, keep->map_bytes, file, ret_fingerprint);
}

void engine_keep_open(struct engine_keep *keep, const struct image_model *model,
		      const struct image_file *file)
{
	uint64_t pool_size = model->n_blocks * model->block_bytes;
	int r;

	keep->begin_ns = now_ns(CLOCK_MONOTONIC);
	if (keep->pool_fd != -ENOENT || keep->image_fd != -ENOENT) {
		r = take_back(keep, model, pool_size);
		if (!r) {
			keep->generation = image_generation(keep->map) + 1;
			image_begin(keep->map, keep->generation);
			image_note_file(keep->map, file);
			keep->warm = true;
			return;
		}
		drop(keep, r < 0 ? "it cannot be mapped" : image_condition_text(r),
		     r < 0 ? r : 0);
	}
	keep->pool_fd = keep->image_fd = -1;
	if (!keep->store || !fdstore_is_there(keep->store))
		return;
	r = create_files(keep, model, pool_size, file);
	if (!r)
		return;
	keep->generation = 0;
	log_event(
		LOG_WARNING, LOG_FIELDS(.message_id = MSGID_COLD_START, .error = r),
		"the cache will not outlive this daemon: there is no memory file for it, or "
		"no room in the FD store");
}

void engine_keep_discard(struct fdstore *store, const char *why)
{
	int pool = fdstore_take(store, FDSTORE_POOL),
	    image = fdstore_take(store, FDSTORE_IMAGE);

	if (pool < 0 && image < 0)
		return;
	log_cold(why, 0);
	close_fd(&pool);
	close_fd(&image);
	(void)fdstore_remove(store, FDSTORE_POOL);
	(void)fdstore_remove(store, FDSTORE_IMAGE);
}

static bool block_is_used(const struct block_pool *pool, uint32_t id)
{
	const struct block *b = block_pool_get(pool, id);

	return b->state != BLOCK_FREE || b->used;
}

int engine_keep_restore(struct engine_keep *keep, struct cache *cache,
			const struct image_model *model, const void *blocks)
{
	struct prefix_restored result;
	int r;

	if (!keep->map)
		return 0;
	r = pool_pages_init(&keep->pages);
	if (r)
		return r;
	if (!keep->warm) {
		r = cache_keep(cache, keep->map, model, blocks);
		keep->settled = !r;
		return r;
	}
	r = cache_restore(cache, keep->map, model, blocks, &result);
	if (r)
		return r;
	keep->settled = true;
	for (uint32_t id = model->n_blocks; id-- > 0 && !keep->came_back_end;)
		if (block_is_used(&cache->pool, id))
			keep->came_back_end = (id + 1) * model->block_bytes;
	log_event(
		LOG_NOTICE, LOG_FIELDS(.message_id = MSGID_WARM_START),
		"warm start, generation %llu: %u of %u blocks are back (%llu MiB), %u were "
		"dropped, in %llu ms",
		(unsigned long long)keep->generation, result.restored, model->n_blocks,
		(unsigned long long)(result.restored * model->block_bytes) >> 20,
		result.dropped,
		(unsigned long long)(now_ns(CLOCK_MONOTONIC) - keep->begin_ns) / 1000000);
	return 0;
}

void engine_keep_succeed(struct engine_keep *keep)
{
	if (keep->map)
		image_succeed(keep->map);
}

static bool chunk_is_used(const struct cache *cache, size_t from, size_t end)
{
	size_t bytes = cache->block_bytes;

	for (size_t id = from / bytes; id < cache->pool.n_blocks && id * bytes < end;
	     id++)
		if (block_is_used(&cache->pool, (uint32_t)id))
			return true;
	return false;
}

/* Huge pages for the next chunk of the pool, if it has come into use: blocks are first taken
 * in the order of their ids. Of those before the last that came back, what is free is taken
 * next. */
static void spread_huge_pages(struct engine_keep *keep, const struct cache *cache)
{
	size_t whole = cache->pool.n_blocks * cache->block_bytes / POOL_PAGES_HUGE *
		       POOL_PAGES_HUGE;
	size_t from, end;

	if (!pool_pages_ready(&keep->pages))
		return;
	from = keep->pages.next * POOL_PAGES_CHUNK;
	end = from + POOL_PAGES_CHUNK;
	if (end > whole)
		end = whole;
	if (from < end && (from < keep->came_back_end || chunk_is_used(cache, from, end)))
		pool_pages_start(&keep->pages, cache->image.blocks + from, end - from);
}

/* Called between steps, and when keep->pages.worker.event_fd is readable. */
bool engine_keep_save(struct engine_keep *keep, struct cache *cache)
{
	bool more;

	if (!cache->index.image)
		return false;
	more = cache_work(cache, PREFIX_TURN_WORK);
	if (!more && cache->image.n_lost != keep->n_lost) {
		log_event(
			LOG_WARNING, LOG_FIELDS(.message_id = MSGID_BLOCKS_DAMAGED),
			"%llu blocks that came back were not as they had been left; they "
			"were dropped, %llu in all with what followed them",
			(unsigned long long)cache->image.n_bad,
			(unsigned long long)cache->image.n_lost);
		keep->n_lost = cache->image.n_lost;
	}
	spread_huge_pages(keep, cache);
	return cache_save(cache, SAVE_BYTES) > 0 || more;
}

void engine_keep_close(struct engine_keep *keep, struct cache *cache)
{
	if (!keep->store)
		return;
	pool_pages_deinit(&keep->pages);
	(void)cache_save(cache, SIZE_MAX);
	/* an end in good order is no crash; but who failed to take it back will again */
	if (keep->settled)
		engine_keep_succeed(keep);
	forget(keep);
	keep->store = NULL;
}
