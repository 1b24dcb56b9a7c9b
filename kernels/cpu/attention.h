/* SPDX-License-Identifier: MIT */
/*
 * How the attention op of the CPU backend is cut up; shared by its three files. The plan
 * depends on the batch only, is made once for all layers, and belongs to the stream. On the
 * device's thread; compute threads read it.
 *
 * A tile is some consecutive rows of one entry times up to KV_SPAN_QUERIES query heads of one KV
 * head; it walks its spans in order. The first n_aside spans of an entry are computed before
 * that by groups, and their results put aside for the walk, which merges them in their place.
 */
#ifndef KVD_KERNELS_CPU_ATTENTION_H
#define KVD_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/device.h"

struct attn_member {
	uint32_t entry, row0, n_rows;
};

/* Members, at most a tile's rows of one entry each, that read the same blocks in a span. */
struct attn_group {
	uint32_t span, member0, n_members;
};

/**
 * struct attn_entry - an entry of the batch
 * @tile0: tiles of the entries before: [row tile][kv head][head group]
 * @n_spans: of the last row
 * @n_aside: spans 0 .. n_aside - 1 are put aside
 * @state0: rows times heads of the entries before that put any aside
 */
struct attn_entry {
	uint32_t tile0;
	uint32_t n_spans;
	uint32_t n_aside;
	size_t state0;
};

/* Make st->plan fit the loaded batch and pool. Return: 0, -ENOMEM, -EINVAL (too many tiles). */
int attn_plan_update(struct kv_stream *st, const struct kv_pool *pool, uint32_t n_heads);

static inline uint32_t attn_row_tiles(const struct attn_plan *p,
				      const struct kv_batch_entry *e)
{
	return (e->n_rows + p->tile_rows - 1) / p->tile_rows;
}

/**
 * struct attn_job - one call of the op, and the window of spans at work
 * @q, @q_codes, @q_scale, @q_sum: [n_rows][n_heads] queries as kernels take them, q scaled, and
 *	rotated where K is; NULL where args->q will do
 * @partials: [span of the window][state] put aside; each is max, sum, o[head_dim]
 * @states: [state] likewise, of walks between windows
 * @unit_heads: KV heads of a unit of the window's groups
 */
struct attn_job {
	struct kv_stream *st;
	const struct kv_pool *pool;
	const struct kv_attention *args;
	const struct attn_plan *plan;
	uint32_t layer;

	float *q;
	uint8_t *q_codes;
	float *q_scale;
	int32_t *q_sum;

	float *partials, *states;
	uint32_t group0, span0, span1;
	uint32_t unit_heads;
};

/* n queries (row: of the batch) of one KV head that go through spans together. fetched: K was
 * prefetched; next_span, next_kv_head: of the last query's entry, what this thread runs next. */
struct attn_set {
	uint32_t n, kv_head;
	bool fetched, has_next;
	uint32_t next_span, next_kv_head;
	uint32_t entry[KV_SPAN_QUERIES], row[KV_SPAN_QUERIES];
	uint32_t head[KV_SPAN_QUERIES], pos[KV_SPAN_QUERIES];
	_Alignas(64) float q[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
};

struct attn_result {
	float max[KV_SPAN_QUERIES], sum[KV_SPAN_QUERIES];
	_Alignas(64) float o[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
};

/* Does the job need q, and q_codes? */
bool attn_needs_queries(const struct kv_layout *l);
bool attn_needs_codes(const struct kv_layout *l);
/* Fill job->q and what goes with it, for some rows. For rows_run(). */
void attn_query_rows(void *job, uint32_t row0, uint32_t n_rows);

/* Add a member's rows times n heads from head on; there is room. attn_set_ready() comes after
 * the last one. */
void attn_set_add(const struct attn_job *job, struct attn_set *set,
		  const struct attn_member *member, uint32_t head, uint32_t n);
void attn_set_ready(const struct attn_job *job, struct attn_set *set);

/* Run one span, on the blocks of the last query's entry. Return: the first query that has a
 * result; those before it see nothing of the span. */
uint32_t attn_span_run(const struct attn_job *job, const struct attn_set *set,
		       uint32_t span, struct attn_result *res);

#endif
