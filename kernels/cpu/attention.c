/* SPDX-License-Identifier: MIT */
/* The attention op: groups put spans aside, walks merge all spans in order. See attention.h. */
#include "kernels/cpu/attention.h"

#include <errno.h>
#include <string.h>

enum {
	INLINE_NS = 4000,
	GROUPS_ENOUGH = 2, /* groups per thread: no need to split their heads */
};

/* --- results put aside -------------------------------------------------------------- */

static size_t record_floats(const struct attn_job *job)
{
	return 2 + (size_t)job->pool->layout.head_dim;
}

/* Number of the state of query i of a set. */
static size_t state_of(const struct attn_job *job, const struct attn_set *set, uint32_t i)
{
	const struct attn_entry *ae = &job->plan->entries[set->entry[i]];
	uint32_t row = set->row[i] - job->st->batch.entries[set->entry[i]].row0;

	return ae->state0 + (size_t)row * job->args->n_heads + set->head[i];
}

static void record_put(float *records, size_t record, const struct attn_job *job,
		       const struct attn_result *res, uint32_t i)
{
	uint32_t hd = job->pool->layout.head_dim;
	float *p = records + record * record_floats(job);

	p[0] = res->max[i];
	p[1] = res->sum[i];
	memcpy(p + 2, res->o + i * hd, hd * sizeof(float));
}

static void record_get(const float *records, size_t record, const struct attn_job *job,
		       struct attn_result *res, uint32_t i)
{
	uint32_t hd = job->pool->layout.head_dim;
	const float *p = records + record * record_floats(job);

	res->max[i] = p[0];
	res->sum[i] = p[1];
	memcpy(res->o + i * hd, p + 2, hd * sizeof(float));
}

static size_t partial_of(const struct attn_job *job, const struct attn_set *set,
			 uint32_t span, uint32_t i)
{
	return (span - job->span0) * job->plan->n_states + state_of(job, set, i);
}

/* --- groups ------------------------------------------------------------------------- */

static void set_put_aside(const struct attn_job *job, struct attn_set *set, uint32_t span)
{
	struct attn_result res;
	uint32_t first;

	attn_set_ready(job, set);
	first = attn_span_run(job, set, span, &res);
	set->fetched = true;
	for (uint32_t i = first; i < set->n; i++)
		record_put(job->partials, partial_of(job, set, span, i), job, &res, i);
	set->n = 0;
}

/* Query heads of a head group: first and number. */
static uint32_t head_group(const struct attn_job *job, uint32_t kv_head, uint32_t group,
			   uint32_t *ret_n)
{
	const struct attn_plan *p = job->plan;
	uint32_t head = group * p->group_heads, n = p->n_rep - head;

	*ret_n = n < p->group_heads ? n : p->group_heads;
	return kv_head * p->n_rep + head;
}

/* One head group of a group. */
static void group_run(const struct attn_job *job, const struct attn_group *g,
		      uint32_t head_group_i, struct attn_set *set)
{
	const struct attn_plan *p = job->plan;
	uint32_t head, n_heads;
	bool has_next = set->has_next;

	set->n = 0;
	set->has_next = false;
	head = head_group(job, set->kv_head, head_group_i, &n_heads);
	for (uint32_t i = 0; i < g->n_members; i++) {
		const struct attn_member *m = &p->members[g->member0 + i];

		if (set->n + m->n_rows * n_heads > KV_SPAN_QUERIES)
			set_put_aside(job, set, g->span);
		attn_set_add(job, set, m, head, n_heads);
	}
	set->has_next = has_next;
	set_put_aside(job, set, g->span);
}

/* Unit = [group of the window][run of kv heads]: these lie side by side in each block. */
static void group_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct attn_job *job = arg;
	const struct attn_plan *p = job->plan;
	uint32_t n_kv = job->pool->layout.n_kv_heads, runs = n_kv / job->unit_heads;
	const struct attn_group *g = &p->groups[job->group0 + unit / runs];
	uint32_t first = unit % runs * job->unit_heads,
		 last = first + job->unit_heads - 1;
	struct attn_set set;

	set.fetched = false;
	set.next_span = g->span;
	for (uint32_t kv_head = first; kv_head <= last; kv_head++)
		for (uint32_t i = 0; i < p->n_head_groups; i++) {
			set.kv_head = kv_head;
			set.next_kv_head = kv_head + 1;
			set.has_next = kv_head < last && i + 1 == p->n_head_groups;
			group_run(job, g, i, &set);
		}
}

