/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_FAMILIES_H
#define KVD_DAEMON_MODEL_FAMILIES_H

/*
 * The model families that kvd computes, one row each: what a file of general.architecture
 * NAME needs that others do not. Constant data; any thread. What all families share, shape
 * and keys, is in shape.h; which tensors a layer has, in model.c.
 */

#include "daemon/model/gguf.h"
#include "kernels/backend.h"

/**
 * struct model_family - a row
 * @name: general.architecture, and the prefix of the file's keys
 * @rope: which elements of a head are rotated together
 */
struct model_family {
	const char *name;
	enum kv_rope_mode rope;
};

/**
 * model_family_find() - the row of a file
 *
 * Return: 0; -ENOTSUP another architecture, @err names it and those of the table; -EINVAL the
 * file does not say.
 */
int model_family_find(const struct gguf *gguf, const struct model_family **ret,
		      struct load_error *err);

#endif
