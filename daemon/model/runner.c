/* SPDX-License-Identifier: MIT */
/* See runner.h. */
#include "daemon/model/runner.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t clock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

static size_t heads_dim(const struct model_params *p)
{
	return (size_t)p->n_heads * p->head_dim;
}

static size_t kv_dim(const struct model_params *p)
{
	return (size_t)p->n_kv_heads * p->head_dim;
}

static size_t qkv_dim(const struct model_params *p)
{
	return heads_dim(p) + 2 * kv_dim(p);
}

/* Of gate_up, in floats. Rows a large power of two apart would lie in few sets of the cache;
 * a line more spreads them. */
static size_t gate_up_stride(const struct model_params *p)
{
	return 2u * (size_t)p->d_ff + 16;
}

/*
 * Cut the scratch into its arrays; with @base NULL only the size is counted. Every size is
 * bounded by KV_MAX_COLS columns and 2^16 rows, so no product wraps.
 */
static size_t runner_layout(struct runner *r, char *base)
{
	const struct model_params *p = &r->model->params;
	size_t rows = r->caps.rows, at = 0;
	size_t ff_rows = rows < RUNNER_FF_ROWS ? rows : RUNNER_FF_ROWS;
	struct {
		float **where;
		size_t floats;
	} arrays[] = {
		{&r->x, rows * p->d_model},
		{&r->h, rows * p->d_model},
		{&r->qkv, rows * qkv_dim(p)},
		{&r->attn, rows * heads_dim(p)},
		{&r->gate_up, ff_rows * gate_up_stride(p)},
		{&r->act, ff_rows * p->d_ff},
		{&r->logits, (size_t)RUNNER_LOGIT_ROWS * p->n_vocab},
	};

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		if (base)
			*arrays[i].where = (float *)(void *)(base + at);
		at += (arrays[i].floats * sizeof(float) + 63) & ~(size_t)63;
	}
	if (base)
		r->stat = (struct kv_logits_stat *)(void *)(base + at);
	return at + RUNNER_LOGIT_ROWS * sizeof(struct kv_logits_stat);
}

int runner_init(struct runner *runner, const struct model *model, struct kv_pool *pool,
		const struct plan_caps *caps)
{
	const struct kv_backend *backend = model->backend;
	struct kv_props props;
	int r;

	*runner = (struct runner){
		.model = model, .backend = backend, .pool = pool, .caps = *caps};
	backend->get_props(model->dev, &props);
	if (caps->rows > props.max_rows)
		return -EINVAL;
	runner->rows = calloc(caps->outputs + 1u, sizeof(*runner->rows));
	runner->logits_row = calloc(model->params.n_vocab, sizeof(float));
	r = -ENOMEM;
	if (!runner->rows || !runner->logits_row)
		goto fail;
	r = sampler_init(&runner->sampler, model->params.n_vocab);
	if (r)
		goto fail;
	runner->scratch_bytes = runner_layout(runner, NULL);
	r = backend->mem_alloc(model->dev, runner->scratch_bytes, &runner->scratch);
	if (r)
		goto fail;
	runner_layout(runner, runner->scratch);
	r = backend->stream_open(model->dev, &runner->stream);
	if (r)
		goto fail;
	return 0;

fail:
	runner_deinit(runner);
	return r;
}

void runner_deinit(struct runner *runner)
{
	if (!runner->backend)
		return;
	if (runner->stream)
		runner->backend->stream_close(runner->stream);
	if (runner->scratch)
		runner->backend->mem_free(runner->model->dev, runner->scratch,
					  runner->scratch_bytes);
	sampler_deinit(&runner->sampler);
	free(runner->rows);
	free(runner->logits_row);
	*runner = (struct runner){0};
}

static bool dist_fits(const struct runner *r, const struct plan *plan,
		      const struct plan_dist *dist)
{
	uint32_t n_vocab = r->model->params.n_vocab;

	if (!dist->top)
		return dist->words == 0;
	if (dist->top == PLAN_DIST_ALL
		    ? dist->words != n_vocab
		    : dist->top > n_vocab || dist->words != 2ull * dist->top)
		return false;
	return (uint64_t)dist->off + dist->words <= plan->n_dist_words;
}

/* Zeroing and copying of blocks, then the batch as the backend knows it. */
static int runner_prepare(struct runner *r, const struct plan *plan)
{
	const struct kv_backend *be = r->backend;
	struct kv_batch batch = {
		.n_rows = plan->n_rows,
		.n_entries = plan->n_entries,
		.n_blocks = plan->n_block_ids,
		.tokens = (const uint32_t *)plan->tokens, /* plan: never negative */
		.entries = plan->entries,
		.blocks = plan->block_ids,
	};
	int ret = 0;

	if (plan->n_entries > r->caps.entries || plan->n_copies > r->caps.copies ||
	    plan->n_rows > r->caps.rows || plan->n_outputs > r->caps.outputs)
		return -EINVAL;
	for (uint32_t i = 0; i < plan->n_outputs; i++) {
		const struct plan_output *out = &plan->outputs[i];

		if (out->row >= plan->n_rows ||
		    (out->kind == PLAN_SCORE &&
		     (out->target < 0 ||
		      (uint32_t)out->target >= r->model->params.n_vocab)) ||
		    !dist_fits(r, plan, &out->dist))
			return -EINVAL;
		r->rows[i] = out->row;
	}
	if (plan->n_zero)
		ret = be->zero_blocks(r->stream, r->pool, plan->zero, plan->n_zero);
	if (!ret && plan->n_copies)
		ret = be->copy_blocks(r->stream, r->pool, plan->copies, plan->n_copies);
	if (!ret)
		ret = be->batch_load(r->stream, &batch);
	return ret;
}

