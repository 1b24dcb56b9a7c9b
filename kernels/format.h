/* SPDX-License-Identifier: MIT */
/*
 * How keys and values lie in a pool block. This module owns the names of the KV formats
 * and every offset inside a block; nothing else computes one. It is pure arithmetic, may
 * be called from any thread, relies on libc only, and touches no memory but its arguments.
 *
 * One block holds block_tokens consecutive positions of one sequence, for all layers:
 *
 *   block  [n_layers] of
 *     layer  [n_kv_heads] of
 *       head   K plane, then V plane, each padded to 64 bytes
 *
 *   K plane, fp16: [head_dim][block_tokens]      V plane, fp16: [block_tokens][head_dim]
 *
 *            token 0   1   2  ..  15                      dim 0   1   2  ..  head_dim-1
 *     dim 0  |  k   k   k  ..  k  |               token 0  |  v   v   v  ..  v  |
 *     dim 1  |  k   k   k  ..  k  |               token 1  |  v   v   v  ..  v  |
 *      ..                                          ..
 *
 * K is transposed, so that a score kernel holds one token per lane and adds up over dims
 * in order; V is not, so that the weighted sum holds one dim per lane and adds up over
 * tokens in order. Neither then needs a reduction across lanes, which is what makes the
 * bits of a row independent of how rows are grouped.
 *
 * block_bytes is a multiple of 4096. Block b of a pool starts at base + b * block_bytes.
 * Rows of a block past the last written position hold anything, NaN patterns included.
 */
#ifndef KVD_KERNELS_FORMAT_H
#define KVD_KERNELS_FORMAT_H

#include <stddef.h>
#include <stdint.h>

enum {
	KV_BLOCK_TOKENS_MIN = 16,
	KV_BLOCK_TOKENS_MAX = 32,
	KV_HEAD_DIM_MAX = 256, /* a multiple of 8 up to here */
	KV_BLOCK_ALIGN = 4096, /* of block_bytes, so that a block is whole pages */
	KV_PLANE_ALIGN = 64,   /* of each plane inside a block */
	KV_MAX_LAYERS = 1024,
	KV_MAX_KV_HEADS = 1024,
};

/* The numbers are part of prefix keys and pool images: append only. */
enum kv_format {
	KV_FORMAT_FP16 = 0,
	KV_FORMAT_INT8 = 1,     /* named; kv_layout_init() answers -ENOTSUP */
	KV_FORMAT_INT4 = 2,     /* likewise */
	KV_FORMAT_FP8_E4M3 = 3, /* likewise */
	KV_FORMAT_N,
};

/*
 * struct kv_layout - geometry of one pool's blocks; immutable once kv_layout_init() made it
 *
 * Sizes in bytes:
 *   head_bytes  = k_plane_bytes + v_plane_bytes
 *   layer_bytes = n_kv_heads * head_bytes
 *   block_bytes = round_up(n_layers * layer_bytes, KV_BLOCK_ALIGN)
 */
struct kv_layout {
	enum kv_format k_format, v_format;
	uint32_t n_layers, n_kv_heads, head_dim, block_tokens;
	size_t k_plane_bytes, v_plane_bytes, head_bytes, layer_bytes, block_bytes;
};

_Static_assert(KV_HEAD_DIM_MAX % 8 == 0, "head_dim is a multiple of 8");
_Static_assert((KV_BLOCK_TOKENS_MIN & (KV_BLOCK_TOKENS_MIN - 1)) == 0, "power of two");
_Static_assert(KV_BLOCK_TOKENS_MAX == 2 * KV_BLOCK_TOKENS_MIN, "16 and 32 only");
_Static_assert(KV_BLOCK_ALIGN % KV_PLANE_ALIGN == 0,
	       "planes of page-aligned blocks align");

/* Name as it stands in configuration ("fp16"), or NULL for a number out of range. */
const char *kv_format_name(enum kv_format format);

/* Return: the format with this name, or -EINVAL. */
int kv_format_from_name(const char *name);

/*
 * kv_layout_init - compute the geometry of a block
 * @k_format, @v_format: formats of the two planes
 * @n_layers: 1..KV_MAX_LAYERS        @n_kv_heads: 1..KV_MAX_KV_HEADS
 * @head_dim: multiple of 8, 8..KV_HEAD_DIM_MAX
 * @block_tokens: 16 or 32
 *
 * Return: 0; -EINVAL for a shape out of range, -ENOTSUP for a format that is only named.
 */
int kv_layout_init(struct kv_layout *ret_layout, enum kv_format k_format,
		   enum kv_format v_format, uint32_t n_layers, uint32_t n_kv_heads,
		   uint32_t head_dim, uint32_t block_tokens);

/* Bytes that one token takes in the pool, padding left out: what stats report. */
size_t kv_layout_bytes_per_token(const struct kv_layout *l);

/* Offset of the K plane of (layer, kv_head) from the start of a block. */
static inline size_t kv_layout_k_off(const struct kv_layout *l, uint32_t layer,
				     uint32_t kv_head)
{
	return layer * l->layer_bytes + kv_head * l->head_bytes;
}

/* Offset of the V plane of (layer, kv_head) from the start of a block. */
static inline size_t kv_layout_v_off(const struct kv_layout *l, uint32_t layer,
				     uint32_t kv_head)
{
	return kv_layout_k_off(l, layer, kv_head) + l->k_plane_bytes;
}

/* fp16 planes: index, in elements, of (token of the block, dim) inside the plane. */
static inline size_t kv_fp16_k_index(const struct kv_layout *l, uint32_t token,
				     uint32_t dim)
{
	return (size_t)dim * l->block_tokens + token;
}

static inline size_t kv_fp16_v_index(const struct kv_layout *l, uint32_t token,
				     uint32_t dim)
{
	return (size_t)token * l->head_dim + dim;
}

#endif
