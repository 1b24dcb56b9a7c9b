/* SPDX-License-Identifier: MIT */
/*
 * The same tokens go through the model on a small pool of each format, and the distributions of the
 * next token are compared.
 */
#include "daemon/model/quality.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/model/runner.h"

/* A few hundred tokens tell a format that suits the model (KL about 0.01) from one that ruins it
 * (0.1 and up), and no more than that. Positions of the first block are left out: they see no
 * codes of int4. */
enum {
	N_TOKENS = 192,
	CHUNK = 16, /* rows of a step, whose distributions are in memory twice */
};

/* Ordinary words, names and numbers, in sentences that refer back to earlier ones. */
static const char sample[] =
	"The library on Mill Street opened in 1923, when the town still had a harbour and "
	"the mail came by boat. Its first librarian, Anna Berg, kept a diary in which she "
	"noted the weather, the number of visitors and the books that they asked for. On "
	"the third of March she wrote: \"Rain all day, eleven visitors, two of them for the "
	"atlas.\" The diary was lost for sixty years, until a carpenter who repaired the "
	"roof found it behind a beam, wrapped in oilcloth. He gave it to the town, and the "
	"town gave it to the library, where it lies today in a glass case near the door. "
	"Visitors may read a copy of it. The most common question that they ask is whether "
	"Anna Berg ever left the harbour town, and the answer is on the last page: she "
	"took the boat on a clear morning in May, with three suitcases, a parrot and the "
	"atlas, which she promised to send back as soon as she had found out where the "
	"wind came from.";

struct half {
	struct kv_pool *pool;
	struct plan_result result;
};

struct probe {
	const struct model *model;
	struct runner runner;
	struct plan plan;
	struct half exact, coded;
	int32_t tokens[N_TOKENS];
	double kl, n_same;
	uint32_t n_tokens, n;
};

static int take_tokens(struct probe *p, const struct tokenizer *tokenizer)
{
	const struct model_params *params = &p->model->params;
	struct token_list list = {0};
	uint32_t x = 1;
	int r = 0;

	p->n_tokens =
		params->context_length < N_TOKENS ? params->context_length : N_TOKENS;
	if (tokenizer)
		r = tokenizer_encode(tokenizer, sample, sizeof(sample) - 1, 0, &list);
	for (uint32_t i = 0; i < p->n_tokens; i++) {
		/* the generator of Numerical Recipes, "quick and dirty" */
		x = x * UINT32_C(1664525) + UINT32_C(1013904223);
		p->tokens[i] = (int32_t)((x >> 8) % params->n_vocab);
		if (!r && list.n)
			p->tokens[i] = list.ids[i % list.n];
	}
	token_list_deinit(&list);
	return r < 0 ? r : 0;
}

/* Rows pos0 .. pos0 + n - 1 of the only sequence, all of their distributions wanted. */
static void fill_plan(struct probe *p, uint32_t pos0, uint32_t n, uint32_t block_tokens)
{
	uint32_t n_vocab = p->model->params.n_vocab;
	struct plan *plan = &p->plan;

	plan_reset(plan);
	plan->step = 1 + pos0;
	plan->n_rows = n;
	plan->n_outputs = n;
	plan->n_dist_words = n * n_vocab;
	plan->n_entries = 1;
	plan->n_block_ids = (pos0 + n + block_tokens - 1) / block_tokens;
	plan->entries[0] = (struct kv_batch_entry){
		.n_rows = n, .pos0 = pos0, .n_blocks = plan->n_block_ids};
	for (uint32_t i = 0; i < plan->n_block_ids; i++)
		plan->block_ids[i] = i;
	for (uint32_t i = 0; i < n; i++) {
		plan->tokens[i] = p->tokens[pos0 + i];
		plan->outputs[i] = (struct plan_output){
			.row = i,
			.kind = PLAN_DIST,
			.target = -1,
			.dist = {PLAN_DIST_ALL, n_vocab, i * n_vocab},
			.position = (uint64_t)pos0 + i + 1,
		};
	}
}

