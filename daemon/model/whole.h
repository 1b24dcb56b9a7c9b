/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_WHOLE_H
#define KVD_DAEMON_MODEL_WHOLE_H

/* Tokens that are found in a text as wholes, before it is cut and merged: control and user-defined
 * ones. Built once, then any number of threads may search. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/strings.h"

#define WHOLE_NONE (-1)

/* All-zero is empty. @ids: sorted by text. @first: bytes that one of them begins with */
struct whole_tokens {
	int32_t *ids;
	uint32_t n;
	bool first[256];
};

/* Takes the tokens whose type t has its bit set in @mask. @types: [n_tokens]. Return: 0 or
 * -ENOMEM. */
int whole_collect(struct whole_tokens *ret, const struct strings *strings,
		  const uint8_t *types, uint32_t n_tokens, unsigned mask);
void whole_deinit(struct whole_tokens *set);

/* The longest token at the start of @len >= 1 bytes, or WHOLE_NONE. */
int32_t whole_at(const struct whole_tokens *set, const struct strings *strings,
		 const uint8_t *s, size_t len, size_t *ret_len);
/* The token with exactly this text, or WHOLE_NONE. */
int32_t whole_find(const struct whole_tokens *set, const struct strings *strings,
		   const char *text);

#endif
