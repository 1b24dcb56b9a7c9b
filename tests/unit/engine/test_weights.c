/* SPDX-License-Identifier: MIT */
/*
 * Blocks belong to the weights that wrote them (field case 14): the default model, loaded
 * as the daemon loads it, and a copy of the same name with one bit of one weight flipped.
 * What is published under the keys of the one is not there under those of the other, even
 * when pool and index stay, as they do over a restart.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cache/prefix.h"
#include "daemon/cache/seq.h"
#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/model/gguf.h"
#include "tests/unit/cache/flush.h"
#include "tests/unit/suite.h"

#define SKIP     77
#define N_BLOCKS 3
#define N_TOKENS (N_BLOCKS * 16)

static char model_path[4096];
static char folder[] = "/tmp/kvd-weights.XXXXXX";
static char copy_path[sizeof(folder) + 16];
static struct config config;
static struct loop *loop;

static void copy_model(void)
{
	int from = open(model_path, O_RDONLY | O_CLOEXEC);
	int to = open(copy_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	struct stat st;
	off_t at = 0;

	ck_assert(from >= 0 && to >= 0 && !fstat(from, &st));
	while (at < st.st_size)
		ck_assert_int_gt(sendfile(to, from, &at, (size_t)(st.st_size - at)), 0);
	close(from);
	close(to);
}

/* One bit of a matrix in the middle of the model; a second flip undoes it. */
static void flip_one_weight(void)
{
	const struct gguf_tensor *tensor;
	struct load_error err;
	struct gguf *gguf;
	uint8_t byte;
	size_t len;
	off_t at;
	int fd;

	ck_assert_int_eq(gguf_open(&gguf, copy_path, &err), 0);
	tensor = gguf_find_tensor(gguf, "blk.15.ffn_down.weight");
	ck_assert_ptr_nonnull(tensor);
	at = tensor->data + tensor->n_bytes / 2 - gguf_image(gguf, &len);
	gguf_free(gguf);
	fd = open(copy_path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void load(struct engine *engine)
{
	struct engine_setup setup = {.loop = loop, .config = &config};
	char error[512] = "";

	ck_assert_msg(!engine_init(engine, &setup, error, sizeof(error)), "%s", error);
}

/* Hits of @tokens in @index under the keys of @keys. */
static uint32_t n_hits(struct prefix_index *index, const struct prefix_index *keys,
		       const int32_t *tokens)
{
	struct prefix_key made[N_BLOCKS];
	struct prefix_chain chain = {.keys = made, .cap_keys = N_BLOCKS, .domain = 1};
	uint32_t ids[N_BLOCKS], n;

	ck_assert_int_eq(prefix_key_root(&index->keyer, &keys->spaces[0].base, 1, NULL, 0,
					 NULL, 0, &chain.root),
			 0);
	n = lookup(index, &chain, tokens, N_BLOCKS, ids);
	for (uint32_t i = 0; i < n; i++)
		block_pool_unref(index->pool, ids[i]);
	return n;
}

static void publish(struct prefix_index *index, const int32_t *tokens)
{
	struct prefix_key made[N_BLOCKS];
	struct prefix_chain chain = {.keys = made, .cap_keys = N_BLOCKS, .domain = 1};
	struct seq_table table;
	uint32_t id;

	ck_assert_int_eq(prefix_key_root(&index->keyer, &index->spaces[0].base, 1, NULL,
					 0, NULL, 0, &chain.root),
			 0);
	ck_assert_int_eq(seq_init(&table, N_BLOCKS), 0);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		ck_assert_int_eq(prefix_take(index, 1, 1, &id), 0);
		seq_append(&table, id);
	}
	seq_publish(&table, index, &chain, tokens, N_TOKENS);
	seq_release(&table, index->pool);
	seq_deinit(&table);
}

START_TEST(a_flipped_weight_finds_nothing)
{
	struct engine first, flipped, again;
	int32_t tokens[N_TOKENS];

	for (int32_t i = 0; i < N_TOKENS; i++)
		tokens[i] = 100 + i;
	load(&first);
	flip_one_weight();
	load(&flipped);
	flip_one_weight();
	load(&again);
	ck_assert_str_eq(first.info.name, flipped.info.name);
	ck_assert_mem_ne(first.info.fingerprint, flipped.info.fingerprint, 32);
	ck_assert_mem_eq(first.info.fingerprint, again.info.fingerprint, 32);

	publish(&first.cache.index, tokens);
	ck_assert_uint_eq(n_hits(&first.cache.index, &flipped.cache.index, tokens), 0);
	ck_assert_uint_eq(n_hits(&first.cache.index, &again.cache.index, tokens),
			  N_BLOCKS);
	ck_assert_int_eq(prefix_check(&first.cache.index), 0);
	engine_deinit(&again);
	engine_deinit(&flipped);
	engine_deinit(&first);
}
END_TEST

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(copy_path, sizeof(copy_path), "%s/model.gguf", folder);
	copy_model();
	ck_assert_int_eq(config_init(&config), 0);
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_EPOLL), 0);
	free(config.model.path);
	config.model.path = strdup(copy_path);
	ck_assert_ptr_nonnull(config.model.path);
	config.cache.kv_cache_memory = 16 << 20;
	config.cpu.threads = 1;
}

static void teardown(void)
{
	loop_free(loop);
	config_deinit(&config);
	unlink(copy_path);
	rmdir(folder);
}

static void find_model(void)
{
	const char *named = getenv("KVD_MODEL"), *cache = getenv("XDG_CACHE_HOME");
	const char *home = getenv("HOME");

	if (named && *named)
		snprintf(model_path, sizeof(model_path), "%s", named);
	else
		snprintf(model_path, sizeof(model_path),
			 "%s%s/kvd/models/SmolLM2-135M-Instruct.Q4_1.gguf",
			 cache && *cache ? cache : home,
			 cache && *cache ? "" : "/.cache");
}

int main(void)
{
	TCase *tc = tcase_create("weights");

	find_model();
	if (access(model_path, R_OK)) {
		printf("skipped: no %s\n", model_path);
		return SKIP;
	}
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_flipped_weight_finds_nothing);
	return run_case("weights", tc);
}
