/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_OPS_H
#define KVD_DAEMON_SERVE_SUBMIT_OPS_H

/*
 * What each opcode does. sqe_check() has passed, and there is a model. Thread: loop.
 *
 * Return: 0: the operation ended or was handed on; else the res to end it with, and @ret_detail.
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
