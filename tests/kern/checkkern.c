/* SPDX-License-Identifier: MIT */
/*
 * usage: checkkern [--quick] [--seed N] [--bundle NAME] [CHECK ...]
 *
 * Runs every bundle that the CPU offers (within KVD_CPU_MASK), lowest first. --quick keeps to
 * small sizes, for emulators. --bundle runs that one only, 77 when it is not there.
 */
#include "tests/kern/checkkern.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base.h"
#include "kernels/cpu_features.h"
#include "kernels/half.h"

int ck_failures;

static uint64_t rng;
static char context[256];
static const char *current_check = "", *current_bundle = "";
static uint64_t current_seed = 1;

/* splitmix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
uint64_t ck_u64(void)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

void ck_seed(uint64_t seed)
{
	rng = seed;
}

uint32_t ck_below(uint32_t n)
{
	return (uint32_t)(ck_u64() >> 32) % n;
}

double ck_unit(void)
{
	return (double)(ck_u64() >> 11) * 0x1p-53;
}

float ck_normal(void)
{
	double s = 0;

	for (int i = 0; i < 12; i++)
		s += ck_unit();
	return (float)(s - 6);
}

uint16_t ck_half(bool small)
{
	for (;;) {
		uint16_t h = (uint16_t)ck_u64();
		float f = kv_half_to_float(h);

		if (isfinite(f) && (!small || fabsf(f) < 2))
			return h;
	}
}

void ck_fill(float *x, size_t n, enum ck_pattern pattern)
{
	for (size_t i = 0; i < n; i++) {
		float v = ck_normal();

		switch (pattern) {
		case CK_ZERO:
			v = ck_below(2) ? 0.0f : -0.0f;
			break;
		case CK_OUTLIERS:
			v *= ck_below(50) == 0 ? 1000.0f : 1.0f;
			break;
		case CK_DENORMAL:
			v *= 1e-40f;
			break;
		case CK_HUGE:
			v *= 1e17f;
			break;
		case CK_MIXED:
			v = ldexpf(v, (int)ck_below(120) - 60);
			break;
		case CK_EXTREMES:
			v = (i / 7 & 1) ? 1.0f : -1.0f;
			break;
		default:
			break;
		}
		x[i] = v;
	}
}

/* --- memory ------------------------------------------------------------------------- */

enum { MAX_ALLOCS = 4096, PAGE = 4096 };

static struct alloc {
	uint8_t *map, *mem;
	size_t map_bytes, size;
} allocs[MAX_ALLOCS];
static int n_allocs;

void *ck_alloc(size_t size)
{
	size_t round = (size + 63) / 64 * 64, body = (round + PAGE - 1) / PAGE * PAGE;
	struct alloc *a = &allocs[n_allocs];

	if (n_allocs == MAX_ALLOCS) {
		fprintf(stderr, "checkkern: too many buffers\n");
		exit(1);
	}
	a->size = size;
	a->map_bytes = body + 2 * PAGE;
	a->map = mmap(NULL, a->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a->map == MAP_FAILED ||
	    mprotect(a->map + PAGE, body, PROT_READ | PROT_WRITE)) {
		perror("checkkern: mmap");
		exit(1);
	}
	memset(a->map + PAGE, 0xff, body);
	a->mem = a->map + PAGE + body - round;
	n_allocs++;
	return a->mem;
}

void ck_release_all(void)
{
	while (n_allocs > 0) {
		struct alloc *a = &allocs[--n_allocs];
		uint8_t *end = a->map + a->map_bytes - PAGE;

		for (uint8_t *p = a->map + PAGE; p < a->mem; p++)
			if (*p != 0xff) {
				ck_fail("written before a buffer of %zu bytes", a->size);
				break;
			}
		for (uint8_t *p = a->mem + a->size; p < end; p++)
			if (*p != 0xff) {
				ck_fail("written behind a buffer of %zu bytes", a->size);
				break;
			}
		munmap(a->map, a->map_bytes);
	}
}

/* --- verdicts ----------------------------------------------------------------------- */

void ck_context(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(context, sizeof(context), fmt, ap);
	va_end(ap);
}

