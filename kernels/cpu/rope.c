/* SPDX-License-Identifier: MIT */
/* Rotary embedding of q and k. Where k and v then go: kv_write.c. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/device.h"

/* Source: Su et al., RoFormer, section 3.4.2: angle of pair i at position p is
 * p * base^(-2i / dims), here with the linear scale and the per-frequency divisors that
 * model files may add. In double, so that the angle of a far position is right. */
int cpu_rope_new(struct kv_device *dev, const struct kv_rope_params *p,
		 struct kv_rope **ret_rope)
{
	uint32_t n = p->rope_dims / 2;
	struct kv_rope *rope;

	if (n == 0 || p->rope_dims % 2 || p->rope_dims > KV_HEAD_DIM_MAX)
		return -EINVAL;
	if (p->mode != KV_ROPE_NORMAL && p->mode != KV_ROPE_NEOX)
		return -EINVAL;
	if (!(p->freq_base > 0) || !(p->freq_scale > 0))
		return -EINVAL;
	for (uint32_t i = 0; p->freq_factors && i < n; i++)
		if (!(p->freq_factors[i] > 0))
			return -EINVAL;
	rope = calloc(1, sizeof(*rope));
	if (!rope)
		return -ENOMEM;
	rope->freq = calloc(n, sizeof(*rope->freq));
	if (!rope->freq) {
		free(rope);
		return -ENOMEM;
	}
	rope->dev = dev;
	rope->mode = p->mode;
	rope->rope_dims = p->rope_dims;
	for (uint32_t i = 0; i < n; i++) {
		double f = pow(p->freq_base, -2.0 * i / p->rope_dims) * p->freq_scale;

		rope->freq[i] = p->freq_factors ? f / p->freq_factors[i] : f;
	}
	*ret_rope = rope;
	return 0;
}

void cpu_rope_free(struct kv_rope *rope)
{
	if (!rope)
		return;
	scratch_release(&rope->cs);
	free(rope->freq);
	free(rope);
}

struct rope_job {
	struct kv_stream *st;
	struct kv_rope *rope;
	struct kv_pool *pool;
	const struct kv_qkv *args;
	uint32_t layer;
};

static void angle_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct rope_job *job = arg;
	const struct kv_batch *b = &job->st->batch;
	const uint32_t *row_entry = job->st->row_entry.mem;
	uint32_t n = job->rope->rope_dims / 2;

	for (uint32_t i = row0; i < row0 + n_rows; i++) {
		const struct kv_batch_entry *e = &b->entries[row_entry[i]];
		double pos = e->pos0 + (i - e->row0);
		float *cs = (float *)job->rope->cs.mem + (size_t)i * job->rope->rope_dims;

		for (uint32_t k = 0; k < n; k++) {
			cs[k] = (float)cos(pos * job->rope->freq[k]);
			cs[n + k] = (float)sin(pos * job->rope->freq[k]);
		}
	}
}

/* The first row from row i on that begins a group of tokens, or its entry's part of one. */
static uint32_t group_start(const struct kv_stream *st, uint32_t i)
{
	const uint32_t *row_entry = st->row_entry.mem;

	for (; i > 0 && i < st->batch.n_rows && row_entry[i] == row_entry[i - 1]; i++) {
		const struct kv_batch_entry *e = &st->batch.entries[row_entry[i]];

		if ((e->pos0 + (i - e->row0)) % KV_GROUP_TOKENS == 0)
			break;
	}
	return i;
}

static void rope_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct rope_job *job = arg;
	uint32_t first = group_start(job->st, row0);
	uint32_t end = group_start(job->st, row0 + n_rows);
	const struct kv_qkv *a = job->args;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	const struct kv_layout *l = &job->pool->layout;
	const struct kv_batch *b = &job->st->batch;
	const uint32_t *row_entry = job->st->row_entry.mem;

	for (uint32_t i = first; i < end; i++) {
		const struct kv_batch_entry *e = &b->entries[row_entry[i]];
		uint32_t pos = e->pos0 + (i - e->row0);
		const float *cs =
			(float *)job->rope->cs.mem + (size_t)i * job->rope->rope_dims;
		float *row = (float *)a->qkv + i * a->ld;

		for (uint32_t h = 0; h < a->n_heads; h++)
			ops->rope(row + a->q_off + h * l->head_dim, cs,
				  job->rope->rope_dims, job->rope->mode);
		for (uint32_t h = 0; h < l->n_kv_heads; h++) {
			float *k = row + a->k_off + h * l->head_dim;

			ops->rope(k, cs, job->rope->rope_dims, job->rope->mode);
			kv_write_row(job->st, job->pool, job->layer, row_entry[i], pos, h,
				     k, row + a->v_off + h * l->head_dim);
		}
	}
}

int cpu_rope_kv_write(struct kv_stream *st, struct kv_rope *rope, struct kv_pool *pool,
		      uint32_t layer, const struct kv_qkv *args)
{
	struct rope_job job = {st, rope, pool, args, layer};
	const struct kv_layout *l = &pool->layout;
	uint32_t n_rows = st->batch.n_rows;
	int r;

	if (layer >= l->n_layers || rope->rope_dims > l->head_dim || args->n_heads == 0)
		return -EINVAL;
	r = batch_check_blocks(st, pool);
	if (r < 0)
		return r;
	if (rope->batch_id != st->batch_id) {
		rope->batch_id = 0;
		r = scratch_reserve(&rope->cs, ((size_t)n_rows + 1) * rope->rope_dims *
						       sizeof(float));
		if (r < 0)
			return r;
		rows_run(st->dev, angle_rows, &job, n_rows, rope->rope_dims * 20);
		rope->batch_id = st->batch_id;
	}
	r = kv_write_begin(st, pool, layer);
	if (r < 0)
		return r;
	rows_run(st->dev, rope_rows, &job, n_rows,
		 (args->n_heads + 2 * l->n_kv_heads) * l->head_dim);
	kv_write_end(st, pool, layer);
	return 0;
}
