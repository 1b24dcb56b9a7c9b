/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_SAMPLER_H
#define KVD_DAEMON_MODEL_SAMPLER_H

/*
 * From a row of logits to one token. Stateless: the draw is a function of the logits, the
 * parameters and the position, so a request's tokens depend neither on its neighbours nor
 * on how often it was preempted.
 *
 * Order: logits are divided by the temperature; min_p drops what is less likely than min_p
 * times the likeliest; top_k keeps the k likeliest of the rest; top_p keeps the likeliest of
 * those up to that share of their sum, and always the first. Of equal logits the lower id
 * comes first. Sums are in double, in order of falling probability (or of ids, where
 * nothing is dropped).
 *
 * Thread: any; the scratch belongs to one at a time.
 */

#include <stdint.h>

#include "daemon/sched/plan.h"

/* Room to order the candidates of one row. */
struct sampler {
	uint32_t n_vocab;
	uint32_t *heap; /* [n_vocab] ids */
};

/* Return: 0 or -ENOMEM. */
int sampler_init(struct sampler *sampler, uint32_t n_vocab);
void sampler_deinit(struct sampler *sampler);

/**
 * sampler_draw() - draw a token
 * @logits:   [n_vocab]
 * @max:      the largest of them
 * @params:   temperature > 0
 * @position: absolute position that the token takes
 *
 * Return: the token.
 */
int32_t sampler_draw(struct sampler *sampler, const float *logits, float max,
		     const struct sample_params *params, uint64_t position);

/* The @n likeliest tokens, likeliest first; @ret_ids: [n], n <= n_vocab. */
void sampler_top(struct sampler *sampler, const float *logits, uint32_t n,
		 uint32_t *ret_ids);

/* Uniform in [0, 1) with 53 bits, by (seed, position) alone.
 * Source: SplitMix64 (Steele, Lea, Flood 2014), its finalizer applied twice. */
double sampler_uniform(uint64_t seed, uint64_t position);

#endif