static int run_half(struct probe *p, struct half *half)
{
	plan_result_reset(&half->result);
	p->runner.pool = half->pool;
	runner_run(&p->runner, &p->plan, &half->result);
	return half->result.status;
}

static void compare_row(struct probe *p, const float *exact, const float *coded)
{
	uint32_t top_exact = 0, top_coded = 0;
	double kl = 0;

	for (uint32_t i = 0; i < p->model->params.n_vocab; i++) {
		kl += exp((double)exact[i]) * ((double)exact[i] - (double)coded[i]);
		if (exact[i] > exact[top_exact])
			top_exact = i;
		if (coded[i] > coded[top_coded])
			top_coded = i;
	}
	p->kl += kl;
	p->n_same += top_exact == top_coded;
	p->n++;
}

static int run_chunks(struct probe *p, uint32_t block_tokens)
{
	uint32_t n_vocab = p->model->params.n_vocab;
	int r = 0;

	for (uint32_t pos = 0; !r && pos < p->n_tokens; pos += CHUNK) {
		uint32_t n = p->n_tokens - pos < CHUNK ? p->n_tokens - pos : CHUNK;

		fill_plan(p, pos, n, block_tokens);
		r = run_half(p, &p->exact);
		if (!r)
			r = run_half(p, &p->coded);
		for (uint32_t i = 0; !r && i < n; i++) {
			size_t at = (size_t)i * n_vocab;

			if (pos + i >= block_tokens)
				compare_row(p, (const float *)p->exact.result.dist + at,
					    (const float *)p->coded.result.dist + at);
		}
	}
	return r;
}

static int open_half(struct probe *p, struct half *half, const struct kv_layout *layout,
		     const struct plan_caps *caps)
{
	uint32_t n_blocks = (N_TOKENS + layout->block_tokens - 1) / layout->block_tokens;
	int r;

	r = plan_result_init(&half->result, caps);
	if (!r)
		r = p->model->backend->pool_open(p->model->dev, layout, n_blocks,
						 kv_layout_needs_tail(layout), -1, 0,
						 &half->pool);
	return r;
}

static void close_half(struct probe *p, struct half *half)
{
	if (half->pool)
		p->model->backend->pool_close(half->pool);
	plan_result_deinit(&half->result);
}

static int run_probe(struct probe *p, const struct tokenizer *tokenizer,
		     const struct kv_layout *layout)
{
	struct kv_layout exact;
	struct plan_caps caps = {
		.rows = CHUNK,
		.entries = 1,
		.outputs = CHUNK,
		.block_ids = N_TOKENS,
	};
	int r;

	if (__builtin_mul_overflow(CHUNK, p->model->params.n_vocab, &caps.dist_words))
		return -EINVAL;
	r = take_tokens(p, tokenizer);
	if (!r && p->n_tokens <= layout->block_tokens)
		r = -EINVAL;
	if (!r)
		r = kv_layout_init(&exact, KV_FORMAT_FP16, KV_FORMAT_FP16,
				   layout->n_layers, layout->n_kv_heads, layout->head_dim,
				   layout->block_tokens);
	if (!r)
		r = plan_init(&p->plan, &caps);
	if (!r)
		r = open_half(p, &p->exact, &exact, &caps);
	if (!r)
		r = open_half(p, &p->coded, layout, &caps);
	if (!r)
		r = runner_init(&p->runner, p->model, p->exact.pool, NULL, &caps);
	if (!r)
		r = run_chunks(p, layout->block_tokens);
	return r;
}

int quality_measure(const struct model *model, const struct tokenizer *tokenizer,
		    const struct kv_layout *layout, struct quality *ret_quality)
{
	struct probe *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	p->model = model;
	r = run_probe(p, tokenizer, layout);
	if (!r)
		*ret_quality = (struct quality){
			.kl = p->kl / p->n,
			.same_top = p->n_same / p->n,
			.n = p->n,
		};
	runner_deinit(&p->runner);
	close_half(p, &p->exact);
	close_half(p, &p->coded);
	plan_deinit(&p->plan);
	free(p);
	return r;
}
