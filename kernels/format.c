/* SPDX-License-Identifier: MIT */
#include "kernels/format.h"

#include <errno.h>
#include <string.h>

static const char *const format_names[KV_FORMAT_N] = {
	[KV_FORMAT_FP16] = "fp16",
	[KV_FORMAT_INT8] = "int8",
	[KV_FORMAT_INT4] = "int4",
	[KV_FORMAT_FP8_E4M3] = "fp8_e4m3",
};

const char *kv_format_name(enum kv_format format)
{
	return (unsigned)format < KV_FORMAT_N ? format_names[format] : NULL;
}

static size_t round_up(size_t x, size_t align)
{
	return (x + align - 1) / align * align;
}

/* Bytes of a code plane, the same for K and V. */
static size_t codes_bytes(enum kv_format format, size_t n)
{
	switch (format) {
	case KV_FORMAT_FP16:
		return n * 2;
	case KV_FORMAT_INT4:
		return n / 2;
	default:
		return n;
	}
}

static size_t params_bytes(enum kv_format format, bool k, uint32_t head_dim,
			   uint32_t block_tokens)
{
	switch (format) {
	case KV_FORMAT_INT8:
		return block_tokens * (size_t)4;
	case KV_FORMAT_INT4:
		return k ? head_dim * (size_t)2 : block_tokens * (size_t)4;
	case KV_FORMAT_FP8_E4M3:
		return block_tokens * (size_t)2;
	default:
		return 0;
	}
}

static void layout_sizes(struct kv_layout *l)
{
	size_t n = (size_t)l->head_dim * l->block_tokens;
	size_t k = codes_bytes(l->k_format, n), v = codes_bytes(l->v_format, n);
	size_t kp = params_bytes(l->k_format, true, l->head_dim, l->block_tokens);
	size_t vp = params_bytes(l->v_format, false, l->head_dim, l->block_tokens);
	size_t heads = (size_t)l->n_layers * l->n_kv_heads;
	size_t pair = l->k_format == KV_FORMAT_INT4 ? 4 : 0;

	l->v_at = round_up(k, KV_BLOCK_ALIGN);
	l->k_params_at = l->v_at + round_up(v, KV_BLOCK_ALIGN);
	l->v_params_at = l->k_params_at + round_up(kp, KV_PARAM_ALIGN);
	l->head_bytes = round_up(l->v_params_at + vp, KV_BLOCK_ALIGN);
	l->layer_bytes = l->n_kv_heads * l->head_bytes;
	l->pair_at = l->n_layers * l->layer_bytes;
	l->block_bytes = round_up(l->pair_at + heads * pair, KV_BLOCK_ALIGN);
	l->data_bytes = heads * (k + v + kp + vp + pair);
	l->tail_plane_bytes = round_up(n * 2, KV_BLOCK_ALIGN);
	if (kv_layout_needs_tail(l))
		l->tail_bytes = heads * 2 * l->tail_plane_bytes;
}

/*
 * The limits checked here bound every product below: 1024 layers x 1024 heads x two planes
 * of 256 x 32 fp16 elements are 2^35 bytes.
 */
int kv_layout_init(struct kv_layout *ret_layout, enum kv_format k_format,
		   enum kv_format v_format, uint32_t n_layers, uint32_t n_kv_heads,
		   uint32_t head_dim, uint32_t block_tokens)
{
	struct kv_layout l = {
		.k_format = k_format,
		.v_format = v_format,
		.n_layers = n_layers,
		.n_kv_heads = n_kv_heads,
		.head_dim = head_dim,
		.block_tokens = block_tokens,
	};

	if ((unsigned)k_format >= KV_FORMAT_N || (unsigned)v_format >= KV_FORMAT_N)
		return -EINVAL;
	if (n_layers == 0 || n_layers > KV_MAX_LAYERS)
		return -EINVAL;
	if (n_kv_heads == 0 || n_kv_heads > KV_MAX_KV_HEADS)
		return -EINVAL;
	if (head_dim == 0 || head_dim % 8 != 0 || head_dim > KV_HEAD_DIM_MAX)
		return -EINVAL;
	if (block_tokens != KV_BLOCK_TOKENS_MIN && block_tokens != KV_BLOCK_TOKENS_MAX)
		return -EINVAL;
	layout_sizes(&l);
	*ret_layout = l;
	return 0;
}

/* Exact, as a block's data are a multiple of a sixteenth of a byte per token. */
double kv_layout_bytes_per_token(const struct kv_layout *l)
{
	return (double)l->data_bytes / l->block_tokens;
}
