/* SPDX-License-Identifier: MIT */
/*
 * The engine on a device whose memory is its own: addresses of it must not be read by the host,
 * and pools cannot lie in a file. The CPU backend computes behind a table that says so.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/fdstore.h"
#include "daemon/model/gguf.h"
#include "kernels/cpu_backend.h"
#include "tests/unit/model/tiny-file.h"
#include "tests/unit/suite.h"

const struct kv_backend *__real_kv_backend_cpu(void);
const struct kv_backend *__wrap_kv_backend_cpu(void);

static struct kv_backend table;
static uint32_t formats;
static char path[] = "/tmp/kvd-device.XXXXXX";
static struct config config;
static struct loop *loop;
static char error[512];

static void get_props(const struct kv_device *dev, struct kv_props *ret_props)
{
	__real_kv_backend_cpu()->get_props(dev, ret_props);
	ret_props->name = "far";
	ret_props->host_memory = false;
	ret_props->formats = formats;
}

static int pool_open(struct kv_device *dev, const struct kv_layout *layout,
		     uint32_t n_blocks, uint32_t n_tails, int fd, uint64_t off,
		     struct kv_pool **ret_pool)
{
	if (fd >= 0)
		return -ENOTSUP;
	return __real_kv_backend_cpu()->pool_open(dev, layout, n_blocks, n_tails, fd, off,
						  ret_pool);
}

/* Not canonical: a read there kills. */
static void *pool_base(const struct kv_pool *pool)
{
	return (void *)(uintptr_t)0x8000000000001000;
}

static int no_memory(struct kv_device *dev, const struct kv_layout *layout,
		     uint32_t n_blocks, uint32_t n_tails, int fd, uint64_t off,
		     struct kv_pool **ret_pool)
{
	return -ENOMEM;
}

static int mem_info(const struct kv_device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
	*ret_free = 3 << 20;
	*ret_total = 5 << 20;
	return 0;
}

static int no_device(const struct kv_options *options, char *why, size_t size,
		     struct kv_device **ret_dev)
{
	snprintf(why, size, "the driver does not answer");
	return -ENODEV;
}

const struct kv_backend *__wrap_kv_backend_cpu(void)
{
	return &table;
}

static void setup(void)
{
	tiny_file_make(path, GGUF_TENSOR_Q4_0, 1);
	ck_assert_int_eq(config_init(&config), 0);
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_EPOLL), 0);
	free(config.model.path);
	config.model.path = strdup(path);
	config.cache.kv_cache_memory = 16 << 20;
	config.cpu.threads = 1;
	formats = (1u << KV_FORMAT_N) - 1;
	table = *__real_kv_backend_cpu();
	table.name = "far";
	table.get_props = get_props;
	table.pool_open = pool_open;
	table.pool_base = pool_base;
	table.mem_info = mem_info;
	table.weights_begin = NULL;
	table.weights_end = NULL;
}

static void teardown(void)
{
	loop_free(loop);
	config_deinit(&config);
	unlink(path);
}

static int open_engine(struct engine *engine, struct fdstore *store)
{
	struct engine_setup setup = {.loop = loop, .config = &config, .fdstore = store};

	return engine_init(engine, &setup, error, sizeof(error));
}

START_TEST(nothing_is_kept_without_host_memory)
{
	struct fdstore_entry came_back[] = {
		{.fd = memfd_create("pool", MFD_CLOEXEC), .name = FDSTORE_POOL},
		{.fd = memfd_create("image", MFD_CLOEXEC), .name = FDSTORE_IMAGE},
		{.fd = memfd_create("weights", MFD_CLOEXEC), .name = FDSTORE_WEIGHTS},
	};
	struct fdstore store = {.max = 10, .entries = came_back, .n_entries = 3};
	struct engine engine;

	ck_assert_msg(!open_engine(&engine, &store), "%s", error);
	ck_assert_int_lt(engine.keep.pool_fd, 0);
	/* what a daemon with another device left is given up */
	ck_assert_int_eq(fdstore_take(&store, FDSTORE_POOL), -ENOENT);
	ck_assert_int_eq(fdstore_take(&store, FDSTORE_IMAGE), -ENOENT);
	ck_assert_int_eq(fdstore_take(&store, FDSTORE_WEIGHTS), -ENOENT);
	engine_deinit(&engine);
}
END_TEST

START_TEST(errors_name_key_and_device)
{
	struct engine engine;

	formats = 1u << KV_FORMAT_FP16;
	config.cache.kv_cache_dtype.k = config.cache.kv_cache_dtype.v = KV_FORMAT_INT8;
	ck_assert_int_eq(open_engine(&engine, NULL), -ENOTSUP);
	ck_assert_msg(strstr(error, "kv_cache_dtype") && strstr(error, "far"), "%s",
		      error);
	engine_deinit(&engine);

	config.cache.kv_cache_dtype.k = config.cache.kv_cache_dtype.v = KV_FORMAT_FP16;
	table.pool_open = no_memory;
	ck_assert_int_eq(open_engine(&engine, NULL), -ENOMEM);
	ck_assert_msg(strstr(error, "kv_cache_memory") && strstr(error, "of 5 MiB") &&
			      strstr(error, " 3 are free"),
		      "%s", error);
	engine_deinit(&engine);

	table.open = no_device;
	ck_assert_int_eq(open_engine(&engine, NULL), -ENODEV);
	ck_assert_msg(strstr(error, "\"far\"") && strstr(error, "driver does not answer"),
		      "%s", error);
	engine_deinit(&engine);

	config.device.backend = CONFIG_BACKEND_CPU + 1;
	ck_assert_int_eq(open_engine(&engine, NULL), -ENOTSUP);
	ck_assert_msg(strstr(error, "[device] backend"), "%s", error);
	engine_deinit(&engine);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("device");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, nothing_is_kept_without_host_memory);
	tcase_add_test(tc, errors_name_key_and_device);
	return run_case("device", tc);
}
