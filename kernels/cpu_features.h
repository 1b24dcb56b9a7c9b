/* SPDX-License-Identifier: MIT */
/*
 * Which instruction-set bundles this CPU and operating system offer. Stateless; any thread.
 * Relies on CPUID and XCR0, and for amx on the kernel, which is asked for leave: a refusal
 * (an old kernel, a filter of system calls) takes this bundle away, nothing else. Bundles are
 * ordered: each one includes those before it that its architecture has, so that "up to avx2" is a
 * complete description of what code may run.
 *
 *   c           baseline of the build (x86-64: SSE2), always there
 *   avx2        AVX2 + FMA + F16C + BMI2
 *   avx512      AVX512 F + BW + VL + DQ
 *   avx512vnni  AVX512_VNNI
 *   amx         AMX_TILE + AMX_BF16
 *   dotprod     arm64: SDOT, beside c only
 *
 * KVD_CPU_MASK in the environment lowers what kv_cpu_features() reports, for tests: either
 * a bundle name, which allows it and those before it, or a number, the bits themselves.
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

/* Bundles that this process may use, without those that KVD_CPU_MASK forbids. Always has
 * KV_CPU_C; a bundle is left out when one before it is missing. */
uint32_t kv_cpu_features(void);

/* kv_cpu_features() narrowed by mask (0: all); only what mask has is asked for. */
uint32_t kv_cpu_features_masked(uint32_t mask);

/* Name of the highest bundle in a set: "c", "avx2", ... as above. */
const char *kv_cpu_bundle_name(uint32_t features);

/* Return: the set "this bundle and those before it", or -EINVAL for an unknown text. A
 * decimal or 0x number is taken as the bits. */
int kv_cpu_mask_parse(const char *text);

#endif
