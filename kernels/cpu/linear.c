/* SPDX-License-Identifier: MIT */
/* Splits a linear layer into panels times row chunks and gives them to the threads. */
#include <errno.h>

#include "kernels/cpu/device.h"

/*
 * CHUNK_BYTES of activation codes stay in one core's cache; up to FEW_ROWS rows a unit has at
 * least UNIT_BYTES of weights; from MANY_ROWS on act_many and gemm_many are used if there.
 */
enum {
	CHUNK_BYTES = 1 << 20,
	UNIT_BYTES = 16 << 10,
	FEW_ROWS = 4,
	MANY_ROWS = 32,
	MANY_CHUNK_BYTES = 1200 << 10,
	MANY_BLOCK = 2 * KV_ACT_TILE_ROWS,
	UNITS_PER_THREAD = 8,
};

/**
 * struct linear_job - one call of the op
 * @many: act is that of act_many
 * @n_chunks, @chunk_rows: pieces of the rows
 * @n_runs, @run_panels: pieces of the panels; a unit is a run of a chunk
 * @scratch_bytes: of one thread
 */
struct linear_job {
	struct kv_stream *st;
	const struct kv_linear *args;
	struct kv_act act;
	bool many;
	uint32_t n_chunks, chunk_rows;
	uint32_t n_runs, run_panels;
	size_t scratch_bytes;
};

static void act_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct linear_job *job = arg;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	kv_act_fn *act = job->many ? ops->act_many : ops->act;

	for (uint32_t i = row0; i < row0 + n_rows; i++)
		act((const float *)job->args->x + i * job->args->ldx, &job->act, i);
}

static void panel_run(const struct linear_job *job, uint32_t p, uint32_t m0, uint32_t m1,
		      uint8_t *scratch)
{
	const struct kv_linear *a = job->args;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	const struct weight_segment *seg = a->w->segments;
	uint32_t col, left;

	while (p >= seg->panel0 + seg->n_panels)
		seg++;
	p -= seg->panel0;
	col = seg->col0 + p * KV_PANEL;
	left = seg->n - p * KV_PANEL;

	struct kv_gemm g = {
		.panel = seg->panels + p * seg->panel_bytes,
		.k = a->w->k,
		.zero_shift = seg->zero_shift,
		.n_cols = left < KV_PANEL ? left : KV_PANEL,
		.m0 = m0,
		.m1 = m1,
		.act = &job->act,
		.x = a->x,
		.ldx = a->ldx,
		.y = (float *)a->y + col,
		.ldy = a->ldy,
		.bias = a->bias ? a->bias + col : NULL,
		.scratch = scratch,
	};
	if (job->many && seg->form < KV_FORM_N_INT)
		ops->gemm_many[seg->form](&g);
	else
		ops->gemm[seg->form](&g);
}

/* Units run through all panels of one row chunk before the next chunk starts. */
static void linear_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct linear_job *job = arg;
	uint32_t chunk = unit / job->n_runs, p = unit % job->n_runs * job->run_panels;
	uint32_t m0 = chunk * job->chunk_rows, m1 = m0 + job->chunk_rows;
	uint32_t end = p + job->run_panels;
	uint8_t *scratch = (uint8_t *)job->st->gemm.mem + thread * job->scratch_bytes;

	if (m1 > job->args->m)
		m1 = job->args->m;
	if (end > job->args->w->n_panels)
		end = job->args->w->n_panels;
	for (; p < end; p++)
		panel_run(job, p, m0, m1, scratch);
}

static int act_prepare(struct linear_job *job)
{
	struct kv_stream *st = job->st;
	size_t m = job->args->m, k = job->args->w->k, code_bytes = job->many ? 4 : 2;
	size_t sums, scales;
	uint8_t *p;
	int r;

	if (job->many)
		m = (m + KV_ACT_TILE_ROWS - 1) / KV_ACT_TILE_ROWS * KV_ACT_TILE_ROWS;
	sums = m * (k / KV_GROUP) * sizeof(float);
	scales = (m * sizeof(float) + 63) / 64 * 64;
	sums = (sums + 63) / 64 * 64;
	r = scratch_reserve(&st->act_codes, m * k * code_bytes);
	if (r == 0)
		r = scratch_reserve(&st->act_sums, scales + sums * 3);
	if (r < 0)
		return r;
	p = st->act_sums.mem;
	job->act = (struct kv_act){
		.codes = st->act_codes.mem,
		.scale = (float *)p,
		.sum = (float *)(p + scales),
		.half_sum = (int32_t *)(p + scales + sums),
		.k = (uint32_t)k,
	};
	rows_run(st->dev, act_rows, job, job->args->m, (uint32_t)k / 4);
	return 0;
}

/* Chunks of about the same size, in whole blocks. */
static uint32_t many_chunk_rows(uint32_t m, uint32_t k)
{
	uint32_t most = MANY_CHUNK_BYTES / (4 * k), n;

	most = most < 2 * MANY_BLOCK ? 2 * MANY_BLOCK : most;
	n = (m + most - 1) / most;
	return ((m + n - 1) / n + MANY_BLOCK - 1) / MANY_BLOCK * MANY_BLOCK;
}

static void split(struct linear_job *job)
{
	const struct kv_weight *w = job->args->w;
	uint32_t n_threads = threads_count(job->st->dev->threads), m = job->args->m;
	uint32_t chunk = CHUNK_BYTES / (2 * w->k) / 12 * 12;

	job->chunk_rows = chunk < 96 ? 96 : chunk;
	if (job->many)
		job->chunk_rows = many_chunk_rows(m, w->k);
	if (job->chunk_rows > m)
		job->chunk_rows = m;
	job->n_chunks = (m + job->chunk_rows - 1) / job->chunk_rows;
	job->run_panels = 1;
	if (m <= FEW_ROWS) {
		uint32_t least = 1 + UNIT_BYTES / (w->k * KV_PANEL / 2);
		uint32_t fair = w->n_panels / (n_threads * UNITS_PER_THREAD);

		job->run_panels = fair > least ? fair : least;
	}
	job->n_runs = (w->n_panels + job->run_panels - 1) / job->run_panels;
}

int cpu_linear(struct kv_stream *st, const struct kv_linear *args)
{
	struct linear_job job = {.st = st, .args = args};
	const struct kv_weight *w = args->w;
	int r;

	if (args->ldx < w->k || args->ldy < w->n || args->m > KV_MAX_OP_ROWS)
		return -EINVAL;
	if (args->m == 0)
		return 0;
	job.many = st->dev->ops.act_many && w->any_int && args->m >= MANY_ROWS;
	if (w->any_int) {
		r = act_prepare(&job);
		if (r < 0)
			return r;
	}
	job.scratch_bytes = (kv_gemm_scratch(w->k) + 63) / 64 * 64;
	r = scratch_reserve(&st->gemm,
			    job.scratch_bytes * threads_count(st->dev->threads));
	if (r < 0)
		return r;
	split(&job);
	threads_run(st->dev->threads, linear_unit, &job, job.n_chunks * job.n_runs);
	return 0;
}
