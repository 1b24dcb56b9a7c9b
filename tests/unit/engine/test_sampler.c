/* SPDX-License-Identifier: MIT */
/*
 * The sampler against another way to the same draw: here the candidates are sorted whole
 * and every weight is kept, there bins show which of them need an order.
 */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/sample.h"
#include "tests/unit/suite.h"

#include "ipc/base.h"

#define N 5000

static uint32_t heap[2 * N];
static float logits[N];
static const float *sorted_by;

static float max_of(const float *v)
{
	float max = v[0];

	for (int i = 1; i < N; i++)
		if (v[i] > max)
			max = v[i];
	return max;
}

static int32_t draw(float temperature, float top_p, float min_p, uint32_t top_k,
		    uint64_t seed, uint64_t position)
{
	struct kv_sample_params params = {
		.temperature = temperature,
		.top_p = top_p,
		.min_p = min_p,
		.top_k = top_k,
		.seed = seed,
	};

	return sample_draw(logits, N, max_of(logits), &params, position, heap);
}

static int by_logit(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	if (sorted_by[x] != sorted_by[y])
		return sorted_by[x] > sorted_by[y] ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* What sample.h says, step by step. Return: how many stay; ids and weights of those. */
static uint32_t survivors(float temperature, float top_p, float min_p, uint32_t top_k,
			  uint32_t *ids, double *weights)
{
	double sum = 0.0, kept = 0.0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < N; i++)
		ids[i] = i;
	sorted_by = logits;
	qsort(ids, N, sizeof(ids[0]), by_logit);
	for (uint32_t i = 0; i < N && (!top_k || i < top_k); i++) {
		double w = exp(((double)logits[ids[i]] - (double)logits[ids[0]]) /
			       (double)temperature);

		if (w < (double)min_p)
			break;
		weights[n++] = w;
		sum += w;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (i && kept >= (double)top_p * sum)
			return i;
		kept += weights[i];
	}
	return n;
}

static void fill(unsigned seed, float spread)
{
	srand(seed);
	for (int i = 0; i < N; i++)
		logits[i] = spread * ((float)rand() / (float)RAND_MAX - 0.5f);
}

/* Source of the generator's values: SplitMix64 finalizer in Python,
 *   m = (1 << 64) - 1
 *   def mix(x): x = (x + 0x9e3779b97f4a7c15) & m
 *               x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & m
 *               x = ((x ^ x >> 27) * 0x94d049bb133111eb) & m; return x ^ x >> 31
 *   (mix(mix(seed) ^ position) >> 11) * 2.0**-53
 */
START_TEST(uniform_is_the_published_function)
{
	ck_assert(sample_uniform(0, 0) == 0x1.4e0dba5e9a32fp-1);
	ck_assert(sample_uniform(1, 0) == 0x1.7906ac21d0e58p-2);
	ck_assert(sample_uniform(0, 1) == 0x1.169fb51912560p-5);
	ck_assert(sample_uniform(UINT64_MAX, 123456789) == 0x1.e2032af94832fp-1);
}
END_TEST

/* Logits as @kind says: of a model; all equal; a few values; one far above; far apart; the same
 * in steps that a float can just tell; some impossible. */
static void fill_odd(unsigned kind)
{
	fill(kind + 40, 12.0f);
	for (int i = 0; i < N; i++) {
		switch (kind) {
		case 1:
			logits[i] = 3.5f;
			break;
		case 2:
			logits[i] = (float)(i * 7 % 5);
			break;
		case 3:
			logits[i] = i == 123 ? 80.0f : logits[i];
			break;
		case 4:
			logits[i] *= 1e4f;
			break;
		case 5:
			logits[i] = 100.0f + (float)(i * 37 % 1001) * 0x1p-17f;
			break;
		case 6:
			logits[i] = i % 3 ? logits[i] : i % 2 ? -INFINITY : -0.0f;
			break;
		}
	}
}

/* Every token that is drawn is the one at which the sum of those before it passes u; all of them
 * are what the parameters keep. */
