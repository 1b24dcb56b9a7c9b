/* SPDX-License-Identifier: MIT */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/cpu_backend.h"
#include "kernels/cpu_features.h"
#include "tests/unit/model/harness.h"
#include "tests/unit/model/tiny-model.h"
#include "tests/unit/suite.h"

static const uint32_t masks[] = {
	KV_CPU_C,
	KV_CPU_C | KV_CPU_AVX2,
	KV_CPU_C | KV_CPU_AVX2 | KV_CPU_AVX512,
	KV_CPU_C | KV_CPU_AVX2 | KV_CPU_AVX512 | KV_CPU_AVX512VNNI,
	KV_CPU_ALL,
};

#define N_MASKS KVD_ARRAY_LEN(masks)

static const uint32_t types[] = {
	GGUF_TENSOR_F32,  GGUF_TENSOR_F16,  GGUF_TENSOR_BF16, GGUF_TENSOR_Q4_0,
	GGUF_TENSOR_Q4_1, GGUF_TENSOR_Q5_0, GGUF_TENSOR_Q5_1, GGUF_TENSOR_Q8_0,
	GGUF_TENSOR_Q4_K, GGUF_TENSOR_Q5_K, GGUF_TENSOR_Q6_K,
};

#define N_TYPES KVD_ARRAY_LEN(types)

static bool have(uint32_t mask)
{
	return kv_cpu_features_masked(mask) == mask;
}

static void random_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
	uint64_t state = seed * 2 + 1;

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)(tiny_random(&state) >> 16) & 63;
}

static void open_tiny(struct harness *h, const struct image *im, uint32_t mask,
		      uint32_t n_threads, uint32_t n_seqs)
{
	struct load_error err;
	struct gguf *gguf;

	ck_assert_int_eq(gguf_open_memory(&gguf, "tiny", im->data, im->len, &err), 0);
	harness_init(h, gguf, mask, n_threads, n_seqs, TINY_CONTEXT, 400);
	gguf_free(gguf);
}

/* Each weight type, in each variant, against the same model in double. */
START_TEST(every_type_is_right)
{
	struct image im = tiny_model(types[_i], _i % 2, (uint64_t)_i + 1);
	double want[40], sum, max;
	int32_t tokens[40];
	float got[40];
	struct harness h;

	random_tokens(tokens, 40, 7);
	tiny_reference(&im, tokens, 40, want);
	for (size_t m = 0; m < N_MASKS; m++) {
		if (!have(masks[m]))
			continue;
		open_tiny(&h, &im, masks[m], 2, 1);
		harness_score_all(&h, 0, tokens, 40, 16, got);
		sum = max = 0;
		for (int i = 1; i < 40; i++) {
			double d = fabs(got[i] - want[i]);

			sum += d;
			max = d > max ? d : max;
		}
		printf("%s %s: mean abs error %.6f, worst %.6f\n",
		       gguf_tensor_type_name(types[_i]), kv_cpu_bundle_name(masks[m]),
		       sum / 39, max);
		ck_assert_msg(sum / 39 <= 0.005 && max <= 0.05,
			      "%s: mean error %g, worst %g",
			      gguf_tensor_type_name(types[_i]), sum / 39, max);
		harness_deinit(&h);
	}
	image_free(&im);
}
END_TEST

/* The bits of a row do not depend on how the prompt was cut, on neighbours in the batch,
 * on threads, or on which blocks hold it. */
START_TEST(bits_do_not_depend_on_the_batch)
{
	static const uint32_t chunks[] = {300, 1, 7, 64};
	struct image im = tiny_model(types[_i], 0, 99);
	static int32_t tokens[300], other[3][300];
	static float want[300], got[300];
	struct harness h;

	random_tokens(tokens, 300, 1);
	for (size_t m = 0; m < N_MASKS; m++) {
		if (!have(masks[m]))
			continue;
		open_tiny(&h, &im, masks[m], 1, 1);
		harness_score_all(&h, 0, tokens, 300, 300, want);
		harness_deinit(&h);
		open_tiny(&h, &im, masks[m], 2, 4);
		for (size_t c = 0; c < KVD_ARRAY_LEN(chunks); c++) {
			harness_score_all(&h, c % 4, tokens, 300, chunks[c], got);
			ck_assert_mem_eq(got, want, sizeof(want));
		}
		/* among others of uneven lengths and positions, 40 rows a step */
		for (uint32_t s = 0; s < 3; s++)
			random_tokens(other[s], 300, s + 10);
		for (uint32_t pos = 0; pos < 300; pos += 40) {
			uint32_t n = 300 - pos < 40 ? 300 - pos : 40, row0;
			const struct plan_output_result *out;

			harness_begin(&h);
			harness_rows(&h, 1, other[0] + pos / 40, pos / 40, 1);
			harness_rows(&h, 2, other[1] + pos / 2, pos / 2, n / 2);
			row0 = harness_rows(&h, 0, tokens + pos, pos, n);
			for (uint32_t i = 0; i < n && pos + i + 1 < 300; i++)
				harness_score(&h, row0 + i, tokens[pos + i + 1]);
			harness_rows(&h, 3, other[2] + pos, pos, n);
			out = harness_run(&h);
			for (uint32_t i = 0; i < h.plan.n_outputs; i++)
				got[pos + i + 1] = out[i].logprob;
		}
		ck_assert_mem_eq(got, want, sizeof(want));
		harness_deinit(&h);
	}
	image_free(&im);
}
END_TEST

