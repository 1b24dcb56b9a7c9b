/* SPDX-License-Identifier: MIT */
/* Which starts are warm, and which part of the pool gets huge pages. */
#include "daemon/engine/engine_keep.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/cache/cache.h"
#include "tests/unit/failing_alloc.h"
#include "tests/unit/suite.h"

#define MIB      ((size_t)1 << 20)
#define N_BLOCKS 64
#define CHUNK    16 /* blocks that get huge pages together: 16 MiB */

static struct fdstore store;
static struct engine_keep keep;
static struct cache cache;
static struct image_model model;
static int files[2]; /* what the manager has: pool, image */
static void *blocks;
static const struct image_file file = {1, 2, 3, 4, 5};
static bool recalled; /* by the daemon that began last */

static void setup(void)
{
	unsetenv("NOTIFY_SOCKET");
	files[0] = files[1] = -1;
}

static void come_back(void)
{
	static const char *const names[2] = {FDSTORE_POOL, FDSTORE_IMAGE};

	/* fdstore_push() may make it longer. */
	free(store.entries);
	store = (struct fdstore){.max = 10,
				 .entries = calloc(10, sizeof(*store.entries))};
	ck_assert_ptr_nonnull(store.entries);
	for (int i = 0; i < 2 && files[i] >= 0; i++) {
		struct fdstore_entry *e = &store.entries[store.n_entries++];

		e->fd = fcntl(files[i], F_DUPFD_CLOEXEC, 0);
		snprintf(e->name, sizeof(e->name), "%s", names[i]);
	}
}

/* A daemon up to where the memory of its blocks is there. */
static void begin(void)
{
	const struct prefix_model identity = {
		.fingerprint = {1, 2, 3},
		.k_format = "fp16",
		.v_format = "fp16",
		.backend = "test",
		.rope = "",
		.block_tokens = 16,
	};

	uint8_t fingerprint[32];

	const struct cache_config config = {
		.identity = &identity,
		.block_bytes = MIB,
		.n_blocks = N_BLOCKS,
		.evict = &evict_adaptive,
	};

	ck_assert_int_eq(cache_init(&cache, &config), 0);
	model = cache_image_model(&cache, &identity);
	come_back();
	engine_keep_take(&keep, &store);
	recalled = engine_keep_recall(&keep, &file, fingerprint);
	if (recalled)
		ck_assert_mem_eq(fingerprint, model.fingerprint, 32);
	engine_keep_open(&keep, &model, &file);
	ck_assert_int_ge(keep.pool_fd, 0);
	for (int i = 0; i < 2; i++) {
		if (files[i] >= 0)
			close(files[i]);
		files[i] = fcntl(i ? keep.image_fd : keep.pool_fd, F_DUPFD_CLOEXEC, 0);
		ck_assert_int_ge(files[i], 0);
	}
	blocks = mmap(NULL, N_BLOCKS * MIB, PROT_READ | PROT_WRITE, MAP_SHARED,
		      keep.pool_fd, 0);
	ck_assert_ptr_ne(blocks, MAP_FAILED);
}

static void end(void)
{
	engine_keep_close(&keep, &cache);
	munmap(blocks, N_BLOCKS * MIB);
	cache_deinit(&cache);
}

static void teardown(void)
{
	close(files[0]);
	close(files[1]);
}

static int restore(void)
{
	return engine_keep_restore(&keep, &cache, &model, blocks);
}

START_TEST(what_cannot_be_taken_back_is_dropped)
{
	begin();
	ck_assert(!keep.warm);
	ck_assert_int_eq(restore(), 0);
	engine_keep_succeed(&keep);
	end();
	for (int i = 0; i < IMAGE_MAX_ATTEMPTS; i++) {
		begin();
		ck_assert(keep.warm);
		/* the last: the order in which blocks are linked */
		fail_after = i % 4;
		ck_assert_int_eq(restore(), -ENOMEM);
		ck_assert_int_eq(fail_after, -1);
		end();
	}
	begin();
	ck_assert(!keep.warm);
	ck_assert_int_eq(restore(), 0);
	end();
}
END_TEST

