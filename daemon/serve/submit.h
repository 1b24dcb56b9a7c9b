/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_H
#define KVD_DAEMON_SERVE_SUBMIT_H

/*
 * From a private copy of an SQE to a request of the scheduler, or an answer on the spot. What
 * each opcode does is in submit_ops.h. Thread: loop.
 */

#include <stdint.h>

struct encoder_result;
struct encoder_wait;
struct kvd_sqe;
struct session_ring;

/* Act on one SQE. It yields exactly one final CQE, now or later. */
void submit_sqe(struct session_ring *ring, const struct kvd_sqe *sqe, uint64_t now_ns);

/**
 * submit_encoded() - go on with an operation whose input has become tokens
 * @wait: of a ring, which takes further SQEs afterwards
 *
 * encoder_done_fn.
 */
void submit_encoded(struct encoder_wait *wait, struct encoder_result *result);

#endif
