/* SPDX-License-Identifier: MIT */
/*
 * A model that is spread over several devices: against the same model in double precision,
 * against itself in other batches and chunks, and when a rank fails in the middle of a step.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/engine/ranks.h"
#include "ipc/base.h"
#include "tests/unit/model/tiny-model.h"
#include "tests/unit/suite.h"

enum { N_TOKENS = 120, N_SEQS = 3, SEQ_BLOCKS = 8, ROWS = N_SEQS * N_TOKENS };

static struct config config;
static struct ranks ranks;
static struct plan plan;
static struct plan_result result;
static struct image im;
static int32_t tokens[N_SEQS][N_TOKENS];

/* Return: of ranks_load(). */
static int load(uint32_t n, uint32_t type, struct load_error *err)
{
	const struct plan_caps caps = {
		.rows = ROWS,
		.entries = N_SEQS,
		.outputs = ROWS,
		.block_ids = N_SEQS * SEQ_BLOCKS,
	};
	struct kv_layout layout;
	struct gguf *gguf;
	char error[256] = "";
	int r;

	im = tiny_model(type, 0, 7);
	config.model.tensor_parallel_size = n;
	ck_assert_msg(!ranks_open(&ranks, &config, error, sizeof(error)), "%s", error);
	ck_assert_int_eq(gguf_open_memory(&gguf, "tiny", im.data, im.len, err), 0);
	r = ranks_load(&ranks, gguf, NULL, err);
	gguf_free(gguf);
	if (r)
		return r;
	ck_assert_int_eq(kv_layout_init(&layout, KV_FORMAT_FP16, KV_FORMAT_FP16,
					TINY_LAYERS, TINY_KV_HEADS / n, TINY_HEAD_DIM,
					16),
			 0);
	ck_assert_int_eq(ranks_open_pools(&ranks, &layout, N_SEQS * SEQ_BLOCKS, 0, -1),
			 0);
	ck_assert_int_eq(ranks_start(&ranks, &caps), 0);
	ck_assert_int_eq(plan_init(&plan, &caps), 0);
	ck_assert_int_eq(plan_result_init(&result, &caps), 0);
	return 0;
}

static void unload(void)
{
	ranks_close(&ranks);
	plan_deinit(&plan);
	plan_result_deinit(&result);
	image_free(&im);
}

/* Rows pos0 .. of a sequence, each of whose next tokens is scored. */
static void add_rows(uint32_t seq, uint32_t pos0, uint32_t n)
{
	uint32_t entry = plan.n_entries++, n_blocks = (pos0 + n + 15) / 16;

	plan.entries[entry] = (struct kv_batch_entry){
		.row0 = plan.n_rows,
		.n_rows = n,
		.pos0 = pos0,
		.block_off = plan.n_block_ids,
		.n_blocks = n_blocks,
		.tail = seq,
		.seq_id = seq,
	};
	for (uint32_t i = 0; i < n_blocks; i++)
		plan.block_ids[plan.n_block_ids++] = (seq + 1) * SEQ_BLOCKS - 1 - i;
	for (uint32_t i = 0; i < n; i++) {
		if (pos0 + i + 1 < N_TOKENS)
			plan.outputs[plan.n_outputs++] = (struct plan_output){
				.row = plan.n_rows,
				.entry = entry,
				.kind = PLAN_SCORE,
				.target = tokens[seq][pos0 + i + 1],
				.position = (uint64_t)pos0 + i + 1,
			};
		plan.tokens[plan.n_rows++] = tokens[seq][pos0 + i];
	}
}

static int run(void)
{
	ck_assert_int_eq(plan_check(&plan, 16, N_SEQS * SEQ_BLOCKS, TINY_VOCAB), 0);
	plan_result_reset(&result);
	ranks_run(&ranks, &plan, &result);
	return result.status;
}

static void score(uint32_t seq, uint32_t chunk, float *logprobs)
{
	for (uint32_t pos = 0; pos < N_TOKENS; pos += chunk) {
		plan_reset(&plan);
		add_rows(seq, pos, N_TOKENS - pos < chunk ? N_TOKENS - pos : chunk);
		ck_assert_int_eq(run(), 0);
		ck_assert_uint_eq(result.n_outputs, plan.n_outputs);
		for (uint32_t i = 0; i < result.n_outputs; i++)
			logprobs[pos + i + 1] = result.outputs[i].logprob;
	}
}

static void setup(void)
{
	uint64_t state = 5;

	ck_assert_int_eq(config_init(&config), 0);
	config.cpu.threads = 2;
	for (uint32_t s = 0; s < N_SEQS; s++)
		for (uint32_t i = 0; i < N_TOKENS; i++)
			tokens[s][i] = (int32_t)(tiny_random(&state) >> 16) & 63;
}

static void teardown(void)
{
	config_deinit(&config);
}

static const uint32_t types[] = {GGUF_TENSOR_F32,  GGUF_TENSOR_BF16, GGUF_TENSOR_Q4_0,
				 GGUF_TENSOR_Q4_1, GGUF_TENSOR_Q5_1, GGUF_TENSOR_Q8_0};

