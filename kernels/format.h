/* SPDX-License-Identifier: MIT */
/*
 * How keys and values lie in a pool block. This module owns the names of the KV formats
 * and where each plane lies in a block. The order inside a code plane, drawn below, is also
 * kv_*_index(), for those who read single values; kernels write it out. It is pure
 * arithmetic, may be called from any thread, relies on libc only, and touches no memory but
 * its arguments.
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
 *            token 0   1   2  ..  T-1                     dim 0   1   2  ..  D-1
 *     dim 0  |  k   k   k  ..  k  |               token 0  |  v   v   v  ..  v  |
 *     dim 1  |  k   k   k  ..  k  |               token 1  |  v   v   v  ..  v  |
 *      ..                                          ..
 *
 * K is transposed, so that a score kernel holds one token per lane and adds up over dims;
 * V is not, so that the weighted sum holds one dim per lane and adds up over tokens. Neither
 * needs a reduction across lanes, which is what makes the bits of a row independent of how
 * rows are grouped. The integer formats put four dims (K) or four tokens (V) of a lane side
 * by side, which is what a byte dot product takes at once. A byte of int4 holds two codes:
 * byte j of K group g dim 8g + j in its low nibble and dim 8g + 4 + j in its high one, byte j
 * of V group g token 8g + j and token 8g + 4 + j.
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
 * x' is the rotated vector, H S x: dim i changes its sign where kv_rotation_flips(i) says so,
 * then the dims are cut into the binary pieces of head_dim, largest first (80 = 64 + 16), and
 * each piece goes through the normalized Walsh-Hadamard transform. Scores need q rotated
 * likewise; the weighted sum is turned back once at the end, S H o.
 *
 * int4 K shares its parameters among the tokens of a block, so a block can be written only
 * when all its tokens are known. Until then the sequence's partial block lies as fp16 (rotated
 * where the format rotates) in a tail slot beside the pool, see kv_layout_needs_tail().
 *
 * The pair plane is [n_layers][n_kv_heads][2] fp16, there only for int4 K; it stands at the
 * end of the block since four bytes a head would cost 60 of padding. Block b of a pool starts
 * at base + b * block_bytes. Rows of a block past the last written position hold anything, NaN
 * patterns included.
 */
#ifndef KVD_KERNELS_FORMAT_H
#define KVD_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	KV_BLOCK_TOKENS_MIN = 16,
	KV_BLOCK_TOKENS_MAX = 32,
	KV_HEAD_DIM_MAX = 256,      /* a multiple of 8 up to here */
	KV_BLOCK_ALIGN = 64,        /* of block_bytes, of heads and of code planes */
	KV_PARAM_ALIGN = 32,        /* of parameter planes */
	KV_POOL_ALIGN = 4096,       /* of a pool's offset in a file */
	KV_WEIGHTS_ALIGN = 2 << 20, /* of weights' offset in a file: a huge page */
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
 * Sizes in bytes:
 *   layer_bytes = n_kv_heads * head_bytes
 *   block_bytes = round_up(n_layers * layer_bytes + pair plane, KV_BLOCK_ALIGN)
 *   data_bytes  = what of block_bytes is not padding
 *   tail_bytes  = one tail slot: [n_layers][n_kv_heads] of fp16 K [D][T], fp16 V [T][D];
 *                 0 where the layout needs none
 * The _at members are offsets from the start of a head.
 */
struct kv_layout {
	enum kv_format k_format, v_format;
	uint32_t n_layers, n_kv_heads, head_dim, block_tokens;
	size_t v_at, k_params_at, v_params_at; /* K codes are at 0 */
	size_t head_bytes, layer_bytes, pair_at, block_bytes, data_bytes;
	size_t tail_plane_bytes, tail_bytes;
};

_Static_assert(KV_HEAD_DIM_MAX % 8 == 0, "head_dim is a multiple of 8");
_Static_assert((KV_BLOCK_TOKENS_MIN & (KV_BLOCK_TOKENS_MIN - 1)) == 0, "power of two");
_Static_assert(KV_BLOCK_TOKENS_MAX == 2 * KV_BLOCK_TOKENS_MIN, "16 and 32 only");

/* Name as it stands in configuration ("fp16"), or NULL for a number out of range. */
const char *kv_format_name(enum kv_format format);

/*
 * kv_layout_init - compute the geometry of a block
 * @k_format, @v_format: formats of the two planes
 * @n_layers: 1..KV_MAX_LAYERS        @n_kv_heads: 1..KV_MAX_KV_HEADS
 * @head_dim: multiple of 8, 8..KV_HEAD_DIM_MAX
 * @block_tokens: 16 or 32
 *
 * Return: 0; -EINVAL for a shape out of range.
 */
int kv_layout_init(struct kv_layout *ret_layout, enum kv_format k_format,
		   enum kv_format v_format, uint32_t n_layers, uint32_t n_kv_heads,
		   uint32_t head_dim, uint32_t block_tokens);

/* Bytes that one token takes in the pool, parameters included, padding left out: what stats
 * report. Exact: a block's data are a multiple of a sixteenth of a byte per token. */
double kv_layout_bytes_per_token(const struct kv_layout *l);

/* Do sequences need a tail slot for their partial block? True when K or V is int4: a row then
 * sees fp16 of the positions in its own block, and codes of those before it. */
static inline bool kv_layout_needs_tail(const struct kv_layout *l)
{
	return l->k_format == KV_FORMAT_INT4 || l->v_format == KV_FORMAT_INT4;
}

/* Are the vectors of this plane rotated? */
static inline bool kv_layout_k_rotated(const struct kv_layout *l)
{
	return l->k_format == KV_FORMAT_INT8 || l->k_format == KV_FORMAT_FP8_E4M3;
}

static inline bool kv_layout_v_rotated(const struct kv_layout *l)
{
	return l->v_format != KV_FORMAT_FP16;
}

/*
 * Does the rotation change the sign of dim i? Fixed for all head_dims.
 * Source: the 32-bit mixing function "lowbias32" of Chris Wellons' hash prospector.
 */
static inline bool kv_rotation_flips(uint32_t i)
{
	i ^= i >> 16;
	i *= 0x7feb352d;
	i ^= i >> 15;
	i *= 0x846ca68b;
	i ^= i >> 16;
	return i & 1;
}

/* Offset of (layer, kv_head) from the start of a block: its K codes. */
static inline size_t kv_layout_head_off(const struct kv_layout *l, uint32_t layer,
					uint32_t kv_head)
{
	return layer * l->layer_bytes + kv_head * l->head_bytes;
}

/* Offset of the fp16 pair A, B of (layer, kv_head) from the start of a block; int4 K. */
static inline size_t kv_layout_pair_off(const struct kv_layout *l, uint32_t layer,
					uint32_t kv_head)
{
	return l->pair_at + ((size_t)layer * l->n_kv_heads + kv_head) * 4;
}

/* Offset of the fp16 K plane of (layer, kv_head) in a tail slot; V is tail_plane_bytes on. */
static inline size_t kv_layout_tail_off(const struct kv_layout *l, uint32_t layer,
					uint32_t kv_head)
{
	return ((size_t)layer * l->n_kv_heads + kv_head) * 2 * l->tail_plane_bytes;
}

/*
 * Where (token of the block, dim) is inside a code plane: fp16 in elements, int8 and fp8 in
 * bytes, int4 in nibbles (index / 2 is the byte, odd ones are high nibbles).
 */
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
