/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic as the model graph sees it: one table of operations per backend.
 *
 * All calls on one device come from one thread at a time; what is made from a device is freed
 * before it. Ops are queued on a stream and run in order; those that return something to the
 * host wait for it. A backend reads no configuration, never logs, and knows no requests.
 *
 * Memory. KV_DEV marks device addresses: callers may add offsets to them, but read and write
 * only through upload() and download(). All other arrays are host memory and are consumed before
 * the call returns, except those of kv_batch. Activations are rows of elements of
 * props.act_bytes bytes, in a type private to the backend; rows are ldx elements apart, ldx >=
 * the row's width. Norms and biases are float32 on the device.
 *
 * Bits. The bits of an output row, and of the block that it is written to, depend on the row's
 * own inputs and on props.variant only: not on the number of rows, their neighbours, chunking,
 * threads, or block ids. This is why a hit equals a cold run, and an answer computed again after
 * a restart equals the first.
 *
 * Errors. Ops return 0 or a negative errno: -EINVAL (a shape that the op's comment rules
 * out), -ENOMEM (scratch could not grow), -ENOTSUP. On failure outputs are undefined and
 * the device stays usable.
 */
#ifndef KVD_KERNELS_BACKEND_H
#define KVD_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/batch.h"
#include "kernels/format.h"
#include "kernels/rope.h"
#include "kernels/wtype.h"

#define KV_DEV

struct kv_comm;
struct kv_device;
struct kv_pool;
struct kv_rope;
struct kv_stream;
struct kv_table;
struct kv_weight;

struct kv_cpu_options;

/* All-zero is the default; @cpu is for that backend only, or NULL. */
struct kv_options {
	uint32_t device;
	const struct kv_cpu_options *cpu;
};

/**
 * struct kv_props - what was opened
 * @isa: "amx": for people; does not change bits
 * @variant: "cpu-1": equal variants give equal bits; a part of every block key
 * @n_threads: compute threads of the host
 * @formats: bit 1 << f for each enum kv_format that pools can have
 * @host_memory: device addresses are host pointers, and pools can lie in a file
 */
struct kv_props {
	const char *name;
	const char *isa;
	const char *variant;
	uint32_t n_threads;
	uint32_t max_rows;
	uint32_t act_bytes;
	uint32_t formats;
	bool host_memory;
};

/**
 * struct kv_weight_part - n rows (outputs) and k columns (inputs) of a matrix of a model file
 * @data: host, unaligned: row 0 of those taken, column 0 of the file's matrix
 * @row_stride: bytes from row to row; 0: kv_wtype_row_bytes(type, k), as no column is left out
 * @col0: the first column taken, a multiple of kv_wtype_group(type)
 */
struct kv_weight_part {
	enum kv_wtype type;
	uint32_t n, k;
	const void *data;
	size_t row_stride;
	uint32_t col0;
};

enum { KV_MAX_PARTS = 8 };

/**
 * struct kv_batch - what one step works on
 * @tokens: [n_rows]
 * @entries: [n_entries], in row order and without gaps from row 0 to n_rows
 * @blocks: [n_blocks] of all entries
 */
struct kv_batch {
	uint32_t n_rows, n_entries, n_blocks;
	const uint32_t *tokens;
	const struct kv_batch_entry *entries;
	const uint32_t *blocks;
};

/**
 * struct kv_linear - y = x W^T (+ bias)
 * @x: [m, k]
 * @y: [m, n of all parts side by side], not aliasing x
 * @bias: [n] floats or NULL
 */
struct kv_linear {
	const struct kv_weight *w;
	const void *x KV_DEV;
	void *y KV_DEV;
	const float *bias KV_DEV;
	uint32_t m;
	size_t ldx, ldy;
};

/**
 * struct kv_norm - y = x * 1/sqrt(mean(x^2) + eps) * w
 * @x: [m, d]
 * @add: [m, d] or NULL: x becomes x + add first, and stays so
 * @y: [m, d]; may be x, without @add, or add
 * @w: [d] floats
 */
struct kv_norm {
	void *x KV_DEV;
	const void *add KV_DEV;
	void *y KV_DEV;
	const float *w KV_DEV;
	size_t ldx, ldadd, ldy;
	float eps;
	uint32_t m, d;
};

/* qkv: [n_rows, ld], each of q, k, v being heads side by side, _off elements from the row's start;
 * n_heads: a multiple of the pool's n_kv_heads. */
