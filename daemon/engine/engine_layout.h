/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_LAYOUT_H
#define KVD_DAEMON_ENGINE_LAYOUT_H

/*
 * Which layout the pool gets: what [cache] asks for, unless the model does not bear it.
 *
 * Owns nothing. Thread: loop, before the worker starts, as it runs the model for the check.
 * Logs what it decided, once. Relies on daemon/model/quality.h for the figure and knows what
 * figure is too much.
 */

#include <stddef.h>

#include "kernels/format.h"

struct config;
struct model;
struct tokenizer;

/**
 * engine_layout() - the layout for a loaded model
 * @tokenizer: of the model, or NULL
 *
 * Return: 0; -ENOTSUP or -EINVAL for a shape that no block can have, or a model that int4
 * would change too much with kv_quality_check = refuse; -errno of the run. @error has one line.
 */
int engine_layout(const struct config *config, const struct model *model,
		  const struct tokenizer *tokenizer, struct kv_layout *ret_layout,
		  char *error, size_t error_size);

/* "int8", or "k=int8,v=int4": as in [cache] kv_cache_dtype. */
void engine_layout_name(const struct kv_layout *layout, char *ret_text, size_t size);

#endif
