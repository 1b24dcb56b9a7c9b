/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_KEYS_H
#define KVD_DAEMON_MODEL_KEYS_H

/*
 * Which keys under a file's architecture prefix kvd knows. A key that nobody reads may change
 * what the model computes, and nobody would notice: so each is read, says nothing about the
 * computation, has the value that changes nothing, or ends the load. Any thread.
 */

#include "daemon/model/gguf.h"

/**
 * model_keys_check() - no key of the file is left out
 * @arch: prefix of the keys, without its dot
 *
 * Return: 0; -ENOTSUP with the key in @err.
 */
int model_keys_check(const struct gguf *gguf, struct gguf_str arch,
		     struct load_error *err);

#endif
