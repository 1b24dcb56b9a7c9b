/* SPDX-License-Identifier: MIT */
#include "daemon/sched/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 *   tokens   [ prompt ................ | generated ........ | room ........ ]
 *            0 ....... n_computed ..... n_prompt ... n_tokens .... max_total
 *
 *   n_computed <= n_tokens <= max_total;   table covers 0 .. n_computed - 1
 *   n_tokens = n_prompt + n_generated
 *   n_computed = n_tokens is never left standing: a GENERATE request then got its next
 *   token from the same step, a SCORE request is done
 */
int request_new(const struct request_desc *desc, uint32_t max_total,
		uint32_t block_tokens, struct request **ret_request)
{
	uint32_t cap_blocks = max_total / block_tokens + !!(max_total % block_tokens);
	struct request *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->kind = desc->kind;
	r->state = REQUEST_WAITING;
	r->ignore_eos = desc->ignore_eos;
	r->uid = desc->uid;
	r->priority = desc->priority;
	r->deadline_ns = desc->deadline_ns;
	r->cookie = desc->cookie;
	r->sample = desc->sample;
	r->dist = desc->dist;
	r->dist_first = desc->dist_first;
	r->n_tokens = desc->n_tokens;
	r->n_prompt = desc->n_tokens;
	r->max_total = max_total;
	r->n_let_in = desc->n_tokens;
	r->tail = REQUEST_NO_TAIL;
	r->cow_src = BLOCK_NONE;
	r->chain.domain = desc->domain;
	r->chain.reads_public = desc->reads_public;
	r->chain.owner = desc->owner;
	r->chain.cap_keys = cap_blocks;
	/* untouched pages of the room for later tokens cost address space only */
	r->tokens = malloc(((size_t)max_total + 1) * sizeof(*r->tokens));
	r->chain.keys = malloc(((size_t)cap_blocks + 1) * sizeof(*r->chain.keys));
	if (!r->tokens || !r->chain.keys || seq_init(&r->table, cap_blocks) < 0) {
		request_free(r);
		return -ENOMEM;
	}
	memcpy(r->tokens, desc->tokens, (size_t)desc->n_tokens * sizeof(*r->tokens));
	*ret_request = r;
	return 0;
}

uint64_t request_bytes(uint32_t max_total, uint32_t block_tokens)
{
	uint64_t n_blocks = (uint64_t)max_total / block_tokens + 1;

	return sizeof(struct request) + ((uint64_t)max_total + 1) * sizeof(int32_t) +
	       (n_blocks + 1) * (sizeof(struct prefix_key) + sizeof(uint32_t));
}

void request_free(struct request *request)
{
	if (!request)
		return;
	seq_deinit(&request->table);
	free(request->chain.keys);
	if (request->tokens)
		explicit_bzero(request->tokens,
			       request->n_tokens * sizeof(*request->tokens));
	free(request->tokens);
	free(request);
}
