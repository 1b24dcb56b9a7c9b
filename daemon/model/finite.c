/* SPDX-License-Identifier: MIT */
/* Quantized values are products and sums of small integers and the halves that a block begins or
 * ends with, so only these are looked at. */
#include "daemon/model/finite.h"
#include "ipc/base.h"

#include <endian.h>
#include <string.h>

#define HALF_EXPONENT   0x7c00u
#define BFLOAT_EXPONENT 0x7f80u
#define FLOAT_EXPONENT  0x7f800000u

/* Where a block's halves stand: the first at byte @off, @n of them. */
static const struct {
	uint32_t type;
	uint32_t off, n;
} blocks[] = {
	{GGUF_TENSOR_Q4_0, 0, 1}, {GGUF_TENSOR_Q4_1, 0, 2},   {GGUF_TENSOR_Q5_0, 0, 1},
	{GGUF_TENSOR_Q5_1, 0, 2}, {GGUF_TENSOR_Q8_0, 0, 1},   {GGUF_TENSOR_Q4_K, 0, 2},
	{GGUF_TENSOR_Q5_K, 0, 2}, {GGUF_TENSOR_Q6_K, 208, 1},
};

static uint32_t load_half(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return le16toh(v);
}

/* No branch on the values: a pass over all of them is vectorized. */
static bool floats_are_finite(const uint8_t *p, uint64_t n)
{
	uint32_t bad = 0, v;

	for (uint64_t i = 0; i < n; i++) {
		memcpy(&v, p + 4 * i, sizeof(v));
		bad |= (le32toh(v) & FLOAT_EXPONENT) == FLOAT_EXPONENT;
	}
	return !bad;
}

static bool halves_are_finite(const uint8_t *p, uint64_t n, uint32_t exponent)
{
	uint32_t bad = 0;

	for (uint64_t i = 0; i < n; i++)
		bad |= (load_half(p + 2 * i) & exponent) == exponent;
	return !bad;
}

static bool blocks_are_finite(const uint8_t *p, uint64_t n, uint32_t stride, uint32_t off,
			      uint32_t n_halves)
{
	uint32_t bad = 0;

	for (uint64_t i = 0; i < n; i++, p += stride)
		for (uint32_t k = 0; k < n_halves; k++)
			bad |= (load_half(p + off + 2 * k) & HALF_EXPONENT) ==
			       HALF_EXPONENT;
	return !bad;
}

bool tensor_is_finite(const struct gguf_tensor *tensor)
{
	uint32_t elems, bytes;
	uint64_t n;

	if (!gguf_tensor_type_block(tensor->type, &elems, &bytes))
		return false;
	n = tensor->n_bytes / bytes;
	switch (tensor->type) {
	case GGUF_TENSOR_F32:
		return floats_are_finite(tensor->data, n);
	case GGUF_TENSOR_F16:
		return halves_are_finite(tensor->data, n, HALF_EXPONENT);
	case GGUF_TENSOR_BF16:
		return halves_are_finite(tensor->data, n, BFLOAT_EXPONENT);
	}
	for (size_t i = 0; i < KVD_ARRAY_LEN(blocks); i++)
		if (blocks[i].type == tensor->type)
			return blocks_are_finite(tensor->data, n, bytes, blocks[i].off,
						 blocks[i].n);
	return false;
}
