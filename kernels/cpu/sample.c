/* SPDX-License-Identifier: MIT */
/*
 * See sample.h. A draw costs time in proportion to the vocabulary, whatever its parameters keep:
 * one pass counts and sums the candidates in bins of falling probability, which shows the bins
 * that matter; those are sorted by radix.
 */
#include "kernels/cpu/sample.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/device.h"

static uint64_t mix64(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* Source: SplitMix64 (Steele, Lea, Flood 2014), its finalizer applied twice. */
double sample_uniform(uint64_t seed, uint64_t position)
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
static int32_t draw_all(const float *logits, uint32_t n, float max, float temperature,
			double u)
{
	double sum = 0.0, at = 0.0;
	int32_t last = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += weight(logits[i], max, temperature);
	for (uint32_t i = 0; i < n; i++) {
		double w = weight(logits[i], max, temperature);

		at += w;
		if (w > 0.0)
			last = (int32_t)i;
		if (at > u * sum)
			return (int32_t)i;
	}
	return last; /* rounding left u * sum at the very end */
}

/* Bins of an eighth of a nat; the last one has all that is less likely. */
#define N_BINS       512
#define BINS_PER_NAT 8

static uint32_t bin_of(float logit, float max, float temperature)
{
	double nats = ((double)max - (double)logit) / (double)temperature;

	if (!(nats > 0))
		return 0;
	return nats < N_BINS / BINS_PER_NAT ? (uint32_t)(nats * BINS_PER_NAT)
					    : N_BINS - 1;
}

/* Of equal logits an equal one; of a lower one a higher one. -0 is 0. */
static uint32_t falling_key(float logit)
{
	uint32_t bits;

	logit += 0.0f;
	memcpy(&bits, &logit, sizeof(bits));
	return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

#define RADIX_BITS 11
#define RADIX      (1u << RADIX_BITS)

/* By falling logit; equal ones stay as they are. Return: @ids or @other, where they are then. */
static uint32_t *sort_falling(const float *logits, uint32_t *ids, uint32_t *other,
			      uint32_t n)
{
	if (n <= 64) {
		for (uint32_t i = 1; i < n; i++) {
			uint32_t id = ids[i], at = i;
			uint32_t key = falling_key(logits[id]);

			for (; at && falling_key(logits[ids[at - 1]]) > key; at--)
				ids[at] = ids[at - 1];
			ids[at] = id;
		}
		return ids;
	}
	for (uint32_t shift = 0; shift < 32; shift += RADIX_BITS) {
		uint32_t begin[RADIX] = {0}, sum = 0, *swap = other;

		for (uint32_t i = 0; i < n; i++)
			begin[falling_key(logits[ids[i]]) >> shift & (RADIX - 1)]++;
		for (uint32_t i = 0; i < RADIX; i++) {
			uint32_t count = begin[i];

			begin[i] = sum;
			sum += count;
		}
		for (uint32_t i = 0; i < n; i++) {
			uint32_t key = falling_key(logits[ids[i]]);

			other[begin[key >> shift & (RADIX - 1)]++] = ids[i];
		}
		other = ids;
		ids = swap;
	}
	return ids;
}

/**
 * struct candidates - what min_p leaves, by probability
 * @count, @sum: of each bin, the likeliest first; the sum of weights
 * @n, @total: of all bins; the total in order of ids
 */
struct candidates {
	uint32_t count[N_BINS];
	double sum[N_BINS];
	uint32_t n;
	double total;
};

/* Writes their ids to @ids as well. */
static void candidates_find(struct candidates *c, const float *logits, uint32_t n,
			    float max, const struct kv_sample_params *params,
			    uint32_t *ids)
{
	memset(c, 0, sizeof(*c));
	for (uint32_t i = 0; i < n; i++) {
		double w = weight(logits[i], max, params->temperature);
		uint32_t bin;

		if (w < (double)params->min_p)
			continue;
		bin = bin_of(logits[i], max, params->temperature);
		c->count[bin]++;
		c->sum[bin] += w;
		c->total += w;
		ids[c->n++] = i;
	}
}

/* How many bins have the @limit likeliest, or those that come to @share, whichever are fewer. */
static uint32_t bins_needed(const struct candidates *c, uint32_t limit, double share)
{
	uint32_t n = 0, bin = 0;
	double sum = 0;

	/* sums are rounded in other orders than this: some more is enough */
	share *= 1 + 1e-9;
	while (bin < N_BINS && n < limit && (!n || sum < share)) {
		n += c->count[bin];
		sum += c->sum[bin++];
	}
	return bin;
}

/*
 * min_p drops what is less likely than min_p times the likeliest; top_k keeps the k likeliest of
 * the rest; top_p the likeliest of those up to that share of their sum. Sums are in double, in
 * order of falling probability (or of ids, where nothing is dropped).
 */
int32_t sample_draw(const float *logits, uint32_t n, float max,
		    const struct kv_sample_params *params, uint64_t position,
		    uint32_t *scratch)
{
	float temperature = params->temperature;
	double u = sample_uniform(params->seed, position);
	double total, share, kept = 0.0, at = 0.0;
	uint32_t n_near = 0, n_kept = 0, limit, n_bins, *ids = scratch;
	struct candidates c;
	bool cut;

	if (!params->top_k && params->top_p >= 1.0f && params->min_p <= 0.0f)
		return draw_all(logits, n, max, temperature, u);

	candidates_find(&c, logits, n, max, params, ids);
	cut = params->top_k && params->top_k < c.n;
	limit = cut ? params->top_k : c.n;
	total = c.total;
	n_bins = bins_needed(&c, limit, cut ? INFINITY : (double)params->top_p * total);
	for (uint32_t i = 0; i < c.n; i++)
		if (bin_of(logits[ids[i]], max, temperature) < n_bins)
			ids[n_near++] = ids[i];
	ids = sort_falling(logits, ids, scratch + n, n_near);
	if (limit > n_near)
		limit = n_near;
	/* top_p is a share of what top_k leaves, so that is summed up first */
	if (cut) {
		total = 0.0;
		for (uint32_t i = 0; i < limit; i++)
			total += weight(logits[ids[i]], max, temperature);
	}
	share = (double)params->top_p * total;
	while (n_kept < limit && (!n_kept || kept < share))
		kept += weight(logits[ids[n_kept++]], max, temperature);
	for (uint32_t i = 0; i + 1 < n_kept; i++) {
		at += weight(logits[ids[i]], max, temperature);
		if (at > u * kept)
			return (int32_t)ids[i];
	}
	return n_kept ? (int32_t)ids[n_kept - 1] : 0;
}

void sample_top(const float *logits, uint32_t n, uint32_t *heap, uint32_t n_top,
		uint32_t *ret_ids)
{
	for (uint32_t i = 0; i < n; i++)
		heap[i] = i;
	for (uint32_t i = n / 2; i-- > 0;)
		sift_down(logits, heap, n, i);
	for (uint32_t i = 0; i < n_top; i++) {
		ret_ids[i] = heap[0];
		heap[0] = heap[n - 1 - i];
		sift_down(logits, heap, n - 1 - i, 0);
	}
}

/* --- ops: a row a unit, as rows are long and few ------------------------------------- */

struct output_job {
	struct kv_stream *st;
	const float *logits;
	size_t ld;
	uint32_t n, n_units;
	const struct kv_sample *rows;
	struct kv_token *tokens;
	const struct kv_top *tops;
	size_t scratch; /* words for each thread */
};

static int output_run(struct output_job *job, threads_fn *fn)
{
	struct threads *threads = job->st->dev->threads;
	size_t n_heaps = threads_count(threads);

	if (job->n == 0 || job->ld < job->n || job->n_units > KV_MAX_OP_ROWS)
		return -EINVAL;
	if (job->n_units < n_heaps)
		n_heaps = job->n_units;
	if (job->scratch &&
	    scratch_reserve(&job->st->heaps, n_heaps * job->scratch * sizeof(uint32_t)) <
		    0)
		return -ENOMEM;
	threads_run(threads, fn, job, job->n_units);
	return 0;
}

/* There are as many pieces as threads, or as units, whichever are fewer. */
static uint32_t *scratch_of(const struct output_job *job, uint32_t unit, uint32_t thread)
{
	uint32_t n_threads = threads_count(job->st->dev->threads);

	return (uint32_t *)job->st->heaps.mem +
	       (size_t)(job->n_units < n_threads ? unit : thread) * job->scratch;
}

static void sample_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct output_job *job = arg;
	const struct kv_sample *row = &job->rows[unit];
	const float *x = job->logits + unit * job->ld;
	struct kv_logits_stat stat;
	int32_t token;
	float logprob;

	job->tokens[unit] = (struct kv_token){-1, NAN};
	job->st->dev->ops.logits(x, job->n, &stat);
	if (!isfinite(stat.lse))
		return;
	token = row->target;
	if (token < 0)
		token = (int32_t)stat.argmax;
	if (row->target < 0 && row->params.temperature > 0.0f)
		token = sample_draw(x, job->n, stat.max, &row->params, row->position,
				    scratch_of(job, unit, thread));
	logprob = x[token] - stat.lse;
	if (isfinite(logprob))
		job->tokens[unit] = (struct kv_token){token, logprob};
}

int cpu_sample(struct kv_stream *st, const void *logits, size_t ld, uint32_t n,
	       const struct kv_sample *rows, struct kv_token *tokens, uint32_t m)
{
	struct output_job job = {
		.st = st,
		.logits = logits,
		.ld = ld,
		.n = n,
		.n_units = m,
		.rows = rows,
		.tokens = tokens,
	};

	for (uint32_t i = 0; i < m; i++) {
		if (rows[i].target >= 0 && (uint32_t)rows[i].target >= n)
			return -EINVAL;
		if (rows[i].target < 0 && rows[i].params.temperature > 0.0f)
			job.scratch = 2 * (size_t)n;
	}
	return output_run(&job, sample_unit);
}

static void top_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct output_job *job = arg;
	const struct kv_top *top = &job->tops[unit];
	const float *x = job->logits + top->row * job->ld;
	struct kv_logits_stat stat;

	job->st->dev->ops.logits(x, job->n, &stat);
	if (top->ids)
		sample_top(x, job->n, scratch_of(job, unit, thread), top->n, top->ids);
	for (uint32_t i = 0; i < top->n; i++)
		top->logprobs[i] = x[top->ids ? top->ids[i] : i] - stat.lse;
}

int cpu_top(struct kv_stream *st, const void *logits, size_t ld, uint32_t n,
	    const struct kv_top *rows, uint32_t n_rows)
{
	struct output_job job = {
		.st = st,
		.logits = logits,
		.ld = ld,
		.n = n,
		.n_units = n_rows,
		.tops = rows,
		.scratch = n,
	};

	for (uint32_t i = 0; i < n_rows; i++)
		if (rows[i].row >= KV_MAX_OP_ROWS ||
		    (rows[i].ids ? rows[i].n > n : rows[i].n != n))
			return -EINVAL;
	return output_run(&job, top_unit);
}