/* A drawn token is a function of context, seed and position. */
START_TEST(draws_do_not_depend_on_the_batch)
{
	struct image im = tiny_model(GGUF_TENSOR_Q4_1, 0, 5);
	struct kv_sample_params params = {
		.temperature = 1.0f, .top_p = 0.95f, .top_k = 40, .seed = 1234};
	struct plan_output_result alone, crowd;
	struct kv_sample_params others = params;
	int32_t tokens[20];
	struct harness h;

	random_tokens(tokens, 20, 3);
	open_tiny(&h, &im, 0, 2, 8);
	harness_begin(&h);
	harness_sample(&h, harness_rows(&h, 0, tokens, 0, 20) + 19, &params);
	alone = harness_run(&h)[0];
	harness_begin(&h);
	for (uint32_t s = 1; s < 8; s++) {
		others.seed = s;
		harness_sample(&h,
			       harness_rows(&h, s, tokens, 0, s == 5 ? 20 : s) +
				       (s == 5 ? 19 : s - 1),
			       s == 5 ? &params : &others);
	}
	crowd = harness_run(&h)[4];
	ck_assert_int_eq(crowd.token, alone.token);
	ck_assert_mem_eq(&crowd.logprob, &alone.logprob, sizeof(float));
	/* the logprob is of the raw logits: scoring the token gives the same */
	harness_begin(&h);
	harness_score(&h, harness_rows(&h, 0, tokens, 0, 20) + 19, alone.token);
	crowd = harness_run(&h)[0];
	ck_assert_mem_eq(&crowd.logprob, &alone.logprob, sizeof(float));
	harness_deinit(&h);
	image_free(&im);
}
END_TEST

/* Plans with rows that want nothing, and plans that only move blocks. */
START_TEST(odd_plans)
{
	struct image im = tiny_model(GGUF_TENSOR_Q8_0, 1, 5);
	struct plan_output_result before, after;
	int32_t tokens[20];
	struct harness h;

	random_tokens(tokens, 20, 3);
	open_tiny(&h, &im, 0, 1, 2);
	harness_begin(&h);
	harness_run(&h);
	harness_begin(&h);
	harness_rows(&h, 0, tokens, 0, 19);
	harness_run(&h);
	harness_begin(&h);
	harness_sample(&h, harness_rows(&h, 0, tokens + 19, 19, 1), NULL);
	before = harness_run(&h)[0];
	/* out of range: refused, and the runner stays usable */
	h.plan.tokens[0] = TINY_VOCAB;
	plan_result_reset(&h.result);
	runner_run(&h.runner, &h.plan, &h.result);
	ck_assert_int_eq(h.result.status, -EINVAL);
	ck_assert_uint_eq(h.result.n_outputs, 0);
	harness_begin(&h);
	harness_sample(&h, harness_rows(&h, 0, tokens + 19, 19, 1), NULL);
	after = harness_run(&h)[0];
	ck_assert_mem_eq(&before, &after, sizeof(after));
	harness_deinit(&h);
	image_free(&im);
}
END_TEST

/* Logits that are no numbers fail their own row; the bits of the others stay. */
START_TEST(one_row_without_numbers)
{
	struct image im = tiny_model(GGUF_TENSOR_F32, 0, 6);
	const uint8_t known[32] = {1};
	const float inf = INFINITY;
	const struct gguf_tensor *table;
	const struct plan_output_result *out;
	struct plan_output_result alone[2];
	int32_t good[12], bad[12];
	struct load_error err;
	struct gguf *gguf;
	struct harness h;
	size_t len;

	random_tokens(good, 12, 4);
	for (int i = 0; i < 12; i++) {
		good[i] = good[i] == 7 ? 8 : good[i];
		bad[i] = i == 5 ? 7 : good[i];
	}
	/* The embedding of token 7. */
	ck_assert_int_eq(gguf_open_memory(&gguf, "tiny", im.data, im.len, &err), 0);
	table = gguf_find_tensor(gguf, "token_embd.weight");
	ck_assert_ptr_nonnull(table);
	memcpy(im.data + (table->data - gguf_image(gguf, &len)) +
		       7 * table->dims[0] * sizeof(float),
	       &inf, sizeof(inf));
	/* such a file is refused, unless somebody says that it was looked at */
	harness_init_known(&h, gguf, known, 0, 1, 3, TINY_CONTEXT, 400);
	gguf_free(gguf);
	harness_begin(&h);
	harness_sample(&h, harness_rows(&h, 0, good, 0, 12) + 11, NULL);
	alone[0] = harness_run(&h)[0];
	harness_begin(&h);
	harness_score(&h, harness_rows(&h, 0, good, 0, 12) + 11, 3);
	alone[1] = harness_run(&h)[0];

	for (int hot = 0; hot < 2; hot++) {
		struct kv_sample_params params = {
			.temperature = (float)hot, .top_p = 0.9f, .seed = 1};

		harness_begin(&h);
		harness_sample(&h, harness_rows(&h, 0, good, 0, 12) + 11, NULL);
		harness_sample(&h, harness_rows(&h, 1, bad, 0, 12) + 11, &params);
		harness_score(&h, harness_rows(&h, 2, good, 0, 12) + 11, 3);
		out = harness_run(&h);
		ck_assert_mem_eq(&out[0], &alone[0], sizeof(alone[0]));
		ck_assert(isnan(out[1].logprob));
		ck_assert_mem_eq(&out[2], &alone[1], sizeof(alone[1]));
	}
	harness_deinit(&h);
	image_free(&im);
}
END_TEST