void ck_fail(const char *fmt, ...)
{
	va_list ap;

	if (++ck_failures > 30)
		return;
	fprintf(stderr, "FAIL %s [%s, seed %llu] %s: ", current_check, current_bundle,
		(unsigned long long)current_seed, context);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

void ck_same(const char *what, const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (kv_float_bits(got[i]) == kv_float_bits(want[i]))
			continue;
		if (isnan(got[i]) && isnan(want[i]))
			continue;
		ck_fail("%s[%zu] is %a, the reference %a", what, i, (double)got[i],
			(double)want[i]);
		return;
	}
}

void ck_near(const char *what, double got, double want, double abs_tol, double rel_tol)
{
	if (fabs(got - want) <= abs_tol + rel_tol * fabs(want))
		return;
	ck_fail("%s is %.9g, in double %.9g", what, got, want);
}

/* --- main --------------------------------------------------------------------------- */

static const struct {
	const char *name;
	void (*fn)(const struct ck *);
} checks[] = {
	{"format", check_format},   {"wtype", check_wtype},
	{"linear", check_linear},   {"quant", check_quant},
	{"codes", check_codes},     {"attention", check_attention},
	{"rows", check_rows},       {"threads", check_threads},
	{"backend", check_backend}, {"outputs", check_outputs},
	{"ranks", check_ranks},     {"sharing", check_sharing},
	{"formats", check_formats},
};

static bool wanted(const char *name, char **names, int n)
{
	for (int i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return n == 0;
}

static void run_bundle(struct ck *ck, char **names, int n_names)
{
	for (size_t i = 0; i < KVD_ARRAY_LEN(checks); i++) {
		int before = ck_failures;

		if (!wanted(checks[i].name, names, n_names))
			continue;
		current_check = checks[i].name;
		ck_seed(current_seed);
		ck_context("start");
		checks[i].fn(ck);
		ck_context("end");
		ck_release_all();
		printf("%-11s %-10s %s\n", ck->bundle, checks[i].name,
		       ck_failures == before ? "ok" : "FAILED");
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	static const char *const bundles[] = {"c",          "avx2", "avx512",
					      "avx512vnni", "amx",  "dotprod"};
	const char *only = NULL;
	struct ck ck = {0};
	int arg = 1, n_run = 0;

	for (; arg < argc && argv[arg][0] == '-'; arg++) {
		if (strcmp(argv[arg], "--quick") == 0) {
			ck.quick = true;
		} else if (strcmp(argv[arg], "--seed") == 0 && arg + 1 < argc) {
			current_seed = strtoull(argv[++arg], NULL, 0);
		} else if (strcmp(argv[arg], "--bundle") == 0 && arg + 1 < argc) {
			only = argv[++arg];
		} else {
			fprintf(stderr, "usage: checkkern [--quick] [--seed N] "
					"[--bundle NAME] [CHECK ...]\n");
			return 2;
		}
	}
	kv_cpu_ops_init(&ck.ref, KV_CPU_C);
	kv_cpu_ops_init(&ck.ops, KV_CPU_C);
	for (size_t i = 0; i < KVD_ARRAY_LEN(bundles); i++) {
		uint32_t set = (uint32_t)kv_cpu_mask_parse(bundles[i]);

		if ((kv_cpu_features() & set) != set)
			continue;
		ck.below = ck.ops;
		kv_cpu_ops_init(&ck.ops, set);
		if (i == 0)
			memset(&ck.below, 0, sizeof(ck.below));
		if (only && strcmp(only, bundles[i]) != 0)
			continue;
		ck.features = set;
		/* A table that was not filled would pass every comparison with itself. */
		if (i > 0 && ck.ops.act == ck.below.act &&
		    ck.ops.act_many == ck.below.act_many)
			ck_fail("bundle %s adds no kernels", bundles[i]);
		ck.bundle = current_bundle = bundles[i];
		run_bundle(&ck, argv + arg, argc - arg);
		n_run++;
	}
	if (n_run == 0) {
		printf("skipped: this CPU has no %s\n", only ? only : "kernels");
		return 77;
	}
	if (ck_failures)
		fprintf(stderr, "checkkern: %d failures\n", ck_failures);
	return ck_failures ? 1 : 0;
}
