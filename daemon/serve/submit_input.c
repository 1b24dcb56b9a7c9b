/* SPDX-License-Identifier: MIT */
/* See submit_input.h. The copy is what is checked, and it is wiped when it is freed. */
#include "daemon/serve/submit_input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/encoder.h"
#include "daemon/serve/input.h"
#include "daemon/serve/op_generate.h"
#include "daemon/serve/session_ring.h"
#include "ipc/base.h"

/* A private copy of arena bytes. Return: 0 with *ret_copy NULL for no bytes; -errno. */
static kvd_res copy_in(const struct session_ring *ring, uint64_t off, uint32_t len,
		       void **ret_copy)
{
	const void *shared;

	*ret_copy = NULL;
	if (!len)
		return 0;
	shared = ring_daemon_in(&ring->ring, off, len);
	if (!shared)
		return error_origin(-EFAULT);
	*ret_copy = malloc(len);
	if (!*ret_copy)
		return error_origin(-ENOMEM);
	memcpy(*ret_copy, shared, len);
	return 0;
}

/* Before a byte is copied: an arena may hold far more than any operation takes. */
static kvd_res check_length(struct op *op, const struct kvd_sqe *sqe,
			    uint64_t *ret_detail)
{
	bool tokens = sqe->input == KVD_INPUT_TOKENS;
	uint32_t n = tokens ? sqe->in_len / 4 : sqe->in_len;
	uint32_t max = tokens ? INPUT_MAX_TOKENS : INPUT_MAX_TEXT;

	if (tokens && sqe->opcode != KVD_OP_DETOKENIZE)
		max = op->engine->info.context_length;
	if (n <= max)
		return 0;
	*ret_detail = max;
	op->n_asked = tokens ? n : 0;
	return tokens && sqe->opcode != KVD_OP_DETOKENIZE ? KVD_E_CONTEXT : -E2BIG;
}

kvd_res submit_read_tokens(struct op *op, const struct kvd_sqe *sqe,
			   struct token_list *list, uint64_t *ret_detail)
{
	struct encoder_result *encoded = op->encoded;
	void *copy;
	kvd_res r;

	if (encoded) {
		op->encoded = NULL;
		*list = encoded->list;
		encoded->list = (struct token_list){0};
		*ret_detail = encoded->detail;
		if (!encoded->res)
			op->n_asked = (uint32_t)list->n;
		return encoded->res;
	}
	r = check_length(op, sqe, ret_detail);
	if (r)
		return r;
	r = copy_in(op->ring, sqe->in_off, sqe->in_len, &copy);
	if (!r)
		r = input_tokens(&op->engine->text, sqe->input, copy, sqe->in_len,
				 sqe->flags, list, ret_detail);
	if (!r)
		op->n_asked = (uint32_t)list->n;
	secret_free(copy, sqe->in_len);
	return r;
}

/* Bytes of parameters, those of a later ABI too, with all stop strings. */
#define PARAMS_MAX (4096 + KVD_MAX_STOP * (4 + KVD_MAX_STOP_LEN))

kvd_res submit_read_params(struct op_generate *g, const struct kvd_sqe *sqe,
			   void **ret_copy, struct kvd_gen_params *ret_params,
			   struct sqe_span *ret_stops)
{
	kvd_res r;

	*ret_copy = NULL;
	if (sqe->params_len > PARAMS_MAX)
		return -EINVAL;
	r = copy_in(g->op.ring, sqe->params_off, sqe->params_len, ret_copy);
	if (r)
		return r;
	r = sqe_parse_gen_params(*ret_copy, sqe->params_len, ret_params, ret_stops);
	if (r)
		return r;
	if (ret_params->fork_at && sqe->opcode != KVD_OP_FORK)
		return -EINVAL;
	r = emit_init(&g->emit, ret_stops, ret_params->n_stop);
	if (r)
		return r;
	g->want_logprobs = ret_params->flags & KVD_GEN_LOGPROBS;
	g->keep = ret_params->flags & KVD_GEN_KEEP;
	return 0;
}