static void check_draws(float temperature, float top_p, float min_p, uint32_t top_k,
			unsigned kind)
{
	static uint32_t ids[N];
	static double weights[N];
	double sum = 0.0;
	uint32_t n = survivors(temperature, top_p, min_p, top_k, ids, weights);

	for (uint32_t i = 0; i < n; i++)
		sum += weights[i];
	for (uint64_t at = 0; at < 60; at++) {
		double u = sample_uniform(kind, at), before = 0.0;
		int32_t got = draw(temperature, top_p, min_p, top_k, kind, at);
		uint32_t i = 0;

		for (; i < n && (int32_t)ids[i] != got; i++)
			before += weights[i];
		ck_assert_msg(i < n, "kind %u, temperature %g: %d was dropped", kind,
			      temperature, (int)got);
		ck_assert_msg(u * sum > before - 1e-9 * sum &&
				      u * sum < before + weights[i] + 1e-9 * sum,
			      "kind %u, temperature %g, top_p %g, top_k %u: %d", kind,
			      temperature, top_p, top_k, (int)got);
	}
}

START_TEST(odd_logits_are_drawn_as_any)
{
	for (unsigned kind = 0; kind < 7; kind++) {
		fill_odd(kind);
		check_draws(1.0f, 0.9f, 0.0f, 0, kind);
		check_draws(100.0f, 0.9999f, 0.0f, 0, kind);
		check_draws(1e30f, 0.5f, 0.0f, 0, kind);
		check_draws(1e-3f, 0.9999f, 0.0f, 0, kind);
		check_draws(0.7f, 0.95f, 0.05f, 40, kind);
		check_draws(100.0f, 1.0f, 0.0f, N - 1, kind);
		check_draws(2.0f, 0.8f, 0.0f, 1024, kind);
		check_draws(5.0f, 1.0f, 0.01f, 0, kind);
		check_draws(1.0f, 0.99f, 0.0f, 64, kind);
		check_draws(1.0f, 0.99f, 0.0f, 65, kind);
	}
}
END_TEST

START_TEST(draws_are_where_the_sum_says)
{
	static const struct {
		float temperature, top_p, min_p;
		uint32_t top_k;
	} cases[] = {
		{1.0f, 1.0f, 0.0f, 0},      {1.0f, 0.9f, 0.0f, 0},
		{0.7f, 0.95f, 0.05f, 40},   {2.0f, 1.0f, 0.1f, 0},
		{1.0f, 1.0f, 0.0f, 7},      {1.0f, 0.5f, 0.0f, N},
		{1.0f, 0.5f, 0.0f, 10 * N}, {100.0f, 0.99f, 0.0f, 0},
		{0.3f, 1e-6f, 0.0f, 0},     {0.5f, 0.8f, 1e-9f, 100},
	};
	static uint32_t ids[N];
	static double weights[N];

	for (size_t c = 0; c < KVD_ARRAY_LEN(cases); c++) {
		uint32_t n;
		double sum = 0.0;

		fill((unsigned)c + 1, 12.0f);
		n = survivors(cases[c].temperature, cases[c].top_p, cases[c].min_p,
			      cases[c].top_k, ids, weights);
		for (uint32_t i = 0; i < n; i++)
			sum += weights[i];
		for (uint64_t at = 0; at < 300; at++) {
			double u = sample_uniform(c, at), before = 0.0;
			int32_t got = draw(cases[c].temperature, cases[c].top_p,
					   cases[c].min_p, cases[c].top_k, c, at);
			bool all = !cases[c].top_k && cases[c].top_p >= 1.0f &&
				   cases[c].min_p <= 0.0f;
			double w = 0.0;

			/* In order of ids where nothing is dropped, else of probability. */
			for (uint32_t i = 0; i < n; i++) {
				if ((int32_t)ids[i] == got)
					w = weights[i];
				else if (all && (int32_t)ids[i] < got)
					before += weights[i];
			}
			if (!all)
				for (uint32_t i = 0; (int32_t)ids[i] != got; i++)
					before += weights[i];
			ck_assert_msg(w > 0.0, "case %zu: %d was dropped", c, (int)got);
			ck_assert_msg(u * sum > before - 1e-9 * sum &&
					      u * sum < before + w + 1e-9 * sum,
				      "case %zu, position %d: %d", c, (int)at, (int)got);
		}
	}
}
END_TEST

