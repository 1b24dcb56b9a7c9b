/* SPDX-License-Identifier: MIT */
/* The objects of the CPU backend. The device owns the compute threads and the kernel table;
 * a stream owns the scratch of its ops, which grows and is kept. All on the device's thread;
 * compute threads read them inside threads_run() only. */
#ifndef KVD_KERNELS_CPU_DEVICE_H
#define KVD_KERNELS_CPU_DEVICE_H

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/weight.h"

enum { KV_MAX_OP_ROWS = 1 << 16 };

/**
 * struct kv_device - a CPU, with its compute threads
 * @next_id: of pools and batches, so that a stale one is never taken for a new one
 * @weights: weights and tables are cut from it
 */
struct kv_device {
	struct threads *threads;
	struct kv_cpu_ops ops;
	uint32_t features;
	char variant[48];
	uint64_t next_id;
	struct memory_arena weights;
};

/* tails: [n_tails] of layout.tail_bytes; map_bytes: of a file mapping, 0: base is
 * memory_alloc()'s. */
struct kv_pool {
	struct kv_device *dev;
	struct kv_layout layout;
	uint32_t n_blocks, n_tails;
	uint64_t id;
	uint8_t *base;
	uint8_t *tails;
	size_t map_bytes;
};

struct kv_table {
	struct kv_device *dev;
	struct kv_weight_part part; /* data: in chunk */
	size_t row_bytes;
	struct memory_chunk *chunk;
};

/* Scratch that only grows. */
struct scratch {
	void *mem;
	size_t size;
};

/* freq: [rope_dims / 2] radians a position; cs: [n_rows][rope_dims] cos and sin of batch_id's
 * rows. */
struct kv_rope {
	struct kv_device *dev;
	enum kv_rope_mode mode;
	uint32_t rope_dims;
	double *freq;
	uint64_t batch_id;
	struct scratch cs;
};

/**
 * struct attn_plan - how attention of one batch and pool (0: none) is cut up: see attention.h
 * @n_rep: query heads of a KV head
 * @max_aside, @window: spans put aside, and at a time
 * @cost: of all, in ns, roughly
 * @spans_needed, @spans_read: of a layer, see struct attention_counts
 * @entries: [n_entries + 1], the last one holding the totals
 * @groups: by span
 */
struct attn_plan {
	uint64_t batch_id, pool_id;
	uint32_t n_heads;
	uint32_t n_rep;
	uint32_t group_heads, n_head_groups;
	uint32_t tile_rows;
	uint32_t n_tiles, n_groups, n_members;
	uint32_t max_aside, window;
	size_t n_states;
	uint64_t cost;
	uint64_t spans_needed, spans_read;
	struct attn_entry *entries;
	struct attn_member *members;
	struct attn_group *groups;
	struct scratch entry_mem, member_mem, group_mem, prefixes;
};

/**
 * struct kv_own - partial blocks of one batch and pool (0: none): see kv_write.c
 * @layer: whose planes are kept
 * @kept0: [n_entries] u32: kept blocks of the entries before
 * @full: [n_full][2] u32: entry, number of the block in it
 * @planes: [n_kept] of a layer's fp16 planes
 */
struct kv_own {
	uint64_t batch_id, pool_id;
	uint32_t layer;
	uint32_t n_kept, n_full;
	struct scratch kept0;
	struct scratch full;
	struct scratch planes;
};

/* What attention() of a stream has read since stream_open(). A span counts once for each KV head
 * and layer: as if each entry read its own, and once for entries that share its blocks. */
struct attention_counts {
	uint64_t spans_needed, spans_read;
};

/**
 * struct kv_stream - the loaded batch, and scratch of the ops
 * @batch_id: 0: none loaded
 * @checked_batch_id, @checked_pool_id: whose block ids were found in range
 * @row_entry: [n_rows] u32: entry of each row
 * @queries, @query_codes: of the layer at work
 * @heaps: of sample() and top(): [n_vocab] ids each
 */
