/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_SHAPE_H
#define KVD_DAEMON_MODEL_SHAPE_H

/* What a model file's metadata says about the computation: sizes, and the constants of norms and
 * rotation. Reads keys only; tensors are model.c's. Keeps nothing; any thread. */

#include <stdint.h>

#include "daemon/model/families.h"
#include "daemon/model/gguf.h"
#include "kernels/backend.h"

/* @context_length: 0: the file does not say. @eps: of the norms */
struct model_params {
	uint32_t n_layers;
	uint32_t d_model;
	uint32_t d_ff;
	uint32_t n_heads;
	uint32_t n_kv_heads;
	uint32_t head_dim;
	uint32_t n_vocab;
	uint32_t context_length;
	float eps;
	struct kv_rope_params rope;
};

/* What a KV cache depends on, of whatever architecture: n_layers, d_model, n_heads, n_kv_heads,
 * head_dim and context_length are filled, the rest is 0. Return: 0; -EINVAL: a key is missing or of
 * another type; -ENOTSUP: a number out of range, or heads that differ between layers. @err names
 * the key. */
int model_shape_read(const struct gguf *gguf, struct model_params *ret,
		     struct load_error *err);

/* All of it, for a family that kvd computes. Return: 0; as model_shape_read(); -ENOTSUP: a shape or
 * arithmetic that kvd does not run; -EINVAL: a contradiction in the file. */
int model_params_read(const struct gguf *gguf, const struct model_family *family,
		      struct model_params *ret, struct load_error *err);

#endif
