/* SPDX-License-Identifier: MIT */
/*
 * A device with a pool and one layer's shapes, for checks that go through the backend. The
 * pool starts full of NaN patterns. Relies on checkkern.h.
 */
#ifndef KVD_TESTS_KERN_WORLD_H
#define KVD_TESTS_KERN_WORLD_H

#include "kernels/cpu_backend.h"
#include "tests/kern/checkkern.h"

enum { MAX_SEQS = 3, LAYERS = 2, LAYER = 1, N_BLOCKS = 256, N_TAILS = 70 };

struct shape {
	uint32_t hd, n_heads, n_kv, bt, rope_dims;
	enum kv_rope_mode mode;
	uint32_t n_seqs, len[MAX_SEQS];
	enum kv_format k, v;
};

struct world {
	const struct kv_backend *be;
	struct kv_device *dev;
	struct kv_stream *st;
	struct kv_pool *pool;
	struct kv_rope *rope;
	struct kv_layout layout;
};

bool world_open(struct world *w, const struct ck *ck, const struct shape *s,
		uint32_t n_threads, int fd);
void world_close(struct world *w);

/* Pool block of block number n of all that a check uses: scattered. */
uint32_t block_id(uint32_t n);

/* Rows through one layer; x[n_rows][row], y[n_rows][orow] or NULL to write K and V only. */
void run_batch(struct world *w, const struct shape *s, const struct kv_batch *b, float *x,
	       float *y);

#endif
