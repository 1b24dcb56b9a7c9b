/* SPDX-License-Identifier: MIT */
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

struct request *claims_find(const struct sched *sched, uint64_t step,
			    const struct request *request, uint32_t block,
			    const struct prefix_key *key)
{
	const struct sched_claim *claim = claim_place(sched, step, request, block, key);

	if (!claim || claim->step != step || claim->request == request)
		return NULL;
	return claim->request;
}

void claims_add(struct sched *sched, uint64_t step, struct request *request,
		uint32_t block, const struct prefix_key *key)
{
	struct sched_claim *claim = claim_place(sched, step, request, block, key);

	assert(claim);
	*claim = (struct sched_claim){.step = step, .request = request, .block = block};
}
