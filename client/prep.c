/* SPDX-License-Identifier: MIT */
/*
 * Preparing entries: notes what the caller wants, in private memory. Nothing is
 * looked at before kvc_ring_submit().
 */
#include "client/internal.h"

/* Field by field: for an assignment of the whole, gcc takes a string instruction, which is slow to
 * start. */
static void sqe_init_nop(struct kvc_sqe *sqe, uint64_t user_data)
{
	sqe->user_data = user_data;
	sqe->opcode = KVD_OP_NOP;
	sqe->flags = 0;
	sqe->input.kind = KVD_INPUT_NONE;
	sqe->input.reserved = 0;
	sqe->input.data = NULL;
	sqe->input.n = 0;
	sqe->opts = NULL;
	sqe->score_opts = NULL;
	sqe->out = NULL;
	sqe->out2 = NULL;
	sqe->cap = 0;
	sqe->target = 0;
}

struct kvc_sqe *kvc_ring_get_sqe(struct kvc_ring *r)
{
	struct kvc_sqe *sqe;

	if (r->sqe_tail - r->sqe_head >= r->ring.sq_entries)
		return NULL;
	sqe = &r->sqes[r->sqe_tail++ & (r->ring.sq_entries - 1)];
	sqe_init_nop(sqe, 0);
	return sqe;
}

void kvc_sqe_set_data64(struct kvc_sqe *sqe, uint64_t data)
{
	sqe->user_data = data;
}

void kvc_prep_nop(struct kvc_sqe *sqe)
{
	sqe_init_nop(sqe, sqe->user_data);
}

void kvc_prep_generate(struct kvc_sqe *sqe, const struct kvc_input *input,
		       const struct kvc_gen_opts *opts)
{
	*sqe = (struct kvc_sqe){
		.user_data = sqe->user_data,
		.opcode = KVD_OP_GENERATE,
		.input = *input,
		.opts = opts,
	};
}

void kvc_prep_fork(struct kvc_sqe *sqe, uint64_t target, const struct kvc_input *input,
		   const struct kvc_gen_opts *opts)
{
	static const struct kvc_input none = {0};

	kvc_prep_generate(sqe, input ? input : &none, opts);
	sqe->opcode = KVD_OP_FORK;
	sqe->target = target;
}

void kvc_prep_score(struct kvc_sqe *sqe, const struct kvc_input *input, uint32_t flags,
		    uint32_t *tokens, float *logprobs, size_t cap)
{
	*sqe = (struct kvc_sqe){
		.user_data = sqe->user_data,
		.opcode = KVD_OP_SCORE,
		.flags = flags,
		.input = *input,
		.out = tokens,
		.out2 = logprobs,
		.cap = cap,
	};
}

void kvc_prep_score_top(struct kvc_sqe *sqe, const struct kvc_input *input,
			const struct kvc_score_opts *opts)
{
	kvc_prep_score(sqe, input, 0, NULL, NULL, 0);
	sqe->score_opts = opts;
}

void kvc_prep_tokenize(struct kvc_sqe *sqe, const struct kvc_input *input, uint32_t flags,
		       uint32_t *tokens, size_t cap)
{
	*sqe = (struct kvc_sqe){
		.user_data = sqe->user_data,
		.opcode = KVD_OP_TOKENIZE,
		.flags = flags,
		.input = *input,
		.out = tokens,
		.cap = cap,
	};
}

void kvc_prep_detokenize(struct kvc_sqe *sqe, const uint32_t *tokens, size_t n,
			 uint32_t flags, char *text, size_t cap)
{
	*sqe = (struct kvc_sqe){
		.user_data = sqe->user_data,
		.opcode = KVD_OP_DETOKENIZE,
		.flags = flags,
		.input = kvc_tokens(tokens, n),
		.out = text,
		.cap = cap,
	};
}

void kvc_prep_prefix_lookup(struct kvc_sqe *sqe, const struct kvc_input *input,
			    uint32_t flags)
{
	*sqe = (struct kvc_sqe){
		.user_data = sqe->user_data,
		.opcode = KVD_OP_PREFIX_LOOKUP,
		.flags = flags,
		.input = *input,
	};
}

void kvc_prep_cancel(struct kvc_sqe *sqe, uint64_t target)
{
	*sqe = (struct kvc_sqe){
		.user_data = sqe->user_data,
		.opcode = KVD_OP_CANCEL,
		.target = target,
	};
}