struct kv_stream {
	struct kv_device *dev;
	struct kv_batch batch;
	uint64_t batch_id;
	uint64_t checked_batch_id, checked_pool_id;
	struct scratch row_entry;
	struct attention_counts counts;
	struct attn_plan plan;
	struct kv_own own;
	struct scratch act_codes, act_sums, gemm, partials;
	struct scratch queries, query_codes;
	struct scratch heaps;
};

/* At least size bytes in s, content not kept, 64-byte aligned. Return: 0 or -ENOMEM. */
int scratch_reserve(struct scratch *s, size_t size);
void scratch_release(struct scratch *s);

/* The pool block of position pos of an entry. */
static inline uint8_t *batch_block(const struct kv_batch *b,
				   const struct kv_batch_entry *e,
				   const struct kv_pool *pool, uint32_t pos)
{
	uint32_t id = b->blocks[e->block_off + pos / pool->layout.block_tokens];

	return pool->base + (size_t)id * pool->layout.block_bytes;
}

/* Return: 0; -EINVAL: no batch, or it names a block that the pool does not have. */
int batch_check_blocks(struct kv_stream *st, const struct kv_pool *pool);

/* Call fn for rows in pieces worth some microseconds each, ns_per_row being an estimate. */
struct rows_job {
	void (*fn)(void *arg, uint32_t row0, uint32_t n_rows);
	void *arg;
	uint32_t n_rows, piece;
};
void rows_run(struct kv_device *dev, void (*fn)(void *, uint32_t, uint32_t), void *arg,
	      uint32_t n_rows, uint32_t ns_per_row);

/* Writing K and V of a batch's rows: begin (0 or -ENOMEM), rows (on any thread), end. k[head_dim]
 * has been turned by its position. */
int kv_write_begin(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer);
void kv_write_row(const struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
		  uint32_t entry, uint32_t pos, uint32_t head, const float *k,
		  const float *v);
void kv_write_end(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer);

/* fp16 planes of the partial block that a position of the batch stands in: K, and V
 * tail_plane_bytes on. */
uint16_t *own_planes(const struct kv_stream *st, const struct kv_pool *pool,
		     uint32_t layer, uint32_t entry, uint32_t pos, uint32_t kv_head);
/* Do own_planes() of this batch lead to this layer? Kept blocks are those of the layer that
 * kv_write_begin() named last; without any, all layers lie in the slots. */
bool own_ready(const struct kv_stream *st, const struct kv_pool *pool, uint32_t layer);

/* Ops with their own files; see backend.h. */
int cpu_comm_open(struct kv_device *const *devs, uint32_t n, struct kv_comm **ret_comms);
int cpu_linear(struct kv_stream *st, const struct kv_linear *args);
int cpu_attention(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
		  const struct kv_attention *args);
int cpu_rope_new(struct kv_device *dev, const struct kv_rope_params *params,
		 struct kv_rope **ret_rope);
void cpu_rope_free(struct kv_rope *rope);
int cpu_rope_kv_write(struct kv_stream *st, struct kv_rope *rope, struct kv_pool *pool,
		      uint32_t layer, const struct kv_qkv *args);
int cpu_batch_load(struct kv_stream *st, const struct kv_batch *batch);
int cpu_embed(struct kv_stream *st, const struct kv_table *table, void *y, size_t ldy);
int cpu_rms_norm(struct kv_stream *st, const struct kv_norm *args);
int cpu_silu_mul(struct kv_stream *st, const void *x, size_t ldx, void *y, size_t ldy,
		 uint32_t m, uint32_t d);
int cpu_gather_rows(struct kv_stream *st, const void *x, size_t ldx, const uint32_t *rows,
		    void *y, size_t ldy, uint32_t m, uint32_t d);
int cpu_sample(struct kv_stream *st, const void *logits, size_t ld, uint32_t n,
	       const struct kv_sample *rows, struct kv_token *tokens, uint32_t m);
int cpu_top(struct kv_stream *st, const void *logits, size_t ld, uint32_t n,
	    const struct kv_top *rows, uint32_t n_rows);

#endif
