/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_ENGINE_LAYOUT_H
#define KVD_DAEMON_ENGINE_LAYOUT_H

/*
 * The layout that [cache] asks for, unless that costs the model too much quality. Thread: loop,
 * before the worker starts, as the check runs the model.
 */

#include <stddef.h>

#include "kernels/format.h"

struct config;
struct model;
struct tokenizer;

/*
 * @tokenizer: of the model, or NULL. Return: 0; -ENOTSUP or -EINVAL: no block has this shape, or
 * int4 changes too much and kv_quality_check = refuse; -errno of the run. @error has one line.
 */
int engine_layout(const struct config *config, const struct model *model,
		  const struct tokenizer *tokenizer, struct kv_layout *ret_layout,
		  char *error, size_t error_size);

/* "int8" or "k=int8,v=int4", as in [cache] kv_cache_dtype. */
void engine_layout_name(const struct kv_layout *layout, char *ret_text, size_t size);

#endif
