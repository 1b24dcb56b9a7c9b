/* SPDX-License-Identifier: MIT */
/*
 * Which instruction-set bundles this CPU and operating system offer. Stateless; any thread.
 * Each bundle includes those before it of its architecture:
 *   c           baseline of the build (x86-64: SSE2), always there
 *   avx2        AVX2 + FMA + F16C + BMI2
 *   avx512      AVX512 F + BW + VL + DQ
 *   avx512vnni  AVX512_VNNI
 *   amx         AMX_TILE + AMX_BF16
 *   dotprod     arm64: SDOT, beside c only
 */
#ifndef KVD_KERNELS_CPU_FEATURES_H
#define KVD_KERNELS_CPU_FEATURES_H

#include <stdint.h>

enum {
	KV_CPU_C = 1 << 0,
	KV_CPU_AVX2 = 1 << 1,
	KV_CPU_AVX512 = 1 << 2,
	KV_CPU_AVX512VNNI = 1 << 3,
	KV_CPU_AMX = 1 << 4,
	KV_CPU_DOTPROD = 1 << 5,
	KV_CPU_ALL = (1 << 6) - 1,
};

/* Bundles that this process may use, KV_CPU_C always among them. KVD_CPU_MASK in the
 * environment, a text for kv_cpu_mask_parse(), lowers the set for tests. */
uint32_t kv_cpu_features(void);

/* Narrowed by mask (0: all); the kernel is asked for amx only with its bit. */
uint32_t kv_cpu_features_masked(uint32_t mask);

/* Of the highest bundle in the set. */
const char *kv_cpu_bundle_name(uint32_t features);

/* Return: the bundle of that name and those before it, or a decimal or 0x number's bits;
 * -EINVAL for anything else. */
int kv_cpu_mask_parse(const char *text);

#endif
