/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_GENERATE_H
#define KVD_DAEMON_SERVE_OP_GENERATE_H

/*
 * What GENERATE and FORK have besides every operation: the text of the answer on its way to
 * the client, tokens that are kept for a later FORK, and the other sequences of a request
 * with n > 1. Thread: loop. Owns its emit state and what it keeps.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/res.h"
#include "daemon/serve/emit.h"
#include "daemon/serve/op.h"
#include "daemon/user.h"

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
 * struct op_generate - one sequence that is generated
 * @stopping:  no byte is added any more, and its sequence is cancelled
 * @refused:   res that ends it instead of what the scheduler says; 0: none
 * @group, @index: with n > 1: the request, and which of its sequences this is
 * @salt:      of GENERATE, or of the parent of a FORK
 * @first_ns:  when the first token came
 * @keep: n_kept tokens stay for FORK when it ends (sqe_was_kept()); @kept: [cap_kept] prompt
 *	and answer; @charge: for them
 * @pending:   tokens not yet posted; their bytes are in @emit
 */
struct op_generate {
	struct op op;
	bool want_logprobs;
	bool stopping;
	bool keep;
	uint8_t index;
	kvd_res refused;
	struct op_group *group;
	uint64_t salt;
	uint64_t first_ns;
	int32_t *kept;
	uint32_t n_kept;
	uint32_t cap_kept;
	struct user_charge charge;
	struct emit emit;
	struct op_token pending[OP_MAX_TOKENS];
	unsigned n_pending;
};

/* The whole of @op, or NULL if it is of another family. */
struct op_generate *op_generate(struct op *op);

/* Become one more sequence of the request of @first. Return: 0 or -ENOMEM. */
int op_generate_join(struct op_generate *g, struct op_generate *first, uint8_t index);

/**
 * op_generate_keep_room() - room for what keep asks for, if it does
 * @n_prompt: tokens of the prompt
 * @max_tokens: of the answer; 0: as many as the context holds
 *
 * All of it is charged to the user now, so that nothing has to be dropped later.
 *
 * Return: 0, -ENOMEM, or KVD_E_QUOTA with the limit in @ret_detail.
 */
kvd_res op_generate_keep_room(struct op_generate *g, uint32_t n_prompt,
			      uint32_t max_tokens, uint64_t *ret_detail);

/* Notes tokens for FORK, as far as there is room. */
void op_generate_keep(struct op_generate *g, const int32_t *tokens, uint32_t n);

/* The ring takes over what is kept, with its charge. */
void op_generate_hand_over(struct op_generate *g);

/* Nothing stays for FORK. */
void op_generate_drop_kept(struct op_generate *g);

/**
 * op_generate_token() - a token was sampled
 * @bytes, @len: what it adds to the text; none for a control token
 *
 * emit.stopped says afterwards whether a stop string ended the text.
 *
 * Return: 0 or -ENOMEM.
 */
int op_generate_token(struct op_generate *g, int32_t token, float logprob,
		      const void *bytes, size_t len, uint64_t now_ns);

/*
 * Build the next CQE: a token with the bytes that became safe with it; what does not fit
 * follows in pieces. Return: false when there is none.
 */
bool op_generate_stage(struct op_generate *g, struct kvd_cqe *cqe);

/* Whose CQE it is; the last to be posted of the last ones is the request's final CQE. */
void op_generate_mark(const struct op_generate *g, struct kvd_cqe *cqe, bool final);

void op_generate_deinit(struct op_generate *g);

#endif
