/* SPDX-License-Identifier: MIT */
/*
 * See sampler.h. Ordering a whole vocabulary for each token would cost more than a layer,
 * so candidates stand in a heap and only as many are taken as the parameters keep.
 */
#include "daemon/model/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

int sampler_init(struct sampler *sampler, uint32_t n_vocab)
{
	sampler->n_vocab = n_vocab;
	sampler->heap = calloc(n_vocab, sizeof(*sampler->heap));
	return sampler->heap ? 0 : -ENOMEM;
}

void sampler_deinit(struct sampler *sampler)
{
	free(sampler->heap);
	*sampler = (struct sampler){0};
}

static uint64_t mix64(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

double sampler_uniform(uint64_t seed, uint64_t position)
{
	return (double)(mix64(mix64(seed) ^ position) >> 11) * 0x1p-53;
}

static bool likelier(const float *logits, uint32_t a, uint32_t b)
{
	return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t i)
{
	uint32_t id = heap[i];

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && likelier(logits, heap[child + 1], heap[child]))
			child++;
		if (!likelier(logits, heap[child], id))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = id;
}

static double weight(float logit, float max, float temperature)
{
	return exp(((double)logit - (double)max) / (double)temperature);
}

/* Nothing is dropped: one pass for the sum, one for the draw. */
static int32_t draw_all(const struct sampler *s, const float *logits, float max,
			float temperature, double u)
{
	double sum = 0.0, at = 0.0;
	int32_t last = 0;

	for (uint32_t i = 0; i < s->n_vocab; i++)
		sum += weight(logits[i], max, temperature);
	for (uint32_t i = 0; i < s->n_vocab; i++) {
		double w = weight(logits[i], max, temperature);

		at += w;
		if (w > 0.0)
			last = (int32_t)i;
		if (at > u * sum)
			return (int32_t)i;
	}
	return last; /* rounding left u * sum at the very end */
}

/* Move the likeliest of the first @left to place left - 1. Return: its weight. */
static double take_likeliest(struct sampler *s, const float *logits, float max,
			     float temperature, uint32_t left)
{
	uint32_t id = s->heap[0];

	s->heap[0] = s->heap[left - 1];
	s->heap[left - 1] = id;
	sift_down(logits, s->heap, left - 1, 0);
	return weight(logits[id], max, temperature);
}

int32_t sampler_draw(struct sampler *s, const float *logits, float max,
		     const struct sample_params *params, uint64_t position)
{
	float temperature = params->temperature;
	double u = sampler_uniform(params->seed, position);
	double total = 0.0, kept = 0.0, at = 0.0;
	uint32_t n = 0, n_taken = 0, n_kept = 0, limit;

	if (!params->top_k && params->top_p >= 1.0f && params->min_p <= 0.0f)
		return draw_all(s, logits, max, temperature, u);

	for (uint32_t i = 0; i < s->n_vocab; i++) {
		double w = weight(logits[i], max, temperature);

		if (w < (double)params->min_p)
			continue;
		s->heap[n++] = i;
		total += w;
	}
	for (uint32_t i = n / 2; i-- > 0;)
		sift_down(logits, s->heap, n, i);
	limit = params->top_k && params->top_k < n ? params->top_k : n;
	/* top_p is a share of what top_k leaves, so that is summed up first. */
	if (limit < n)
		for (total = 0.0; n_taken < limit; n_taken++)
			total += take_likeliest(s, logits, max, temperature, n - n_taken);
	/* The likeliest stand at the end of the heap's array, the first of them last. */
	while (n_kept < limit && (!n_kept || kept < (double)params->top_p * total)) {
		if (n_kept == n_taken) {
			take_likeliest(s, logits, max, temperature, n - n_taken);
			n_taken++;
		}
		n_kept++;
		kept += weight(logits[s->heap[n - n_kept]], max, temperature);
	}
	for (uint32_t i = 1; i < n_kept; i++) {
		at += weight(logits[s->heap[n - i]], max, temperature);
		if (at > u * kept)
			return (int32_t)s->heap[n - i];
	}
	return (int32_t)s->heap[n - n_kept];
}

void sampler_top(struct sampler *s, const float *logits, uint32_t n, uint32_t *ret_ids)
{
	for (uint32_t i = 0; i < s->n_vocab; i++)
		s->heap[i] = i;
	for (uint32_t i = s->n_vocab / 2; i-- > 0;)
		sift_down(logits, s->heap, s->n_vocab, i);
	for (uint32_t i = 0; i < n; i++) {
		ret_ids[i] = s->heap[0];
		s->heap[0] = s->heap[s->n_vocab - 1 - i];
		sift_down(logits, s->heap, s->n_vocab - 1 - i, 0);
	}
}
