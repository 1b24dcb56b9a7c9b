/* SPDX-License-Identifier: MIT */
/* The element types of weight matrices in model files: names, sizes, and the reference
 * dequantization of each; layouts and formulas are in wtype.c. Owns no memory; any thread;
 * relies on libc only. A row of k elements is k / group groups of a fixed byte size. */
#ifndef KVD_KERNELS_WTYPE_H
#define KVD_KERNELS_WTYPE_H

#include <stdint.h>

/* Not the numbers of any file format. */
enum kv_wtype {
	KV_WTYPE_F32,
	KV_WTYPE_F16,
	KV_WTYPE_BF16,
	KV_WTYPE_Q4_0,
	KV_WTYPE_Q4_1,
	KV_WTYPE_Q5_0,
	KV_WTYPE_Q5_1,
	KV_WTYPE_Q8_0,
	KV_WTYPE_Q4_K,
	KV_WTYPE_Q5_K,
	KV_WTYPE_Q6_K,
	KV_WTYPE_N,
};

/* KV_MAX_COLS bounds integer sums and scratch. */
enum {
	KV_MAX_COLS = 1 << 20,
	KV_MAX_ROWS = 1 << 28,
};

/* As model files spell it ("Q4_1"), or NULL. */
const char *kv_wtype_name(enum kv_wtype type);

/* Elements per group, 1 for the float types; 0 for a number out of range. */
uint32_t kv_wtype_group(enum kv_wtype type);

/* Bytes of a row of k elements; -EINVAL when k is 0, above KV_MAX_COLS or no multiple of
 * the group, or when the type is out of range. */
int64_t kv_wtype_row_bytes(enum kv_wtype type, uint64_t k);

/* One row, @src unaligned, to @dst [k], every operation rounded to float in the order of the
 * format's formula. Return: 0 or -EINVAL as kv_wtype_row_bytes(). */
int kv_row_dequantize(enum kv_wtype type, uint64_t k, const void *src, float *dst);

/* One group of a Q4_0 .. Q8_0 row, as codes in element order and fp16 bits: w = d * (q - zero) + m
 * with zero 8 (Q4_0), 16 (Q5_0), 128 (Q8_0), else 0; m is 0 where there is none. */
void kv_wgroup_unpack(enum kv_wtype type, const uint8_t *src, uint8_t q[32],
		      uint16_t *ret_d, uint16_t *ret_m);

/* One group of 256 of a Q4_K .. Q6_K row. Q4_K, Q5_K: 8 of d and m, w = d * q + m per 32
 * elements; Q6_K: 16 of d, w = d * (q - 32) per 16. */
void kv_wsuper_unpack(enum kv_wtype type, const uint8_t *src, uint8_t q[256], float d[16],
		      float m[16]);

#endif
