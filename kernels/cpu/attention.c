/* SPDX-License-Identifier: MIT */
/*
 * Splits attention into units and gives them to the threads.
 *
 * A tile is some consecutive rows of one entry times the query heads (or up to
 * KV_SPAN_QUERIES of them) of one KV head. As a rule a unit is a tile and walks its spans in
 * order. When there are few tiles, as in decoding one long sequence, a unit is one span of
 * one tile, its result is put aside, and a second pass merges the spans in order. Both run
 * the same kernel and merge calls in the same order, so the bits are the same.
 */
#include <errno.h>
#include <string.h>

#include "kernels/cpu/device.h"

enum {
	TILES_ENOUGH = 4, /* per thread: no need to split spans                       */
	INLINE_NS = 4000,
};

/* Tiles of one entry: [row tile][kv head][head group], after those of earlier entries. */
struct attn_entry {
	uint32_t tile0, unit0, n_spans;
};

struct attn_job {
	struct kv_stream *st;
	const struct kv_pool *pool;
	const struct kv_attention *args;
	struct attn_entry
		*entries; /* [n_entries + 1], the last one holding the totals    */
	float *partials;  /* [units][KV_SPAN_QUERIES] of max, sum, o[head_dim]   */
	uint32_t layer;
	uint32_t n_rep; /* query heads of a KV head                            */
	uint32_t group_heads, n_groups;
	uint32_t tile_rows;
	bool split_spans;
};

struct tile {
	const struct kv_batch_entry *entry;
	uint32_t row0, n_rows; /* of the entry                                        */
	uint32_t kv_head, head0, n_heads;
	uint32_t n_q, n_spans;
};

struct tile_result {
	float max[KV_SPAN_QUERIES], sum[KV_SPAN_QUERIES];
	float o[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
};

static void tile_find(const struct attn_job *job, uint32_t entry, uint32_t index,
		      struct tile *ret)
{
	const struct kv_batch_entry *e = &job->st->batch.entries[entry];
	uint32_t n_kv = job->pool->layout.n_kv_heads;
	uint32_t group = index % job->n_groups;

	index /= job->n_groups;
	ret->entry = e;
	ret->kv_head = index % n_kv;
	ret->row0 = index / n_kv * job->tile_rows;
	ret->n_rows = e->n_rows - ret->row0;
	if (ret->n_rows > job->tile_rows)
		ret->n_rows = job->tile_rows;
	ret->head0 = group * job->group_heads;
	ret->n_heads = job->n_rep - ret->head0;
	if (ret->n_heads > job->group_heads)
		ret->n_heads = job->group_heads;
	ret->head0 += ret->kv_head * job->n_rep;
	ret->n_q = ret->n_rows * ret->n_heads;
	ret->n_spans = (e->pos0 + ret->row0 + ret->n_rows - 1) / KV_SPAN + 1;
}

/* Query q of a tile is head head0 + q % n_heads of row row0 + q / n_heads. */
static const float *tile_q(const struct attn_job *job, const struct tile *t, uint32_t q)
{
	uint32_t row = t->entry->row0 + t->row0 + q / t->n_heads;

	return job->args->q + row * job->args->ldq +
	       (size_t)(t->head0 + q % t->n_heads) * job->pool->layout.head_dim;
}

static float *tile_out(const struct attn_job *job, const struct tile *t, uint32_t q)
{
	uint32_t row = t->entry->row0 + t->row0 + q / t->n_heads;

	return job->args->out + row * job->args->ldo +
	       (size_t)(t->head0 + q % t->n_heads) * job->pool->layout.head_dim;
}

/* Queries side by side for each dim, as kernels take them. */
static void tile_scale_q(const struct attn_job *job, const struct tile *t, float *dst)
{
	uint32_t hd = job->pool->layout.head_dim;

	for (uint32_t q = 0; q < t->n_q; q++) {
		const float *src = tile_q(job, t, q);

		for (uint32_t d = 0; d < hd; d++)
			dst[d * KV_SPAN_QUERIES + q] = src[d] * job->args->scale;
	}
}

/*
 * Run one span of a tile. Rows before the span see nothing of it; they are the first ones,
 * so the kernel gets queries from first on. Return: first.
 */
static uint32_t tile_span(const struct attn_job *job, const struct tile *t, uint32_t span,
			  const float *q, struct tile_result *res)
{
	const struct kv_layout *l = &job->pool->layout;
	const struct kv_batch *b = &job->st->batch;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	_Alignas(64) float s[KV_SPAN_QUERIES * KV_SPAN];
	uint32_t start = span * KV_SPAN, pos0 = t->entry->pos0 + t->row0, first = 0,
		 n_tok = 0;
	struct kv_span sp = {
		.head_dim = l->head_dim,
		.block_tokens = l->block_tokens,
		.s = s,
	};

	if (pos0 < start)
		first = (start - pos0) * t->n_heads;
	for (uint32_t i = first; i < t->n_q; i++) {
		n_tok = pos0 + i / t->n_heads + 1 - start;
		if (n_tok > KV_SPAN)
			n_tok = KV_SPAN;
		sp.n_tok[sp.n_q] = sp.n_code[sp.n_q] = n_tok;
		sp.n_q++;
	}
	for (uint32_t i = 0; i * l->block_tokens < n_tok; i++) {
		uint8_t *block =
			batch_block(b, t->entry, job->pool, start + i * l->block_tokens);

		sp.k[i] = block + kv_layout_head_off(l, job->layer, t->kv_head);
		sp.v[i] = (const uint8_t *)sp.k[i] + l->v_at;
	}
	sp.q = q + first;
	sp.max = res->max + first;
	sp.sum = res->sum + first;
	sp.o = res->o + first * l->head_dim;
	ops->scores[l->k_format](&sp);
	ops->softmax(&sp);
	ops->sums[l->v_format](&sp);
	return first;
}

static void tile_merge(const struct attn_job *job, const struct tile *t, uint32_t first,
		       struct tile_result *all, const struct tile_result *res)
{
	uint32_t hd = job->pool->layout.head_dim;

