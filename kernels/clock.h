/* SPDX-License-Identifier: MIT */
/* The one clock of kernels/ and of the model: monotonic, in nanoseconds. Any thread. */
#ifndef KVD_KERNELS_CLOCK_H
#define KVD_KERNELS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t kv_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

#endif