START_TEST(other_failures_drop_nothing)
{
	for (int i = 0; i < 2 * IMAGE_MAX_ATTEMPTS; i++) {
		begin();
		ck_assert(keep.warm == (i > 0));
		ck_assert_int_eq(restore(), 0);
		/* never ready: a mistake in the configuration, say */
		end();
	}
}
END_TEST

START_TEST(the_fingerprint_is_told_before_the_model_is_there)
{
	const struct image_file other = {1, 2, 3, 4, 6};
	uint8_t fingerprint[32];

	begin();
	ck_assert(!recalled);
	ck_assert_int_eq(restore(), 0);
	end();
	/* a start that does not get as far as the pool changes nothing */
	come_back();
	engine_keep_take(&keep, &store);
	ck_assert(engine_keep_recall(&keep, &file, fingerprint));
	ck_assert(!engine_keep_recall(&keep, &other, fingerprint));
	engine_keep_close(&keep, &cache);
	begin();
	ck_assert(recalled);
	ck_assert(keep.warm);
	ck_assert_int_eq(restore(), 0);
	end();
	engine_keep_take(&keep, NULL);
	ck_assert(!engine_keep_recall(&keep, &file, fingerprint));
	engine_keep_close(&keep, &cache);
}
END_TEST

/* Return: chunks that have huge pages; all that are asked for where the kernel gives none. */
static uint32_t spread(uint32_t expected)
{
	struct pollfd ended = {.fd = keep.pages.worker.event_fd, .events = POLLIN};

	while (engine_keep_save(&keep, &cache) || keep.pages.worker.busy ||
	       keep.pages.n_tries)
		if (keep.pages.worker.busy)
			ck_assert_int_eq(poll(&ended, 1, 60000), 1);
	return keep.pages.next == UINT32_MAX ? expected : keep.pages.next;
}

START_TEST(huge_pages_go_on_after_a_restart)
{
	uint32_t id;

	begin();
	ck_assert_int_eq(restore(), 0);
	ck_assert_uint_eq(spread(0), 0);
	for (int i = 0; i < CHUNK; i++)
		ck_assert_int_eq(block_pool_take(&cache.pool, 1000, 0, &id), 0);
	ck_assert_uint_eq(spread(1), 1);
	end();
	begin();
	ck_assert(keep.warm);
	ck_assert_int_eq(restore(), 0);
	/* all of the first chunk came back, and is in its first life */
	for (uint32_t i = 0; i < CHUNK; i++)
		block_pool_revive(&cache.pool, i, 1000);
	block_pool_relist(&cache.pool);
	ck_assert_int_ge(block_pool_take(&cache.pool, 1000, 0, &id), 0);
	ck_assert_uint_eq(id, CHUNK);
	ck_assert_uint_eq(spread(2), 2);
	end();
}
END_TEST

START_TEST(huge_pages_pass_over_a_gap)
{
	begin();
	ck_assert_int_eq(restore(), 0);
	/* had a life and a record, which is damaged; nothing below it had one */
	image_record(&cache.image, 2 * CHUNK + 3)->life = 1;
	end();
	begin();
	ck_assert(keep.warm);
	ck_assert_int_eq(restore(), 0);
	ck_assert_uint_eq(spread(3), 3);
	end();
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("keep");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, what_cannot_be_taken_back_is_dropped);
	tcase_add_test(tcase, other_failures_drop_nothing);
	tcase_add_test(tcase, the_fingerprint_is_told_before_the_model_is_there);
	tcase_add_test(tcase, huge_pages_go_on_after_a_restart);
	tcase_add_test(tcase, huge_pages_pass_over_a_gap);
	return run_case("keep", tcase);
}
