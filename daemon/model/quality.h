/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_QUALITY_H
#define KVD_DAEMON_MODEL_QUALITY_H

/*
 * How far a KV format takes a model's answers from those with fp16.
 *
 * Runs the same tokens through the model twice, once on a small pool in fp16 and once on
 * one in the format, and compares the distributions of the next token. Owns the pools and
 * all scratch memory while it runs, and keeps nothing. Thread: the loading thread, before
 * the worker starts. Relies on runner.h, and so measures exactly what requests will get.
 * Knows no configuration: what is too far is for the caller to say.
 *
 * A few hundred tokens tell a format that suits the model (KL about 0.01) from one that
 * ruins it (0.1 and up), and no more than that; `./dev eval` is for figures.
 */

#include <stdint.h>

#include "daemon/model/model.h"
#include "daemon/model/tokenizer.h"
#include "kernels/format.h"

/**
 * struct quality - what came out
 * @kl: mean over positions of the Kullback-Leibler divergence from fp16, in nats
 * @same_top: share of positions whose likeliest token is the same
 * @n: positions compared
 */
struct quality {
	double kl;
	double same_top;
	uint32_t n;
};

/**
 * quality_measure() - compare one layout with fp16
 * @tokenizer: of the model, whose ids of a fixed English text are run; NULL: fixed
 *	arbitrary ids
 * @layout: of the model's shape
 *
 * Positions of the first block are left out: they see no codes of int4.
 *
 * Return: 0; -EINVAL for a context too short to see any difference; -ENOMEM, or what a step
 * failed with.
 */
int quality_measure(const struct model *model, const struct tokenizer *tokenizer,
		    const struct kv_layout *layout, struct quality *ret_quality);

#endif
