/* SPDX-License-Identifier: MIT */
/* Draws over many positions against the exact probabilities; seeds are fixed, so the
 * outcome is too. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/sample.h"
#include "tests/unit/suite.h"

#define N_VOCAB 8
#define N_DRAWS 40000

/* Probabilities at temperature 1 are 2^-1 .. 2^-7 and 2^-7, not in order of id. */
static const int powers[N_VOCAB] = {3, 1, 7, 2, 5, 4, 7, 6};

static void check_shares(struct kv_sample_params params, const double *want)
{
	float logits[N_VOCAB], max;
	unsigned counts[N_VOCAB] = {0};
	uint32_t heap[2 * N_VOCAB];

	for (int i = 0; i < N_VOCAB; i++)
		logits[i] = 3.0f - (float)powers[i] * logf(2.0f);
	max = logits[1];
	for (uint64_t pos = 0; pos < N_DRAWS; pos++)
		counts[sample_draw(logits, N_VOCAB, max, &params, pos, heap)]++;
	for (int i = 0; i < N_VOCAB; i++) {
		double sigma = sqrt(N_DRAWS * want[i] * (1 - want[i]));

		ck_assert_msg(fabs(counts[i] - N_DRAWS * want[i]) <= 4 * sigma,
			      "token %d: %u draws, %.0f expected", i, counts[i],
			      N_DRAWS * want[i]);
	}
}

static struct kv_sample_params params(float temperature, uint32_t top_k, float top_p,
				      float min_p)
{
	return (struct kv_sample_params){.temperature = temperature,
					 .top_k = top_k,
					 .top_p = top_p,
					 .min_p = min_p,
					 .seed = 42};
}

START_TEST(shares)
{
	double p[N_VOCAB], sum = 0;

	for (int i = 0; i < N_VOCAB; i++)
		p[i] = ldexp(1, -powers[i]);
	check_shares(params(1, 0, 1, 0), p);
	/* half the temperature squares the weights */
	for (int i = 0; i < N_VOCAB; i++)
		sum += p[i] * p[i];
	for (int i = 0; i < N_VOCAB; i++)
		p[i] = ldexp(1, -2 * powers[i]) / sum;
	check_shares(params(0.5f, 0, 1, 0), p);
	/* the two likeliest: 1/2 and 1/4 */
	check_shares(params(1, 2, 1, 0), (double[N_VOCAB]){[1] = 2 / 3., [3] = 1 / 3.});
	/* three of them reach 0.8 of the whole */
	check_shares(params(1, 0, 0.8f, 0),
		     (double[N_VOCAB]){[1] = 4 / 7., [3] = 2 / 7., [0] = 1 / 7.});
	/* of what top_k leaves (1/2, 1/4, 1/8 of 7/8), two reach 0.8 */
	check_shares(params(1, 3, 0.8f, 0),
		     (double[N_VOCAB]){[1] = 2 / 3., [3] = 1 / 3.});
	/* those at least a fifth as likely as the likeliest */
	check_shares(params(1, 0, 1, 0.2f),
		     (double[N_VOCAB]){[1] = 4 / 7., [3] = 2 / 7., [0] = 1 / 7.});
	check_shares(params(1, 1, 1, 0), (double[N_VOCAB]){[1] = 1});
	check_shares(params(1, 0, 1e-9f, 0), (double[N_VOCAB]){[1] = 1});
	check_shares(params(1, 0, 1, 1), (double[N_VOCAB]){[1] = 1});
}
END_TEST

START_TEST(ties_go_to_the_lower_id)
{
	float logits[N_VOCAB] = {1, 2, 2, 2, 1, 2, 0, 0};
	struct kv_sample_params p = params(1, 2, 1, 0);
	uint32_t heap[2 * N_VOCAB];

	for (uint64_t pos = 0; pos < 1000; pos++) {
		int32_t id = sample_draw(logits, N_VOCAB, 2, &p, pos, heap);

		ck_assert(id == 1 || id == 2);
	}
}
END_TEST

START_TEST(uniform_by_seed_and_position)
{
	double sum = 0, cross = 0;

	for (uint64_t i = 0; i < 10000; i++) {
		double a = sample_uniform(i % 100, i / 100);

		ck_assert(a >= 0 && a < 1);
		ck_assert(a == sample_uniform(i % 100, i / 100));
		sum += a;
		cross += (a - 0.5) * (sample_uniform(i % 100 + 1, i / 100) - 0.5);
		ck_assert(a != sample_uniform(i % 100, i / 100 + 1));
	}
	/* mean of 10,000: sigma 0.0029; covariance of neighbours: sigma 0.0008 */
	ck_assert(fabs(sum / 10000 - 0.5) < 0.012);
	ck_assert(fabs(cross / 10000) < 0.0035);
}
END_TEST

START_TEST(top_is_the_head_of_a_sort)
{
	enum { N = 300 };
	uint32_t heap[N];
	float logits[N];
	uint32_t ids[N];

	for (int i = 0; i < N; i++)
		logits[i] = (float)((i * 37) % 50);
	for (uint32_t n = 1; n <= N; n += 23) {
		bool taken[N] = {false};

		sample_top(logits, N, heap, n, ids);
		for (uint32_t k = 0; k < n; k++) {
			uint32_t best = N;

			for (uint32_t i = 0; i < N; i++)
				if (!taken[i] && (best == N || logits[i] > logits[best]))
					best = i;
			ck_assert_uint_eq(ids[k], best);
			taken[best] = true;
		}
	}
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("sampler");

	tcase_add_test(tc, shares);
	tcase_add_test(tc, ties_go_to_the_lower_id);
	tcase_add_test(tc, uniform_by_seed_and_position);
	tcase_add_test(tc, top_is_the_head_of_a_sort);
	return run_case("sampler", tc);
}
