/* SPDX-License-Identifier: MIT */
#include "kernels/cpu_features.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef __aarch64__
#include <sys/auxv.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const bundle_names[] = {"c",          "avx2", "avx512",
					   "avx512vnni", "amx",  "dotprod"};
enum { N_BUNDLES = sizeof(bundle_names) / sizeof(bundle_names[0]) };

/* A set of x86 is only used up to its first gap. */
static uint32_t ladder(uint32_t set)
{
	uint32_t ret = KV_CPU_C | (set & KV_CPU_DOTPROD);

	for (uint32_t bit = KV_CPU_AVX2; bit <= KV_CPU_AMX && (set & bit); bit <<= 1)
		ret |= bit;
	return ret;
}

#ifdef __x86_64__
enum {
	TILE_DATA = 18,          /* number of the state component with the tiles    */
	TILE_STATE = 3 << 17,    /* its bit in XCR0, and that of their configuration */
	REQ_XCOMP_PERM = 0x1023, /* ARCH_REQ_XCOMP_PERM of arch_prctl(2)            */
};

/* Linux lets a process touch tiles when it has asked, as they make signal frames larger. The
 * answer holds for all its threads; asking again changes nothing. A refusal (an old kernel, a
 * filter of system calls) takes amx away, nothing else. */
static bool tiles_permitted(void)
{
	return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, TILE_DATA) == 0;
}

/*
 * Source: Intel SDM volume 1, "Detection of AVX2" and "Detection of AVX-512 foundation
 * instructions": OSXSAVE first, then the state components that the OS saves (XCR0 bits 1-2
 * for AVX, 5-7 for AVX-512; 17-18 for AMX, chapter "Programming with Intel AMX"), then the
 * feature bits.
 */
static uint32_t detect(void)
{
	const uint32_t leaf1 = bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE;
	const uint32_t leaf7_avx2 = bit_AVX2 | bit_BMI | bit_BMI2;
	const uint32_t leaf7_avx512 =
		bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
	const uint32_t leaf7_amx = bit_AMX_TILE | bit_AMX_BF16;
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
	if ((xcr0 & TILE_STATE) == TILE_STATE && (d & leaf7_amx) == leaf7_amx)
		set |= KV_CPU_AMX;
	return set;
}
#else
static uint32_t detect(void)
{
#ifdef __aarch64__
	if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP)
		return KV_CPU_C | KV_CPU_DOTPROD;
#endif
	return KV_CPU_C;
}

static bool tiles_permitted(void)
{
	return false;
}
#endif

int kv_cpu_mask_parse(const char *text)
{
	char *end;
	unsigned long n;

	for (int i = 0; i < N_BUNDLES; i++)
		if (strcmp(text, bundle_names[i]) == 0)
			return 1 << i == KV_CPU_DOTPROD ? KV_CPU_C | KV_CPU_DOTPROD
							: (1 << (i + 1)) - 1;
	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtoul(text, &end, 0);
	if (errno || *end || n > KV_CPU_ALL)
		return -EINVAL;
	return (int)n;
}

uint32_t kv_cpu_features_masked(uint32_t mask)
{
	const char *text = getenv("KVD_CPU_MASK");
	int allowed = KV_CPU_ALL;
	uint32_t set;

	/* A mask that cannot be read must not run more than the tester meant to allow. */
	if (text && *text) {
		allowed = kv_cpu_mask_parse(text);
		if (allowed < 0)
			allowed = KV_CPU_C;
	}
	set = ladder(detect() & (uint32_t)allowed & (mask ? mask : KV_CPU_ALL));
	if ((set & KV_CPU_AMX) && !tiles_permitted())
		set &= ~(uint32_t)KV_CPU_AMX;
	return set;
}

uint32_t kv_cpu_features(void)
{
	return kv_cpu_features_masked(KV_CPU_ALL);
}

const char *kv_cpu_bundle_name(uint32_t features)
{
	int top = 0;

	for (int i = 1; i < N_BUNDLES; i++)
		if (features & (1u << i))
			top = i;
	return bundle_names[top];
}
