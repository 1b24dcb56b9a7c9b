/* SPDX-License-Identifier: MIT */
/*
 * How keys and values lie in a pool block: the names of the KV formats and where each plane
 * is. Pure arithmetic; any thread; relies on libc only.
 *
 * One block holds block_tokens (T) consecutive positions of one sequence, for all layers:
 *
 *   block  [n_layers][n_kv_heads] of head, then the pair plane
 *   head   K codes | V codes | K parameters | V parameters | padding to 64 bytes
 *
 * Codes start at multiples of 64 bytes, parameters at multiples of 32. K and V may have
 * different formats. With D = head_dim and token, dim as indices:
 *
 *   K codes   fp16 [D][T]   int8 [D/4][T][4]   int4 [D/8][T][4]   fp8_e4m3 [D][T]
 *   V codes   fp16 [T][D]   int8 [T/4][D][4]   int4 [T/8][D][4]   fp8_e4m3 [T][D]
 *
 * Score kernels add over dims in one lane per token, weighted sums over tokens in one lane per
 * dim: neither reduces across lanes, so the bits of a row do not depend on how rows are grouped.
 * The integer formats put the four dims (K) or tokens (V) of a byte dot product side by side.
 * Byte j of int4 K group g has dim 8g + j low and dim 8g + 4 + j high, V likewise with tokens.
 *
 * What a code c stands for, with the parameters of its plane:
 *
 *   fp16      the value itself
 *   int8      x' = (c - zero) * scale          parameters: fp16 scale[T], fp16 zero[T]
 *   int4, V   x' = (c - zero) * scale          likewise, c and zero in 0..15
 *   int4, K   x  = (c - 7.5) * (A * a[dim]) + B * (m[dim] - 128)
 *                                              parameters: u8 a[D], u8 m[D];
 *                                              fp16 A, B in the pair plane
 *   fp8_e4m3  x' = e4m3(c) * scale             parameters: fp16 scale[T]
 *
 * x' is the rotated vector, H S x: S changes the sign of dim i where kv_rotation_flips(i), H is
 * the normalized Walsh-Hadamard transform of each binary piece of head_dim, largest first
 * (80 = 64 + 16). Scores need q rotated likewise; the weighted sum is turned back, S H o.
 *
 * The tokens of a block share the parameters of int4 K, so a block is written only when all its
 * tokens are known; until then the partial block is fp16 (rotated where the format rotates)
 * in a tail slot beside the pool.
 *
 * The pair plane is [n_layers][n_kv_heads][2] fp16, only for int4 K; in the heads it would cost
 * 60 bytes of padding each. Block b of a pool starts at base + b * block_bytes. Rows past the
 * last written position hold anything, NaN patterns included.
 */
#ifndef KVD_KERNELS_FORMAT_H
#define KVD_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Alignment of block_bytes, heads and code planes; of parameter planes; of a pool's offset in a
 * file; of weights' offset in a file, a huge page. */
enum {
	KV_BLOCK_TOKENS_MIN = 16,
	KV_BLOCK_TOKENS_MAX = 32,
	KV_HEAD_DIM_MAX = 256,
	KV_BLOCK_ALIGN = 64,
	KV_PARAM_ALIGN = 32,
	KV_POOL_ALIGN = 4096,
	KV_WEIGHTS_ALIGN = 2 << 20,
	KV_MAX_LAYERS = 1024,
	KV_MAX_KV_HEADS = 1024,
};

/* The numbers are part of prefix keys and pool images: append only. */
enum kv_format {
	KV_FORMAT_FP16 = 0,
	KV_FORMAT_INT8 = 1,
	KV_FORMAT_INT4 = 2,
	KV_FORMAT_FP8_E4M3 = 3,
	KV_FORMAT_N,
};

/*
 * struct kv_layout - geometry of one pool's blocks; immutable once kv_layout_init() made it
 *
 *   layer_bytes = n_kv_heads * head_bytes
 *   block_bytes = round_up(n_layers * layer_bytes + pair plane, KV_BLOCK_ALIGN)
 *   data_bytes  = block_bytes without padding
 *   tail_bytes  = one tail slot: [n_layers][n_kv_heads] of fp16 K [D][T], fp16 V [T][D];
 *                 0 where the layout needs none
 * The _at members are offsets from the start of a head, whose K codes are at 0; pair_at is one
 * from the start of the block.
 */