struct kv_qkv {
	void *qkv KV_DEV;
	size_t ld;
	uint32_t q_off, k_off, v_off;
	uint32_t n_heads;
};

/* q (rotated) and out: [n_rows, ld], n_heads * head_dim elements a row; scale: of the scores. */
struct kv_attention {
	const void *q KV_DEV;
	void *out KV_DEV;
	size_t ldq, ldo;
	uint32_t n_heads;
	float scale;
};

/* target: a token below the row's width, or -1: one drawn by params for that position. */
struct kv_sample {
	int32_t target;
	struct kv_sample_params params;
	uint64_t position;
};

/**
 * struct kv_token - the result of sample()
 * @token: the target, or what was drawn; -1 where @logprob would not be finite
 * @logprob: natural logarithm of the softmax over the whole row at temperature 1; NaN with -1
 */
struct kv_token {
	int32_t token;
	float logprob;
};

/**
 * struct kv_top - the n likeliest tokens of a row of logits, or its whole distribution
 * @n: 1 .. the row's width
 * @ids: [n] likeliest first, lower ids first among equals; NULL: all, in order of ids, with
 *	@n the row's width
 * @logprobs: [n]; NaN where the row holds a NaN
 */
struct kv_top {
	uint32_t row;
	uint32_t n;
	uint32_t *ids;
	float *logprobs;
};

/*
 * struct kv_backend - the operations
 *
 * Shapes are in brackets. Unless said otherwise outputs may not alias inputs, m = 0 does nothing,
 * and m <= props.max_rows. NULL may be closed and freed.
 */
struct kv_backend {
	const char *name;

	/* --- device ------------------------------------------------------------------ */

	/* Return: 0; -EINVAL (options), -ENODEV (no such device, no driver), -ENOMEM, -EAGAIN
	 * (no thread). @error, unless its size is 0, gets a line that says what was refused. */
	int (*open)(const struct kv_options *options, char *error, size_t error_size,
		    struct kv_device **ret_dev);
	void (*close)(struct kv_device *dev);
	void (*get_props)(const struct kv_device *dev, struct kv_props *ret_props);
	int (*mem_info)(const struct kv_device *dev, uint64_t *ret_free,
			uint64_t *ret_total);

	/* One end per device, device i being rank i: comm.h. The devices outlive the ends. */
	int (*comm_open)(struct kv_device *const *devs, uint32_t n,
			 struct kv_comm **ret_comms);

	int (*stream_open)(struct kv_device *dev, struct kv_stream **ret_st);
	void (*stream_close)(struct kv_stream *st);
	/* Wait for everything queued. Return: 0 or the first failure of a queued op. */
	int (*stream_sync)(struct kv_stream *st);

	/* --- memory ------------------------------------------------------------------ */

	/* 64-byte aligned, zeroed. size > 0. */
	int (*mem_alloc)(struct kv_device *dev, size_t size, void **ret_mem KV_DEV);
	void (*mem_free)(struct kv_device *dev, void *mem KV_DEV, size_t size);
	int (*upload)(struct kv_stream *st, void *dst KV_DEV, const void *src,
		      size_t size);
	int (*download)(struct kv_stream *st, void *dst, const void *src KV_DEV,
			size_t size);

	/* --- pool -------------------------------------------------------------------- */

	/* Map n_blocks blocks. fd >= 0, only with props.host_memory: shared, with its content,
	 * from offset off (a multiple of KV_POOL_ALIGN) of that memfd, which must be large
	 * enough and stays the caller's. fd -1: private memory, zeroed. The n_tails slots of
	 * layout->tail_bytes are always private. */
	int (*pool_open)(struct kv_device *dev, const struct kv_layout *layout,
			 uint32_t n_blocks, uint32_t n_tails, int fd, uint64_t off,
			 struct kv_pool **ret_pool);
	void (*pool_close)(struct kv_pool *pool);
	void *KV_DEV (*pool_base)(const struct kv_pool *pool);
	/* In array order. */
	int (*copy_blocks)(struct kv_stream *st, struct kv_pool *pool,
			   const struct kv_block_copy *copies, uint32_t n_copies);
	int (*zero_blocks)(struct kv_stream *st, struct kv_pool *pool,
			   const uint32_t *ids, uint32_t n_ids);

