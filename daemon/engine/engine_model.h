/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_MODEL_H
#define KVD_DAEMON_ENGINE_MODEL_H

/*
 * Bringing the engine up: the model file, the device, the pool and the cache over it, and
 * the runner that ties them together for the worker.
 *
 * Thread: loop, before the worker starts and after it has ended.
 */

#include <stddef.h>

struct engine;
struct kvd_stats;
struct plan;
struct plan_result;

/**
 * engine_model_load() - everything that [model], [cache], [scheduler] and [cpu] ask for
 *
 * Fills engine->model, info, text, pool, index and sched.
 *
 * Return: 0; -errno with one line in @error that names the file or key and the remedy.
 * engine_model_unload() is safe after failure.
 */
int engine_model_load(struct engine *engine, char *error, size_t error_size);
void engine_model_unload(struct engine *engine);

/* Backend, format and sizes of the pool. */
void engine_model_stats(const struct engine *engine, struct kvd_stats *stats);

/* Start the worker on the CPUs of [cpu] affinity. Return: 0 or -errno. */
int engine_model_worker_start(struct engine *engine);

/* worker_fn: runs engine->plan. Thread: worker. */
void engine_model_run(void *engine);

#endif
