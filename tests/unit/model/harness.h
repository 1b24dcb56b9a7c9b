/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_UNIT_MODEL_HARNESS_H
#define KVD_TESTS_UNIT_MODEL_HARNESS_H

/*
 * A model on one CPU variant with the plainest of block tables: sequence s owns the blocks
 * from s * blocks_per_seq on, in an order that differs from the order of positions, so that
 * a mix-up of block ids shows. Failures print and exit: it is for test programs.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/model.h"
#include "daemon/model/runner.h"
#include "daemon/sched/plan.h"

/* Whole distributions that one step of the harness may yield. */
#define HARNESS_DIST_ROWS 64

struct harness {
	struct kv_device *dev;
	struct kv_props props;
	struct kv_layout layout;
	struct kv_pool *pool;
	struct model model;
	struct runner runner;
	struct plan plan;
	struct plan_result result;
	uint32_t n_seqs, blocks_per_seq;
};

/* @n_seqs sequences of up to @max_len tokens, @max_rows rows a step. */
void harness_init(struct harness *h, const struct gguf *gguf, uint32_t cpu_mask,
		  uint32_t n_threads, uint32_t n_seqs, uint32_t max_len,
		  uint32_t max_rows);
/* The same of a file that was loaded before: it is not looked at as a whole. */
void harness_init_known(struct harness *h, const struct gguf *gguf,
			const uint8_t *fingerprint, uint32_t cpu_mask, uint32_t n_threads,
			uint32_t n_seqs, uint32_t max_len, uint32_t max_rows);
void harness_deinit(struct harness *h);

/* Starts a new plan. */
void harness_begin(struct harness *h);
/* Adds rows of a sequence: positions pos0 .. pos0 + n - 1. Return: the first row. */
uint32_t harness_rows(struct harness *h, uint32_t seq, const int32_t *tokens,
		      uint32_t pos0, uint32_t n);
/* Wants something of a row of the entry added last. sample NULL: greedy. */
void harness_sample(struct harness *h, uint32_t row,
		    const struct kv_sample_params *sample);
void harness_score(struct harness *h, uint32_t row, int32_t target);
/* Runs the plan. Return: its outputs. */
const struct plan_output_result *harness_run(struct harness *h);

/* logprobs[i] = that of tokens[i] given those before, i >= 1; [0] = 0. In chunks. */
void harness_score_all(struct harness *h, uint32_t seq, const int32_t *tokens, uint32_t n,
		       uint32_t chunk, float *logprobs);
/* Prompt in chunks, then greedy until EOG-free @n_max tokens. */
void harness_generate(struct harness *h, uint32_t seq, const int32_t *prompt,
		      uint32_t n_prompt, uint32_t chunk, uint32_t n_max, int32_t *tokens,
		      float *logprobs);

void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
