/* SPDX-License-Identifier: MIT */
/* Conversions between float and the 16-bit and 8-bit float types, in plain C. Pure functions.
 * Rounding is to nearest, ties to even, denormals are kept, NaN stays NaN (quiet, payload
 * cut off): the same bits as F16C instructions give. */
#ifndef KVD_KERNELS_HALF_H
#define KVD_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float kv_float_from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline uint32_t kv_float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

/* Normal numbers only move their exponent. A half denormal m * 2^-24 becomes normal by
 * subtracting 2^-14 from the float whose mantissa starts with m. */
static inline float kv_half_to_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t exp = h >> 10 & 31, man = h & 0x3ff;

	if (exp == 31)
		return kv_float_from_bits(sign | 0x7f800000 | (man ? 0x400000 : 0) |
					  man << 13);
	if (exp == 0) {
		float f = kv_float_from_bits(113u << 23 | man << 13) -
			  kv_float_from_bits(113u << 23);
		return kv_float_from_bits(sign | kv_float_bits(f));
	}
	return kv_float_from_bits(sign | (exp + 112) << 23 | man << 13);
}

/* Adding 0.5 to a float below 2^-14 leaves the half denormal in the low mantissa bits,
 * rounded by the addition itself. */
static inline uint16_t kv_half_from_float(float f)
{
	uint32_t u = kv_float_bits(f), sign = u >> 16 & 0x8000;

	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x1ff));
	if (u >= 0x47800000) /* 65536 and more */
		return (uint16_t)(sign | 0x7c00);
	if (u < 0x38800000) { /* below 2^-14 */
		uint32_t d = kv_float_bits(kv_float_from_bits(u) + 0.5f);
		return (uint16_t)(sign | (d - 0x3f000000));
	}
	u += 0xfff + (u >> 13 & 1);
	return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

static inline float kv_bf16_to_float(uint16_t b)
{
	return kv_float_from_bits((uint32_t)b << 16);
}

/* e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, 0x7f is NaN, the
 * largest is 448. Source: Micikevicius et al., "FP8 formats for deep learning". Moved up by
 * seven bits it is a half of 1/256 of its value, denormals included. */
static inline uint16_t kv_half_from_e4m3(uint8_t code)
{
	return (uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7);
}

/* To nearest, ties to even, past 448 to 448. f is no NaN. The sum with 2^14 leaves multiples
 * of 2^-9, which the denormals are, in the low mantissa bits. */
static inline uint8_t kv_e4m3_from_float(float f)
{
	uint32_t u = kv_float_bits(f), sign = u >> 24 & 0x80;

	u &= 0x7fffffff;
	if (u >= 0x43e00000) /* 448 */
		return (uint8_t)(sign | 0x7e);
	if (u < 0x3c800000) /* below 2^-6 */
		return (uint8_t)(sign |
				 (kv_float_bits(kv_float_from_bits(u) + 0x1p14f) & 0xff));
	u += 0x7ffff + (u >> 20 & 1);
	return (uint8_t)(sign | ((u >> 20) - (120u << 3)));
}

#endif
