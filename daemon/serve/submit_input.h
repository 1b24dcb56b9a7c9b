/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_INPUT_H
#define KVD_DAEMON_SERVE_SUBMIT_INPUT_H

/*
 * What an SQE names in the arena: copied once, checked in the copy, and gone without a trace
 * when it is freed.
 *
 * Thread: loop. sqe_check() has passed.
 */

#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/model/tokenizer.h"
#include "daemon/res.h"
#include "ipc/sqe.h"

struct op;
struct op_generate;

/**
 * submit_read_tokens() - the tokens of an SQE's input
 * @list: the caller's, also on failure
 *
 * They are there already where op->encoded holds them. Sets op->n_asked.
 *
 * Return: 0 or the res of the final CQE with @ret_detail, as input_tokens();
 * KVD_E_CONTEXT and -E2BIG by the length alone.
 */
kvd_res submit_read_tokens(struct op *op, const struct kvd_sqe *sqe,
			   struct token_list *list, uint64_t *ret_detail);

/**
 * submit_read_params() - parameters of GENERATE and FORK
 * @ret_copy: holds the stop strings, for secret_free(); the caller's in any case
 *
 * Return: 0 or the res of the final CQE.
 */
kvd_res submit_read_params(struct op_generate *g, const struct kvd_sqe *sqe,
			   void **ret_copy, struct kvd_gen_params *ret_params,
			   struct sqe_span *ret_stops);

#endif