/* --- walks -------------------------------------------------------------------------- */

/* Unit = tile. Return: its entry. */
static uint32_t tile_find(const struct attn_job *job, uint32_t tile, struct attn_set *set)
{
	const struct attn_plan *p = job->plan;
	uint32_t lo = 0, hi = job->st->batch.n_entries, head, n_heads, group;
	const struct kv_batch_entry *e;
	struct attn_member m;

	while (hi - lo > 1) {
		uint32_t mid = (lo + hi) / 2;

		if (p->entries[mid].tile0 <= tile)
			lo = mid;
		else
			hi = mid;
	}
	e = &job->st->batch.entries[lo];
	tile -= p->entries[lo].tile0;
	group = tile % p->n_head_groups;
	tile /= p->n_head_groups;
	m.entry = lo;
	m.row0 = tile / job->pool->layout.n_kv_heads * p->tile_rows;
	m.n_rows = e->n_rows - m.row0;
	if (m.n_rows > p->tile_rows)
		m.n_rows = p->tile_rows;
	set->n = 0;
	set->kv_head = tile % job->pool->layout.n_kv_heads;
	head = head_group(job, set->kv_head, group, &n_heads);
	attn_set_add(job, set, &m, head, n_heads);
	return lo;
}

/* Queries from the returned one on see something of the span. */
static uint32_t partials_get(const struct attn_job *job, const struct attn_set *set,
			     uint32_t span, struct attn_result *res)
{
	uint32_t first = 0;

	while (first < set->n && set->pos[first] < span * KV_SPAN)
		first++;
	for (uint32_t i = first; i < set->n; i++)
		record_get(job->partials, partial_of(job, set, span, i), job, res, i);
	return first;
}

static void walk_finish(const struct attn_job *job, const struct attn_set *set,
			const struct attn_result *all)
{
	const struct kv_layout *l = &job->pool->layout;
	uint32_t hd = l->head_dim;

	for (uint32_t i = 0; i < set->n; i++) {
		float *out = (float *)job->args->out + set->row[i] * job->args->ldo +
			     (size_t)set->head[i] * hd;
		float r = 1.0f / all->sum[i];

		for (uint32_t d = 0; d < hd; d++)
			out[d] = all->o[i * hd + d] * r;
		if (kv_layout_v_rotated(l))
			job->st->dev->ops.rotate(out, hd, true);
	}
}

/* The tile's spans of this window; those that put nothing aside go through in the first. */
static void walk_unit(void *arg, uint32_t unit, uint32_t thread)
{
	const struct attn_job *job = arg;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	uint32_t hd = job->pool->layout.head_dim, n_spans, end;
	struct attn_result all, res;
	const struct attn_entry *ae;
	struct attn_set set;

	ae = &job->plan->entries[tile_find(job, unit, &set)];
	n_spans = set.pos[set.n - 1] / KV_SPAN + 1;
	end = ae->n_aside > 0 && job->span1 < n_spans ? job->span1 : n_spans;
	if (job->span0 > 0 && (ae->n_aside == 0 || job->span0 >= n_spans))
		return;
	if (ae->n_aside < end)
		attn_set_ready(job, &set);
	if (job->span0 > 0)
		for (uint32_t i = 0; i < set.n; i++)
			record_get(job->states, state_of(job, &set, i), job, &all, i);
	set.fetched = false;
	set.next_kv_head = set.kv_head;
	for (uint32_t s = job->span0; s < end; s++) {
		struct attn_result *to = s == 0 ? &all : &res;
		uint32_t first;

		set.has_next = s + 1 < end;
		set.next_span = s + 1;
		if (s < ae->n_aside) {
			first = partials_get(job, &set, s, to);
		} else {
			first = attn_span_run(job, &set, s, to);
			set.fetched = true;
		}
		for (uint32_t i = first; s > 0 && i < set.n; i++)
			ops->merge(&all.max[i], &all.sum[i], all.o + i * hd, res.max[i],
				   res.sum[i], res.o + i * hd, hd);
	}
	if (end == n_spans) {
		walk_finish(job, &set, &all);
		return;
	}
	for (uint32_t i = 0; i < set.n; i++)
		record_put(job->states, state_of(job, &set, i), job, &all, i);
}