static void runner_beat(const struct runner *r)
{
	if (r->progress)
		r->progress(r->progress_ctx);
}

/* x += Wdown (silu(gate) * up) of the norm of x, for the first @m rows; in slices, which
 * share no arithmetic, so that the widest arrays of the graph stay small. */
static int runner_ffn(struct runner *r, const struct model_layer *layer, uint32_t m)
{
	const struct model_params *p = &r->model->params;
	const struct kv_backend *be = r->backend;
	size_t d = p->d_model;
	int ret;

	ret = be->rms_norm(r->stream, r->x, d, layer->ffn_norm, p->eps, r->h, d, m,
			   p->d_model);
	for (uint32_t row = 0; !ret && row < m; row += RUNNER_FF_ROWS) {
		uint32_t n = m - row < RUNNER_FF_ROWS ? m - row : RUNNER_FF_ROWS;

		runner_beat(r);
		ret = be->linear(r->stream,
				 &(struct kv_linear){.w = layer->gate_up,
						     .x = r->h + row * d,
						     .y = r->gate_up,
						     .m = n,
						     .ldx = d,
						     .ldy = gate_up_stride(p)});
		if (!ret)
			ret = be->silu_mul(r->stream, r->gate_up, gate_up_stride(p),
					   r->act, p->d_ff, n, p->d_ff);
		if (!ret)
			ret = be->linear(r->stream,
					 &(struct kv_linear){.w = layer->down,
							     .x = r->act,
							     .y = r->x + row * d,
							     .m = n,
							     .ldx = p->d_ff,
							     .ldy = d,
							     .accumulate = true});
	}
	return ret;
}

/*
 * The layers. Past the attention of the last one only rows with an output matter: the rest
 * is left out. Return: 0 with x holding the rows of @rows (all rows, in plan order, when
 * every row has an output).
 */
static int runner_layers(struct runner *r, const struct plan *plan)
{
	const struct model_params *p = &r->model->params;
	const struct kv_backend *be = r->backend;
	size_t heads = heads_dim(p), kv = kv_dim(p), d = p->d_model;
	uint32_t m = plan->n_rows;
	int ret;

	ret = be->embed(r->stream, r->model->embedding, r->x, d);
	for (uint32_t i = 0; !ret && i < p->n_layers; i++) {
		const struct model_layer *layer = &r->model->layers[i];
		const float *attn = r->attn;

		runner_beat(r);
		ret = be->rms_norm(r->stream, r->x, d, layer->attn_norm, p->eps, r->h, d,
				   m, p->d_model);
		if (!ret)
			ret = be->linear(r->stream,
					 &(struct kv_linear){.w = layer->qkv,
							     .x = r->h,
							     .y = r->qkv,
							     .m = m,
							     .ldx = d,
							     .ldy = qkv_dim(p)});
		if (!ret)
			ret = be->rope_kv_write(
				r->stream, r->model->rope, r->pool, i,
				&(struct kv_qkv){.qkv = r->qkv,
						 .ld = qkv_dim(p),
						 .q_off = 0,
						 .k_off = (uint32_t)heads,
						 .v_off = (uint32_t)(heads + kv),
						 .n_heads = p->n_heads});
		if (!ret)
			ret = be->attention(
				r->stream, r->pool, i,
				&(struct kv_attention){
					.q = r->qkv,
					.out = r->attn,
					.ldq = qkv_dim(p),
					.ldo = heads,
					.n_heads = p->n_heads,
					.scale = 1.0f / sqrtf((float)p->head_dim)});
		if (!ret && i + 1 == p->n_layers && plan->n_outputs < m) {
			/* h and qkv are free now and take the rows that go on; x and h
			 * change places. */
			m = plan->n_outputs;
			ret = be->gather_rows(r->stream, r->x, d, r->rows, r->h, d, m,
					      p->d_model);
			if (!ret)
				ret = be->gather_rows(r->stream, r->attn, heads, r->rows,
						      r->qkv, heads, m, (uint32_t)heads);
			if (!ret) {
				float *swap = r->x;

				r->x = r->h;
				r->h = swap;
				attn = r->qkv;
			}
		}
		if (!ret && m)
			ret = be->linear(r->stream,
					 &(struct kv_linear){.w = layer->output,
							     .x = attn,
							     .y = r->x,
							     .m = m,
							     .ldx = heads,
							     .ldy = d,
							     .accumulate = true});
		if (!ret && m)
			ret = runner_ffn(r, layer, m);
	}
	return ret;
}

