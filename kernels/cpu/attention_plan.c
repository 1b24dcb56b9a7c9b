/* SPDX-License-Identifier: MIT */
/*
 * Which spans are put aside, and by which groups. The kernel calls that make a row's bits are the
 * same either way. There are two reasons for groups:
 *
 * - Entries with the same blocks in a span: a group has one member for each of them, and reads
 *   the span once for all (a cascade).
 * - Few tiles, as in decoding one long sequence: a group for each span and tile keeps all
 *   threads busy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention.h"

enum {
	TILES_ENOUGH = 4,        /* per thread: no need to split spans */
	PARTIALS_MAX = 16 << 20, /* bytes put aside at a time, as a rule */
};

/* An entry whose first n spans all its rows see whole, with the blocks of those. */
struct prefix {
	uint32_t entry, n;
	uint32_t shared; /* spans shared with the one before in order */
	uint32_t blocks_a_span;
	const uint32_t *blocks;
};

/* Spans in which two prefixes have the same blocks, from the start on. */
static uint32_t common_spans(const struct prefix *a, const struct prefix *b)
{
	uint32_t n = a->n < b->n ? a->n : b->n, k = a->blocks_a_span, i = 0;

	while (i < n && memcmp(a->blocks + (size_t)i * k, b->blocks + (size_t)i * k,
			       k * sizeof(*a->blocks)) == 0)
		i++;
	return i;
}

/* Any total order in which equal beginnings are neighbours. */
static int prefix_order(const void *pa, const void *pb)
{
	const struct prefix *a = pa, *b = pb;
	size_t n = (size_t)(a->n < b->n ? a->n : b->n) * a->blocks_a_span;
	int r = memcmp(a->blocks, b->blocks, n * sizeof(*a->blocks));

	if (r != 0)
		return r;
	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	return a->entry < b->entry ? -1 : a->entry > b->entry;
}

/*
 * Entries that may share, in order, with what they share. Those of several tiles stay out:
 * they read a span once for many rows as it is.
 */
static int find_prefixes(struct attn_plan *p, const struct kv_batch *b,
			 const struct kv_layout *l, struct prefix **ret, uint32_t *ret_n)
{
	uint32_t n = 0;
	struct prefix *x;
	int r = scratch_reserve(&p->prefixes, ((size_t)b->n_entries + 1) * sizeof(*x));

	if (r < 0)
		return r;
	x = p->prefixes.mem;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];

		if (e->pos0 < KV_SPAN || e->n_rows > p->tile_rows)
			continue;
		x[n++] = (struct prefix){i, e->pos0 / KV_SPAN, 0,
					 KV_SPAN / l->block_tokens,
					 b->blocks + e->block_off};
	}
	if (n > 1)
		qsort(x, n, sizeof(*x), prefix_order);
	for (uint32_t i = 1; i < n; i++) {
		x[i].shared = common_spans(&x[i - 1], &x[i]);
		for (uint32_t k = i - 1; k <= i; k++)
			if (p->entries[x[k].entry].n_aside < x[i].shared)
				p->entries[x[k].entry].n_aside = x[i].shared;
	}
	*ret = x;
	*ret_n = n;
	return 0;
}

static void group_start(struct attn_plan *p, uint32_t span)
{
	p->groups[p->n_groups++] = (struct attn_group){span, p->n_members, 0};
}

static void group_add(struct attn_plan *p, uint32_t entry, uint32_t row0, uint32_t n_rows)
{
	p->members[p->n_members++] = (struct attn_member){entry, row0, n_rows};
	p->groups[p->n_groups - 1].n_members++;
}

/* Groups of entries that share a span. Neighbours that share it are one run. */
static void shared_groups(struct attn_plan *p, const struct kv_batch *b,
			  const struct prefix *x, uint32_t n, uint32_t span)
{
	for (uint32_t i = 1; i < n; i++) {
		if (x[i].shared <= span)
			continue;
		if (i == 1 || x[i - 1].shared <= span) {
			group_start(p, span);
			group_add(p, x[i - 1].entry, 0,
				  b->entries[x[i - 1].entry].n_rows);
		}
		group_add(p, x[i].entry, 0, b->entries[x[i].entry].n_rows);
	}
}

/* A group for each tile of rows that sees the span and does not share it. */
static void single_groups(struct attn_plan *p, const struct kv_batch *b, uint32_t span,
			  const uint32_t *n_shared)
{
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];

		if (span >= p->entries[i].n_spans || span < n_shared[i])
			continue;
		for (uint32_t r = 0; r < e->n_rows; r += p->tile_rows) {
			uint32_t left = e->n_rows - r;
			uint32_t n = left < p->tile_rows ? left : p->tile_rows;

			if (e->pos0 + r + n - 1 < span * KV_SPAN)
				continue;
			group_start(p, span);
			group_add(p, i, r, n);
		}
	}
}

