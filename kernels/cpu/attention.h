/* SPDX-License-Identifier: MIT */
/*
 * How the attention op of the CPU backend is cut up; shared by its three files. The plan
 * depends on the batch only, is made once for all layers, and belongs to the stream. On the
 * device's thread; compute threads read it.
 *
 * A tile is some consecutive rows of one entry times the query heads (or up to
 * KV_SPAN_QUERIES of them) of one KV head. As a rule a tile walks its spans in order. The
 * first n_aside spans of an entry are not computed by its walk but before it, by groups: their
 * results are put aside, and the walk merges them where it would have computed them. So the
 * calls that make a row's bits are the same either way. There are two reasons for groups:
 *
 * - Entries with the same blocks in a span: a group has one member for each of them, and reads
 *   the span once for all (a cascade).
 * - Few tiles, as in decoding one long sequence: a group for each span and tile keeps all
 *   threads busy.
 */
#ifndef KVD_KERNELS_CPU_ATTENTION_H
#define KVD_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/device.h"

/* Some rows of one entry, from row0 (of the entry) on, at most a tile. */
struct attn_member {
	uint32_t entry, row0, n_rows;
};

/* Members that read the same blocks in a span. */
struct attn_group {
	uint32_t span, member0, n_members;
};

struct attn_entry {
	uint32_t tile0;   /* tiles before: [row tile][kv head][head group]             */
	uint32_t n_spans; /* of the last row                                           */
	uint32_t n_aside; /* spans 0 .. n_aside - 1 are put aside                      */
	size_t state0;    /* rows times heads of the entries before that put any aside */
};

/*
 * Make st->plan fit the loaded batch and pool. Return: 0, -ENOMEM, or -EINVAL when there
 * are too many tiles.
 */
int attn_plan_update(struct kv_stream *st, const struct kv_pool *pool, uint32_t n_heads);

static inline uint32_t attn_row_tiles(const struct attn_plan *p,
				      const struct kv_batch_entry *e)
{
	return (e->n_rows + p->tile_rows - 1) / p->tile_rows;
}

struct attn_job {
	struct kv_stream *st;
	const struct kv_pool *pool;
	const struct kv_attention *args;
	const struct attn_plan *plan;
	uint32_t layer;

	/* Queries as kernels take them, [n_rows][n_heads] each; NULL where args->q will do. */
	float *q;         /* of head_dim floats: scaled, rotated where K is */
	uint8_t *q_codes; /* of kv_query_bytes()                            */
	float *q_scale;
	int32_t *q_sum;

	/* Results put aside [span of the window][state], and of walks between windows
	 * [state]; each is max, sum, o[head_dim]. */
	float *partials, *states;
	uint32_t group0, span0, span1; /* of the window */
	uint32_t unit_heads;           /* KV heads of a unit of its groups */
};

/*
 * Up to KV_SPAN_QUERIES queries of one KV head that go through spans together. If there is a
 * next one, its thread runs that span and KV head of the last query's entry after this one.
 */
struct attn_set {
	uint32_t n, kv_head;
	bool fetched, has_next; /* fetched: this was the next one of the one before */
	uint32_t next_span, next_kv_head;
	uint32_t entry[KV_SPAN_QUERIES], row[KV_SPAN_QUERIES]; /* row of the batch */
	uint32_t head[KV_SPAN_QUERIES], pos[KV_SPAN_QUERIES];
	_Alignas(64) float q[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
};

struct attn_result {
	float max[KV_SPAN_QUERIES], sum[KV_SPAN_QUERIES];
	_Alignas(64) float o[KV_SPAN_QUERIES * KV_HEAD_DIM_MAX];
};

/* Does the job need q, or q_codes as well? */
bool attn_needs_queries(const struct kv_layout *l);
bool attn_needs_codes(const struct kv_layout *l);
/* Fill job->q and what goes with it, for some rows. For rows_run(). */
void attn_query_rows(void *job, uint32_t row0, uint32_t n_rows);

/* Add a member's rows times n heads from head on; there is room. */
void attn_set_add(const struct attn_job *job, struct attn_set *set,
		  const struct attn_member *member, uint32_t head, uint32_t n);
/* To be called between adding and running. */
void attn_set_ready(const struct attn_job *job, struct attn_set *set);

/*
 * Run one span. Rows before it see nothing of it; they are the first ones, if any. Return: the
 * first query that has a result. The blocks are those of the last one's entry.
 */
uint32_t attn_span_run(const struct attn_job *job, const struct attn_set *set,
		       uint32_t span, struct attn_result *res);

#endif