/* One changed bit of a weight is another model. */
START_TEST(fingerprint_sees_one_bit)
{
	struct image im = tiny_model(GGUF_TENSOR_Q4_0, 1, 5);
	uint8_t before[32];
	struct harness h;

	open_tiny(&h, &im, 0, 1, 1);
	memcpy(before, h.model.fingerprint, 32);
	harness_deinit(&h);
	open_tiny(&h, &im, 0, 1, 1);
	ck_assert_mem_eq(before, h.model.fingerprint, 32);
	harness_deinit(&h);
	im.data[im.len - 100] ^= 4;
	open_tiny(&h, &im, 0, 1, 1);
	ck_assert_mem_ne(before, h.model.fingerprint, 32);
	harness_deinit(&h);
	image_free(&im);
}
END_TEST

/* A row's distribution: the scores of its tokens stand in it, it sums up to one, and the
 * likeliest are those of a sort. */
START_TEST(distributions_agree_with_scores)
{
	struct image im = tiny_model(GGUF_TENSOR_Q4_1, 0, 5);
	enum { N = 6 };
	int32_t tokens[N];
	struct harness h;
	uint32_t n_vocab;

	random_tokens(tokens, N, 3);
	open_tiny(&h, &im, KV_CPU_ALL, 1, 1);
	n_vocab = h.model.params.n_vocab;
	for (uint32_t top = 0; top <= 5; top += 5) {
		struct plan_dist dist = {.top = top ? top : PLAN_DIST_ALL,
					 .words = top ? 2 * top : n_vocab};
		static float want[N][512];

		harness_begin(&h);
		harness_rows(&h, 0, tokens, 0, N);
		for (uint32_t i = 0; i < N; i++) {
			struct plan_output *o = &h.plan.outputs[i];

			if (i + 1 < N)
				harness_score(&h, i, tokens[i + 1]);
			else
				harness_sample(&h, i, NULL);
			if (i + 1 == N)
				o->kind = PLAN_DIST;
			o->dist = dist;
			o->dist.off = h.plan.n_dist_words;
			h.plan.n_dist_words += dist.words;
		}
		harness_run(&h);
		ck_assert_int_eq(h.result.outputs[N - 1].token, -1);
		for (uint32_t i = 0; i < N; i++) {
			const uint32_t *words = h.result.dist + i * dist.words;
			const float *lp = (const float *)(const void *)words;
			double sum = 0;

			if (top) {
				lp += top;
				for (uint32_t k = 0; k < top; k++) {
					ck_assert_float_eq(lp[k], want[i][words[k]]);
					ck_assert(!k || lp[k] <= lp[k - 1]);
				}
				for (uint32_t t = 0; t < n_vocab; t++)
					sum += want[i][t] > lp[top - 1];
				ck_assert_double_le(sum, top - 1);
				continue;
			}
			memcpy(want[i], lp, n_vocab * sizeof(float));
			for (uint32_t t = 0; t < n_vocab; t++)
				sum += exp((double)lp[t]);
			ck_assert_double_eq_tol(sum, 1, 1e-5);
			if (i + 1 < N)
				ck_assert_float_eq(lp[tokens[i + 1]],
						   h.result.outputs[i].logprob);
		}
	}
	harness_deinit(&h);
	image_free(&im);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("runner");

	tcase_set_timeout(tc, 300);
	tcase_add_loop_test(tc, every_type_is_right, 0, N_TYPES);
	tcase_add_loop_test(tc, bits_do_not_depend_on_the_batch, 3, 5);
	tcase_add_test(tc, draws_do_not_depend_on_the_batch);
	tcase_add_test(tc, odd_plans);
	tcase_add_test(tc, distributions_agree_with_scores);
	tcase_add_test(tc, one_row_without_numbers);
	tcase_add_test(tc, fingerprint_sees_one_bit);
	return run_case("runner", tc);
}
