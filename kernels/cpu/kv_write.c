/* SPDX-License-Identifier: MIT */
/*
 * Writing of K and V, and partial blocks.
 *
 * Where the layout needs tails, each block that an entry touches has fp16 planes of the layer
 * at work: the last one those in the sequence's tail slot, the others ("kept") those in
 * scratch. So a decoding sequence writes its slot in place, and a block that a prefill begins
 * and ends never sees the slot. Rows go to these planes; blocks that are full are then packed
 * into the pool. A first block whose beginning is in the slot moves to scratch before the last
 * block, another one, takes the slot.
 */
#include <errno.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/half.h"

static uint32_t first_block(const struct kv_batch_entry *e, uint32_t bt)
{
	return e->pos0 / bt;
}

static uint32_t last_block(const struct kv_batch_entry *e, uint32_t bt)
{
	return (e->pos0 + e->n_rows - 1) / bt;
}

/* Bytes of the planes of all heads of one layer, in a tail slot as in scratch. */
static size_t layer_bytes(const struct kv_layout *l)
{
	return l->n_kv_heads * 2 * l->tail_plane_bytes;
}

/* fp16 planes of head 0 of block number index of an entry. */
static uint8_t *block_planes(const struct kv_stream *st, const struct kv_pool *pool,
			     uint32_t layer, uint32_t entry, uint32_t index)
{
	const struct kv_layout *l = &pool->layout;
	const struct kv_batch_entry *e = &st->batch.entries[entry];
	const uint32_t *kept0 = st->own.kept0.mem;

	if (index == last_block(e, l->block_tokens))
		return pool->tails + e->tail * l->tail_bytes +
		       kv_layout_tail_off(l, layer, 0);
	index = kept0[entry] + index - first_block(e, l->block_tokens);
	return (uint8_t *)st->own.planes.mem + index * layer_bytes(l);
}

uint16_t *own_planes(const struct kv_stream *st, const struct kv_pool *pool,
		     uint32_t layer, uint32_t entry, uint32_t pos, uint32_t kv_head)
{
	const struct kv_layout *l = &pool->layout;

	return (uint16_t *)(block_planes(st, pool, layer, entry, pos / l->block_tokens) +
			    kv_head * 2 * l->tail_plane_bytes);
}

bool own_ready(const struct kv_stream *st, const struct kv_pool *pool, uint32_t layer)
{
	const struct kv_own *own = &st->own;

	return own->batch_id == st->batch_id && own->pool_id == pool->id &&
	       (own->n_kept == 0 || own->layer == layer);
}

/* Which blocks the batch touches: once for all layers. */
static int own_update(struct kv_stream *st, const struct kv_pool *pool)
{
	const struct kv_layout *l = &pool->layout;
	const struct kv_batch *b = &st->batch;
	struct kv_own *own = &st->own;
	uint32_t *kept0, *full;
	size_t n_full = 0;
	uint64_t n_kept = 0;
	int r;

	if (own->batch_id == st->batch_id && own->pool_id == pool->id)
		return 0;
	own->batch_id = 0;
	r = scratch_reserve(&own->kept0, ((size_t)b->n_entries + 1) * sizeof(*kept0));
	if (r < 0)
		return r;
	kept0 = own->kept0.mem;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];

		kept0[i] = (uint32_t)n_kept;
		n_kept +=
			last_block(e, l->block_tokens) - first_block(e, l->block_tokens);
	}
	r = scratch_reserve(&own->planes, (n_kept + 1) * layer_bytes(l));
	if (r < 0)
		return r;
	/* All kept blocks are full, and one more of each entry may be. */
	r = scratch_reserve(&own->full, (n_kept + b->n_entries + 1) * 2 * sizeof(*full));
	if (r < 0)
		return r;
	full = own->full.mem;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];
		uint32_t end = (e->pos0 + e->n_rows) / l->block_tokens;

		for (uint32_t k = first_block(e, l->block_tokens); k < end; k++) {
			full[2 * n_full] = i;
			full[2 * n_full++ + 1] = k;
		}
	}
	own->n_kept = (uint32_t)n_kept;
	own->n_full = (uint32_t)n_full;
	own->batch_id = st->batch_id;
	own->pool_id = pool->id;
	return 0;
}

int kv_write_begin(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer)
{
	const struct kv_layout *l = &pool->layout;
	const struct kv_batch *b = &st->batch;
	int r;

	if (!kv_layout_needs_tail(l))
		return 0;
	r = own_update(st, pool);
	if (r < 0)
		return r;
	st->own.layer = layer;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];
		uint32_t first = first_block(e, l->block_tokens);

		if (e->pos0 % l->block_tokens != 0 &&
		    first != last_block(e, l->block_tokens))
			memcpy(block_planes(st, pool, layer, i, first),
			       pool->tails + e->tail * l->tail_bytes +
				       kv_layout_tail_off(l, layer, 0),
			       layer_bytes(l));
	}
	return 0;
}

static struct kv_plane k_plane(const struct kv_layout *l, uint32_t layer, uint32_t head,
			       uint8_t *block)
{
	uint8_t *at = block + kv_layout_head_off(l, layer, head);

	return (struct kv_plane){
		.codes = at,
		.params = at + l->k_params_at,
		.pair = (uint16_t *)(block + kv_layout_pair_off(l, layer, head)),
		.head_dim = l->head_dim,
		.block_tokens = l->block_tokens,
	};
}