struct kv_layout {
	enum kv_format k_format, v_format;
	uint32_t n_layers, n_kv_heads, head_dim, block_tokens;
	size_t v_at, k_params_at, v_params_at;
	size_t head_bytes, layer_bytes, pair_at, block_bytes, data_bytes;
	size_t tail_plane_bytes, tail_bytes;
};

_Static_assert(KV_HEAD_DIM_MAX % 8 == 0, "head_dim is a multiple of 8");
_Static_assert((KV_BLOCK_TOKENS_MIN & (KV_BLOCK_TOKENS_MIN - 1)) == 0, "power of two");
_Static_assert(KV_BLOCK_TOKENS_MAX == 2 * KV_BLOCK_TOKENS_MIN, "16 and 32 only");

/* As in the configuration ("fp16"), or NULL for a number out of range. */
const char *kv_format_name(enum kv_format format);

/* n_layers 1..KV_MAX_LAYERS, n_kv_heads 1..KV_MAX_KV_HEADS, head_dim a multiple of 8,
 * 8..KV_HEAD_DIM_MAX, block_tokens 16 or 32. Return: 0; -EINVAL for anything else. */
int kv_layout_init(struct kv_layout *ret_layout, enum kv_format k_format,
		   enum kv_format v_format, uint32_t n_layers, uint32_t n_kv_heads,
		   uint32_t head_dim, uint32_t block_tokens);

/* Bytes of one token in the pool with its parameters, without padding; exact. */
double kv_layout_bytes_per_token(const struct kv_layout *l);

/* Do sequences need a tail slot? A row then sees fp16 of the positions in its own block, and
 * codes of those before it. */
static inline bool kv_layout_needs_tail(const struct kv_layout *l)
{
	return l->k_format == KV_FORMAT_INT4 || l->v_format == KV_FORMAT_INT4;
}

static inline bool kv_layout_k_rotated(const struct kv_layout *l)
{
	return l->k_format == KV_FORMAT_INT8 || l->k_format == KV_FORMAT_FP8_E4M3;
}

static inline bool kv_layout_v_rotated(const struct kv_layout *l)
{
	return l->v_format != KV_FORMAT_FP16;
}

/* Signs of the rotation, for all head_dims. Source: the 32-bit mixing function "lowbias32" of
 * Chris Wellons' hash prospector. */
static inline bool kv_rotation_flips(uint32_t i)
{
	i ^= i >> 16;
	i *= 0x7feb352d;
	i ^= i >> 15;
	i *= 0x846ca68b;
	i ^= i >> 16;
	return i & 1;
}

/* From the start of a block: the head's K codes. */
static inline size_t kv_layout_head_off(const struct kv_layout *l, uint32_t layer,
					uint32_t kv_head)
{
	return layer * l->layer_bytes + kv_head * l->head_bytes;
}

/* From the start of a block: the head's pair A, B of int4 K. */
static inline size_t kv_layout_pair_off(const struct kv_layout *l, uint32_t layer,
					uint32_t kv_head)
{
	return l->pair_at + ((size_t)layer * l->n_kv_heads + kv_head) * 4;
}

/* From the start of a tail slot: the head's fp16 K plane; V is tail_plane_bytes on. */
static inline size_t kv_layout_tail_off(const struct kv_layout *l, uint32_t layer,
					uint32_t kv_head)
{
	return ((size_t)layer * l->n_kv_heads + kv_head) * 2 * l->tail_plane_bytes;
}

/* Where (token of the block, dim) is inside a code plane: fp16 in elements, int4 in nibbles
 * (index / 2 is the byte, odd ones are high nibbles). */
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

static inline size_t kv_int4_k_index(const struct kv_layout *l, uint32_t token,
				     uint32_t dim)
{
	return (((size_t)dim / 8 * l->block_tokens + token) * 4 + dim % 4) * 2 +
	       dim / 4 % 2;
}

static inline size_t kv_int4_v_index(const struct kv_layout *l, uint32_t token,
				     uint32_t dim)
{
	return (((size_t)token / 8 * l->head_dim + dim) * 4 + token % 4) * 2 +
	       token / 4 % 2;
}

#endif
