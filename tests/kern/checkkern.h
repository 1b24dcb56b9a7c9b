/* SPDX-License-Identifier: MIT */
/*
 * Harness of the kernel tests. Each check_*() compares, for one set of bundles, the kernels of
 * that set with the C reference bit by bit, and the C reference with values computed here in
 * double precision from the definition. One thread, one process; a failure prints the kernel,
 * the bundle and the seed, and the process exits with 1.
 */
#ifndef KVD_TESTS_KERN_CHECKKERN_H
#define KVD_TESTS_KERN_CHECKKERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/ops.h"

/**
 * struct ck - one bundle under test
 * @below: ops of the bundle before it: equal pointers need no test
 * @ref: those in C
 * @quick: small sizes only
 */
struct ck {
	const char *bundle;
	uint32_t features;
	struct kv_cpu_ops ops;
	struct kv_cpu_ops below;
	struct kv_cpu_ops ref;
	bool quick;
};

/* --- random numbers, repeatable ----------------------------------------------------- */

void ck_seed(uint64_t seed);
uint64_t ck_u64(void);
uint32_t ck_below(uint32_t n);
double ck_unit(void);  /* [0, 1) */
float ck_normal(void); /* about N(0, 1) */

/* The larger one, a where b is no number. fmax() in a loop that finds a maximum stops gcc 12
 * for aarch64 with an internal error. */
static inline double ck_max(double a, double b)
{
	return b > a ? b : a;
}

/*
 * OUTLIERS: normal, a few values a thousand times larger; HUGE: near the largest float whose
 * square is finite; MIXED: any exponent; EXTREMES: +-1, alternating in runs, so that integer
 * codes are at their ends.
 */
enum ck_pattern {
	CK_NORMAL,
	CK_ZERO,
	CK_OUTLIERS,
	CK_DENORMAL,
	CK_HUGE,
	CK_MIXED,
	CK_EXTREMES,
	CK_N_PATTERNS,
};

void ck_fill(float *x, size_t n, enum ck_pattern pattern);
/* A random half that is finite; small keeps |h| below 2. */
uint16_t ck_half(bool small);

/* --- memory ------------------------------------------------------------------------- */

/*
 * size bytes, 64-byte aligned, filled with a pattern that reads as NaN, an inaccessible page
 * right behind (and 0..63 guard bytes where size is no multiple of 64). Freed by
 * ck_release_all(), which also checks the guard bytes.
 */
void *ck_alloc(size_t size);
void ck_release_all(void);

/* --- verdicts ----------------------------------------------------------------------- */

extern int ck_failures;
void ck_context(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ck_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Bits equal, or both NaN. */
void ck_same(const char *what, const float *got, const float *want, size_t n);
/* |got - want| <= abs_tol + rel_tol * |want|. */
void ck_near(const char *what, double got, double want, double abs_tol, double rel_tol);

#define CK(cond)                                                                         \
	do {                                                                             \
		if (!(cond))                                                             \
			ck_fail("%s:%d: %s", __FILE__, __LINE__, #cond);                 \
	} while (0)

/* --- the checks --------------------------------------------------------------------- */

void check_format(const struct ck *ck);
void check_wtype(const struct ck *ck);
void check_linear(const struct ck *ck);
void check_quant(const struct ck *ck);
void check_codes(const struct ck *ck);
void check_attention(const struct ck *ck);
void check_formats(const struct ck *ck);
void check_rows(const struct ck *ck);
void check_threads(const struct ck *ck);
void check_backend(const struct ck *ck);
void check_outputs(const struct ck *ck);
void check_ranks(const struct ck *ck);
void check_sharing(const struct ck *ck);

#endif