#define N_TYPES KVD_ARRAY_LEN(types)

START_TEST(two_ranks_compute_what_one_does)
{
	static const uint32_t chunks[] = {1, 7, 64};
	static float want[N_SEQS][N_TOKENS], got[N_TOKENS];
	double exact[N_TOKENS], sum = 0;
	struct load_error err = {""};

	ck_assert_msg(!load(2, types[_i], &err), "%s", err.text);
	ck_assert_str_eq(ranks.variant, "cpu-1/2");
	tiny_reference(&im, tokens[0], N_TOKENS, exact);
	for (uint32_t s = 0; s < N_SEQS; s++)
		score(s, N_TOKENS, want[s]);
	for (int i = 1; i < N_TOKENS; i++) {
		ck_assert_double_le(fabs(want[0][i] - exact[i]), 0.05);
		sum += fabs(want[0][i] - exact[i]);
	}
	ck_assert_double_le(sum / (N_TOKENS - 1), 0.005);

	/* chunks, and neighbours in the batch, change no bit */
	for (size_t c = 0; c < KVD_ARRAY_LEN(chunks); c++) {
		score(0, chunks[c], got);
		ck_assert_mem_eq(got + 1, want[0] + 1, sizeof(got) - sizeof(got[0]));
	}
	plan_reset(&plan);
	for (uint32_t s = 0; s < N_SEQS; s++)
		add_rows(s, 0, N_TOKENS);
	ck_assert_int_eq(run(), 0);
	for (uint32_t s = 0; s < N_SEQS; s++)
		for (uint32_t i = 0; i + 1 < N_TOKENS; i++)
			ck_assert(result.outputs[s * (N_TOKENS - 1) + i].logprob ==
				  want[s][i + 1]);
	/* blocks that are there already: the last row alone */
	plan_reset(&plan);
	add_rows(1, N_TOKENS - 2, 1);
	ck_assert_int_eq(run(), 0);
	ck_assert(result.outputs[0].logprob == want[1][N_TOKENS - 1]);
	unload();
}
END_TEST

START_TEST(one_rank_is_as_before)
{
	struct load_error err = {""};

	ck_assert_int_eq(load(1, GGUF_TENSOR_Q4_0, &err), 0);
	ck_assert_str_eq(ranks.variant, "cpu-1");
	ck_assert_ptr_null(ranks.rank[0].comm);
	unload();
}
END_TEST

/* A rank that fails stops the others, says why, and the next step is as ever. */
START_TEST(a_rank_that_fails_fails_the_step)
{
	static float want[N_TOKENS], got[N_TOKENS];
	struct load_error err = {""};
	struct kv_pool *pool;

	ck_assert_int_eq(load(2, GGUF_TENSOR_Q8_0, &err), 0);
	score(0, N_TOKENS, want);
	for (uint32_t bad = 0; bad < 2; bad++) {
		struct kv_layout none;

		/* a pool without the second layer: it fails behind the first one's sums */
		ck_assert_int_eq(kv_layout_init(&none, KV_FORMAT_FP16, KV_FORMAT_FP16, 1,
						TINY_KV_HEADS / 2, TINY_HEAD_DIM, 16),
				 0);
		ck_assert_int_eq(ranks.rank[bad].device.backend->pool_open(
					 ranks.rank[bad].device.dev, &none,
					 N_SEQS * SEQ_BLOCKS, 0, -1, 0, &pool),
				 0);
		ranks.rank[bad].runner.pool = pool;
		plan_reset(&plan);
		add_rows(0, 0, 20);
		ck_assert_int_eq(run(), -EINVAL);
		ck_assert_uint_eq(result.n_outputs, 0);
		ranks.rank[bad].runner.pool = ranks.rank[bad].pool;
		ranks.rank[bad].device.backend->pool_close(pool);
		score(0, N_TOKENS, got);
		ck_assert_mem_eq(got + 1, want + 1, sizeof(got) - sizeof(got[0]));
	}
	unload();
}
END_TEST

START_TEST(what_cannot_be_divided_is_refused_by_key)
{
	struct load_error err = {""};

	ck_assert_int_eq(load(3, GGUF_TENSOR_F32, &err), -ENOTSUP);
	ck_assert_msg(strstr(err.text, "2 KV heads") &&
			      strstr(err.text, "[model] tensor_parallel_size"),
		      "%s", err.text);
	unload();
	/* 256 columns in groups of 256 */
	ck_assert_int_eq(load(2, GGUF_TENSOR_Q4_K, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, "attn_output") &&
			      strstr(err.text, "[model] tensor_parallel_size"),
		      "%s", err.text);
	unload();
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("ranks");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, two_ranks_compute_what_one_does, 0, N_TYPES);
	tcase_add_test(tc, one_rank_is_as_before);
	tcase_add_test(tc, a_rank_that_fails_fails_the_step);
	tcase_add_test(tc, what_cannot_be_divided_is_refused_by_key);
	return run_case("ranks", tc);
}
