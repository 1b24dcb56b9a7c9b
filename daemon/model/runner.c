/* SPDX-License-Identifier: MIT */
/*
 * The graph:
 *
 *   tokens -> embed -> x [rows, d]
 *   each layer:  x += Wo attention(rope(Wqkv norm(x)))     K and V of the rows are written
 *                x += Wdown (silu(gate) * up)              to the pool before attention
 *                                                          reads it
 *   outputs:     logits = Whead norm(x), a slice of rows at a time -> token, logprob
 *
 * What is added to x is summed over ranks first, where there are several.
 */
#include "daemon/model/runner.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/clock.h"

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

/* Of gate_up, in elements. Rows a large power of two apart would lie in few sets of the cache;
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
		void **where;
		size_t elements;
	} arrays[] = {
		{&r->x, rows * p->d_model},
		{&r->h, rows * p->d_model},
		{&r->qkv, rows * qkv_dim(p)},
		{&r->attn, rows * heads_dim(p)},
		{&r->gate_up, ff_rows * gate_up_stride(p)},
		{&r->act, ff_rows * p->d_ff},
		{&r->logits, (size_t)RUNNER_LOGIT_ROWS * p->n_vocab},
	};

	for (size_t i = 0; i < KVD_ARRAY_LEN(arrays); i++) {
		if (base)
			*arrays[i].where = base + at;
		at += (arrays[i].elements * r->act_bytes + 63) & ~(size_t)63;
	}
	return at;
}

/* Row @row of an array whose rows are @ld elements apart. */
static void *row_of(const struct runner *r, void *base, uint32_t row, size_t ld)
{
	return (char *)base + row * ld * r->act_bytes;
}

int runner_init(struct runner *runner, const struct model *model, struct kv_pool *pool,
		struct kv_comm *comm, const struct plan_caps *caps)
{
	const struct kv_backend *backend = model->backend;
	struct kv_props props;
	int r;

