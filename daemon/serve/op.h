/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_H
#define KVD_DAEMON_SERVE_OP_H

/*
 * One operation: an SQE from the moment it is taken until its final CQE is posted.
 *
 *                 op_new()
 *                    |
 *      op_token() ---+--- op_end()          what happens to it
 *                    |
 *                op_flush()                 what of that fits the client's CQ
 *                    |
 *        CQE CQE CQE ... final CQE -> freed
 *
 * A full CQ never loses anything: what could not be posted stays here, the sequence
 * is paused in the scheduler so that at most the token of the step in flight is
 * added, and op_flush() goes on when the client has made room.
 *
 * When the session ends before the sequence, the operation is cut off from its ring
 * (op_detach()) and lives on, silent, until the scheduler is done with it.
 *
 * Thread: loop. Owns its emit state and score buffer. Each operation is a member of
 * its ring's list.
 */

#include <stdbool.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/serve/emit.h"
#include "daemon/user.h"

struct encoder_result;
struct engine;
struct session_ring;

/* A token waits for room in the CQ; a paused sequence adds at most one more. */
#define OP_MAX_TOKENS 4

struct op_token {
	int32_t token;
	float logprob;
};

/**
 * struct op_group - the sequences of one request with n > 1
 * @n_open: whose last CQE is not posted yet
 * @refs: operations that point here
 */
struct op_group {
	unsigned n_open;
	unsigned refs;
};

/**
 * struct op - one operation in flight
 * @ring:      where its CQEs go; NULL once detached
 * @seq_id:    scheduler's id; 0 when the scheduler does not know it (any more)
 * @salt:      of GENERATE, or of the parent of a FORK
 * @encoded:   the tokens of its input, while it is submitted with them; else NULL
 * @n_asked:   tokens of the prompt as far as they are known, for an answer that refuses it
 * @out_off, @out_len: where the client wants the output (SCORE)
 * @dist_first: SCORE: first position whose distribution is wanted
 * @group, @index: with n > 1: the request, and which of its sequences this is
 * @keep: n_kept tokens stay for FORK when it ends (sqe_was_kept()); @kept: [cap_kept] prompt
 *	and answer; @charge: for them
 * @scores:    SCORE: [n_tokens] token ids as u32, then [n_tokens] f32 logprobs
 * @taken_ns, @first_ns: when the SQE was taken, when the first token came
 * @pending:   tokens not yet posted; their bytes are in @emit
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
	bool want_logprobs;
	bool ended;
	bool blocked;
	bool stopping;
	bool keep;
	uint8_t index;
	struct op_group *group;
	uint32_t seq_id;
	uint64_t salt;
	struct encoder_result *encoded;
	uint32_t n_asked;
	int32_t *kept;
	uint32_t n_kept;
	uint32_t cap_kept;
	struct user_charge charge;

	uint64_t out_off;
	uint32_t out_len;
	uint32_t n_tokens;
	uint32_t dist_first;
	uint32_t *scores;

	uint64_t taken_ns;
	uint64_t first_ns;

	struct emit emit;
	struct op_token pending[OP_MAX_TOKENS];
	unsigned n_pending;
	struct kvd_cqe staged;
	bool has_staged;
	bool staged_final;
	struct kvd_cqe final;
};

/* A new operation at the end of the ring's list. Return: NULL when out of memory. */
struct op *op_new(struct engine *engine, struct session_ring *ring,
		  const struct kvd_sqe *sqe, uint64_t now_ns);

/* The sequence @index of the same request as @first; NULL when out of memory. */
struct op *op_new_sibling(struct op *first, const struct kvd_sqe *sqe, uint8_t index);

/**
 * op_keep_room() - room for what op->keep asks for, if it does
 * @n_prompt: tokens of the prompt
 * @max_tokens: of the answer; 0: as many as the context holds
 *
 * All of it is charged to the user now, so that nothing has to be dropped later.
 *
 * Return: 0, -ENOMEM, or KVD_E_QUOTA with the limit in @ret_detail.
 */
int32_t op_keep_room(struct op *op, uint32_t n_prompt, uint32_t max_tokens,
		     uint64_t *ret_detail);

/* Notes tokens for FORK, as far as there is room. */
void op_keep(struct op *op, const int32_t *tokens, uint32_t n);

/* Unlink and free; NULL is fine. Return: NULL. */
struct op *op_free(struct op *op);

/**
 * op_token() - a token was sampled
 * @bytes, @len: what it adds to the text; none for a control token
 *
 * op->emit.stopped tells afterwards whether a stop string ended the text.
 *
 * Return: 0 or -ENOMEM.
 */
int op_token(struct op *op, int32_t token, float logprob, const void *bytes, size_t len,
	     uint64_t now_ns);

/**
 * op_end() - nothing more will come
 * @res:   of the final CQE
 * @usage: its payload; the times are filled in here
 */
void op_end(struct op *op, int32_t res, const struct kvd_cqe_usage *usage,
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
