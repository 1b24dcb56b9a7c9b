/* SPDX-License-Identifier: MIT */
/* See op_generate.h. */
#include "daemon/serve/op_generate.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"
#include "ipc/base.h"

struct op_generate *op_generate(struct op *op)
{
	if (op->opcode != KVD_OP_GENERATE && op->opcode != KVD_OP_FORK)
		return NULL;
	return container_of(op, struct op_generate, op);
}

int op_generate_join(struct op_generate *g, struct op_generate *first, uint8_t index)
{
	if (!first->group) {
		first->group = calloc(1, sizeof(*first->group));
		if (!first->group)
			return error_origin(-ENOMEM);
		*first->group = (struct op_group){.n_open = 1, .refs = 1};
	}
	g->want_logprobs = first->want_logprobs;
	g->salt = first->salt;
	g->index = index;
	g->group = first->group;
	g->group->n_open++;
	g->group->refs++;
	return 0;
}

/* All of it is charged now, so that nothing has to be dropped later. */
kvd_res op_generate_keep_room(struct op_generate *g, uint32_t n_prompt,
			      uint32_t max_tokens, uint64_t *ret_detail)
{
	uint32_t context = g->op.engine->info.context_length;
	uint32_t room = context > n_prompt ? context - n_prompt : 0, cap;
	struct user *user = g->op.ring->session->user;

	if (!g->keep)
		return 0;
	/* a prompt beyond the context is refused as such */
	if (max_tokens && max_tokens < room)
		room = max_tokens;
	cap = (n_prompt < context ? n_prompt : context) + room;
	if (user_charge(&g->charge, user, USER_BYTES, cap * sizeof(*g->kept))) {
		*ret_detail = user->max[USER_BYTES];
		return KVD_E_QUOTA;
	}
	g->kept = calloc(cap, sizeof(*g->kept));
	if (!g->kept) {
		user_charge_deinit(&g->charge);
		return error_origin(-ENOMEM);
	}
	g->cap_kept = cap;
	return 0;
}

void op_generate_keep(struct op_generate *g, const int32_t *tokens, uint32_t n)
{
	if (!g->keep || !n)
		return;
	if (n > g->cap_kept - g->n_kept) {
		g->keep = false;
		return;
	}
	memcpy(g->kept + g->n_kept, tokens, n * sizeof(*tokens));
	g->n_kept += n;
}

void op_generate_drop_kept(struct op_generate *g)
{
	user_charge_deinit(&g->charge);
	secret_free(g->kept, g->n_kept * sizeof(*g->kept));
	g->kept = NULL;
	g->n_kept = g->cap_kept = 0;
	g->keep = false;
}

/* The room that the answer did not take goes back. */
void op_generate_hand_over(struct op_generate *g)
{
	size_t bytes = g->n_kept * sizeof(g->kept[0]);
	int32_t *cut = secret_realloc(g->kept, bytes, bytes);
	struct session_kept kept;

	user_charge_shrink(&g->charge, USER_BYTES, bytes);
	kept = (struct session_kept){
		.user_data = g->op.user_data,
		.salt = g->salt,
		.tokens = cut ? cut : g->kept,
		.n_tokens = g->n_kept,
		.charge = user_charge_take(&g->charge),
	};
	session_ring_keep(g->op.ring, &kept);
	g->kept = NULL;
	g->n_kept = g->cap_kept = 0;
}

int op_generate_token(struct op_generate *g, int32_t token, float logprob,
		      const void *bytes, size_t len, uint64_t now_ns)
{
	assert(g->n_pending < OP_MAX_TOKENS && !g->op.ended);
	if (!g->first_ns)
		g->first_ns = now_ns;
	g->pending[g->n_pending++] = (struct op_token){token, logprob};
	return emit_push(&g->emit, bytes, len);
}

/* A token goes with the bytes that became safe with it; what does not fit follows in pieces. */
bool op_generate_stage(struct op_generate *g, struct kvd_cqe *cqe)
{
	struct kvd_cqe_token *t = &cqe->u.token;
	/* Held bytes may wait for later tokens only while there are later tokens. */
	bool last = g->op.ended && g->n_pending <= 1;

	*cqe = (struct kvd_cqe){.user_data = g->op.user_data, .flags = KVD_CQE_MORE};
	if (g->n_pending) {
		t->token = g->pending[0].token;
		if (g->want_logprobs) {
			cqe->flags |= KVD_CQE_LOGPROB;
			t->logprob = g->pending[0].logprob;
		}
		g->n_pending--;
		memmove(g->pending, g->pending + 1, g->n_pending * sizeof(g->pending[0]));
	} else if (emit_pending(&g->emit, last)) {
		cqe->flags |= KVD_CQE_PIECE;
	} else {
		return false;
	}
	t->n_bytes = (uint8_t)emit_take(&g->emit, t->bytes, sizeof(t->bytes), last);
	return true;
}

void op_generate_mark(const struct op_generate *g, struct kvd_cqe *cqe, bool final)
{
	cqe->flags &= ~(KVD_CQE_END | UINT32_C(0xff) << 24);
	cqe->flags |= (uint32_t)g->index << 24;
	if (!final)
		return;
	cqe->flags &= ~KVD_CQE_MORE;
	if (g->group->n_open > 1)
		cqe->flags |= KVD_CQE_MORE | KVD_CQE_END;
}

void op_generate_deinit(struct op_generate *g)
{
	op_generate_drop_kept(g);
	emit_deinit(&g->emit);
	if (g->group && !--g->group->refs)
		free(g->group);
	g->group = NULL;
}
