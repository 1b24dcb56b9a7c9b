/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_H
#define KVD_DAEMON_SERVE_SUBMIT_H

/* From a private copy of an SQE to a request of the scheduler or an answer. Thread: loop. */

#include <stdbool.h>
#include <stdint.h>

struct encoder_result;
struct encoder_wait;
struct kvd_sqe;
struct session_ring;

/* Each SQE gets exactly one final CQE, now or later. */
void submit_sqe(struct session_ring *ring, const struct kvd_sqe *sqe, uint64_t now_ns);

/* encoder_done_fn: the operation goes on in a turn of its ring. @wait: of a ring */
void submit_encoded(struct encoder_wait *wait, struct encoder_result *result);

/* A turn of the ring: goes on with the operation that holds up its others. Return: whether there
 * was anything to do. */
bool submit_go_on(struct session_ring *ring);

#endif