	for (uint32_t q = first; q < t->n_q; q++)
		job->st->dev->ops.merge(&all->max[q], &all->sum[q], all->o + q * hd,
					res->max[q], res->sum[q], res->o + q * hd, hd);
}

static void tile_finish(const struct attn_job *job, const struct tile *t,
			const struct tile_result *all)
{
	uint32_t hd = job->pool->layout.head_dim;

	for (uint32_t q = 0; q < t->n_q; q++) {
		float *out = tile_out(job, t, q), r = 1.0f / all->sum[q];

		for (uint32_t d = 0; d < hd; d++)
			out[d] = all->o[q * hd + d] * r;
	}
}

static uint32_t entry_of(const struct attn_job *job, uint32_t unit)
{
	uint32_t lo = 0, hi = job->st->batch.n_entries;

	while (hi - lo > 1) {
		uint32_t mid = (lo + hi) / 2;

		if (job->entries[mid].unit0 <= unit)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static void tile_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct attn_job *job = arg;
	_Alignas(64) float q[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
	struct tile_result all, res;
	uint32_t entry = entry_of(job, unit);
	struct tile t;

	tile_find(job, entry, unit - job->entries[entry].unit0, &t);
	tile_scale_q(job, &t, q);
	tile_span(job, &t, 0, q, &all);
	for (uint32_t i = 1; i < t.n_spans; i++) {
		uint32_t first = tile_span(job, &t, i, q, &res);

		tile_merge(job, &t, first, &all, &res);
	}
	tile_finish(job, &t, &all);
}

/* --- one span a unit ---------------------------------------------------------------- */

static size_t partial_floats(const struct attn_job *job)
{
	return (size_t)KV_SPAN_QUERIES * (2 + job->pool->layout.head_dim);
}

static void partial_put(const struct attn_job *job, uint32_t unit, const struct tile *t,
			const struct tile_result *res)
{
	float *p = job->partials + unit * partial_floats(job);

	memcpy(p, res->max, t->n_q * sizeof(float));
	memcpy(p + KV_SPAN_QUERIES, res->sum, t->n_q * sizeof(float));
	memcpy(p + 2 * KV_SPAN_QUERIES, res->o,
	       (size_t)t->n_q * job->pool->layout.head_dim * sizeof(float));
}

static void partial_get(const struct attn_job *job, uint32_t unit, const struct tile *t,
			struct tile_result *res)
{
	const float *p = job->partials + unit * partial_floats(job);

	memcpy(res->max, p, t->n_q * sizeof(float));
	memcpy(res->sum, p + KV_SPAN_QUERIES, t->n_q * sizeof(float));
	memcpy(res->o, p + 2 * KV_SPAN_QUERIES,
	       (size_t)t->n_q * job->pool->layout.head_dim * sizeof(float));
}

/* Unit = [tile of the entry][span of the entry]; a tile may end before the last span. */
static void span_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct attn_job *job = arg;
	_Alignas(64) float q[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
	struct tile_result res;
	uint32_t entry = entry_of(job, unit), in_entry = unit - job->entries[entry].unit0;
	uint32_t n_spans = job->entries[entry].n_spans, span = in_entry % n_spans;
	struct tile t;

	tile_find(job, entry, in_entry / n_spans, &t);
	if (span >= t.n_spans)
		return;
	tile_scale_q(job, &t, q);
	tile_span(job, &t, span, q, &res);
	partial_put(job, unit, &t, &res);
}

static void merge_entry(const struct attn_job *job, uint32_t entry)
{
	const struct attn_entry *ae = &job->entries[entry];
	struct tile_result all, res;
	struct tile t;

	for (uint32_t i = 0; i < ae[1].tile0 - ae[0].tile0; i++) {
		uint32_t unit = ae->unit0 + i * ae->n_spans;

		tile_find(job, entry, i, &t);
		partial_get(job, unit, &t, &all);
		for (uint32_t s = 1; s < t.n_spans; s++) {
			uint32_t start = s * KV_SPAN, pos0 = t.entry->pos0 + t.row0;
			uint32_t first = pos0 < start ? (start - pos0) * t.n_heads : 0;

			partial_get(job, unit + s, &t, &res);
			tile_merge(job, &t, first, &all, &res);
		}
		tile_finish(job, &t, &all);
	}
}

/* --- the op ------------------------------------------------------------------------- */

static void job_shape(struct attn_job *job)
{
	job->n_rep = job->args->n_heads / job->pool->layout.n_kv_heads;
	job->group_heads = job->n_rep < KV_SPAN_QUERIES ? job->n_rep : KV_SPAN_QUERIES;
	job->n_groups = (job->n_rep + job->group_heads - 1) / job->group_heads;
	job->tile_rows = KV_SPAN_QUERIES / job->group_heads;
}

/* Number units through all entries. Return: estimated time in ns, or -EINVAL. */
static int64_t job_units(struct attn_job *job)
{
	const struct kv_batch *b = &job->st->batch;
	uint32_t n_kv = job->pool->layout.n_kv_heads;
	uint64_t n_tiles = 0, n_units = 0, n_spans_all = 0, cost = 0;
	uint32_t n_threads = threads_count(job->st->dev->threads);

	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];
		uint64_t n = (uint64_t)(e->n_rows + job->tile_rows - 1) / job->tile_rows *
			     n_kv * job->n_groups;

		job->entries[i].tile0 = (uint32_t)n_tiles;
		job->entries[i].n_spans = (e->pos0 + e->n_rows - 1) / KV_SPAN + 1;
		n_tiles += n;
		n_spans_all += n * job->entries[i].n_spans;
		cost += n * (e->pos0 + e->n_rows) * job->pool->layout.head_dim / 8;
	}
	if (n_tiles > KV_MAX_UNITS)
		return -EINVAL;
	job->entries[b->n_entries].tile0 = (uint32_t)n_tiles;
	job->split_spans = n_threads > 1 && n_tiles < n_threads * TILES_ENOUGH &&
			   n_spans_all > n_tiles && n_spans_all <= KV_MAX_UNITS;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		struct attn_entry *ae = &job->entries[i];
		uint32_t n = ae[1].tile0 - ae[0].tile0;

		ae->unit0 = (uint32_t)n_units;
		n_units += (uint64_t)n * (job->split_spans ? ae->n_spans : 1);
	}
	job->entries[b->n_entries].unit0 = (uint32_t)n_units;
	return cost > INT64_MAX ? INT64_MAX : (int64_t)cost;
}

