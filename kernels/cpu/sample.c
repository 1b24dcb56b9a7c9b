/* SPDX-License-Identifier: MIT */
/*
 * See sample.h. Ordering a whole vocabulary for each token would cost more than a layer,
 * so candidates stand in a heap and only as many are taken as the parameters keep.
 */
#include "kernels/cpu/sample.h"

#include <errno.h>
#include <math.h>

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

/* Move the likeliest of the first @left to place left - 1. Return: its weight. */
static double take_likeliest(uint32_t *heap, const float *logits, float max,
			     float temperature, uint32_t left)
{
	uint32_t id = heap[0];

	heap[0] = heap[left - 1];
	heap[left - 1] = id;
	sift_down(logits, heap, left - 1, 0);
	return weight(logits[id], max, temperature);
}

/*
 * min_p drops what is less likely than min_p times the likeliest; top_k keeps the k likeliest of
 * the rest; top_p the likeliest of those up to that share of their sum. Sums are in double, in
 * order of falling probability (or of ids, where nothing is dropped).
 */
int32_t sample_draw(const float *logits, uint32_t n, float max,
		    const struct kv_sample_params *params, uint64_t position,
		    uint32_t *heap)
{
	float temperature = params->temperature;
	double u = sample_uniform(params->seed, position);
	double total = 0.0, kept = 0.0, at = 0.0;
	uint32_t n_left = 0, n_taken = 0, n_kept = 0, limit;

	if (!params->top_k && params->top_p >= 1.0f && params->min_p <= 0.0f)
		return draw_all(logits, n, max, temperature, u);

	for (uint32_t i = 0; i < n; i++) {
		double w = weight(logits[i], max, temperature);

		if (w < (double)params->min_p)
			continue;
		heap[n_left++] = i;
		total += w;
	}
	for (uint32_t i = n_left / 2; i-- > 0;)
		sift_down(logits, heap, n_left, i);
	limit = params->top_k && params->top_k < n_left ? params->top_k : n_left;
	/* top_p is a share of what top_k leaves, so that is summed up first. */
	if (limit < n_left)
		for (total = 0.0; n_taken < limit; n_taken++)
			total += take_likeliest(heap, logits, max, temperature,
						n_left - n_taken);
	/* The likeliest stand at the end of the heap's array, the first of them last. */
	while (n_kept < limit && (!n_kept || kept < (double)params->top_p * total)) {
		if (n_kept == n_taken) {
			take_likeliest(heap, logits, max, temperature, n_left - n_taken);
			n_taken++;
		}
		n_kept++;
		kept += weight(logits[heap[n_left - n_kept]], max, temperature);
	}
	for (uint32_t i = 1; i < n_kept; i++) {
		at += weight(logits[heap[n_left - i]], max, temperature);
		if (at > u * kept)
			return (int32_t)heap[n_left - i];
	}
	return (int32_t)heap[n_left - n_kept];
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
};

static int output_run(struct output_job *job, threads_fn *fn, bool heaps)
{
	struct threads *threads = job->st->dev->threads;
	size_t n_heaps = threads_count(threads);

	if (job->n == 0 || job->ld < job->n || job->n_units > KV_MAX_OP_ROWS)
		return -EINVAL;
	if (job->n_units < n_heaps)
		n_heaps = job->n_units;
	if (heaps &&
	    scratch_reserve(&job->st->heaps, n_heaps * job->n * sizeof(uint32_t)) < 0)
		return -ENOMEM;
	threads_run(threads, fn, job, job->n_units);
	return 0;
}

/* There are as many heaps as threads, or as units, whichever are fewer. */
static uint32_t *heap_of(const struct output_job *job, uint32_t unit, uint32_t thread)
{
	uint32_t n_threads = threads_count(job->st->dev->threads);

	return (uint32_t *)job->st->heaps.mem +
	       (size_t)(job->n_units < n_threads ? unit : thread) * job->n;
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
				    heap_of(job, unit, thread));
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
	bool heaps = false;

	for (uint32_t i = 0; i < m; i++) {
		if (rows[i].target >= 0 && (uint32_t)rows[i].target >= n)
			return -EINVAL;
		heaps |= rows[i].target < 0 && rows[i].params.temperature > 0.0f;
	}
	return output_run(&job, sample_unit, heaps);
}

static void top_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct output_job *job = arg;
	const struct kv_top *top = &job->tops[unit];
	const float *x = job->logits + top->row * job->ld;
	struct kv_logits_stat stat;

	job->st->dev->ops.logits(x, job->n, &stat);
	if (top->ids)
		sample_top(x, job->n, heap_of(job, unit, thread), top->n, top->ids);
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
	};

	for (uint32_t i = 0; i < n_rows; i++)
		if (rows[i].row >= KV_MAX_OP_ROWS ||
		    (rows[i].ids ? rows[i].n > n : rows[i].n != n))
			return -EINVAL;
	return output_run(&job, top_unit, true);
}
