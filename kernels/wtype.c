/* SPDX-License-Identifier: MIT */
/*
 * Source of the layouts: the GGUF specification's tensor types and the struct comments of
 * ggml-common.h. Multi-byte fields are little-endian; groups are packed without padding.
 */
#include "kernels/wtype.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "kernels/half.h"

struct wtype_info {
	const char *name;
	uint16_t group, bytes;
};

static const struct wtype_info wtypes[KV_WTYPE_N] = {
	[KV_WTYPE_F32] = {"F32", 1, 4},       [KV_WTYPE_F16] = {"F16", 1, 2},
	[KV_WTYPE_BF16] = {"BF16", 1, 2},     [KV_WTYPE_Q4_0] = {"Q4_0", 32, 18},
	[KV_WTYPE_Q4_1] = {"Q4_1", 32, 20},   [KV_WTYPE_Q5_0] = {"Q5_0", 32, 22},
	[KV_WTYPE_Q5_1] = {"Q5_1", 32, 24},   [KV_WTYPE_Q8_0] = {"Q8_0", 32, 34},
	[KV_WTYPE_Q4_K] = {"Q4_K", 256, 144}, [KV_WTYPE_Q5_K] = {"Q5_K", 256, 176},
	[KV_WTYPE_Q6_K] = {"Q6_K", 256, 210},
};

const char *kv_wtype_name(enum kv_wtype type)
{
	return (unsigned)type < KV_WTYPE_N ? wtypes[type].name : NULL;
}

uint32_t kv_wtype_group(enum kv_wtype type)
{
	return (unsigned)type < KV_WTYPE_N ? wtypes[type].group : 0;
}

int64_t kv_wtype_row_bytes(enum kv_wtype type, uint64_t k)
{
	if ((unsigned)type >= KV_WTYPE_N || k == 0 || k > KV_MAX_COLS)
		return -EINVAL;
	if (k % wtypes[type].group != 0)
		return -EINVAL;
	return (int64_t)(k / wtypes[type].group * wtypes[type].bytes);
}