	*runner = (struct runner){.model = model,
				  .backend = backend,
				  .pool = pool,
				  .comm = comm,
				  .caps = *caps};
	backend->get_props(model->dev, &props);
	if (caps->rows > props.max_rows)
		return -EINVAL;
	runner->act_bytes = props.act_bytes;
	runner->rows = calloc(caps->outputs + 1u, sizeof(*runner->rows));
	r = -ENOMEM;
	if (!runner->rows)
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
	free(runner->rows);
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

/* x += @add, unless that is NULL; then y = the norm of x, for the first @m rows. */
static int runner_norm(struct runner *r, const float *w KV_DEV, void *add, void *y,
		       uint32_t m)
{
	const struct model_params *p = &r->model->params;

	return r->backend->rms_norm(r->stream, &(struct kv_norm){.x = r->x,
								 .add = add,
								 .y = y,
								 .w = w,
								 .ldx = p->d_model,
								 .ldadd = p->d_model,
								 .ldy = p->d_model,
								 .eps = p->eps,
								 .m = m,
								 .d = p->d_model});
}

static int runner_linear(struct runner *r, const struct kv_weight *w, const void *x,
			 size_t ldx, void *y, size_t ldy, uint32_t m)
{
	return r->backend->linear(
		r->stream,
		&(struct kv_linear){
			.w = w, .x = x, .y = y, .m = m, .ldx = ldx, .ldy = ldy});
}

/* h becomes its sum over ranks, for the first @m rows. */
static int runner_sum(struct runner *r, uint32_t m)
{
	if (!r->comm)
		return 0;
	return r->comm->ops->all_reduce(r->comm, r->stream, r->h,
					(size_t)m * r->model->params.d_model);
}

/* h = Wdown (silu(gate) * up) of h, for the first @m rows; in slices, which share no
 * arithmetic, so that the widest arrays of the graph stay small. */
static int runner_ffn(struct runner *r, const struct model_layer *layer, uint32_t m)
{
	const struct model_params *p = &r->model->params;
	size_t d = p->d_model;
	int ret = 0;

	for (uint32_t row = 0; !ret && row < m; row += RUNNER_FF_ROWS) {
		uint32_t n = m - row < RUNNER_FF_ROWS ? m - row : RUNNER_FF_ROWS;
		void *h = row_of(r, r->h, row, d);

		runner_beat(r);
		ret = runner_linear(r, layer->gate_up, h, d, r->gate_up,
				    gate_up_stride(p), n);
		if (!ret)
			ret = r->backend->silu_mul(r->stream, r->gate_up,
						   gate_up_stride(p), r->act, p->d_ff, n,
						   p->d_ff);
		if (!ret)
			ret = runner_linear(r, layer->down, r->act, p->d_ff, h, d, n);
	}
	return ret;
}

/* h = attention of the layer over all rows of the plan, before the output's matrix. */
static int runner_attention(struct runner *r, uint32_t i, uint32_t m)
{
	const struct model_params *p = &r->model->params;
	const struct kv_backend *be = r->backend;
	size_t heads = heads_dim(p), kv = kv_dim(p);
	int ret;

	ret = runner_linear(r, r->model->layers[i].qkv, r->h, p->d_model, r->qkv,
			    qkv_dim(p), m);
	if (!ret)
		ret = be->rope_kv_write(r->stream, r->model->rope, r->pool, i,
					&(struct kv_qkv){.qkv = r->qkv,
							 .ld = qkv_dim(p),
							 .q_off = 0,
							 .k_off = (uint32_t)heads,
							 .v_off = (uint32_t)(heads + kv),
							 .n_heads = p->n_heads});
	if (!ret)
		ret = be->attention(r->stream, r->pool, i,
				    &(struct kv_attention){
					    .q = r->qkv,
					    .out = r->attn,
					    .ldq = qkv_dim(p),
					    .ldo = heads,
					    .n_heads = p->n_heads,
					    .scale = 1.0f / sqrtf((float)p->head_dim)});
	return ret;
}

/*
 * Only the rows with an output go on: x and attn become theirs, in order of the outputs. h and
 * qkv, whose content is used up, take them and change places with x and attn.
 */
static int runner_gather(struct runner *r, uint32_t m)
{
	const struct model_params *p = &r->model->params;
	const struct kv_backend *be = r->backend;
	size_t d = p->d_model, heads = heads_dim(p);
	void *swap;
	int ret;

	ret = be->gather_rows(r->stream, r->x, d, r->rows, r->h, d, m, p->d_model);
	if (!ret)
		ret = be->gather_rows(r->stream, r->attn, heads, r->rows, r->qkv, heads,
				      m, (uint32_t)heads);
	swap = r->x;
	r->x = r->h;
	r->h = swap;
	return ret;
}

/*
 * The layers. What a layer adds to x is summed up in h, and added together with the norm that
 * comes next. Past the attention of the last layer only rows with an output matter: the rest is
 * left out. Return: 0 with h holding the last norm of the rows of @rows (all rows, in plan
 * order, when every row has an output).
 */
static int runner_layers(struct runner *r, const struct plan *plan)
{
	const struct model *model = r->model;
	size_t d = model->params.d_model, heads = heads_dim(&model->params);
	uint32_t m = plan->n_rows, n_layers = model->params.n_layers;
	int ret;

	ret = r->backend->embed(r->stream, model->embedding, r->x, d);
	if (!ret)
		ret = runner_norm(r, model->layers[0].attn_norm, NULL, r->h, m);
	for (uint32_t i = 0; !ret && i < n_layers; i++) {
		const struct model_layer *layer = &model->layers[i];
		bool last = i + 1 == n_layers;
		const void *attn = r->attn;

		runner_beat(r);
		ret = runner_attention(r, i, m);
		if (!ret && last && plan->n_outputs < m) {
			m = plan->n_outputs;
			ret = runner_gather(r, m);
			attn = r->qkv;
		}
		if (!ret)
			ret = runner_linear(r, layer->output, attn, heads, r->h, d, m);
		if (!ret)
			ret = runner_sum(r, m);
		if (!ret)
			ret = runner_norm(r, layer->ffn_norm, r->h, r->h, m);
		if (!ret)
			ret = runner_ffn(r, layer, m);
		if (!ret)
			ret = runner_sum(r, m);
		if (!ret)
			ret = runner_norm(r,
					  last ? model->output_norm
					       : model->layers[i + 1].attn_norm,
					  r->h, r->h, m);
	}
	return ret;
}

/* What is wanted of row @row of a slice of logits. */
static struct kv_sample sample_of(const struct plan_output *out)
{
	return (struct kv_sample){
		.target = out->kind == PLAN_SCORE ? out->target : -1,
		.params = out->kind == PLAN_SAMPLE ? out->sample
						   : (struct kv_sample_params){0},
		.position = out->position,
	};
}

static struct kv_top top_of(const struct plan_dist *dist, uint32_t row, uint32_t n_vocab,
			    uint32_t *words)
{
	bool all = dist->top == PLAN_DIST_ALL;

	return (struct kv_top){
		.row = row,
		.n = all ? n_vocab : dist->top,
		.ids = all ? NULL : words,
		.logprobs = (float *)(void *)(all ? words : words + dist->top),
	};
}

/* Outputs @o .. @o + @m - 1 of the plan, whose logits are there. */
static int runner_results(struct runner *r, const struct plan *plan, uint32_t o,
			  uint32_t m, struct plan_result *result)
{
	uint32_t n_vocab = r->model->params.n_vocab, n_tops = 0;
	struct kv_sample rows[RUNNER_LOGIT_ROWS];
	struct kv_token tokens[RUNNER_LOGIT_ROWS];
	struct kv_top tops[RUNNER_LOGIT_ROWS];
	int ret;

	for (uint32_t i = 0; i < m; i++) {
		const struct plan_output *out = &plan->outputs[o + i];

		rows[i] = sample_of(out);
		if (out->dist.top)
			tops[n_tops++] = top_of(&out->dist, i, n_vocab,
						result->dist + out->dist.off);
	}
	ret = r->backend->sample(r->stream, r->logits, n_vocab, n_vocab, rows, tokens, m);
	if (!ret && n_tops)
		ret = r->backend->top(r->stream, r->logits, n_vocab, n_vocab, tops,
				      n_tops);
	for (uint32_t i = 0; !ret && i < m; i++) {
		struct plan_output_result *res = &result->outputs[o + i];

		*res = (struct plan_output_result){tokens[i].token, tokens[i].logprob};
		if (plan->outputs[o + i].kind == PLAN_DIST)
			*res = (struct plan_output_result){
				-1, isnan(tokens[i].logprob) ? NAN : 0};
	}
	return ret;
}

/* Logits and outputs; rows of h are in the order of the outputs. */
static int runner_outputs(struct runner *r, const struct plan *plan,
			  struct plan_result *result)
{
	const struct model_params *p = &r->model->params;
	int ret = 0;

