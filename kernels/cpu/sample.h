/* SPDX-License-Identifier: MIT */
/*
 * From a row of logits to one token. Stateless: the draw is a function of the logits, the
 * parameters and the position, so a request's tokens depend neither on its neighbours nor
 * on how often it was preempted. Every backend's sample() draws the same from the same logits.
 *
 * Order: logits are divided by the temperature; min_p drops what is less likely than min_p
 * times the likeliest; top_k keeps the k likeliest of the rest; top_p keeps the likeliest of
 * those up to that share of their sum, and always the first. Of equal logits the lower id
 * comes first. Sums are in double, in order of falling probability (or of ids, where
 * nothing is dropped).
 *
 * Thread: any; the heap belongs to one at a time.
 */
#ifndef KVD_KERNELS_CPU_SAMPLE_H
#define KVD_KERNELS_CPU_SAMPLE_H

#include <stdint.h>

#include "kernels/batch.h"

/**
 * sample_draw() - draw a token
 * @logits:   [n]
 * @max:      the largest of them
 * @params:   temperature > 0
 * @position: absolute position that the token takes
 * @heap:     [n] scratch
 *
 * Return: the token.
 */
int32_t sample_draw(const float *logits, uint32_t n, float max,
		    const struct kv_sample_params *params, uint64_t position,
		    uint32_t *heap);

/* The @n_top likeliest tokens, likeliest first; @heap: [n]; @ret_ids: [n_top], n_top <= n. */
void sample_top(const float *logits, uint32_t n, uint32_t *heap, uint32_t n_top,
		uint32_t *ret_ids);

/* Uniform in [0, 1) with 53 bits, by (seed, position) alone.
 * Source: SplitMix64 (Steele, Lea, Flood 2014), its finalizer applied twice. */
double sample_uniform(uint64_t seed, uint64_t position);

#endif
