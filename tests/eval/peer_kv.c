/* SPDX-License-Identifier: MIT */
/*
 * What llama.cpp's KV formats cost in quality, with everything else being kvd's own
 * arithmetic: the runner runs on fp16 blocks, and what lies in them is rounded through the
 * peer's format right after it was written. Prints the same lines as kld, fp16 first.
 *
 *   q8_0, q4_0   groups of 32 along a head, as in ggml, after a Hadamard rotation of each
 *                head, as llama.cpp does by default; attention sees the rounded rows at once
 *   q4_0+open    the same, but the rows of a token's own block of 16 stay fp16, as kvd's
 *                int4 keeps them
 *
 * The peer's attention is taken to be exact: its rounding of q to 8 bits is left out, which
 * flatters it. Rounded values are stored as fp16, 2^-12 beside a step of 2^-7 or more.
 *
 * usage: peer_kv MODEL TOKENS WINDOW [THREADS]
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu_backend.h"
#include "kernels/cpu_features.h"
#include "kernels/half.h"
#include "tests/eval/kl.h"
#include "tests/unit/model/harness.h"

#define BLOCK 16
#define GROUP 32

enum { FP16, Q8_0, Q4_0, Q4_0_OPEN, N_FORMATS };

static const char *const names[N_FORMATS] = {"fp16", "q8_0", "q4_0", "q4_0+open"};

static struct harness harness;
static struct kv_backend hooked; /* the CPU's, but for rope_kv_write() */

/* Walsh-Hadamard over all of x, a power of two; normalized, so that it undoes itself. */
static void rotate(float *x, uint32_t n)
{
	float norm = 1.0f / sqrtf((float)n);

	for (uint32_t half = 1; half < n; half *= 2)
		for (uint32_t i = 0; i < n; i++) {
			float a = x[i], b = x[i | half];

			if (i & half)
				continue;
			x[i] = a + b;
			x[i | half] = a - b;
		}
	for (uint32_t i = 0; i < n; i++)
		x[i] *= norm;
}

static float half(float f)
{
	return kv_half_to_float(kv_half_from_float(f));
}

/* Source of both: ggml's reference quantizers, block_q8_0 and block_q4_0. */
static void round_q8_0(float *x)
{
	float top = 0, d;

	for (int i = 0; i < GROUP; i++)
		top = fmaxf(top, fabsf(x[i]));
	d = top / 127.0f;
	for (int i = 0; i < GROUP; i++)
		x[i] = d > 0 ? roundf(x[i] * (1.0f / d)) * half(d) : 0.0f;
}

static void round_q4_0(float *x)
{
	float top = 0, d;

	for (int i = 0; i < GROUP; i++)
		if (fabsf(x[i]) > fabsf(top))
			top = x[i];
	d = top / -8.0f;
	for (int i = 0; i < GROUP; i++) {
		float q = d != 0 ? fminf(15.0f, floorf(x[i] * (1.0f / d) + 8.5f)) : 8.0f;

		x[i] = (q - 8.0f) * half(d);
	}
}

static void round_vector(float *x, uint32_t n, int format)
{
	rotate(x, n);
	for (uint32_t i = 0; i < n; i += GROUP) {
		if (format == Q8_0)
			round_q8_0(x + i);
		else
			round_q4_0(x + i);
	}
	rotate(x, n);
}

/* Token @token of the head's K plane and of its V plane. */
static void round_row(uint16_t *k, uint16_t *v, uint32_t token, int format)
{
	const struct kv_layout *l = &harness.layout;
	float x[KV_HEAD_DIM_MAX];

	for (uint32_t i = 0; i < l->head_dim; i++)
		x[i] = kv_half_to_float(k[kv_fp16_k_index(l, token, i)]);
	round_vector(x, l->head_dim, format);
	for (uint32_t i = 0; i < l->head_dim; i++)
		k[kv_fp16_k_index(l, token, i)] = kv_half_from_float(x[i]);
	for (uint32_t i = 0; i < l->head_dim; i++)
		x[i] = kv_half_to_float(v[kv_fp16_v_index(l, token, i)]);
	round_vector(x, l->head_dim, format);
	for (uint32_t i = 0; i < l->head_dim; i++)
		v[kv_fp16_v_index(l, token, i)] = kv_half_from_float(x[i]);
}

/* Every step holds one whole block of each sequence, which is a format. */
static void round_block(uint32_t layer, uint32_t id, int format)
{
	const struct kv_layout *l = &harness.layout;
	char *block = (char *)harness.runner.backend->pool_base(harness.pool) +
		      id * l->block_bytes;

	for (uint32_t head = 0; head < l->n_kv_heads; head++) {
		char *k = block + kv_layout_head_off(l, layer, head);

		for (uint32_t token = 0; token < BLOCK; token++)
			round_row((uint16_t *)(void *)k,
				  (uint16_t *)(void *)(k + l->v_at), token, format);
	}
}

