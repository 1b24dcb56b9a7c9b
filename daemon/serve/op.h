/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_H
#define KVD_DAEMON_SERVE_OP_H

/*
 * One operation: an SQE from the moment it is taken until its final CQE is posted. A full CQ loses
 * nothing: what could not be posted stays here and the sequence is paused.
 *
 * A member of its ring's list; detached and silent when the session ends before the sequence. Each
 * family of opcodes has a struct that begins with it (op_score, op_generate.h). Thread: loop.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/res.h"
#include "daemon/user.h"

struct encoder_result;
struct engine;
struct request_desc;
struct session_ring;

/**
 * struct op - one operation in flight
 * @ring:    where its CQEs go; NULL once detached
 * @seq_id:  the scheduler's; 0: none, or finished
 * @encoded: the tokens of its input while it is submitted with them, else NULL
 * @memory:  charged for it and its request while they are there, waiting or not
 * @n_asked: tokens of the prompt as far as known, for an answer that refuses it
 * @staged:  the next CQE, built and not yet posted
 * @ended:   @final follows what is pending
 * @blocked: waits for room in the CQ, counted in the ring's n_blocked
 */
struct op {
	struct op *prev, *next;
	struct session_ring *ring;
	struct engine *engine;
	uint64_t user_data;
	uint8_t opcode;
	bool ended;
	bool blocked;
	bool has_staged;
	bool staged_final;
	uint32_t seq_id;
	struct encoder_result *encoded;
	struct user_charge memory;
	uint32_t n_asked;
	uint32_t out_len;
	uint64_t out_off;
	uint64_t taken_ns;
	struct kvd_cqe staged;
	struct kvd_cqe final;
};

/*
 * SCORE. @dist_first: first position whose distribution is wanted.
 * @scores: [n_tokens] token ids of the prompt as u32, then [n_tokens] logprobs as f32.
 */
struct op_score {
	struct op op;
	uint32_t n_tokens;
	uint32_t dist_first;
	uint32_t *scores;
};

/* At the end of the ring's list. Return: NULL when out of memory. */
struct op *op_new(struct engine *engine, struct session_ring *ring,
		  const struct kvd_sqe *sqe, uint64_t now_ns);

/* Charges what @desc and the operation take, and @more. Return: 0; KVD_E_QUOTA with the limit in
 * @ret_detail. */
kvd_res op_charge(struct op *op, const struct request_desc *desc, uint64_t more,
		  uint64_t *ret_detail);

/* The scheduler must have finished with it; NULL is fine. Return: NULL. */
struct op *op_free(struct op *op);

/* NULL if it is of another family. */
struct op_score *op_score(struct op *op);

/* Nothing follows but the final CQE with @res and @usage, whose times are filled in here. */
void op_end(struct op *op, kvd_res res, const struct kvd_cqe_usage *usage,
	    uint64_t now_ns);

/* Posts what fits. Return: true when the final CQE was posted and @op is freed. */
bool op_flush(struct op *op);

/* Ends its sequence early, if there is one; SCHED_FINISHED follows as usual. */
void op_cancel(struct op *op);

/* Unlinks; no CQE will be posted. The caller cancels or frees. */
void op_detach(struct op *op);

#endif
