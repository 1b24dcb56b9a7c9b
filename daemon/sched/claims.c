/* SPDX-License-Identifier: MIT */
/* Which blocks are cached, and who computes which in the plan being built, so that no two do;
 * admit.c: who waits. */
#include "daemon/sched/state.h"

#include <assert.h>
#include <string.h>

/* Whether two requests mean the same block; equal roots imply equal domains. */
static bool claim_equal(const struct sched *sched, const struct sched_claim *claim,
			const struct request *request, uint32_t block,
			const struct prefix_key *key)
{
	uint32_t bt = sched->config.block_tokens;
	const struct prefix_chain *chain = &claim->request->chain;

	return claim->block == block && !memcmp(&chain->keys[block], key, sizeof(*key)) &&
	       !memcmp(&chain->root, &request->chain.root, sizeof(chain->root)) &&
	       chain->domain == request->chain.domain &&
	       !memcmp(claim->request->tokens + (size_t)block * bt,
		       request->tokens + (size_t)block * bt,
		       (size_t)bt * sizeof(*request->tokens));
}

/* The place of an equal claim, or the empty place where it belongs. */
static struct sched_claim *claim_place(const struct sched *sched, uint64_t step,
				       const struct request *request, uint32_t block,
				       const struct prefix_key *key)
{
	uint32_t mask = sched->n_claims - 1;
	uint32_t i;

	memcpy(&i, key->bytes, sizeof(i));
	for (uint32_t n = 0; n < sched->n_claims; n++, i++) {
		struct sched_claim *claim = &sched->claims[i & mask];

		if (claim->step != step || claim_equal(sched, claim, request, block, key))
			return claim;
	}
	return NULL;
}

static struct request *claim_find(const struct sched *sched, uint64_t step,
				  const struct request *request, uint32_t block,
				  const struct prefix_key *key)
{
	const struct sched_claim *claim = claim_place(sched, step, request, block, key);

	if (!claim || claim->step != step || claim->request == request)
		return NULL;
	return claim->request;
}

static void claim_set(struct sched *sched, uint64_t step, struct request *request,
		      uint32_t block, const struct prefix_key *key)
{
	struct sched_claim *claim = claim_place(sched, step, request, block, key);

	assert(claim);
	*claim = (struct sched_claim){.step = step, .request = request, .block = block};
}

/* Else, as after a flush, it will neither publish nor adopt what follows. */
static bool chain_unbroken(const struct sched *sched, const struct request *r)
{
	return !r->uncached &&
	       r->table.n_published == r->n_computed / sched->config.block_tokens;
}

uint32_t claims_cached(struct sched *sched, struct request *r, uint32_t *ret_n_idle)
{
	uint32_t bt = sched->config.block_tokens;
	uint32_t n = 0, parent = BLOCK_NONE;

	*ret_n_idle = 0;
	while (!r->uncached && (n + 1) * (uint64_t)bt <= request_adoptable(r)) {
		const struct block *b;

		parent = prefix_find(sched->index, &r->chain, r->tokens, n, parent);
		if (parent == BLOCK_NONE)
			break;
		b = block_pool_get(sched->pool, parent);
		*ret_n_idle += !b->refs && !b->pins;
		n++;
	}
	return n;
}

struct request *claims_by(struct sched *sched, uint64_t step, struct request *r)
{
	const struct prefix_key *key;

	if (!request_at_shareable(sched, r))
		return NULL;
	key = prefix_chain_key(sched->index, &r->chain, r->tokens, r->table.n_blocks);
	return key ? claim_find(sched, step, r, r->table.n_blocks, key) : NULL;
}

void claims_add(struct sched *sched, uint64_t step, struct request *r, uint32_t from,
		uint32_t to)
{
	uint32_t bt = sched->config.block_tokens;

	if (!chain_unbroken(sched, r))
		return;
	for (uint32_t b = sched_blocks_for(sched, from); b * (uint64_t)bt < to; b++) {
		const struct prefix_key *key;

		if ((b + 1) * (uint64_t)bt > r->n_tokens)
			break;
		key = prefix_chain_key(sched->index, &r->chain, r->tokens, b);
		if (!key)
			break;
		claim_set(sched, step, r, b, key);
	}
}

uint32_t claims_end(struct sched *sched, uint64_t step, struct request *r, uint32_t end)
{
	uint32_t bt = sched->config.block_tokens;

	if (!chain_unbroken(sched, r))
		return end;
	for (uint32_t b = sched_blocks_for(sched, r->n_computed); b * (uint64_t)bt < end;
	     b++) {
		const struct prefix_key *key;
		struct request *other;

		if ((b + 1) * (uint64_t)bt > request_adoptable(r))
			break;
		key = prefix_chain_key(sched->index, &r->chain, r->tokens, b);
		other = key ? claim_find(sched, step, r, b, key) : NULL;
		if (other && other->planned == step)
			return b * bt;
	}
	return end;
}
