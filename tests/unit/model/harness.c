/* SPDX-License-Identifier: MIT */
#include "tests/unit/model/harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu_backend.h"

void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

void harness_init(struct harness *h, const struct gguf *gguf, uint32_t cpu_mask,
		  uint32_t n_threads, uint32_t n_seqs, uint32_t max_len,
		  uint32_t max_rows)
{
	harness_init_known(h, gguf, NULL, cpu_mask, n_threads, n_seqs, max_len, max_rows);
}

void harness_init_known(struct harness *h, const struct gguf *gguf,
			const uint8_t *fingerprint, uint32_t cpu_mask, uint32_t n_threads,
			uint32_t n_seqs, uint32_t max_len, uint32_t max_rows)
{
	const struct kv_backend *be = kv_backend_cpu();
	struct kv_cpu_options cpu = {.cpu_mask = cpu_mask, .n_threads = n_threads};
	struct kv_options options = {.cpu = &cpu};
	struct load_error err;
	struct plan_caps caps;
	char error[128];

	memset(h, 0, sizeof(*h));
	if (be->open(&options, error, sizeof(error), &h->dev))
		die("%s", error);
	be->get_props(h->dev, &h->props);
	if (model_load(&h->model, gguf, be, h->dev, NULL, fingerprint, &err))
		die("%s", err.text);
	if (kv_layout_init(&h->layout, KV_FORMAT_FP16, KV_FORMAT_FP16,
			   h->model.params.n_layers, h->model.params.n_kv_heads,
			   h->model.params.head_dim, 16))
		die("cannot lay out the pool");
	h->n_seqs = n_seqs;
	h->blocks_per_seq = (max_len + 15) / 16;
	if (be->pool_open(h->dev, &h->layout, n_seqs * h->blocks_per_seq, 0, -1, 0,
			  &h->pool))
		die("cannot open the pool");
	caps = (struct plan_caps){
		.rows = max_rows,
		.entries = n_seqs,
		.outputs = max_rows,
		.block_ids = n_seqs * h->blocks_per_seq,
		.dist_words = HARNESS_DIST_ROWS * h->model.params.n_vocab,
	};
	if (runner_init(&h->runner, &h->model, h->pool, NULL, &caps) ||
	    plan_init(&h->plan, &caps) || plan_result_init(&h->result, &caps))
		die("cannot set up the runner");
}

void harness_deinit(struct harness *h)
{
	const struct kv_backend *be = kv_backend_cpu();

	plan_deinit(&h->plan);
	plan_result_deinit(&h->result);
	runner_deinit(&h->runner);
	be->pool_close(h->pool);
	model_unload(&h->model);
	be->close(h->dev);
}

void harness_begin(struct harness *h)
{
	plan_reset(&h->plan);
	h->plan.step = 1;
}

uint32_t harness_rows(struct harness *h, uint32_t seq, const int32_t *tokens,
		      uint32_t pos0, uint32_t n)
{
	struct plan *plan = &h->plan;
	uint32_t row0 = plan->n_rows, n_blocks = (pos0 + n + 15) / 16;

	if (plan->n_rows + n > plan->caps.rows || n_blocks > h->blocks_per_seq)
		die("the harness is too small");
	plan->entries[plan->n_entries++] = (struct kv_batch_entry){
		.seq_id = seq,
		.row0 = row0,
		.n_rows = n,
		.pos0 = pos0,
		.block_off = plan->n_block_ids,
		.n_blocks = n_blocks,
	};
	/* last block first */
	for (uint32_t i = 0; i < n_blocks; i++)
		plan->block_ids[plan->n_block_ids++] =
			(seq + 1) * h->blocks_per_seq - 1 - i;
	for (uint32_t i = 0; i < n; i++)
		plan->tokens[plan->n_rows++] = tokens[i];
	return row0;
}

static void add_output(struct harness *h, struct plan_output output)
{
	const struct kv_batch_entry *e = &h->plan.entries[h->plan.n_entries - 1];

	output.entry = h->plan.n_entries - 1;
	output.position = (uint64_t)e->pos0 + (output.row - e->row0) + 1;
	h->plan.outputs[h->plan.n_outputs++] = output;
}

void harness_sample(struct harness *h, uint32_t row,
		    const struct kv_sample_params *sample)
{
	struct plan_output output = {.row = row, .kind = PLAN_SAMPLE, .target = -1};

	if (sample)
		output.sample = *sample;
	else
		output.sample.top_p = 1.0f;
	add_output(h, output);
}

void harness_score(struct harness *h, uint32_t row, int32_t target)
{
	add_output(h, (struct plan_output){
			      .row = row, .kind = PLAN_SCORE, .target = target});
}

const struct plan_output_result *harness_run(struct harness *h)
{
	plan_result_reset(&h->result);
	if (plan_check(&h->plan, 16, h->n_seqs * h->blocks_per_seq,
		       h->model.params.n_vocab))
		die("the harness made a bad plan");
	runner_run(&h->runner, &h->plan, &h->result);
	if (h->result.status || h->result.n_outputs != h->plan.n_outputs)
		die("the step failed: %s", strerror(-h->result.status));
	return h->result.outputs;
}

void harness_score_all(struct harness *h, uint32_t seq, const int32_t *tokens, uint32_t n,
		       uint32_t chunk, float *logprobs)
{
	logprobs[0] = 0;
	for (uint32_t pos = 0; pos < n; pos += chunk) {
		uint32_t m = n - pos < chunk ? n - pos : chunk;
		const struct plan_output_result *out;
		uint32_t row0;

		harness_begin(h);
		row0 = harness_rows(h, seq, tokens + pos, pos, m);
		for (uint32_t i = 0; i < m && pos + i + 1 < n; i++)
			harness_score(h, row0 + i, tokens[pos + i + 1]);
		out = harness_run(h);
		for (uint32_t i = 0; i < h->plan.n_outputs; i++)
			logprobs[pos + i + 1] = out[i].logprob;
	}
}

void harness_generate(struct harness *h, uint32_t seq, const int32_t *prompt,
		      uint32_t n_prompt, uint32_t chunk, uint32_t n_max, int32_t *tokens,
		      float *logprobs)
{
	const struct plan_output_result *out = NULL;

	for (uint32_t pos = 0; pos < n_prompt; pos += chunk) {
		uint32_t m = n_prompt - pos < chunk ? n_prompt - pos : chunk;
		uint32_t row0;

		harness_begin(h);
		row0 = harness_rows(h, seq, prompt + pos, pos, m);
		if (pos + m == n_prompt)
			harness_sample(h, row0 + m - 1, NULL);
		out = harness_run(h);
	}
	for (uint32_t i = 0; i < n_max; i++) {
		tokens[i] = out[0].token;
		logprobs[i] = out[0].logprob;
		if (i + 1 == n_max)
			break;
		harness_begin(h);
		harness_sample(h, harness_rows(h, seq, &tokens[i], n_prompt + i, 1),
			       NULL);
		out = harness_run(h);
	}
}
