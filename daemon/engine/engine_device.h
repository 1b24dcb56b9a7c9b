/* SPDX-License-Identifier: MIT */
/*
 * The device that computes: a backend out of a table, opened as [cpu] of kvd.conf says.
 *
 * Owns: the opened device, with its threads. Loop thread, before the worker starts, and at the
 * end. Relies on the backend for everything that is computed. Logs what it does without; knows
 * nothing of models.
 */
#ifndef KVD_DAEMON_ENGINE_DEVICE_H
#define KVD_DAEMON_ENGINE_DEVICE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/backend.h"

struct config;

/**
 * struct engine_device - see above
 * @dev: NULL: not open
 * @name: "cpu-amx": for people
 * @worker_cpus: that the thread which runs steps is bound to; empty: any
 * @n_cpus: that mask and CPU quota leave to the threads
 * @affinity_refused: [cpu] affinity is set, and the kernel does not permit it
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

/**
 * engine_device_open() - as configured
 * @rank: of @n_ranks devices that share the threads and CPUs of [cpu], part by part
 *
 * engine_device_close() is safe after failure.
 *
 * Return: 0; -ENOTSUP: [cpu] isa asks for what there is not; -EINVAL: [cpu] affinity names no
 * CPU that may be used; what the backend refused the device with. @error has one line.
 */
int engine_device_open(struct engine_device *device, const struct config *config,
		       uint32_t rank, uint32_t n_ranks, char *error, size_t size);

/* Idempotent, and fine on a zeroed struct. */
void engine_device_close(struct engine_device *device);

#endif
