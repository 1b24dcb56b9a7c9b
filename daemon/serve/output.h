/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OUTPUT_H
#define KVD_DAEMON_SERVE_OUTPUT_H

/*
 * The answer to TOKENIZE or DETOKENIZE on its way into the output arena: pages that nobody has
 * touched cost far more than the bytes, so a long one is written in pieces, in turns of its ring.
 * Thread: loop.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/tokenizer.h"
#include "daemon/res.h"
#include "daemon/user.h"

struct op;

/**
 * struct output - one answer; all zero: none
 * @op:     whose; NULL: none
 * @list:   token ids; what they mean is written if there is @text, else they themselves
 * @out:    [n_bytes] in the arena, of which n_written are there
 * @at:     the next id; n_part bytes of its piece are written
 * @charge: for @list
 */
struct output {
	struct op *op;
	struct token_list list;
	const struct tokenizer *text;
	uint8_t *out;
	size_t n_bytes;
	size_t n_written;
	size_t at;
	size_t n_part;
	int32_t res;
	struct user_charge charge;
};

/**
 * output_begin() - end @op with an output of @n_bytes, now or after output_step()
 * @list: the ids; taken if it is not ended now
 * @text: write their text; NULL: themselves
 * @res:  of the final CQE
 *
 * Return: 0; -ENOBUFS with the bytes that it takes; -EFAULT: outside of the arena; KVD_E_QUOTA: its
 * user has no room for ids that have to wait.
 */
kvd_res output_begin(struct output *output, struct op *op, struct token_list *list,
		     const struct tokenizer *text, size_t n_bytes, int32_t res,
		     uint64_t *ret_detail);

/* Writes a piece. Return: whether that was the last one; then the operation has ended. */
bool output_step(struct output *output);

/* Idempotent. */
void output_deinit(struct output *output);

#endif