void cpu_attention_counts(const struct kv_stream *st,
			  struct kv_attention_counts *ret_counts)
{
	*ret_counts = st->counts;
}

int cpu_attention(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
		  const struct kv_attention *args)
{
	struct attn_job job = {.st = st, .pool = pool, .args = args, .layer = layer};
	const struct kv_layout *l = &pool->layout;
	uint32_t n_entries = st->batch.n_entries, n_units;
	size_t row = (size_t)args->n_heads * l->head_dim;
	int64_t cost;
	int r;

	if (layer >= l->n_layers || args->n_heads == 0 ||
	    args->n_heads % l->n_kv_heads != 0)
		return -EINVAL;
	if (args->ldq < row || args->ldo < row)
		return -EINVAL;
	r = batch_check_blocks(st, pool);
	if (r < 0)
		return r;
	r = scratch_reserve(&st->units, (n_entries + (size_t)1) * sizeof(*job.entries));
	if (r < 0)
		return r;
	job.entries = st->units.mem;
	job_shape(&job);
	cost = job_units(&job);
	if (cost < 0)
		return (int)cost;
	n_units = job.entries[n_entries].unit0;
	if (!job.split_spans) {
		if (cost < INLINE_NS)
			for (uint32_t i = 0; i < n_units; i++)
				tile_unit(&job, i, 0);
		else
			threads_run(st->dev->threads, tile_unit, &job, n_units);
		return 0;
	}
	r = scratch_reserve(&st->partials,
			    n_units * partial_floats(&job) * sizeof(float));
	if (r < 0)
		return r;
	job.partials = st->partials.mem;
	threads_run(st->dev->threads, span_unit, &job, n_units);
	for (uint32_t i = 0; i < n_entries; i++)
		merge_entry(&job, i);
	return 0;
}
