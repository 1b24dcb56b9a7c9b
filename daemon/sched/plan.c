/* SPDX-License-Identifier: MIT */
#include "daemon/sched/plan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int plan_init(struct plan *plan, const struct plan_caps *caps)
{
	memset(plan, 0, sizeof(*plan));
	plan->caps = *caps;
	/* calloc() checks the product; one element more, so that NULL always means failure */
	plan->tokens = calloc((size_t)caps->rows + 1, sizeof(*plan->tokens));
	plan->entries = calloc((size_t)caps->entries + 1, sizeof(*plan->entries));
	plan->block_ids = calloc((size_t)caps->block_ids + 1, sizeof(*plan->block_ids));
	plan->outputs = calloc((size_t)caps->outputs + 1, sizeof(*plan->outputs));
	plan->copies = calloc((size_t)caps->copies + 1, sizeof(*plan->copies));
	plan->zero = calloc((size_t)caps->zeros + 1, sizeof(*plan->zero));
	if (!plan->tokens || !plan->entries || !plan->block_ids || !plan->outputs ||
	    !plan->copies || !plan->zero) {
		plan_deinit(plan);
		return -ENOMEM;
	}
	return 0;
}

void plan_deinit(struct plan *plan)
{
	free(plan->tokens);
	free(plan->entries);
	free(plan->block_ids);
	free(plan->outputs);
	free(plan->copies);
	free(plan->zero);
	memset(plan, 0, sizeof(*plan));
}

void plan_reset(struct plan *plan)
{
	plan->step = 0;
	plan->n_rows = 0;
	plan->n_entries = 0;
	plan->n_block_ids = 0;
	plan->n_outputs = 0;
	plan->n_copies = 0;
	plan->n_zero = 0;
	plan->n_dist_words = 0;
}

/*
 * Rows of entries follow one another, positions of an entry have no gaps, tables reach:
 *
 *   entries[0].row0 = 0;  entries[e + 1].row0 = entries[e].row0 + entries[e].n_rows
 *   sum of n_rows over entries = n_rows
 *   position of row row0 + i = pos0 + i
 *   block of position p of entry e = block_ids[e.block_off + p / block_tokens]
 *   e.n_blocks = ceil((e.pos0 + e.n_rows) / block_tokens)
 *   context length seen by row i of e = e.pos0 + i + 1
 */
static bool entries_valid(const struct plan *plan, uint32_t block_tokens)
{
	uint64_t row = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct kv_batch_entry *e = &plan->entries[i];
		uint64_t end = (uint64_t)e->pos0 + e->n_rows;

		if (!e->n_rows || e->row0 != row || row + e->n_rows > plan->n_rows)
			return false;
		if (e->n_blocks != (end + block_tokens - 1) / block_tokens)
			return false;
		if ((uint64_t)e->block_off + e->n_blocks > plan->n_block_ids)
			return false;
		if (e->tail >= plan->caps.entries)
			return false;
		row += e->n_rows;
	}
	return row == plan->n_rows;
}

static bool dist_valid(const struct plan_output *o, uint32_t off, uint32_t n_vocab)
{
	if (!o->dist.top)
		return !o->dist.words && o->kind != PLAN_DIST;
	if (o->kind == PLAN_SAMPLE || o->dist.off != off || !o->dist.words)
		return false;
	if (o->dist.top == PLAN_DIST_ALL)
		return !n_vocab || o->dist.words == n_vocab;
	return o->dist.words == (uint64_t)o->dist.top * 2;
}

static bool outputs_valid(const struct plan *plan, uint32_t n_vocab)
{
	uint32_t dist_off = 0;

	for (uint32_t i = 0; i < plan->n_outputs; i++) {
		const struct plan_output *o = &plan->outputs[i];
		const struct kv_batch_entry *e;

		if (o->row >= plan->n_rows || o->entry >= plan->n_entries)
			return false;
		if (i && o->row <= plan->outputs[i - 1].row)
			return false;
		e = &plan->entries[o->entry];
		if (o->row < e->row0 || o->row - e->row0 >= e->n_rows)
			return false;
		if (o->position != (uint64_t)e->pos0 + (o->row - e->row0) + 1)
			return false;
		if (o->kind == PLAN_SCORE) {
			if (o->target < 0 || (n_vocab && (uint32_t)o->target >= n_vocab))
				return false;
		} else if (o->kind != PLAN_SAMPLE && o->kind != PLAN_DIST) {
			return false;
		}
		if (!dist_valid(o, dist_off, n_vocab))
			return false;
		dist_off += o->dist.words;
	}
	return dist_off == plan->n_dist_words;
}

int plan_check(const struct plan *plan, uint32_t block_tokens, uint32_t n_blocks,
	       uint32_t n_vocab)
{
	if (plan->n_rows > plan->caps.rows || plan->n_entries > plan->caps.entries ||
	    plan->n_block_ids > plan->caps.block_ids ||
	    plan->n_outputs > plan->caps.outputs || plan->n_copies > plan->caps.copies ||
	    plan->n_zero > plan->caps.zeros || plan->n_dist_words > plan->caps.dist_words)
		return -EINVAL;
	for (uint32_t i = 0; i < plan->n_rows; i++)
		if (plan->tokens[i] < 0 ||
		    (n_vocab && (uint32_t)plan->tokens[i] >= n_vocab))
			return -EINVAL;
	for (uint32_t i = 0; i < plan->n_block_ids; i++)
		if (plan->block_ids[i] >= n_blocks)
			return -EINVAL;
	for (uint32_t i = 0; i < plan->n_copies; i++)
		if (plan->copies[i].src >= n_blocks || plan->copies[i].dst >= n_blocks)
			return -EINVAL;
	for (uint32_t i = 0; i < plan->n_zero; i++)
		if (plan->zero[i] >= n_blocks)
			return -EINVAL;
	if (!entries_valid(plan, block_tokens) || !outputs_valid(plan, n_vocab))
		return -EINVAL;
	return 0;
}

int plan_result_init(struct plan_result *result, const struct plan_caps *caps)
{
	memset(result, 0, sizeof(*result));
	result->outputs = calloc((size_t)caps->outputs + 1, sizeof(*result->outputs));
	/* pages that no distribution was written to cost address space only */
	result->dist = calloc((size_t)caps->dist_words + 1, sizeof(*result->dist));
	if (!result->outputs || !result->dist) {
		plan_result_deinit(result);
		return -ENOMEM;
	}
	result->cap_outputs = caps->outputs;
	result->cap_dist_words = caps->dist_words;
	return 0;
}

void plan_result_deinit(struct plan_result *result)
{
	free(result->outputs);
	free(result->dist);
	memset(result, 0, sizeof(*result));
}

void plan_result_reset(struct plan_result *result)
{
	result->step = 0;
	result->status = 0;
	result->elapsed_ns = 0;
	result->n_outputs = 0;
}
