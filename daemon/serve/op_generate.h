/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_OP_GENERATE_H
#define KVD_DAEMON_SERVE_OP_GENERATE_H

/*
 * GENERATE and FORK: the text on its way to the client, tokens kept for a later FORK, and the
 * sequences of a request with n > 1. Owns its emit state and what it keeps. Thread: loop.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/res.h"
#include "daemon/serve/emit.h"
#include "daemon/serve/op.h"
#include "daemon/user.h"

/* Tokens that wait for room in the CQ; a paused sequence adds at most one more. */
#define OP_MAX_TOKENS 4

struct op_token {
	int32_t token;
	float logprob;
};

/* Sequences of a request with n > 1. @n_open: whose last CQE is not posted; @refs: of operations */
struct op_group {
	unsigned n_open;
	unsigned refs;
};

/**
 * struct op_generate - one sequence that is generated
 * @stopping: no byte is added any more, and its sequence is cancelled
 * @refused:  res that ends it instead of what the scheduler says; 0: none
 * @group, @index: with n > 1: the request, and which of its sequences this is
 * @salt:     of GENERATE, or of the parent of a FORK
 * @kept:     [cap_kept] n_kept tokens of prompt and answer, which stay if @keep; @charge: for them
 * @pending:  tokens not yet posted; their bytes are in @emit
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

/* NULL if it is of another family. */
struct op_generate *op_generate(struct op *op);

/* Becomes one more sequence of the request of @first. Return: 0 or -ENOMEM. */
int op_generate_join(struct op_generate *g, struct op_generate *first, uint8_t index);

/*
 * Allocates and charges @kept, if keep is asked for. @max_tokens: 0: as many as the context holds.
 * Return: 0, -ENOMEM, or KVD_E_QUOTA with the limit in @ret_detail.
 */
kvd_res op_generate_keep_room(struct op_generate *g, uint32_t n_prompt,
			      uint32_t max_tokens, uint64_t *ret_detail);

/* Adds to @kept; keeps nothing at all when there is no room. */
void op_generate_keep(struct op_generate *g, const int32_t *tokens, uint32_t n);

/* The ring takes over what is kept, with its charge. */
void op_generate_hand_over(struct op_generate *g);

void op_generate_drop_kept(struct op_generate *g);

/*
 * A token was sampled. @bytes: [len] what it adds to the text; none for a control token.
 * Return: 0 or -ENOMEM; g->emit.stopped: a stop string ended the text.
 */
int op_generate_token(struct op_generate *g, int32_t token, float logprob,
		      const void *bytes, size_t len, uint64_t now_ns);

/* Builds the next CQE: a token, or a piece of text. Return: false when there is none. */
bool op_generate_stage(struct op_generate *g, struct kvd_cqe *cqe);

/* Marks whose CQE it is, with n > 1; only the last one posted of all sequences is final. */
void op_generate_mark(const struct op_generate *g, struct kvd_cqe *cqe, bool final);

void op_generate_deinit(struct op_generate *g);

#endif