static float half_at(const uint8_t *p)
{
	return kv_half_to_float((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t u32_at(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/*
 * One group to codes and parameters, w = d * (q - zero) + m:
 *   Q4_0  half d, 16 bytes of nibbles (low nibbles first half)          zero 8
 *   Q4_1  half d, half m, nibbles
 *   Q5_0  half d, u32 of fifth bits, nibbles                            zero 16
 *   Q5_1  half d, half m, u32 of fifth bits, nibbles
 *   Q8_0  half d, 32 signed bytes                                       zero 128 on q + 128
 */
void kv_wgroup_unpack(enum kv_wtype type, const uint8_t *src, uint8_t q[32],
		      uint16_t *ret_d, uint16_t *ret_m)
{
	uint32_t high = 0;
	uint16_t d = (uint16_t)(src[0] | src[1] << 8), m = 0;

	src += 2;
	if (type == KV_WTYPE_Q4_1 || type == KV_WTYPE_Q5_1) {
		m = (uint16_t)(src[0] | src[1] << 8);
		src += 2;
	}
	if (type == KV_WTYPE_Q5_0 || type == KV_WTYPE_Q5_1) {
		high = u32_at(src);
		src += 4;
	}
	if (type == KV_WTYPE_Q8_0) {
		for (int i = 0; i < 32; i++)
			q[i] = src[i] ^ 0x80;
	} else if (!high) {
		for (int i = 0; i < 16; i++) {
			q[i] = src[i] & 15;
			q[i + 16] = src[i] >> 4;
		}
	} else {
		for (int i = 0; i < 16; i++) {
			q[i] = (uint8_t)((src[i] & 15) | (high >> i & 1) << 4);
			q[i + 16] = (uint8_t)(src[i] >> 4 | (high >> (i + 16) & 1) << 4);
		}
	}
	*ret_d = d;
	*ret_m = m;
}

/* The 6-bit scales and minimums of Q4_K and Q5_K: 12 bytes hold 8 of each. */
static void k_scales(const uint8_t *s, int i, uint8_t *ret_scale, uint8_t *ret_min)
{
	if (i < 4) {
		*ret_scale = s[i] & 63;
		*ret_min = s[i + 4] & 63;
	} else {
		*ret_scale = (uint8_t)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
		*ret_min = (uint8_t)(s[i + 4] >> 4 | (s[i] >> 6) << 4);
	}
}

/*
 * One super-group of 256 to codes and parameters.
 *   Q4_K  half d, half dmin, 12 bytes of scales, 128 bytes: nibbles of 64 elements at a
 *         time, low nibbles first; w = (d * scale) * q - (dmin * min) per 32
 *   Q5_K  the same with 32 bytes of fifth bits before the nibbles: bit 2j of byte l is for
 *         the low, bit 2j + 1 for the high nibbles of the j-th 64
 *   Q6_K  128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, half d;
 *         w = d * scale * (q - 32) per 16
 */
void kv_wsuper_unpack(enum kv_wtype type, const uint8_t *src, uint8_t q[256], float d[16],
		      float m[16])
{
	if (type == KV_WTYPE_Q6_K) {
		const uint8_t *low = src, *high = src + 128;
		float dd = half_at(src + 208);

		for (int n = 0; n < 2; n++, low += 64, high += 32) {
			uint8_t *o = q + n * 128;

			for (int l = 0; l < 32; l++) {
				o[l] = (uint8_t)((low[l] & 15) | (high[l] & 3) << 4);
				o[l + 32] = (uint8_t)((low[l + 32] & 15) |
						      (high[l] >> 2 & 3) << 4);
				o[l + 64] =
					(uint8_t)(low[l] >> 4 | (high[l] >> 4 & 3) << 4);
				o[l + 96] =
					(uint8_t)(low[l + 32] >> 4 | (high[l] >> 6) << 4);
			}
		}
		for (int i = 0; i < 16; i++) {
			d[i] = dd * (float)(int8_t)src[192 + i];
			m[i] = 0;
		}
		return;
	}

	const uint8_t *fifth = src + 16, *nib = src + (type == KV_WTYPE_Q5_K ? 48 : 16);
	float dd = half_at(src), dmin = half_at(src + 2);

	for (int j = 0; j < 4; j++) {
		for (int l = 0; l < 32; l++) {
			uint8_t b = nib[j * 32 + l], f = 0;

			if (type == KV_WTYPE_Q5_K)
				f = (uint8_t)(fifth[l] >> (2 * j) & 3);
			q[j * 64 + l] = (uint8_t)((b & 15) | (f & 1) << 4);
			q[j * 64 + 32 + l] = (uint8_t)(b >> 4 | (f >> 1) << 4);
		}
	}
	for (int i = 0; i < 8; i++) {
		uint8_t scale, min;

		k_scales(src + 4, i, &scale, &min);
		d[i] = dd * scale;
		m[i] = -(dmin * min);
	}
}

static void dequantize_groups(enum kv_wtype type, uint64_t n, const uint8_t *src,
			      float *dst)
{
	static const uint8_t zeros[KV_WTYPE_N] = {
		[KV_WTYPE_Q4_0] = 8, [KV_WTYPE_Q5_0] = 16, [KV_WTYPE_Q8_0] = 128};
	uint8_t q[32];
	uint16_t hd, hm;

	for (uint64_t g = 0; g < n; g++, src += wtypes[type].bytes, dst += 32) {
		float d, m;

		kv_wgroup_unpack(type, src, q, &hd, &hm);
		d = kv_half_to_float(hd);
		m = kv_half_to_float(hm);
		for (int i = 0; i < 32; i++) {
			float v = (float)(q[i] - zeros[type]) * d;

			dst[i] = zeros[type] ? v : v + m;
		}
	}
}

static void dequantize_supers(enum kv_wtype type, uint64_t n, const uint8_t *src,
			      float *dst)
{
	uint8_t q[256];
	float d[16], m[16];

	for (uint64_t s = 0; s < n; s++, src += wtypes[type].bytes, dst += 256) {
		kv_wsuper_unpack(type, src, q, d, m);
		for (int i = 0; i < 256; i++) {
			if (type == KV_WTYPE_Q6_K)
				dst[i] = d[i / 16] * (float)(q[i] - 32);
			else
				dst[i] = d[i / 32] * (float)q[i] + m[i / 32];
		}
	}
}

int kv_row_dequantize(enum kv_wtype type, uint64_t k, const void *src, float *dst)
{
	int64_t bytes = kv_wtype_row_bytes(type, k);
	const uint8_t *p = src;

	if (bytes < 0)
		return -EINVAL;
	switch (type) {
	case KV_WTYPE_F32:
		memcpy(dst, src, (size_t)bytes);
		break;
	case KV_WTYPE_F16:
		for (uint64_t i = 0; i < k; i++)
			dst[i] = half_at(p + 2 * i);
		break;
	case KV_WTYPE_BF16:
		for (uint64_t i = 0; i < k; i++)
			dst[i] = kv_bf16_to_float(
				(uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
		break;
	case KV_WTYPE_Q4_K:
	case KV_WTYPE_Q5_K:
	case KV_WTYPE_Q6_K:
		dequantize_supers(type, k / 256, p, dst);
		break;
	default:
		dequantize_groups(type, k / 32, p, dst);
		break;
	}
	return 0;
}
