/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_FAMILIES_H
#define KVD_DAEMON_MODEL_FAMILIES_H

/* The model families that kvd computes, a row each: what a file of that general.architecture needs
 * that others do not. Constant data, any thread. */

#include "daemon/model/gguf.h"
#include "kernels/backend.h"

/* @name: general.architecture, and the prefix of the file's keys. @rope: which elements of a head
 * are rotated together */
struct model_family {
	const char *name;
	enum kv_rope_mode rope;
};

/* The row of a file. Return: 0; -ENOTSUP another architecture; -EINVAL the file does not say. */
int model_family_find(const struct gguf *gguf, const struct model_family **ret,
		      struct load_error *err);

#endif
