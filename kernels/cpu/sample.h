/* SPDX-License-Identifier: MIT */
/*
 * From a row of logits to one token: a function of the logits, the parameters and the position
 * alone, the same for every backend's sample(). Any thread.
 *
 * Logits are divided by the temperature; then min_p, top_k and top_p drop tokens, in this
 * order, and the first is always kept. Of equal logits the lower id comes first.
 */
#ifndef KVD_KERNELS_CPU_SAMPLE_H
#define KVD_KERNELS_CPU_SAMPLE_H

#include <stdint.h>

#include "kernels/batch.h"

/* logits [n], max the largest of them, params->temperature > 0, scratch [2 * n]. */
int32_t sample_draw(const float *logits, uint32_t n, float max,
		    const struct kv_sample_params *params, uint64_t position,
		    uint32_t *scratch);

/* Likeliest first; heap [n], ret_ids [n_top], n_top <= n. */
void sample_top(const float *logits, uint32_t n, uint32_t *heap, uint32_t n_top,
		uint32_t *ret_ids);

/* In [0, 1), with 53 bits. */
double sample_uniform(uint64_t seed, uint64_t position);

#endif
