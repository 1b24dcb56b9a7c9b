/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_OPS_H
#define KVD_DAEMON_SERVE_SUBMIT_OPS_H

/*
 * What each opcode does, by family: submit_generate.c, submit_score.c, submit_text.c.
 *
 * Each ends its operation or hands it on and returns 0; else it returns the res to end it
 * with, and @ret_detail. sqe_check() has passed, and all but CANCEL find a model.
 * Thread: loop.
 */

#include <stdint.h>

#include "daemon/res.h"

struct kvd_sqe;
struct op;

kvd_res submit_generate(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
kvd_res submit_fork(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
kvd_res submit_score(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
kvd_res submit_tokenize(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
kvd_res submit_detokenize(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
kvd_res submit_lookup(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);

#endif