	/* --- weights ----------------------------------------------------------------- */

	/* Pack parts (1..KV_MAX_PARTS, all with the same k, types may differ) so that linear()
	 * yields their outputs side by side. The data is copied.
	 * Return: 0; -EINVAL (shape, k or col0 no multiple of the type's group), -ENOMEM. */
	int (*weight_pack)(struct kv_device *dev, const struct kv_weight_part *parts,
			   uint32_t n_parts, struct kv_weight **ret_w);
	void (*weight_free)(struct kv_weight *w);
	size_t (*weight_bytes)(const struct kv_weight *w);
	/* Rows to be looked up (embeddings): all columns, copied. Errors as weight_pack(). */
	int (*table_new)(struct kv_device *dev, const struct kv_weight_part *part,
			 struct kv_table **ret_table);
	void (*table_free)(struct kv_table *table);
	/*
	 * Weights and tables made between the two lie in a memory file, from off on (a multiple
	 * of KV_WEIGHTS_ALIGN), where a later process, its backend compiled from the same
	 * sources, finds them by the same calls in the same order. filled: they are there, the
	 * file is sealed against writing, and no part's data is read; else the file grows. What
	 * does not fit is private memory. Both NULL: not offered.
	 *
	 * weights_end(): the file's part is read-only from now on. Return: 0: all lies there,
	 * and the file can be sealed against writing; 1: not all; -ENOMEM.
	 */
	void (*weights_begin)(struct kv_device *dev, int fd, uint64_t off, bool filled);
	int (*weights_end)(struct kv_device *dev);
	int (*rope_new)(struct kv_device *dev, const struct kv_rope_params *params,
			struct kv_rope **ret_rope);
	void (*rope_free)(struct kv_rope *rope);

	/* --- one step ---------------------------------------------------------------- */

	/* What embed(), rope_kv_write() and attention() of this stream work on. Its arrays must
	 * stay unchanged until the next batch_load() or stream_close(). -EINVAL: entries break
	 * the rules of kv_batch; block ids are checked by the ops that use them. */
	int (*batch_load)(struct kv_stream *st, const struct kv_batch *batch);

	/* y[n_rows, k] = table rows of batch.tokens; a token >= table rows is -EINVAL. */
	int (*embed)(struct kv_stream *st, const struct kv_table *table, void *y KV_DEV,
		     size_t ldy);

	int (*rms_norm)(struct kv_stream *st, const struct kv_norm *args);
	int (*linear)(struct kv_stream *st, const struct kv_linear *args);

	/* Turn q and k of each batch row in place by its position (rotary embedding), and
	 * write k and v, in the pool's format, to (layer, position) of the row's sequence.
	 * Where the layout needs tails, rows of a partial block are kept there as fp16. */
	int (*rope_kv_write)(struct kv_stream *st, struct kv_rope *rope,
			     struct kv_pool *pool, uint32_t layer,
			     const struct kv_qkv *args);

	/* Causal attention of each batch row over its sequence's positions in the pool and, in
	 * a layout with tails, in its partial block: there it must come after rope_kv_write()
	 * of the same batch and layer, before another layer. */
	int (*attention)(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
			 const struct kv_attention *args);

	/* y[m, d] = silu(gate) * up, gate = x[., 0..d), up = x[., d..2d). */
	int (*silu_mul)(struct kv_stream *st, const void *x KV_DEV, size_t ldx,
			void *y KV_DEV, size_t ldy, uint32_t m, uint32_t d);

	/* y[i, d] = x[rows[i], d], i < m; rows is host memory. */
	int (*gather_rows)(struct kv_stream *st, const void *x KV_DEV, size_t ldx,
			   const uint32_t *rows, void *y KV_DEV, size_t ldy, uint32_t m,
			   uint32_t d);

	/* --- what goes back to the host ---------------------------------------------- */

	/* A token of each row of logits[m, n]; kernels/cpu/sample.h defines the draw for every
	 * backend. tokens[m] is host memory. */
	int (*sample)(struct kv_stream *st, const void *logits KV_DEV, size_t ld,
		      uint32_t n, const struct kv_sample *rows, struct kv_token *tokens,
		      uint32_t m);
	int (*top)(struct kv_stream *st, const void *logits KV_DEV, size_t ld, uint32_t n,
		   const struct kv_top *rows, uint32_t n_rows);
};

#endif
