/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_UNIT_MODEL_TINY_MODEL_H
#define KVD_TESTS_UNIT_MODEL_TINY_MODEL_H

/*
 * A llama of two layers with random weights of any type, as a GGUF image, and its logprobs
 * computed in double from the dequantized weights: nothing of the runner's path is used for
 * them but the reference dequantization, which the suite kern checks against vectors from
 * elsewhere. Failures print and exit.
 */

#include <stdint.h>

#include "tests/unit/model/gguf-image.h"

enum {
	TINY_LAYERS = 2,
	TINY_EMBD = 256, /* rows that the K types can hold */
	TINY_FF = 512,
	TINY_HEADS = 4,
	TINY_KV_HEADS = 2,
	TINY_HEAD_DIM = 64,
	TINY_VOCAB = 96,
	TINY_CONTEXT = 512,
};

/* All matrices in one enum gguf_tensor_type; norms are F32. @tied: no output.weight. */
struct image tiny_model(uint32_t type, int tied, uint64_t seed);
/* The same with more metadata: @n_keys pairs, as image_kv_str() and the like write them. */
struct image tiny_model_with(uint32_t type, int tied, uint64_t seed,
			     const struct image *keys, uint32_t n_keys);

/* logprobs[i] = log p(tokens[i] | tokens[0 .. i-1]) for i >= 1; [0] = 0. */
void tiny_reference(const struct image *model, const int32_t *tokens, uint32_t n,
		    double *logprobs);
/* The same where the file divides positions by @rope_factor. */
void tiny_reference_scaled(const struct image *model, const int32_t *tokens, uint32_t n,
			   double rope_factor, double *logprobs);

uint64_t tiny_random(uint64_t *state);

#endif
