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

struct kvd_sqe;
struct op;

int32_t submit_generate(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
int32_t submit_fork(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
int32_t submit_score(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
int32_t submit_tokenize(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
int32_t submit_detokenize(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);
int32_t submit_lookup(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail);

#endif
