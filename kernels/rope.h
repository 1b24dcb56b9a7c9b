/* SPDX-License-Identifier: MIT */
/* Rotary embeddings, as a model file describes them. Plain data; any thread. */
#ifndef KVD_KERNELS_ROPE_H
#define KVD_KERNELS_ROPE_H

#include <stdint.h>

enum kv_rope_mode {
	KV_ROPE_NORMAL, /* pairs (2i, 2i+1): llama */
	KV_ROPE_NEOX,   /* pairs (i, i + rope_dims/2): qwen, gemma, gpt-neox */
};

/**
 * struct kv_rope_params - a rotary embedding
 * @rope_dims: even, <= head_dim; dims above pass unchanged
 * @freq_base: usually 10000
 * @freq_scale: 1, or 1/factor for linear scaling
 * @freq_factors: host [rope_dims/2] divisors of the frequency, or NULL
 */
struct kv_rope_params {
	enum kv_rope_mode mode;
	uint32_t rope_dims;
	float freq_base;
	float freq_scale;
	const float *freq_factors;
};

#endif
