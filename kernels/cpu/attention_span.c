/* SPDX-License-Identifier: MIT */
/* Queries and planes as the kernels take them: one span of some queries. */
#include <string.h>

#include "kernels/cpu/attention.h"

static bool float_format(enum kv_format format)
{
	return format == KV_FORMAT_FP16 || format == KV_FORMAT_FP8_E4M3;
}

bool attn_needs_queries(const struct kv_layout *l)
{
	return l->k_format != KV_FORMAT_FP16 || kv_layout_needs_tail(l);
}

bool attn_needs_codes(const struct kv_layout *l)
{
	return !float_format(l->k_format);
}

static const float *query(const struct attn_job *job, uint32_t row, uint32_t head)
{
	uint32_t hd = job->pool->layout.head_dim;

	return (const float *)job->args->q + row * job->args->ldq + (size_t)head * hd;
}

void attn_query_rows(void *arg, uint32_t row0, uint32_t n_rows)
{
	const struct attn_job *job = arg;
	const struct kv_layout *l = &job->pool->layout;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	uint32_t hd = l->head_dim, n_heads = job->args->n_heads;

	for (uint32_t row = row0; row < row0 + n_rows; row++) {
		for (uint32_t h = 0; h < n_heads; h++) {
			size_t i = (size_t)row * n_heads + h;
			const float *src = query(job, row, h);
			float *q = job->q + i * hd;

			for (uint32_t d = 0; d < hd; d++)
				q[d] = src[d] * job->args->scale;
			if (kv_layout_k_rotated(l))
				ops->rotate(q, hd, false);
			if (job->q_codes)
				ops->query(q, job->q_codes + i * kv_query_bytes(hd),
					   &job->q_scale[i], &job->q_sum[i], hd);
		}
	}
}

void attn_set_add(const struct attn_job *job, struct attn_set *set,
		  const struct attn_member *member, uint32_t head, uint32_t n)
{
	const struct kv_batch_entry *e = &job->st->batch.entries[member->entry];

	for (uint32_t r = member->row0; r < member->row0 + member->n_rows; r++) {
		for (uint32_t h = head; h < head + n; h++) {
			set->entry[set->n] = member->entry;
			set->row[set->n] = e->row0 + r;
			set->head[set->n] = h;
			set->pos[set->n++] = e->pos0 + r;
		}
	}
}

/* Side by side for each dim, where a kernel takes them so. */
void attn_set_ready(const struct attn_job *job, struct attn_set *set)
{
	uint32_t hd = job->pool->layout.head_dim, n_heads = job->args->n_heads;

	if (!float_format(job->pool->layout.k_format))
		return;
	for (uint32_t i = 0; i < set->n; i++) {
		const float *src = query(job, set->row[i], set->head[i]);
		float scale = job->args->scale;

		if (job->q) {
			src = job->q +
			      ((size_t)set->row[i] * n_heads + set->head[i]) * hd;
			for (uint32_t d = 0; d < hd; d++)
				set->q[d * KV_SPAN_QUERIES + i] = src[d];
			continue;
		}
		for (uint32_t d = 0; d < hd; d++)
			set->q[d * KV_SPAN_QUERIES + i] = src[d] * scale;
	}
}

static void span_query(const struct attn_job *job, const struct attn_set *set, uint32_t i,
		       struct kv_span *sp)
{
	uint32_t hd = sp->head_dim, k = sp->n_q;
	size_t at = (size_t)set->row[i] * job->args->n_heads + set->head[i];

	if (!job->q)
		return;
	sp->q_row[k] = job->q + at * hd;
	if (!job->q_codes)
		return;
	sp->q_codes[k] = job->q_codes + at * kv_query_bytes(hd);
	sp->q_scale[k] = job->q_scale[at];
	sp->q_sum[k] = job->q_sum[at];
}

