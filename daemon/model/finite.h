/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_FINITE_H
#define KVD_DAEMON_MODEL_FINITE_H

/* Whether all values of a tensor are finite: one that is not makes every answer of the model
 * useless. Pure; any thread. */

#include <stdbool.h>

#include "daemon/model/gguf.h"

/* Return: false, too, for a type that kvd does not read. */
bool tensor_is_finite(const struct gguf_tensor *tensor);

#endif
