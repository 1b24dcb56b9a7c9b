/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_KEYS_H
#define KVD_DAEMON_MODEL_KEYS_H

/* Which keys under a file's architecture prefix kvd knows. One that nobody reads may change what
 * the model computes, and nobody would notice. Any thread. */

#include "daemon/model/gguf.h"

/* @arch: the prefix, without its dot. Return: 0; -ENOTSUP: a key that is not known, in @err. */
int model_keys_check(const struct gguf *gguf, struct gguf_str arch,
		     struct load_error *err);

#endif
