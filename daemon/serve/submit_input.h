/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_INPUT_H
#define KVD_DAEMON_SERVE_SUBMIT_INPUT_H

/* What an SQE names in the arena, copied once. sqe_check() has passed. Thread: loop. */

#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/model/tokenizer.h"
#include "daemon/res.h"
#include "ipc/sqe.h"

struct op;
struct op_generate;

/*
 * The tokens of an SQE's input; sets op->n_asked. @list: the caller's, also on failure.
 * Return: as input_tokens(); KVD_E_CONTEXT and -E2BIG by the length alone.
 */
kvd_res submit_read_tokens(struct op *op, const struct kvd_sqe *sqe,
			   struct token_list *list, uint64_t *ret_detail);

/*
 * Parameters of GENERATE and FORK. @ret_copy: [params_len] holds the stop strings, for
 * secret_free(), also on failure. Return: 0 or the res of the final CQE.
 */
kvd_res submit_read_params(struct op_generate *g, const struct kvd_sqe *sqe,
			   void **ret_copy, struct kvd_gen_params *ret_params,
			   struct sqe_span *ret_stops);

#endif
