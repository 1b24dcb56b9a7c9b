/* SPDX-License-Identifier: MIT */
/* What needs no scheduler: TOKENIZE, DETOKENIZE, PREFIX_LOOKUP. See submit_ops.h. */
#include "daemon/serve/submit_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/encoder.h"
#include "daemon/serve/input.h"
#include "daemon/serve/op.h"
#include "daemon/serve/output.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/submit_input.h"
#include "daemon/serve/submit_request.h"
#include "ipc/base.h"

/* End with @n units of output, or say how many bytes it takes. */
static kvd_res end_with_output(struct op *op, struct token_list *list,
			       const struct tokenizer *text, size_t bytes, size_t n,
			       uint64_t *ret_detail)
{
	struct session_ring *ring = op->ring;
	kvd_res r;

	if (n > INT32_MAX)
		return -E2BIG;
	r = output_begin(&ring->output, op, list, text, bytes, (int32_t)n, ret_detail);
	if (!r && !op->ended)
		ring->held_op = op;
	return r;
}

kvd_res submit_tokenize(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	struct token_list list = {0};
	kvd_res r;

	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r)
		r = end_with_output(op, &list, NULL, list.n * sizeof(list.ids[0]), list.n,
				    ret_detail);
	token_list_deinit(&list);
	return r;
}

kvd_res submit_lookup(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	struct kvd_cqe_usage usage = {0};
	struct token_list list = {0};
	struct submit_request request;
	const struct request_desc *desc = &request.desc;
	struct cache_query query;
	kvd_res r;

	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r) {
		submit_request_init(&request, op, &list, 0);
		query = (struct cache_query){
			.tokens = desc->tokens,
			.n_tokens = desc->n_tokens,
			.domain = desc->domain,
			.salt = desc->salt,
			.salt_len = desc->salt_len,
			.reads_public = desc->reads_public,
		};
		r = cache_lookup(&op->engine->cache, &query, &usage.detail);
		if (r >= 0) {
			usage.prompt_tokens = (uint32_t)list.n;
			usage.cached_tokens = (uint32_t)r;
			op_end(op, r, &usage, op->taken_ns);
			r = 0;
		}
	}
	token_list_deinit(&list);
	return r;
}

kvd_res submit_detokenize(struct op *op, const struct kvd_sqe *sqe, uint64_t *ret_detail)
{
	const struct tokenizer *tokenizer = op->engine->text.tokenizer;
	struct token_list list = {0};
	bool counted = op->encoded;
	size_t len = counted ? op->encoded->n_bytes : 0;
	kvd_res r;

	if (!tokenizer)
		return KVD_E_TOKENIZER;
	r = submit_read_tokens(op, sqe, &list, ret_detail);
	if (!r && !counted)
		len = input_text_len(&op->engine->text, sqe->flags, &list);
	if (!r)
		r = end_with_output(op, &list, tokenizer, len, len, ret_detail);
	token_list_deinit(&list);
	return r;
}