/* What is wanted of the distribution, beside the one token's. */
static int runner_dist(struct runner *r, const struct plan_dist *dist,
		       const float *logits, float lse, uint32_t *words)
{
	uint32_t n = r->model->params.n_vocab;
	float *logprobs;
	int err;

	err = r->backend->download(r->stream, r->logits_row, logits, n * sizeof(float));
	if (err)
		return err;
	if (dist->top == PLAN_DIST_ALL) {
		logprobs = (float *)(void *)words;
		for (uint32_t i = 0; i < n; i++)
			logprobs[i] = r->logits_row[i] - lse;
		return 0;
	}
	sampler_top(&r->sampler, r->logits_row, dist->top, words);
	logprobs = (float *)(void *)(words + dist->top);
	for (uint32_t i = 0; i < dist->top; i++)
		logprobs[i] = r->logits_row[words[i]] - lse;
	return 0;
}

/* One output, from the statistics of its logits row. */
static int runner_output(struct runner *r, const struct plan_output *out,
			 const float *logits, const struct kv_logits_stat *stat,
			 struct plan_output_result *ret)
{
	size_t n = r->model->params.n_vocab;
	float logit = stat->max;
	int32_t token = (int32_t)stat->argmax;
	int err;

	if (!isfinite(stat->lse)) {
		token = -1;
		logit = NAN;
	} else if (out->kind == PLAN_SCORE) {
		token = out->target;
		logit = stat->target;
	} else if (out->kind == PLAN_DIST) {
		token = -1;
		logit = stat->lse;
	} else if (out->sample.temperature > 0.0f) {
		err = r->backend->download(r->stream, r->logits_row, logits,
					   n * sizeof(float));
		if (err)
			return err;
		token = sampler_draw(&r->sampler, r->logits_row, stat->max, &out->sample,
				     out->position);
		logit = r->logits_row[token];
	}
	*ret = (struct plan_output_result){token, logit - stat->lse};
	if (!isfinite(ret->logprob))
		*ret = (struct plan_output_result){-1, NAN};
	return 0;
}

/* Logits and outputs; rows of x are in the order of the outputs. */
static int runner_outputs(struct runner *r, const struct plan *plan,
			  struct plan_result *result)
{
	const struct model_params *p = &r->model->params;
	const struct kv_backend *be = r->backend;
	size_t d = p->d_model;
	int ret;

	ret = be->rms_norm(r->stream, r->x, d, r->model->output_norm, p->eps, r->h, d,
			   plan->n_outputs, p->d_model);
	for (uint32_t o = 0; !ret && o < plan->n_outputs; o += RUNNER_LOGIT_ROWS) {
		struct kv_logits_stat stat[RUNNER_LOGIT_ROWS];
		uint32_t targets[RUNNER_LOGIT_ROWS];
		uint32_t m = plan->n_outputs - o;

		runner_beat(r);
		if (m > RUNNER_LOGIT_ROWS)
			m = RUNNER_LOGIT_ROWS;
		for (uint32_t i = 0; i < m; i++)
			targets[i] = plan->outputs[o + i].kind == PLAN_SCORE
					     ? (uint32_t)plan->outputs[o + i].target
					     : 0;
		ret = be->linear(r->stream, &(struct kv_linear){.w = r->model->head,
								.x = r->h + o * d,
								.y = r->logits,
								.m = m,
								.ldx = d,
								.ldy = p->n_vocab});
		if (!ret)
			ret = be->logits_stat(r->stream, r->logits, p->n_vocab, targets,
					      r->stat, m, p->n_vocab);
		if (!ret)
			ret = be->download(r->stream, stat, r->stat, m * sizeof(stat[0]));
		for (uint32_t i = 0; !ret && i < m; i++) {
			const struct plan_dist *dist = &plan->outputs[o + i].dist;

			if (dist->top)
				ret = runner_dist(r, dist,
						  r->logits + (size_t)i * p->n_vocab,
						  stat[i].lse, result->dist + dist->off);
		}
		for (uint32_t i = 0; !ret && i < m; i++)
			ret = runner_output(r, &plan->outputs[o + i],
					    r->logits + (size_t)i * p->n_vocab, &stat[i],
					    &result->outputs[o + i]);
	}
	return ret;
}

void runner_run(struct runner *runner, const struct plan *plan,
		struct plan_result *result)
{
	uint64_t start = clock_now_ns();
	int ret;

	result->step = plan->step;
	result->n_outputs = 0;
	ret = plan->n_outputs > result->cap_outputs ||
			      plan->n_dist_words > result->cap_dist_words
		      ? -EINVAL
		      : 0;
	if (!ret)
		ret = runner_prepare(runner, plan);
	if (!ret)
		ret = runner_layers(runner, plan);
	if (!ret && plan->n_outputs)
		ret = runner_outputs(runner, plan, result);
	if (!ret)
		ret = runner->backend->stream_sync(runner->stream);
	if (!ret)
		result->n_outputs = plan->n_outputs;
	result->status = ret;
	result->elapsed_ns = clock_now_ns() - start;
}
