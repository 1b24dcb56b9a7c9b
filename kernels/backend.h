/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic as the model graph sees it: one table of operations per backend.
 *
 * A device owns compute threads, scratch memory and everything created from it; all calls
 * on one device come from one thread at a time (the worker that owns the device). Ops are
 * queued on a stream and run in order; on the CPU they have finished when the call returns.
 * The module relies on libc only. It reads no configuration and no environment (except
 * KVD_CPU_MASK, see cpu_features.h), never logs, and knows neither sessions nor requests.
 *
 * Memory. Parameters marked KV_DEV are device addresses: callers may add offsets to them
 * and hand them back, and read or write what is there only through upload() and
 * download(). All other arrays are host memory and are consumed before the call returns,
 * except those of kv_batch, see batch_load(). Activations are float32, row-major; each
 * row starts ldx floats after the one before (ldx >= the row's width).
 *
 * Bits. The bits of an output row depend on the row's own inputs and on props.variant, and
 * on nothing else: not on the number of rows, their neighbours, chunking, the number of
 * threads, or block ids. Reduction orders are fixed by the definition of each op.
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
#include "kernels/wtype.h"

#define KV_DEV /* a device address: not to be dereferenced by callers */

struct kv_device; /* an opened backend                                    */
struct kv_stream; /* an ordered queue of ops                              */
struct kv_weight; /* a packed matrix, or several with one input           */
struct kv_table;  /* rows in their file format, looked up by number       */
struct kv_rope;   /* a rotary embedding                                   */
struct kv_pool;   /* n_blocks KV blocks of one layout                     */

/* struct kv_options - how to open a device; all-zero is the default */
struct kv_options {
	uint32_t
		n_threads; /* compute threads, the caller included; 0: one per usable CPU */
	uint32_t
		cpu_mask; /* KV_CPU_* bundles allowed, see cpu_features.h; 0: all        */
	uint32_t
		spin_us; /* how long idle compute threads spin before they sleep; 0: 50 */
	bool affinity;   /* bind compute threads (not the caller) to single CPUs        */
};

struct kv_props {
	const char *name; /* "cpu"                                                     */
	const char *isa;  /* "amx": for people; does not change bits                   */
	const char *variant; /* "cpu-1": equal variants give equal bits; a part of every
	                        block key. One for all CPU bundles, as they agree         */
	uint32_t n_threads;
	uint32_t
		max_rows; /* rows that one op takes at most                             */
	bool host_memory; /* device addresses are host pointers                         */
};

/* One matrix of a model file: n rows (outputs) of k columns (inputs), rows contiguous. */
struct kv_weight_part {
	enum kv_wtype type;
	uint32_t n, k;
	const void
		*data; /* n * kv_wtype_row_bytes(type, k) bytes, host, unaligned        */
};

enum { KV_MAX_PARTS = 8 };

/*
 * struct kv_batch - what one step works on
 *
 * Entries are in row order without gaps: entries[0].row0 = 0, entries[i+1].row0 =
 * entries[i].row0 + entries[i].n_rows, and the last one ends at n_rows.
 */
struct kv_batch {
	uint32_t n_rows, n_entries, n_blocks;
	const uint32_t *tokens; /* [n_rows]                                  */
	const struct kv_batch_entry
		*entries;       /* [n_entries]                               */
	const uint32_t *blocks; /* [n_blocks] block ids of all entries       */
};

enum kv_rope_mode {
	KV_ROPE_NORMAL, /* pairs (2i, 2i+1): llama                                         */
	KV_ROPE_NEOX, /* pairs (i, i + rope_dims/2): qwen, gemma, gpt-neox               */
};

struct kv_rope_params {
	enum kv_rope_mode mode;
	uint32_t rope_dims; /* even, <= head_dim; dims above pass unchanged        */
	float freq_base;    /* 10000                                               */
	float freq_scale;   /* 1, or 1/factor for linear scaling                   */
	const float
		*freq_factors; /* host [rope_dims/2] divisors of the frequency, or NULL */
};

struct kv_linear {
	const struct kv_weight *w;
	const float *x KV_DEV; /* [m, k]                                                */
	float *y KV_DEV;       /* [m, n of all parts side by side]; not aliasing x      */
	const float *bias
		KV_DEV; /* [n] or NULL                                           */
	uint32_t m;
	size_t ldx, ldy;
	bool accumulate; /* y = y + (x W^T + bias) instead of y = ...             */
};

/* Where q, k and v of a row start, in floats from the row's start, and how many heads. */
struct kv_qkv {
	float *qkv
		KV_DEV; /* [n_rows, ld]; each of q, k, v is heads side by side          */
	size_t ld;
	uint32_t q_off, k_off, v_off;
	uint32_t
		n_heads; /* a multiple of the pool's n_kv_heads                          */
};

struct kv_attention {
	const float *q
		KV_DEV;    /* [n_rows, ldq], rotated, n_heads * head_dim floats a row  */
	float *out KV_DEV; /* [n_rows, ldo], n_heads * head_dim floats a row; may not
	                          alias q                                                  */
	size_t ldq, ldo;
	uint32_t n_heads;
	float scale; /* of the scores, 1/sqrt(head_dim) as a rule                */
};

/* What logits_stat() says about one row of logits. */
struct kv_logits_stat {
	float max;
	float lse;    /* log(sum(exp(logit)))                                           */
	float target; /* logit of the row's target, 0 when no targets were given        */
	uint32_t
		argmax; /* lowest index among equals                                      */
};

/*
 * struct kv_backend - the operations
 *
 * Shapes are in brackets. "st" is where the op is queued. Unless said otherwise outputs may
 * not alias inputs, m = 0 is allowed and does nothing, and m <= props.max_rows.
 */
struct kv_backend {
	const char *name;

	/* --- device ------------------------------------------------------------------ */

	/* Return: 0; -EINVAL (cpu_mask names a bundle that does not exist, too many threads),
	 * -ENOMEM, -EAGAIN (no thread). */
	int (*open)(const struct kv_options *options, struct kv_device **ret_dev);
	/* Everything made from the device must have been freed. NULL is fine. */
	void (*close)(struct kv_device *dev);
	void (*get_props)(const struct kv_device *dev, struct kv_props *ret_props);

	int (*stream_open)(struct kv_device *dev, struct kv_stream **ret_st);
	void (*stream_close)(struct kv_stream *st);
	/* Wait until everything queued has finished. Return: 0 or the first failure of a
	 * queued op. */
	int (*stream_sync)(struct kv_stream *st);

	/* --- memory ------------------------------------------------------------------ */

	/* 64-byte aligned, huge pages advised from 2 MiB on, zeroed. size > 0. */
	int (*mem_alloc)(struct kv_device *dev, size_t size, void **ret_mem KV_DEV);
	void (*mem_free)(struct kv_device *dev, void *mem KV_DEV, size_t size);
	int (*upload)(struct kv_stream *st, void *dst KV_DEV, const void *src,
		      size_t size);
	/* download() waits until the data is there. */
	int (*download)(struct kv_stream *st, void *dst, const void *src KV_DEV,
			size_t size);

	/* --- pool -------------------------------------------------------------------- */

	/*
	 * Map n_blocks blocks. fd >= 0: shared, from offset off of that file (a memfd, which
	 * must be large enough; the fd stays the caller's; off is a multiple of
	 * KV_POOL_ALIGN); its content is kept. fd -1: private memory, zeroed. -ENOTSUP where
	 * a device cannot do the former. n_tails slots of layout->tail_bytes are allocated
	 * beside it, always private: an open block does not outlive the process.
	 */
	int (*pool_open)(struct kv_device *dev, const struct kv_layout *layout,
			 uint32_t n_blocks, uint32_t n_tails, int fd, uint64_t off,
			 struct kv_pool **ret_pool);
	void (*pool_close)(struct kv_pool *pool);
	/* Device address of block 0. */
	void *KV_DEV (*pool_base)(const struct kv_pool *pool);
	/* Copy whole blocks, in array order (copy on write, forks). */
	int (*copy_blocks)(struct kv_stream *st, struct kv_pool *pool,
			   const struct kv_block_copy *copies, uint32_t n_copies);
	/* Overwrite whole blocks with zeros (a block changes its sharing domain). */
	int (*zero_blocks)(struct kv_stream *st, struct kv_pool *pool,
			   const uint32_t *ids, uint32_t n_ids);

	/* --- weights ----------------------------------------------------------------- */

	/*
	 * Pack parts (1..KV_MAX_PARTS, all with the same k, types may differ) so that linear()
	 * yields their outputs side by side. The data is copied: a model file that is replaced
	 * in place, or cut short, does not reach a running daemon.
	 * Return: 0; -EINVAL (shape, k no multiple of the type's group), -ENOMEM.
	 */
	int (*weight_pack)(struct kv_device *dev, const struct kv_weight_part *parts,
			   uint32_t n_parts, struct kv_weight **ret_w);
	void (*weight_free)(struct kv_weight *w);
	/* Bytes that the packed form takes on the device. */
	size_t (*weight_bytes)(const struct kv_weight *w);
	/* Rows to be looked up (embeddings), copied too. Errors as weight_pack(). */
	int (*table_new)(struct kv_device *dev, const struct kv_weight_part *part,
			 struct kv_table **ret_table);
	void (*table_free)(struct kv_table *table);
	/*
	 * Weights and tables that are made between the two lie in a memory file, from off on
	 * (a multiple of KV_WEIGHTS_ALIGN), so that a later process, in which this backend is
	 * compiled from the same sources, has them by the same calls in the same order. filled:
	 * they lie there, the file is sealed against writing, and no part's data is read; else
	 * the file grows. From where on it cannot, or the kernel gives no huge pages for it, all
	 * lies in memory of the process. Both NULL: not offered.
	 *
	 * weights_end(): what lies in the file is read-only from now on. Return: 0: all does, and
	 * the file can be sealed against writing; 1: not all; -ENOMEM.
	 */
	void (*weights_begin)(struct kv_device *dev, int fd, uint64_t off, bool filled);
	int (*weights_end)(struct kv_device *dev);
	int (*rope_new)(struct kv_device *dev, const struct kv_rope_params *params,
			struct kv_rope **ret_rope);
	void (*rope_free)(struct kv_rope *rope);

	/* --- one step ---------------------------------------------------------------- */

	/*
	 * Make batch what embed(), rope_kv_write() and attention() of this stream work on. It
	 * is checked: -EINVAL for entries that break the rules of kv_batch. Its arrays must
	 * stay unchanged until the next batch_load() or stream_close(). A block id is checked
	 * against the pool by the ops that use it.
	 */
	int (*batch_load)(struct kv_stream *st, const struct kv_batch *batch);

	/* y[n_rows, k] = table rows of batch.tokens; a token >= table rows is -EINVAL. */
	int (*embed)(struct kv_stream *st, const struct kv_table *table, float *y KV_DEV,
		     size_t ldy);

	/* y[m, d] = x * 1/sqrt(mean(x^2) + eps) * w[d]; y may be x. */
	int (*rms_norm)(struct kv_stream *st, const float *x KV_DEV, size_t ldx,
			const float *w KV_DEV, float eps, float *y KV_DEV, size_t ldy,
			uint32_t m, uint32_t d);

	/*
	 * y[m, n] = x[m, k] * W^T (+ bias) (+ y). Quantized parts: each row of x is rounded
	 * to 15 bits with one scale (a = 128 hi + lo), groups are summed exactly in integers
	 * and added up in float in group order. Float parts: float32 sums in a fixed order.
	 */
	int (*linear)(struct kv_stream *st, const struct kv_linear *args);

	/*
	 * Turn q and k of each batch row in place by its position (rotary embedding), and
	 * write k and v of the row, as the pool's format, to (layer, position) of the row's
	 * sequence. Where the layout needs tails, positions are kept as fp16 until their block
	 * is full, and the block is then written to the pool at once.
	 */
	int (*rope_kv_write)(struct kv_stream *st, struct kv_rope *rope,
			     struct kv_pool *pool, uint32_t layer,
			     const struct kv_qkv *args);

	/*
	 * Causal attention of each batch row over its sequence's positions, read from the
	 * pool only, in a layout with tails from the row's own open block as well: there it
	 * must come after rope_kv_write() of the same batch and layer, before another layer.
	 * Spans of 256 absolute positions: scores, maximum, exp, weighted sum; spans merged
	 * in order. Entries with the same blocks in a span read it once for all.
	 */
	int (*attention)(struct kv_stream *st, const struct kv_pool *pool, uint32_t layer,
			 const struct kv_attention *args);

	/* y[m, d] = silu(gate) * up, gate = x[., 0..d), up = x[., d..2d). */
	int (*silu_mul)(struct kv_stream *st, const float *x KV_DEV, size_t ldx,
			float *y KV_DEV, size_t ldy, uint32_t m, uint32_t d);

	/* y[i, d] = x[rows[i], d], i < m; rows is host memory. */
	int (*gather_rows)(struct kv_stream *st, const float *x KV_DEV, size_t ldx,
			   const uint32_t *rows, float *y KV_DEV, size_t ldy, uint32_t m,
			   uint32_t d);

	/* stat[m] of logits[m, n]; targets: host [m] or NULL, each < n. */
	int (*logits_stat)(struct kv_stream *st, const float *logits KV_DEV, size_t ld,
			   const uint32_t *targets, struct kv_logits_stat *stat KV_DEV,
			   uint32_t m, uint32_t n);
};

/* The CPU backend; always there. Variant chosen at open() by cpu_features.h. */
const struct kv_backend *kv_backend_cpu(void);

#endif