/* Tiles of each entry and spans of each. Return: 0, or -EINVAL for too many tiles. */
static int plan_tiles(struct attn_plan *p, const struct kv_batch *b,
		      const struct kv_layout *l, uint64_t *ret_n_tile_spans)
{
	uint64_t n_tiles = 0, n_tile_spans = 0;

	p->cost = p->spans_needed = 0;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct kv_batch_entry *e = &b->entries[i];
		struct attn_entry *ae = &p->entries[i];
		uint64_t n =
			(uint64_t)attn_row_tiles(p, e) * l->n_kv_heads * p->n_head_groups;

		*ae = (struct attn_entry){
			.tile0 = (uint32_t)n_tiles,
			.n_spans = (e->pos0 + e->n_rows - 1) / KV_SPAN + 1,
		};
		n_tiles += n;
		if (n_tiles > KV_MAX_UNITS)
			return -EINVAL;
		n_tile_spans += n * ae->n_spans;
		p->spans_needed += (uint64_t)ae->n_spans * l->n_kv_heads;
		p->cost += n * ((uint64_t)e->pos0 + e->n_rows) * l->head_dim / 8;
	}
	p->entries[b->n_entries].tile0 = (uint32_t)n_tiles;
	p->n_tiles = (uint32_t)n_tiles;
	*ret_n_tile_spans = n_tile_spans;
	return 0;
}

/* Room for all groups, and where the results of each entry go. */
static int plan_reserve(struct attn_plan *p, const struct kv_batch *b,
			const struct kv_layout *l, uint32_t n_heads)
{
	size_t n_members = 0, n_states = 0, bytes;
	int r;

	p->max_aside = 0;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		struct attn_entry *ae = &p->entries[i];

		ae->state0 = n_states;
		if (ae->n_aside == 0)
			continue;
		n_states += (size_t)b->entries[i].n_rows * n_heads;
		n_members += (size_t)ae->n_aside * attn_row_tiles(p, &b->entries[i]);
		if (p->max_aside < ae->n_aside)
			p->max_aside = ae->n_aside;
	}
	p->n_states = n_states;
	bytes = n_states * (2 + l->head_dim) * sizeof(float);
	p->window = bytes > 0 ? (uint32_t)(PARTIALS_MAX / bytes) : 0;
	p->window = p->window == 0             ? 1
		    : p->window < p->max_aside ? p->window
					       : p->max_aside;
	r = scratch_reserve(&p->member_mem, (n_members + 1) * sizeof(*p->members));
	if (r < 0)
		return r;
	r = scratch_reserve(&p->group_mem, (n_members + 1) * sizeof(*p->groups));
	if (r < 0)
		return r;
	p->members = p->member_mem.mem;
	p->groups = p->group_mem.mem;
	return 0;
}

static int plan_make(struct attn_plan *p, struct kv_stream *st, const struct kv_layout *l,
		     uint32_t n_heads)
{
	const struct kv_batch *b = &st->batch;
	uint32_t n_threads = threads_count(st->dev->threads), n_prefixes, *n_shared;
	size_t n = (size_t)b->n_entries + 1;
	uint64_t n_tile_spans;
	struct prefix *x;
	bool split;
	int r;

	r = scratch_reserve(&p->entry_mem, n * (sizeof(*p->entries) + sizeof(*n_shared)));
	if (r < 0)
		return r;
	p->entries = p->entry_mem.mem;
	n_shared = (uint32_t *)(p->entries + n);
	r = plan_tiles(p, b, l, &n_tile_spans);
	if (r < 0)
		return r;
	split = n_threads > 1 && p->n_tiles < n_threads * TILES_ENOUGH &&
		n_tile_spans > p->n_tiles && n_tile_spans <= KV_MAX_UNITS;
	r = find_prefixes(p, b, l, &x, &n_prefixes);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		n_shared[i] = p->entries[i].n_aside;
		if (split)
			p->entries[i].n_aside = p->entries[i].n_spans;
	}
	r = plan_reserve(p, b, l, n_heads);
	if (r < 0)
		return r;
	p->spans_read = p->spans_needed;
	p->n_groups = p->n_members = 0;
	for (uint32_t s = 0; s < p->max_aside; s++) {
		uint32_t group0 = p->n_groups, member0 = p->n_members;

		shared_groups(p, b, x, n_prefixes, s);
		p->spans_read -=
			(uint64_t)(p->n_members - member0 - p->n_groups + group0) *
			l->n_kv_heads;
		if (split)
			single_groups(p, b, s, n_shared);
	}
	if ((uint64_t)p->n_groups * l->n_kv_heads * p->n_head_groups > KV_MAX_UNITS)
		return -EINVAL;
	return 0;
}

int attn_plan_update(struct kv_stream *st, const struct kv_pool *pool, uint32_t n_heads)
{
	struct attn_plan *p = &st->plan;
	int r;

	if (p->batch_id == st->batch_id && p->pool_id == pool->id &&
	    p->n_heads == n_heads)
		return 0;
	p->batch_id = 0;
	p->n_rep = n_heads / pool->layout.n_kv_heads;
	p->group_heads = p->n_rep < KV_SPAN_QUERIES ? p->n_rep : KV_SPAN_QUERIES;
	p->n_head_groups = (p->n_rep + p->group_heads - 1) / p->group_heads;
	p->tile_rows = KV_SPAN_QUERIES / p->group_heads;
	r = plan_make(p, st, &pool->layout, n_heads);
	if (r < 0)
		return r;
	p->batch_id = st->batch_id;
	p->pool_id = pool->id;
	p->n_heads = n_heads;
	return 0;
}
