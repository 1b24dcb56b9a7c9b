/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_MODEL_H
#define KVD_DAEMON_ENGINE_MODEL_H

/* Loads and unloads what struct engine holds. Thread: loop, while no worker runs. */

#include <stddef.h>

struct engine;
struct kvd_stats;
struct plan;
struct plan_result;

/*
 * Fills engine->model, info, text, cache and sched. Return: 0, or -errno with a line in @error that
 * names the file or key and the remedy. engine_model_unload() is safe after failure.
 */
int engine_model_load(struct engine *engine, char *error, size_t error_size);
void engine_model_unload(struct engine *engine);

void engine_model_stats(const struct engine *engine, struct kvd_stats *stats);

/* Starts the worker on the CPUs of [cpu] affinity. Return: 0 or -errno. */
int engine_model_worker_start(struct engine *engine);

/* worker_fn: runs engine->plan. Thread: worker. */
void engine_model_run(void *engine);

#endif