static struct kv_plane v_plane(const struct kv_layout *l, uint32_t layer, uint32_t head,
			       uint8_t *block)
{
	uint8_t *at = block + kv_layout_head_off(l, layer, head);

	return (struct kv_plane){
		.codes = at + l->v_at,
		.params = at + l->v_params_at,
		.head_dim = l->head_dim,
		.block_tokens = l->block_tokens,
	};
}

void kv_write_row(const struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
		  uint32_t entry, uint32_t pos, uint32_t head, const float *k,
		  const float *v)
{
	const struct kv_layout *l = &pool->layout;
	const struct kv_cpu_ops *ops = &st->dev->ops;
	_Alignas(64) float k_turned[KV_HEAD_DIM_MAX], v_turned[KV_HEAD_DIM_MAX];
	uint32_t token = pos % l->block_tokens;
	enum kv_format k_format = l->k_format, v_format = l->v_format;
	struct kv_plane kp, vp;

	if (kv_layout_k_rotated(l)) {
		memcpy(k_turned, k, l->head_dim * sizeof(*k));
		ops->rotate(k_turned, l->head_dim, false);
		k = k_turned;
	}
	if (kv_layout_v_rotated(l)) {
		memcpy(v_turned, v, l->head_dim * sizeof(*v));
		ops->rotate(v_turned, l->head_dim, false);
		v = v_turned;
	}
	if (kv_layout_needs_tail(l)) {
		uint16_t *planes = own_planes(st, pool, layer, entry, pos, head);

		kp = (struct kv_plane){planes, NULL, NULL, l->head_dim, l->block_tokens};
		vp = kp;
		vp.codes = planes + l->tail_plane_bytes / 2;
		k_format = v_format = KV_FORMAT_FP16;
	} else {
		uint8_t *block =
			batch_block(&st->batch, &st->batch.entries[entry], pool, pos);

		kp = k_plane(l, layer, head, block);
		vp = v_plane(l, layer, head, block);
	}
	ops->store_k[k_format](k, &kp, token);
	ops->store_v[v_format](v, &vp, token);
}

/* --- full blocks -------------------------------------------------------------------- */

struct pack_job {
	struct kv_stream *st;
	const struct kv_pool *pool;
	uint32_t layer;
};

static void pack_k(const struct kv_cpu_ops *ops, enum kv_format format,
		   const uint16_t *src, const struct kv_plane *dst)
{
	uint32_t bt = dst->block_tokens;
	_Alignas(64) float x[KV_HEAD_DIM_MAX];

	if (format == KV_FORMAT_INT4) {
		ops->pack_k4(src, dst);
		return;
	}
	if (format == KV_FORMAT_FP16) {
		memcpy(dst->codes, src, (size_t)dst->head_dim * bt * 2);
		return;
	}
	for (uint32_t t = 0; t < bt; t++) {
		for (uint32_t d = 0; d < dst->head_dim; d++)
			x[d] = kv_half_to_float(src[d * bt + t]);
		ops->store_k[format](x, dst, t);
	}
}

static void pack_v(const struct kv_cpu_ops *ops, enum kv_format format,
		   const uint16_t *src, const struct kv_plane *dst)
{
	uint32_t hd = dst->head_dim;
	_Alignas(64) float x[KV_HEAD_DIM_MAX];

	if (format == KV_FORMAT_INT4) {
		ops->pack_v4(src, dst);
		return;
	}
	if (format == KV_FORMAT_FP16) {
		memcpy(dst->codes, src, (size_t)hd * dst->block_tokens * 2);
		return;
	}
	for (uint32_t t = 0; t < dst->block_tokens; t++) {
		for (uint32_t d = 0; d < hd; d++)
			x[d] = kv_half_to_float(src[t * hd + d]);
		ops->store_v[format](x, dst, t);
	}
}

/* Unit = full block, all heads. */
static void pack_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct pack_job *job = arg;
	const struct kv_stream *st = job->st;
	const struct kv_layout *l = &job->pool->layout;
	const uint32_t *full = st->own.full.mem;
	uint32_t entry = full[2 * unit], pos = full[2 * unit + 1] * l->block_tokens;
	uint8_t *block =
		batch_block(&st->batch, &st->batch.entries[entry], job->pool, pos);

	for (uint32_t h = 0; h < l->n_kv_heads; h++) {
		const uint16_t *src =
			own_planes(st, job->pool, job->layer, entry, pos, h);
		struct kv_plane kp = k_plane(l, job->layer, h, block);
		struct kv_plane vp = v_plane(l, job->layer, h, block);

		pack_k(&st->dev->ops, l->k_format, src, &kp);
		pack_v(&st->dev->ops, l->v_format, src + l->tail_plane_bytes / 2, &vp);
	}
}

void kv_write_end(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer)
{
	struct pack_job job = {st, pool, layer};

	if (!kv_layout_needs_tail(&pool->layout))
		return;
	threads_run(st->dev->threads, pack_unit, &job, st->own.n_full);
}