/* --- the op ------------------------------------------------------------------------- */

static void run(struct attn_job *job, threads_fn *fn, uint32_t n_units, uint64_t cost)
{
	if (cost >= INLINE_NS) {
		threads_run(job->st->dev->threads, fn, job, n_units);
		return;
	}
	for (uint32_t i = 0; i < n_units; i++)
		fn(job, i, 0);
}

static int job_queries(struct attn_job *job)
{
	const struct kv_layout *l = &job->pool->layout;
	struct kv_stream *st = job->st;
	size_t n = (size_t)st->batch.n_rows * job->args->n_heads;
	int r;

	if (!attn_needs_queries(l))
		return 0;
	r = scratch_reserve(&st->queries, (n + 1) * l->head_dim * sizeof(float));
	if (r < 0)
		return r;
	job->q = st->queries.mem;
	if (attn_needs_codes(l)) {
		r = scratch_reserve(&st->query_codes,
				    (n + 1) * (kv_query_bytes(l->head_dim) +
					       sizeof(float) + sizeof(int32_t)));
		if (r < 0)
			return r;
		job->q_codes = st->query_codes.mem;
		job->q_scale = (float *)(job->q_codes + n * kv_query_bytes(l->head_dim));
		job->q_sum = (int32_t *)(job->q_scale + n);
	}
	rows_run(st->dev, attn_query_rows, job, st->batch.n_rows,
		 job->args->n_heads * l->head_dim / 2);
	return 0;
}

static int job_partials(struct attn_job *job)
{
	const struct attn_plan *p = job->plan;
	size_t record = record_floats(job) * sizeof(float);
	int r;

	if (p->n_groups == 0)
		return 0;
	r = scratch_reserve(&job->st->partials,
			    (p->window + (size_t)1) * p->n_states * record);
	if (r < 0)
		return r;
	job->states = job->st->partials.mem;
	job->partials = job->states + p->n_states * record_floats(job);
	return 0;
}

/* All groups and walks, as many spans at a time as may be put aside. */
static void job_run(struct attn_job *job)
{
	const struct attn_plan *p = job->plan;
	uint32_t n_kv = job->pool->layout.n_kv_heads, n;
	uint32_t n_threads = threads_count(job->st->dev->threads);

	for (;;) {
		job->span1 = job->span0 + p->window < p->max_aside
				     ? job->span0 + p->window
				     : UINT32_MAX;
		for (n = 0; job->group0 + n < p->n_groups; n++)
			if (p->groups[job->group0 + n].span >= job->span1)
				break;
		job->unit_heads = n >= n_threads * GROUPS_ENOUGH ? n_kv : 1;
		run(job, group_unit, n * n_kv / job->unit_heads, n > 0 ? p->cost : 0);
		run(job, walk_unit, p->n_tiles, p->cost);
		if (job->span1 == UINT32_MAX)
			return;
		job->group0 += n;
		job->span0 = job->span1;
	}
}

int cpu_attention(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
		  const struct kv_attention *args)
{
	struct attn_job job = {.st = st, .pool = pool, .args = args, .layer = layer};
	const struct kv_layout *l = &pool->layout;
	size_t row = (size_t)args->n_heads * l->head_dim;
	int r;

	if (layer >= l->n_layers || args->n_heads == 0 ||
	    args->n_heads % l->n_kv_heads != 0)
		return -EINVAL;
	if (args->ldq < row || args->ldo < row)
		return -EINVAL;
	r = batch_check_blocks(st, pool);
	if (r < 0)
		return r;
	if (kv_layout_needs_tail(l) && !own_ready(st, pool, layer))
		return -EINVAL;
	r = attn_plan_update(st, pool, args->n_heads);
	if (r < 0)
		return r;
	job.plan = &st->plan;
	r = job_queries(&job);
	if (r < 0)
		return r;
	r = job_partials(&job);
	if (r < 0)
		return r;
	job_run(&job);
	st->counts.spans_needed += st->plan.spans_needed;
	st->counts.spans_read += st->plan.spans_read;
	return 0;
}
