/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_H
#define KVD_DAEMON_SERVE_OP_H

/*
 * One operation: an SQE from the moment it is taken until its final CQE is posted.
 *
 *                        op_new()
 *                           |
 *   op_generate_token() ----+---- op_end()      what happens to it
 *                           |
 *                       op_flush()              what of that fits the client's CQ
 *                           |
 *              CQE CQE CQE ... final CQE -> freed
 *
 * A full CQ never loses anything: what could not be posted stays here, the sequence
 * is paused in the scheduler so that at most the token of the step in flight is
 * added, and op_flush() goes on when the client has made room.
 *
 * When the session ends before the sequence, the operation is cut off from its ring
 * (op_detach()) and lives on, silent, until the scheduler is done with it.
 *
 * What a family of opcodes has besides is in the struct that begins with the operation:
 * struct op_generate (op_generate.h), struct op_score. Thread: loop. Each operation is a
 * member of its ring's list.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/res.h"

struct encoder_result;
struct engine;
struct session_ring;

/**
 * struct op - one operation in flight
 * @ring:      where its CQEs go; NULL once detached
 * @seq_id:    scheduler's id; 0 when the scheduler does not know it (any more)
 * @encoded:   the tokens of its input, while it is submitted with them; else NULL
 * @n_asked:   tokens of the prompt as far as they are known, for an answer that refuses it
 * @out_off, @out_len: where the client wants the output
 * @taken_ns:  when the SQE was taken
 * @staged:    the next CQE, built and not yet posted
 * @ended:     nothing will be added; @final follows what is pending
 * @blocked:   something waits for room in the CQ (and the ring counts it)
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
	uint32_t n_asked;
	uint32_t out_len;
	uint64_t out_off;
	uint64_t taken_ns;
	struct kvd_cqe staged;
	struct kvd_cqe final;
};

/**
 * struct op_score - SCORE
 * @n_tokens:   of the prompt
 * @dist_first: first position whose distribution is wanted
 * @scores:     [n_tokens] token ids as u32, then [n_tokens] f32 logprobs
 */
struct op_score {
	struct op op;
	uint32_t n_tokens;
	uint32_t dist_first;
	uint32_t *scores;
};

/* A new operation at the end of the ring's list. Return: NULL when out of memory. */
struct op *op_new(struct engine *engine, struct session_ring *ring,
		  const struct kvd_sqe *sqe, uint64_t now_ns);

/* Unlink and free; NULL is fine. Return: NULL. */
struct op *op_free(struct op *op);

/* The whole of it, or NULL if it is of another family. */
struct op_score *op_score(struct op *op);

/**
 * op_end() - nothing more will come
 * @res:   of the final CQE
 * @usage: its payload; the times are filled in here
 */
void op_end(struct op *op, kvd_res res, const struct kvd_cqe_usage *usage,
	    uint64_t now_ns);

/**
 * op_flush() - post what fits
 *
 * Frees the operation when its final CQE was posted.
 *
 * Return: true when @op is gone.
 */
bool op_flush(struct op *op);

/* End its sequence early, if there is one; the operation gets its end by the usual way. */
void op_cancel(struct op *op);

/* The ring goes away: no CQE will be posted. Unlinks; the caller cancels or frees. */
void op_detach(struct op *op);

#endif
