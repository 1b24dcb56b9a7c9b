/* SPDX-License-Identifier: MIT */
/* The CPU backend, always there. Kernels are chosen at open() by cpu_features.h, all with the
 * same bits. Any thread. Relies on libc only. */
#ifndef KVD_KERNELS_CPU_BACKEND_H
#define KVD_KERNELS_CPU_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

enum {
	KV_CPU_MAX_THREADS = 256, /* of one device, the caller included */
};

/**
 * struct kv_cpu_options - how to open the CPU; all-zero is the default
 * @n_threads: compute threads, the caller included; 0: one per usable CPU
 * @cpu_mask: KV_CPU_* bundles allowed, see cpu_features.h; 0: all
 * @spin_us: how long idle compute threads spin before they sleep; 0: 50
 * @affinity: bind compute threads (not the caller) to single CPUs
 */
struct kv_cpu_options {
	uint32_t n_threads;
	uint32_t cpu_mask;
	uint32_t spin_us;
	bool affinity;
};

const struct kv_backend *kv_backend_cpu(void);

#endif