/* However it is said, one candidate is the likeliest, and of equals the lowest id. */
START_TEST(one_candidate_is_greedy)
{
	fill(3, 10.0f);
	logits[77] = logits[300] = 20.0f;
	for (uint64_t at = 0; at < 50; at++) {
		ck_assert_int_eq(draw(1.0f, 1.0f, 0.0f, 1, 5, at), 77);
		ck_assert_int_eq(draw(100.0f, 1.0f, 0.0f, 1, 5, at), 77);
		ck_assert_int_eq(draw(1.0f, 1e-30f, 0.0f, 0, 5, at), 77);
		ck_assert_int_eq(draw(1.0f, 1e-30f, 1.0f, 3, 5, at), 77);
	}
}
END_TEST

START_TEST(min_p_of_one_keeps_the_equals)
{
	bool seen[2] = {false, false};

	fill(4, 10.0f);
	logits[77] = logits[300] = 20.0f;
	for (uint64_t at = 0; at < 100; at++) {
		int32_t got = draw(1.0f, 1.0f, 1.0f, 0, 5, at);

		ck_assert(got == 77 || got == 300);
		seen[got == 300] = true;
	}
	ck_assert(seen[0] && seen[1]);
}
END_TEST

START_TEST(cold_is_greedy)
{
	fill(5, 1.0f);
	logits[200] = 1.0f;
	for (uint64_t at = 0; at < 50; at++) {
		ck_assert_int_eq(draw(1e-6f, 1.0f, 0.0f, 0, 5, at), 200);
		ck_assert_int_eq(draw(1e-6f, 0.9f, 0.1f, 40, 5, at), 200);
		ck_assert_int_eq(draw(1e-45f, 1.0f, 0.0f, 0, 5, at), 200);
		ck_assert_int_eq(draw(1e-45f, 0.9f, 0.1f, 40, 5, at), 200);
	}
}
END_TEST

START_TEST(impossible_tokens_are_never_drawn)
{
	for (int i = 0; i < N; i++)
		logits[i] = i % 100 == 50 ? 1.0f : -INFINITY;
	for (uint64_t at = 0; at < 200; at++) {
		ck_assert_int_eq(draw(1.0f, 1.0f, 0.0f, 0, 6, at) % 100, 50);
		ck_assert_int_eq(draw(100.0f, 1.0f, 0.0f, 40, 6, at) % 100, 50);
		ck_assert_int_eq(draw(100.0f, 0.999f, 0.0f, 0, 6, at) % 100, 50);
	}
}
END_TEST

/* A model that computes nonsense yields some token, not a wild read; the runner refuses
 * its logprob. */
START_TEST(nonsense_stays_in_range)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f};

	for (int k = 0; k < 4; k++) {
		for (int i = 0; i < N; i++)
			logits[i] = i % 3 ? odd[k] : odd[(i / 3) % 4];
		for (uint64_t at = 0; at < 20; at++) {
			int32_t a = draw(1.0f, 1.0f, 0.0f, 0, 7, at);
			int32_t b = draw(1.0f, 0.9f, 0.1f, 0, 7, at);
			int32_t c = draw(1.0f, 0.9f, 0.0f, 40, 7, at);

			ck_assert(a >= 0 && a < N && b >= 0 && b < N && c >= 0 && c < N);
		}
	}
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("sampler");

	tcase_add_test(tc, uniform_is_the_published_function);
	tcase_add_test(tc, draws_are_where_the_sum_says);
	tcase_add_test(tc, odd_logits_are_drawn_as_any);
	tcase_add_test(tc, one_candidate_is_greedy);
	tcase_add_test(tc, min_p_of_one_keeps_the_equals);
	tcase_add_test(tc, cold_is_greedy);
	tcase_add_test(tc, impossible_tokens_are_never_drawn);
	tcase_add_test(tc, nonsense_stays_in_range);
	return run_case("sampler", tc);
}
