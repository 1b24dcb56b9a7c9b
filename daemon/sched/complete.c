/* SPDX-License-Identifier: MIT */
/* What a step came to: tokens, events, blocks that others may find, and who ends by it. */
#include "daemon/sched/state.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

static bool token_is_eos(const struct sched *sched, int32_t token)
{
	for (uint32_t i = 0; i < sched->config.n_eos; i++)
		if (sched->config.eos[i] == token)
			return true;
	return false;
}

static struct sched_event *emit_output(struct sched *sched, struct request *r,
				       enum sched_event_kind kind,
				       const struct plan_output *o,
				       const struct plan_output_result *result)
{
	struct sched_event *e = sched_emit(sched, r, kind);

	e->token = result->token;
	e->logprob = result->logprob;
	e->position = (uint32_t)o->position;
	e->dist = o->dist;
	return e;
}

/* Return: how the request ends with this token, or SCHED_REASON_NONE. */
static enum sched_reason apply_sample(struct sched *sched, struct request *r,
				      const struct plan_output *o,
				      const struct plan_output_result *result)
{
	struct sched_event *e;

	assert(r->n_computed == r->n_tokens && r->n_tokens < r->max_total);
	assert(o->position == r->n_tokens);
	r->tokens[r->n_tokens++] = result->token;
	r->n_generated++;
	sched->counters.generated_tokens++;
	e = emit_output(sched, r, SCHED_TOKEN, o, result);
	e->is_eos = token_is_eos(sched, result->token);
	if (e->is_eos && !r->ignore_eos)
		return SCHED_REASON_STOP;
	if (r->n_tokens == r->max_total)
		return SCHED_REASON_LENGTH;
	if (r->state == REQUEST_PREFILL)
		policy_move(sched, r, REQUEST_DECODE);
	return SCHED_REASON_NONE;
}

/* Whether all outputs of an entry, from @output on, came to a number. */
static bool outputs_finite(const struct plan *plan, const struct plan_result *result,
			   uint32_t entry, uint32_t output)
{
	for (; output < plan->n_outputs && plan->outputs[output].entry == entry; output++)
		if (isnan(result->outputs[output].logprob))
			return false;
	return true;
}

/*
 * Others may find what is computed: full blocks, and once the prompt is, or the request
 * ends, the rows of the partial one.
 */
static void publish(struct sched *sched, struct request *r)
{
	uint32_t bt = sched->config.block_tokens, n = r->n_computed / bt;
	uint32_t n_rows = r->n_computed % bt;
	struct seq_table *t = &r->table;

	/* a flush took what was published of it: it is not to be found again */
	if (t->partial_published == t->n_published + 1 &&
	    !block_pool_get(sched->pool, t->ids[t->n_published])->indexed)
		return;
	seq_publish(t, sched->index, &r->chain, r->tokens, r->n_computed);
	if (!sched->config.copy_rows || !n_rows || t->n_published != n ||
	    r->n_computed < r->n_prompt)
		return;
	if (!prefix_publish_rows(sched->index, &r->chain, r->tokens, n,
				 n ? t->ids[n - 1] : BLOCK_NONE, t->ids[n], n_rows))
		t->partial_published = n + 1;
}

static void complete_entry(struct sched *sched, const struct plan *plan,
			   const struct plan_result *result, uint32_t entry,
			   uint32_t *output)
{
	const struct kv_batch_entry *e = &plan->entries[entry];
	struct request *r = sched_request(sched, e->seq_id);
	enum sched_reason reason = SCHED_REASON_NONE;
	bool finite = outputs_finite(plan, result, entry, *output);

	assert(r && r->planned == plan->step && r->n_computed == e->pos0);
	r->n_computed += e->n_rows;
	fork_copied(sched, r);
	/* what a cancelled request has computed is as good as any, but for what led to logits
	 * that are no numbers: others shall compute that for themselves */
	if (!r->uncached && finite)
		publish(sched, r);
	for (; *output < plan->n_outputs; ++*output) {
		const struct plan_output *o = &plan->outputs[*output];

		if (o->entry != entry)
			break;
		if (r->cancelled || !finite)
			continue;
		if (o->kind == PLAN_SAMPLE) {
			reason = apply_sample(sched, r, o, &result->outputs[*output]);
		} else {
			emit_output(sched, r, SCHED_SCORED, o, &result->outputs[*output]);
			r->n_scored = (uint32_t)o->position;
		}
	}
	if (r->cancelled)
		reason = SCHED_REASON_CANCELLED;
	else if (!finite)
		reason = SCHED_REASON_ERROR;
	else if (r->expired && reason == SCHED_REASON_NONE)
		reason = SCHED_REASON_DEADLINE;
	else if (r->kind == REQUEST_SCORE && r->n_computed == r->n_tokens)
		reason = SCHED_REASON_STOP;
	if (reason != SCHED_REASON_NONE)
		sched_finish(sched, r, reason, reason == SCHED_REASON_ERROR ? -EDOM : 0);
}

static void fail_entries(struct sched *sched, const struct plan *plan, int status)
{
	/* zeroing may not have happened, so these bytes may be another domain's */
	for (uint32_t i = 0; i < plan->n_zero; i++)
		block_pool_taint(sched->pool, plan->zero[i]);
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		struct request *r = sched_request(sched, plan->entries[i].seq_id);

		assert(r && r->planned == plan->step);
		if (r->cancelled)
			sched_finish(sched, r, SCHED_REASON_CANCELLED, 0);
		else
			sched_finish(sched, r, SCHED_REASON_ERROR, status);
	}
}

void sched_complete(struct sched *sched, const struct plan *plan,
		    const struct plan_result *result)
{
	uint32_t output = 0;

	assert(sched->in_flight && plan->step == sched->step);
	assert(result->step == plan->step && !sched->n_output_events);
	sched->in_flight = false;
	if (result->status < 0) {
		fail_entries(sched, plan, result->status);
		return;
	}
	assert(result->n_outputs == plan->n_outputs);
	sched->counters.steps++;
	sched->counters.computed_rows += plan->n_rows;
	cost_learn(&sched->cost, &sched->planned, result->elapsed_ns);
	for (uint32_t i = 0; i < plan->n_entries; i++)
		complete_entry(sched, plan, result, i, &output);
	assert(output == plan->n_outputs);
}