static int rope_kv_round(struct kv_stream *st, struct kv_rope *rope, struct kv_pool *pool,
			 uint32_t layer, const struct kv_qkv *args)
{
	const struct plan *plan = &harness.plan;
	int r = kv_backend_cpu()->rope_kv_write(st, rope, pool, layer, args);

	for (uint32_t i = 0; !r && i < plan->n_entries; i++) {
		const struct kv_batch_entry *e = &plan->entries[i];
		const uint32_t *ids = plan->block_ids + e->block_off;
		uint32_t block = e->pos0 / BLOCK;

		if (e->seq_id == Q4_0_OPEN && block > 0)
			round_block(layer, ids[block - 1], Q4_0);
		else if (e->seq_id == Q8_0 || e->seq_id == Q4_0)
			round_block(layer, ids[block], (int)e->seq_id);
	}
	return r;
}

/* One block of a window under all formats, as one step. */
static void run_block(const uint32_t *ids, uint32_t pos0, struct kl_window *windows,
		      float *p)
{
	size_t n_vocab = harness.model.params.n_vocab;
	struct plan *plan = &harness.plan;
	const float *rows = (const float *)(const void *)harness.result.dist;

	harness_begin(&harness);
	for (uint32_t seq = 0; seq < N_FORMATS; seq++) {
		uint32_t row = harness_rows(&harness, seq, (const int32_t *)ids + pos0,
					    pos0, BLOCK);

		for (uint32_t i = 0; i < BLOCK; i++) {
			struct plan_output *o = &plan->outputs[plan->n_outputs];

			harness_score(&harness, row + i, 0);
			o->dist = (struct plan_dist){PLAN_DIST_ALL, (uint32_t)n_vocab,
						     plan->n_dist_words};
			plan->n_dist_words += (uint32_t)n_vocab;
		}
	}
	harness_run(&harness);
	for (uint32_t seq = 0; seq < N_FORMATS; seq++)
		kl_fill(&windows[seq], ids, pos0, BLOCK, rows,
			rows + seq * BLOCK * n_vocab, n_vocab, p);
}

static uint32_t *read_tokens(const char *path, size_t *ret_n)
{
	FILE *f = fopen(path, "re");
	uint32_t *ids;
	long len;

	if (!f || fseek(f, 0, SEEK_END) || (len = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
		die("cannot read %s: %s", path, strerror(errno));
	*ret_n = (size_t)len / sizeof(*ids);
	ids = calloc(*ret_n + 1, sizeof(*ids));
	if (!ids || fread(ids, sizeof(*ids), *ret_n, f) != *ret_n)
		die("cannot read %s", path);
	fclose(f);
	return ids;
}

int main(int argc, char **argv)
{
	struct kl_window windows[N_FORMATS];
	struct load_error err;
	struct gguf *gguf;
	size_t n_ids, n;
	uint32_t *ids;
	float *p;

	if (argc < 4 || (n = strtoul(argv[3], NULL, 10)) < BLOCK || n % BLOCK)
		die("usage: peer_kv MODEL TOKENS WINDOW [THREADS], WINDOW in blocks of %d",
		    BLOCK);
	ids = read_tokens(argv[2], &n_ids);
	if (gguf_open(&gguf, argv[1], &err))
		die("%s", err.text);
	harness_init(&harness, gguf, KV_CPU_ALL,
		     argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0, N_FORMATS,
		     (uint32_t)n, N_FORMATS * BLOCK);
	gguf_free(gguf);
	if (harness.layout.head_dim & (harness.layout.head_dim - 1) ||
	    harness.layout.head_dim % GROUP)
		die("a head_dim of %u is not rotated by the peer",
		    harness.layout.head_dim);
	hooked = *kv_backend_cpu();
	hooked.rope_kv_write = rope_kv_round;
	harness.runner.backend = &hooked;
	p = calloc(harness.model.params.n_vocab, sizeof(*p));
	for (int i = 0; i < N_FORMATS; i++)
		windows[i] = (struct kl_window){n, calloc(n, sizeof(double)),
						calloc(n, sizeof(double)), calloc(n, 1)};
	for (size_t w = 0; (w + 1) * n <= n_ids; w++) {
		for (uint32_t pos = 0; pos < n; pos += BLOCK)
			run_block(ids + w * n, pos, windows, p);
		for (int i = 0; i < N_FORMATS; i++)
			kl_print(&windows[i], w, names[i]);
	}
	harness_deinit(&harness);
	return EXIT_SUCCESS;
}