/* Planes of the span's blocks, as far as codes are read. */
static void span_blocks(const struct attn_job *job, const struct attn_set *set,
			uint32_t start, struct kv_span *sp)
{
	const struct kv_layout *l = &job->pool->layout;
	const struct kv_batch *b = &job->st->batch;
	const struct kv_batch_entry *e = &b->entries[set->entry[set->n - 1]];
	size_t head = kv_layout_head_off(l, job->layer, set->kv_head);
	size_t pair = kv_layout_pair_off(l, job->layer, set->kv_head);
	uint32_t n_code = sp->n_code[sp->n_q - 1];

	for (uint32_t i = 0; i * l->block_tokens < n_code; i++) {
		const uint8_t *block =
			batch_block(b, e, job->pool, start + i * l->block_tokens);

		sp->k[i] = block + head;
		sp->v[i] = block + head + l->v_at;
		sp->k_params[i] = block + head + l->k_params_at;
		sp->v_params[i] = block + head + l->v_params_at;
		sp->k_pair[i] = (const uint16_t *)(block + pair);
	}
}

/* K of the blocks of what comes next. */
static void span_next(const struct attn_job *job, const struct attn_set *set,
		      struct kv_span *sp)
{
	const struct kv_layout *l = &job->pool->layout;
	const struct kv_batch *b = &job->st->batch;
	const struct kv_batch_entry *e = &b->entries[set->entry[set->n - 1]];
	size_t head = kv_layout_head_off(l, job->layer, set->next_kv_head);
	uint32_t start = set->next_span * KV_SPAN;
	uint32_t first = start / l->block_tokens, n = KV_SPAN / l->block_tokens;

	sp->fetched = set->fetched;
	sp->n_next = 0;
	if (!set->has_next || l->k_format != KV_FORMAT_INT4 || first >= e->n_blocks)
		return;
	sp->n_next = e->n_blocks - first < n ? e->n_blocks - first : n;
	sp->next_k_bytes = (uint32_t)l->v_at;
	sp->next_params_bytes = (uint32_t)(l->v_params_at - l->k_params_at);
	for (uint32_t i = 0; i < sp->n_next; i++) {
		const uint8_t *at =
			batch_block(b, e, job->pool, start + i * l->block_tokens) + head;

		sp->next_k[i] = at;
		sp->next_params[i] = at + l->k_params_at;
	}
}

uint32_t attn_span_run(const struct attn_job *job, const struct attn_set *set,
		       uint32_t span, struct attn_result *res)
{
	const struct kv_layout *l = &job->pool->layout;
	const struct kv_cpu_ops *ops = &job->st->dev->ops;
	bool tails = kv_layout_needs_tail(l), own = false;
	uint32_t bt = l->block_tokens, start = span * KV_SPAN, first = 0;
	_Alignas(64) float s[KV_SPAN_QUERIES * KV_SPAN];
	struct kv_span sp;

	sp.n_q = 0;
	sp.head_dim = l->head_dim;
	sp.block_tokens = bt;
	sp.s = s;
	while (first < set->n && set->pos[first] < start)
		first++;
	for (uint32_t i = first; i < set->n; i++) {
		uint32_t n = set->pos[i] + 1 - start,
			 n_own = set->pos[i] / bt * bt - start;

		sp.n_tok[sp.n_q] = n < KV_SPAN ? n : KV_SPAN;
		sp.n_code[sp.n_q] = sp.n_tok[sp.n_q];
		if (tails && n_own < KV_SPAN) {
			sp.n_code[sp.n_q] = n_own;
			sp.own_k[sp.n_q] =
				own_planes(job->st, job->pool, job->layer, set->entry[i],
					   set->pos[i], set->kv_head);
			sp.own_v[sp.n_q] = sp.own_k[sp.n_q] + l->tail_plane_bytes / 2;
			own = true;
		}
		span_query(job, set, i, &sp);
		sp.n_q++;
	}
	span_blocks(job, set, start, &sp);
	span_next(job, set, &sp);
	sp.q = set->q + first;
	sp.max = res->max + first;
	sp.sum = res->sum + first;
	sp.o = res->o + first * l->head_dim;
	ops->scores[l->k_format](&sp);
	if (own)
		ops->scores_own(&sp);
	ops->softmax(&sp);
	ops->sums[l->v_format](&sp);
	if (own)
		ops->sums_own(&sp);
	return first;
}
