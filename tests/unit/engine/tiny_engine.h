/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_UNIT_ENGINE_TINY_ENGINE_H
#define KVD_TESTS_UNIT_ENGINE_TINY_ENGINE_H

/* An engine that serves a small random model from a file of its own, on one thread. */

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/model/gguf.h"
#include "tests/unit/model/tiny-file.h"

/* @path: a template of mkstemp(), to be removed by the caller. */
static inline void tiny_engine_config(struct config *config, char *path)
{
	tiny_file_make(path, GGUF_TENSOR_F32, 1);
	ck_assert_int_eq(config_init(config), 0);
	free(config->model.path);
	config->model.path = strdup(path);
	config->cache.kv_cache_memory = 1 << 20;
	config->cpu.threads = 1;
}

/* On a new loop. @how: who gets the events. */
static inline void tiny_engine_init(struct engine *engine, struct engine_setup how,
				    const struct config *config, struct loop **ret_loop)
{
	char error[512] = "";

	ck_assert_int_eq(loop_new(ret_loop, LOOP_BACKEND_EPOLL), 0);
	how.loop = *ret_loop;
	how.config = config;
	ck_assert_msg(!engine_init(engine, &how, error, sizeof(error)), "%s", error);
}

#endif
