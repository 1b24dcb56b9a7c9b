/* SPDX-License-Identifier: MIT */
#include "kernels/cpu_features.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

static const char *const bundle_names[] = {"c", "avx2", "avx512", "avx512vnni"};
enum { N_BUNDLES = sizeof(bundle_names) / sizeof(bundle_names[0]) };

/* A set is only used up to its first gap. */
static uint32_t ladder(uint32_t set)
{
	uint32_t ret = KV_CPU_C;

	for (int i = 1; i < N_BUNDLES && (set & (1u << i)); i++)
		ret |= 1u << i;
	return ret;
}

#ifdef __x86_64__
/*
 * Source: Intel SDM volume 1, "Detection of AVX2" and "Detection of AVX-512 foundation
 * instructions": OSXSAVE first, then the state components that the OS saves (XCR0 bits 1-2
 * for AVX, 5-7 for AVX-512), then the feature bits.
 */
static uint32_t detect(void)
{
	const uint32_t leaf1 = bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE;
	const uint32_t leaf7_avx2 = bit_AVX2 | bit_BMI | bit_BMI2;
	const uint32_t leaf7_avx512 =
		bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
	uint32_t a, b, c, d, xcr0, xcr0_high, set = KV_CPU_C;

	if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1) != leaf1)
		return set;
	__asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
	if ((xcr0 & 0x06) != 0x06)
		return set;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return set;
	if ((b & leaf7_avx2) == leaf7_avx2)
		set |= KV_CPU_AVX2;
	if ((xcr0 & 0xe6) != 0xe6)
		return set;
	if ((b & leaf7_avx512) == leaf7_avx512)
		set |= KV_CPU_AVX512;
	if (c & bit_AVX512VNNI)
		set |= KV_CPU_AVX512VNNI;
	return set;
}
#else
static uint32_t detect(void)
{
	return KV_CPU_C;
}
#endif

int kv_cpu_mask_parse(const char *text)
{
	char *end;
	unsigned long n;

	for (int i = 0; i < N_BUNDLES; i++)
		if (strcmp(text, bundle_names[i]) == 0)
			return (1 << (i + 1)) - 1;
	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtoul(text, &end, 0);
	if (errno || *end || n > KV_CPU_ALL)
		return -EINVAL;
	return (int)n;
}

uint32_t kv_cpu_features(void)
{
	const char *text = getenv("KVD_CPU_MASK");
	int mask = KV_CPU_ALL;

	/* A mask that cannot be read must not run more than the tester meant to allow. */
	if (text && *text) {
		mask = kv_cpu_mask_parse(text);
		if (mask < 0)
			mask = KV_CPU_C;
	}
	return ladder(detect() & (uint32_t)mask);
}

uint32_t kv_cpu_features_masked(uint32_t mask)
{
	return ladder(kv_cpu_features() & (mask ? mask : KV_CPU_ALL));
}

const char *kv_cpu_bundle_name(uint32_t features)
{
	int top = 0;

	for (int i = 1; i < N_BUNDLES; i++)
		if (features & (1u << i))
			top = i;
	return bundle_names[top];
}
