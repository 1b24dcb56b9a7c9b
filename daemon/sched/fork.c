/* SPDX-License-Identifier: MIT */
/* A branch shares the blocks of its parent, and copies the last one before it writes into it. */
#include "daemon/sched/state.h"

#include <assert.h>

/* Where the child may not run at once it waits, and finds what is published when it is admitted. */
void fork_share(struct sched *sched, struct request *child, const struct request *parent,
		uint32_t n_tokens)
{
	const struct seq_table *from = &parent->table;
	uint32_t bt = sched->config.block_tokens;
	uint32_t n_rows = parent->n_computed, n_full;

	/* the logits of the last token are wanted, so its row is computed again */
	if (n_rows > n_tokens)
		n_rows = n_tokens;
	if (n_rows >= child->n_tokens)
		n_rows = child->n_tokens - 1;
	/* rows that the parent has yet to copy, or whose copy may fail with the step in
	 * flight, cannot be copied from it */
	if ((parent->cow || parent->cow_src != BLOCK_NONE) &&
	    n_rows > parent->n_computed / bt * bt)
		n_rows = parent->n_computed / bt * bt;
	n_full = n_rows / bt;
	if (n_rows % bt && !sched->config.copy_rows)
		n_rows = n_full * bt;
	if (!n_rows || !admit_allowed(sched, child) ||
	    policy_blocks_left(child->user) < sched_blocks_for(sched, n_rows))
		return;
	for (uint32_t i = 0; i < sched_blocks_for(sched, n_rows); i++) {
		block_pool_ref(sched->pool, from->ids[i]);
		seq_append(&child->table, from->ids[i]);
	}
	child->table.n_published =
		from->n_published < n_full ? from->n_published : n_full;
	child->cow = n_rows % bt;
	/* what a flush took from the parent, the child must not publish either; of a block
	 * to be copied that shows when the copy is there: fork_copied() */
	if (from->n_published < n_full || (child->cow && from->n_published == n_full))
		child->table.partial_published = from->partial_published;
	else if (child->cow)
		child->table.partial_published = n_full + 1;
	child->n_computed = n_rows;
	child->n_cached = n_rows;
	child->started_ns = child->arrived_ns;
	sched->counters.prompt_tokens += child->n_tokens - n_rows;
	sched->counters.forks++;
	policy_charge(child);
	policy_move(sched, child, REQUEST_PREFILL);
}

void fork_copy(struct sched *sched, struct plan *plan, struct request *request,
	       uint32_t id)
{
	struct seq_table *table = &request->table;
	uint32_t src = table->ids[table->n_blocks - 1];

	assert(request->cow);
	request->cow = false;
	table->ids[table->n_blocks - 1] = id;
	fork_plan_copy(sched, plan, request, src);
}

void fork_plan_copy(struct sched *sched, struct plan *plan, struct request *request,
		    uint32_t src)
{
	const struct seq_table *table = &request->table;

	assert(request->cow_src == BLOCK_NONE && plan->n_copies < plan->caps.copies);
	request->cow_src = src;
	plan->copies[plan->n_copies++] = (struct kv_block_copy){
		.src = src,
		.dst = table->ids[table->n_blocks - 1],
	};
	sched->counters.copied_blocks++;
}

void fork_recompute(struct sched *sched, struct request *request)
{
	uint32_t n = request->table.n_blocks - 1;

	assert(request->cow);
	request->cow = false;
	seq_truncate(&request->table, sched->pool, n);
	policy_charge(request);
	request->n_computed = n * sched->config.block_tokens;
	request->n_cached = request->n_computed;
}

/*
 * The step has ended. A copy of rows that a flush took meanwhile, or before a fork, is not
 * published: what the table says of them stays. Any other is the request's own.
 */
void fork_copied(struct sched *sched, struct request *request)
{
	if (request->cow_src != BLOCK_NONE &&
	    block_pool_get(sched->pool, request->cow_src)->indexed)
		request->table.partial_published = 0;
	fork_release(sched, request);
}

void fork_release(struct sched *sched, struct request *request)
{
	if (request->cow_src != BLOCK_NONE)
		block_pool_unref(sched->pool, request->cow_src);
	request->cow_src = BLOCK_NONE;
}
