/* SPDX-License-Identifier: MIT */
/*
 * a * b + c rounded once, for CPUs whose baseline has no such instruction; the same value as
 * fmaf(), which is a call there.
 *
 * The product of two floats is exact in double. Let s be the sum rounded to double. Every
 * point where rounding to float changes direction is a double, and rounding keeps order, so s
 * lies on the same side of it as the exact sum, unless s is such a point itself: then, and
 * where floats are denormal and those points lie elsewhere, fmaf() decides.
 */
#ifndef KVD_KERNELS_C_FMA_C_H
#define KVD_KERNELS_C_FMA_C_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float kv_fma_c(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
	return fmaf(a, b, c);
#else
	double s = (double)a * b + c;
	uint64_t bits;

	memcpy(&bits, &s, sizeof(bits));
	if ((bits & 0x1fffffff) == 0x10000000 || (bits >> 52 & 0x7ff) < 1023 - 126)
		return fmaf(a, b, c);
	return (float)s;
#endif
}

#endif
