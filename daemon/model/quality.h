/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_QUALITY_H
#define KVD_DAEMON_MODEL_QUALITY_H

/* How far a KV format takes a model's answers from those with fp16. What is too far is for the
 * caller to say; `./dev eval` is for figures. Thread: the loading thread, before the worker
 * starts. */

#include <stdint.h>

#include "daemon/model/model.h"
#include "daemon/model/tokenizer.h"
#include "kernels/format.h"

/* Over @n positions: @kl: mean Kullback-Leibler divergence from fp16, in nats; @same_top: share
 * whose likeliest token is the same */
struct quality {
	double kl;
	double same_top;
	uint32_t n;
};

/* Compares one layout with fp16. @tokenizer: NULL: arbitrary ids are run in place of a text.
 * Return: 0; -EINVAL: a context too short to see any difference; -ENOMEM, or what a step failed
 * with. */
int quality_measure(const struct model *model, const struct tokenizer *tokenizer,
		    const struct kv_layout *layout, struct quality *ret_quality);

#endif
