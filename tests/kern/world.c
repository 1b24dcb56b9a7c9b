/* SPDX-License-Identifier: MIT */
#include "tests/kern/world.h"

#include <math.h>
#include <string.h>

bool world_open(struct world *w, const struct ck *ck, const struct shape *s,
		uint32_t n_threads, int fd)
{
	struct kv_cpu_options cpu = {.n_threads = n_threads, .cpu_mask = ck->features};
	struct kv_options opt = {.cpu = &cpu};
	struct kv_rope_params rp = {
		.mode = s->mode,
		.rope_dims = s->rope_dims,
		.freq_base = 10000,
		.freq_scale = 1,
	};

	w->be = kv_backend_cpu();
	if (w->be->open(&opt, NULL, 0, &w->dev) < 0 ||
	    w->be->stream_open(w->dev, &w->st) < 0)
		return false;
	if (kv_layout_init(&w->layout, s->k, s->v, LAYERS, s->n_kv, s->hd, s->bt) < 0)
		return false;
	if (w->be->pool_open(w->dev, &w->layout, N_BLOCKS, N_TAILS, fd, 0, &w->pool) < 0)
		return false;
	memset(w->be->pool_base(w->pool), 0xff, N_BLOCKS * w->layout.block_bytes);
	return w->be->rope_new(w->dev, &rp, &w->rope) == 0;
}

void world_close(struct world *w)
{
	w->be->rope_free(w->rope);
	w->be->pool_close(w->pool);
	w->be->stream_close(w->st);
	w->be->close(w->dev);
}

uint32_t block_id(uint32_t n)
{
	return (n * 37 + 11) % N_BLOCKS;
}

void run_batch(struct world *w, const struct shape *s, const struct kv_batch *b, float *x,
	       float *y)
{
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, orow = s->n_heads * s->hd;
	struct kv_qkv q = {
		x,         row, 0, s->n_heads * s->hd, (s->n_heads + s->n_kv) * s->hd,
		s->n_heads};
	struct kv_attention a = {x, y, row, orow, s->n_heads, 1 / sqrtf((float)s->hd)};

	CK(w->be->batch_load(w->st, b) == 0);
	CK(w->be->rope_kv_write(w->st, w->rope, w->pool, LAYER, &q) == 0);
	CK(!y || w->be->attention(w->st, w->pool, LAYER, &a) == 0);
}
