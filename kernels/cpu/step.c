/* SPDX-License-Identifier: MIT */
/* The loaded batch, and the ops that treat rows one by one. */
#include <errno.h>
#include <string.h>

#include "kernels/cpu/device.h"

enum { PIECE_NS = 4000 }; /* work worth handing to another thread */

static void rows_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct rows_job *job = arg;
	uint32_t row0 = unit * job->piece;
	uint32_t n = job->n_rows - row0 < job->piece ? job->n_rows - row0 : job->piece;

	job->fn(job->arg, row0, n);
}

void rows_run(struct kv_device *dev, void (*fn)(void *, uint32_t, uint32_t), void *arg,
	      uint32_t n_rows, uint32_t ns_per_row)
{
	struct rows_job job = {fn, arg, n_rows, 1 + PIECE_NS / (ns_per_row + 1)};

	if (n_rows <= job.piece) {
		if (n_rows > 0)
			fn(arg, 0, n_rows);
		return;
	}
	threads_run(dev->threads, rows_unit, &job, (n_rows + job.piece - 1) / job.piece);
}

/* --- batch -------------------------------------------------------------------------- */

int cpu_batch_load(struct kv_stream *st, const struct kv_batch *batch)
{
	uint32_t row = 0, *row_entry;
	int r;

	st->batch_id = 0;
	if (batch->n_rows > KV_MAX_OP_ROWS)
		return -EINVAL;
	r = scratch_reserve(&st->row_entry,
			    ((size_t)batch->n_rows + 1) * sizeof(uint32_t));
	if (r < 0)
		return r;
	row_entry = st->row_entry.mem;
	for (uint32_t i = 0; i < batch->n_entries; i++) {
		const struct kv_batch_entry *e = &batch->entries[i];

		if (e->row0 != row || e->n_rows == 0 || e->n_rows > batch->n_rows - row)
			return -EINVAL;
		if (e->block_off > batch->n_blocks ||
		    e->n_blocks > batch->n_blocks - e->block_off)
			return -EINVAL;
		if ((uint64_t)e->pos0 + e->n_rows > INT32_MAX)
			return -EINVAL;
		for (uint32_t k = 0; k < e->n_rows; k++)
			row_entry[row++] = i;
	}
	if (row != batch->n_rows)
		return -EINVAL;
	st->batch = *batch;
	st->batch_id = ++st->dev->next_id;
	return 0;
}

int batch_check_blocks(struct kv_stream *st, const struct kv_pool *pool)
{
	const struct kv_batch *b = &st->batch;

	if (st->batch_id == 0)
		return -EINVAL;
	if (st->checked_batch_id == st->batch_id && st->checked_pool_id == pool->id)
		return 0;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];

		if ((uint64_t)e->n_blocks * pool->layout.block_tokens <
		    (uint64_t)e->pos0 + e->n_rows)
			return -EINVAL;
		if (kv_layout_needs_tail(&pool->layout) && e->tail >= pool->n_tails)
			return -EINVAL;
		for (uint32_t k = 0; k < e->n_blocks; k++)
			if (b->blocks[e->block_off + k] >= pool->n_blocks)
				return -EINVAL;
	}
	st->checked_batch_id = st->batch_id;
	st->checked_pool_id = pool->id;
	return 0;
}

/* --- rows --------------------------------------------------------------------------- */

struct rows_args {
	struct kv_device *dev;
	const float *x;
	float *y;
	size_t ldx, ldy;
	uint32_t n;
	const struct kv_norm *norm;
	const uint32_t *index;
	const struct kv_table *table;
};

static void embed_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct rows_args *a = arg;
	const struct kv_weight_part *p = &a->table->part;

	for (uint32_t i = row0; i < row0 + n_rows; i++)
		kv_row_dequantize(p->type, p->k,
				  (const uint8_t *)p->data +
					  a->index[i] * a->table->row_bytes,
				  a->y + i * a->ldy);
}

int cpu_embed(struct kv_stream *st, const struct kv_table *table, void *y, size_t ldy)
{
	const struct kv_batch *b = &st->batch;
	struct rows_args a = {
		.index = b->tokens,
		.table = table,
		.y = y,
		.ldy = ldy,
	};

	if (st->batch_id == 0 || ldy < table->part.k)
		return -EINVAL;
	for (uint32_t i = 0; i < b->n_rows; i++)
		if (b->tokens[i] >= table->part.n)
			return -EINVAL;
	rows_run(st->dev, embed_rows, &a, b->n_rows, table->part.k);
	return 0;
}

static void rms_norm_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct rows_args *a = arg;
	const struct kv_norm *norm = a->norm;

	for (uint32_t i = row0; i < row0 + n_rows; i++) {
		const float *add = norm->add;
		float *x = (float *)norm->x + i * norm->ldx;

		for (uint32_t j = 0; add && j < norm->d; j++)
			x[j] += add[i * norm->ldadd + j];
		a->dev->ops.rms_norm(x, norm->w, norm->eps,
				     (float *)norm->y + i * norm->ldy, norm->d);
	}
}

int cpu_rms_norm(struct kv_stream *st, const struct kv_norm *args)
{
	struct rows_args a = {.dev = st->dev, .norm = args};

	if (args->d == 0 || args->ldx < args->d || args->ldy < args->d ||
	    (args->add && args->ldadd < args->d) || args->m > KV_MAX_OP_ROWS)
		return -EINVAL;
	rows_run(st->dev, rms_norm_rows, &a, args->m, args->d / 4);
	return 0;
}

static void silu_mul_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct rows_args *a = arg;

	for (uint32_t i = row0; i < row0 + n_rows; i++) {
		const float *x = a->x + i * a->ldx;

		a->dev->ops.silu_mul(x, x + a->n, a->y + i * a->ldy, a->n);
	}
}

int cpu_silu_mul(struct kv_stream *st, const void *x, size_t ldx, void *y, size_t ldy,
		 uint32_t m, uint32_t d)
{
	struct rows_args a = {
		.dev = st->dev,
		.x = x,
		.ldx = ldx,
		.y = y,
		.ldy = ldy,
		.n = d,
	};

	if (d == 0 || ldx / 2 < d || ldy < d || m > KV_MAX_OP_ROWS)
		return -EINVAL;
	rows_run(st->dev, silu_mul_rows, &a, m, d);
	return 0;
}

static void gather_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct rows_args *a = arg;

	for (uint32_t i = row0; i < row0 + n_rows; i++)
		memcpy(a->y + i * a->ldy, a->x + a->index[i] * a->ldx,
		       a->n * sizeof(float));
}

int cpu_gather_rows(struct kv_stream *st, const void *x, size_t ldx, const uint32_t *rows,
		    void *y, size_t ldy, uint32_t m, uint32_t d)
{
	struct rows_args a = {
		.x = x,
		.ldx = ldx,
		.index = rows,
		.y = y,
		.ldy = ldy,
		.n = d,
	};

	if (d == 0 || ldx < d || ldy < d || m > KV_MAX_OP_ROWS)
		return -EINVAL;
	rows_run(st->dev, gather_rows, &a, m, d / 8);
	return 0;
}
