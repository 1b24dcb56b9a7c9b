/* SPDX-License-Identifier: MIT */
/* A backend and its threads, opened as [cpu] says. Thread: loop, while no worker runs. */
#ifndef KVD_DAEMON_ENGINE_DEVICE_H
#define KVD_DAEMON_ENGINE_DEVICE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/backend.h"

struct config;

/*
 * @dev: NULL: not open. @name: "cpu-amx". @worker_cpus: for the thread that runs steps; empty: any.
 * @n_cpus: that mask and CPU quota leave. @affinity_refused: the kernel does not permit it.
 */
struct engine_device {
	const struct kv_backend *backend;
	struct kv_device *dev;
	struct kv_props props;
	char name[32];
	cpu_set_t worker_cpus;
	uint32_t n_cpus;
	bool affinity_refused;
};

/*
 * @rank: of @n_ranks devices that share the threads and CPUs of [cpu]. Return: 0; -ENOTSUP: [cpu]
 * isa is not offered; -EINVAL: [cpu] affinity names no usable CPU; or what the backend refused
 * with. @error has one line. engine_device_close() is safe after failure.
 */
int engine_device_open(struct engine_device *device, const struct config *config,
		       uint32_t rank, uint32_t n_ranks, char *error, size_t size);

/* Idempotent, and fine on a zeroed struct. */
void engine_device_close(struct engine_device *device);

#endif