	for (uint32_t o = 0; !ret && o < plan->n_outputs; o += RUNNER_LOGIT_ROWS) {
		uint32_t m = plan->n_outputs - o;

		runner_beat(r);
		if (m > RUNNER_LOGIT_ROWS)
			m = RUNNER_LOGIT_ROWS;
		ret = runner_linear(r, r->model->head, row_of(r, r->h, o, p->d_model),
				    p->d_model, r->logits, p->n_vocab, m);
		if (!ret)
			ret = runner_results(r, plan, o, m, result);
	}
	return ret;
}

void runner_run(struct runner *runner, const struct plan *plan,
		struct plan_result *result)
{
	uint64_t start = kv_now_ns();
	const bool head = runner->model->head;
	int ret = 0;

	result->step = plan->step;
	result->n_outputs = 0;
	if (head && (plan->n_outputs > result->cap_outputs ||
		     plan->n_dist_words > result->cap_dist_words))
		ret = -EINVAL;
	if (!ret)
		ret = runner_prepare(runner, plan);
	if (!ret)
		ret = runner_layers(runner, plan);
	if (!ret && head && plan->n_outputs)
		ret = runner_outputs(runner, plan, result);
	if (!ret)
		ret = runner->backend->stream_sync(runner->stream);
	if (!ret && head)
		result->n_outputs = plan->n_outputs;
	if (ret && runner->comm)
		runner->comm->ops->abort(runner->comm);
	result->status = ret;
	result->elapsed_ns = kv_now_ns() - start;
}
