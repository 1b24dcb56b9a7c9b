/* SPDX-License-Identifier: MIT */
/*
 * Decode attention over the geometry of the default model (30 layers, 3 KV heads of 64, 9
 * query heads): what one cached token costs, for each KV format and length of context;
 * 16 sequences that share a prefix, beside 16 that do not; and the writing of int8, beside
 * memcpy() of as many halves. Values are medians over rounds, in which all cases and the read
 * bandwidth of the machine take turns.
 *
 * usage: bench_attention [--json] [--rounds N] [--threads N] [--max-context N] [--isa BUNDLE]
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base.h"
#include "kernels/backend.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu_backend.h"
#include "kernels/cpu_features.h"

enum {
	LAYERS = 30,
	HEADS = 9,
	KV_HEADS = 3,
	HD = 64,
	QKV = (HEADS + 2 * KV_HEADS) * HD,
	BT = 16,
	CHUNK = 512, /* rows written at a time */
	CONTEXT = 16384,
	MAX_ROUNDS = 101,
	N_SEQS = 16,
	SHARED = 2048,
	READ_BYTES = 256 << 20,
	READ_PIECE = 1 << 20,
};

static const uint32_t contexts[] = {1024, 4096, CONTEXT};
enum { N_CONTEXTS = 3 };

static const struct {
	const char *name;
	enum kv_format k, v;
} formats[] = {
	{"fp16", KV_FORMAT_FP16, KV_FORMAT_FP16},
	{"int8", KV_FORMAT_INT8, KV_FORMAT_INT8},
	{"int4", KV_FORMAT_INT4, KV_FORMAT_INT4},
	{"fp8_e4m3", KV_FORMAT_FP8_E4M3, KV_FORMAT_FP8_E4M3},
};
enum { N_FORMATS = 4 };

struct bench {
	const struct kv_backend *be;
	struct kv_device *dev;
	struct kv_stream *st;
	struct kv_rope *rope;
	struct threads *readers;
	uint8_t *read_mem;
	struct kv_layout layout[N_FORMATS];
	struct kv_pool *pool[N_FORMATS];
	float *qkv, *out;
	uint32_t tokens[CHUNK], blocks[N_SEQS * CONTEXT / BT];
	struct kv_batch_entry entries[N_SEQS];
	uint32_t max_context, features;
	bool json;
};

struct series {
	double at[MAX_ROUNDS];
	int n;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void must(const char *what, int r)
{
	if (r >= 0)
		return;
	fprintf(stderr, "bench_attention: %s: %s\n", what, strerror(-r));
	exit(1);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(struct series *s)
{
	qsort(s->at, (size_t)s->n, sizeof(double), compare);
	return s->at[s->n / 2];
}

/* Fill the first n positions of a pool through the ops that the daemon uses. */
static void pool_fill(struct bench *b, int f, uint32_t n)
{
	struct kv_qkv q = {b->qkv, QKV, 0, HEADS * HD, (HEADS + KV_HEADS) * HD, HEADS};

	for (uint32_t pos = 0; pos < n; pos += CHUNK) {
		uint32_t n_blocks = (pos + CHUNK) / BT;
		struct kv_batch batch = {CHUNK,     1,          n_blocks,
					 b->tokens, b->entries, b->blocks};

		b->entries[0] = (struct kv_batch_entry){
			.n_rows = CHUNK, .pos0 = pos, .n_blocks = n_blocks};
		must("batch_load", b->be->batch_load(b->st, &batch));
		for (int i = 0; i < CHUNK * QKV; i++)
			b->qkv[i] = sinf((float)(i + 7919 * (int)pos) * 0.37f);
		for (uint32_t l = 0; l < LAYERS; l++)
			must("rope_kv_write",
			     b->be->rope_kv_write(b->st, b->rope, b->pool[f], l, &q));
	}
}

static void bench_open(struct bench *b, uint32_t n_threads)
{
	struct kv_cpu_options cpu = {
		.n_threads = n_threads, .cpu_mask = b->features, .spin_us = 100};
	struct kv_options opt = {.cpu = &cpu};
	struct kv_rope_params rp = {KV_ROPE_NORMAL, HD, 10000, 1, NULL};
	uint32_t n_blocks = b->max_context / BT;

	b->be = kv_backend_cpu();
	must("open", b->be->open(&opt, NULL, 0, &b->dev));
	must("stream_open", b->be->stream_open(b->dev, &b->st));
	must("rope_new", b->be->rope_new(b->dev, &rp, &b->rope));
	must("threads", threads_new(n_threads, 100, false, &b->readers));
	must("memory",
	     b->be->mem_alloc(b->dev, (size_t)CHUNK * QKV * 4, (void **)&b->qkv));
	must("memory",
	     b->be->mem_alloc(b->dev, (size_t)CHUNK * HEADS * HD * 4, (void **)&b->out));
	must("memory", b->be->mem_alloc(b->dev, READ_BYTES, (void **)&b->read_mem));
	memset(b->read_mem, 1, READ_BYTES);
	/* Blocks of a pool in use are in no order. */
	for (uint32_t i = 0; i < n_blocks; i++)
		b->blocks[i] = (uint32_t)((uint64_t)i * 40503 % n_blocks);
	for (int f = 0; f < N_FORMATS; f++) {
		must("layout", kv_layout_init(&b->layout[f], formats[f].k, formats[f].v,
					      LAYERS, KV_HEADS, HD, BT));
		must("pool", b->be->pool_open(b->dev, &b->layout[f], n_blocks, N_SEQS, -1,
					      0, &b->pool[f]));
		pool_fill(b, f, b->max_context);
	}
}

/* One decode step's attention, all layers, of n sequences; ns. The blocks are those of one
 * sequence; where the sequences are to differ, each starts elsewhere in them. */
static double attend(struct bench *b, int f, uint32_t n, uint32_t context, bool apart)
{
	struct kv_attention a = {b->qkv, b->out, QKV, HEADS * HD, HEADS, 0.125f};
	uint32_t n_blocks = context / BT, all = b->max_context / BT;
	struct kv_batch batch = {n, n, all, b->tokens, b->entries, b->blocks};
	uint64_t start;

	for (uint32_t i = 0; i < n; i++)
		b->entries[i] = (struct kv_batch_entry){
			.row0 = i,
			.n_rows = 1,
			.pos0 = context - 1,
			.block_off = apart ? i * ((all - n_blocks) / N_SEQS) : 0,
			.n_blocks = n_blocks,
			.tail = i,
		};
	must("batch_load", b->be->batch_load(b->st, &batch));
	if (kv_layout_needs_tail(&b->layout[f])) {
		struct kv_qkv q = {b->qkv, QKV, 0, HEADS * HD, (HEADS + KV_HEADS) * HD,
				   HEADS};
		double ns = 0;

		/* The partial block belongs to the layer written last. */
		for (uint32_t l = 0; l < LAYERS; l++) {
			must("rope_kv_write",
			     b->be->rope_kv_write(b->st, b->rope, b->pool[f], l, &q));
			start = now_ns();
			must("attention", b->be->attention(b->st, b->pool[f], l, &a));
			ns += (double)(now_ns() - start);
		}
		return ns;
	}
	start = now_ns();
	for (uint32_t l = 0; l < LAYERS; l++)
		must("attention", b->be->attention(b->st, b->pool[f], l, &a));
	return (double)(now_ns() - start);
}

static void read_piece(void *arg, uint32_t unit, uint32_t thread)
{
	const struct bench *b = arg;
	const uint64_t *p = (const void *)(b->read_mem + (size_t)unit * READ_PIECE);
	uint64_t sum[8] = {0};

	for (size_t i = 0; i < READ_PIECE / 8; i += 8)
		for (int k = 0; k < 8; k++)
			sum[k] += p[i + k];
	for (int k = 0; k < 8; k++)
		__asm__ volatile("" : : "r"(sum[k]));
}

/* Bytes per ns. */
static double read_rate(struct bench *b)
{
	uint64_t start = now_ns();

	threads_run(b->readers, read_piece, b, READ_BYTES / READ_PIECE);
	return READ_BYTES / (double)(now_ns() - start);
}

/* --- writing ------------------------------------------------------------------------ */

enum { WRITE_ROWS = 1 << 14, WRITE_BYTES = WRITE_ROWS * HD * 2 };

static void write_rows(struct bench *b, const struct kv_cpu_ops *ops, bool rotated)
{
	size_t block = 2176;

	for (uint32_t i = 0; i < WRITE_ROWS; i++) {
		uint8_t *codes = b->read_mem + i / BT * block;
		struct kv_plane dst = {codes, codes + HD * BT, NULL, HD, BT};
		const float *src = b->qkv + (size_t)(i % CHUNK) * HD;
		float row[HD];

		if (rotated) {
			memcpy(row, src, sizeof(row));
			ops->rotate(row, HD, false);
			src = row;
		}
		ops->store_v[KV_FORMAT_INT8](src, &dst, i % BT);
	}
}

/*
 * Rows of 64 as V of blocks of 16 tokens, rotated or not; bytes of as many halves per ns.
 * This and memcpy() run once before, so that both find their memory in the cache.
 */
static double write_rate(struct bench *b, bool rotated)
{
	static struct kv_cpu_ops ops;
	uint64_t start;

	if (!ops.rotate)
		kv_cpu_ops_init(&ops, b->features);
	write_rows(b, &ops, rotated);
	start = now_ns();
	write_rows(b, &ops, rotated);
	return WRITE_BYTES / (double)(now_ns() - start);
}

static double copy_rate(struct bench *b)
{
	uint8_t *src = b->read_mem + READ_BYTES / 2;
	uint64_t start;

	memcpy(b->read_mem, src, WRITE_BYTES);
	start = now_ns();
	memcpy(b->read_mem, src, WRITE_BYTES);
	return WRITE_BYTES / (double)(now_ns() - start);
}

static void report_write(const struct bench *b, const char *name, double value,
			 double copy, const char *floor, const char *goal)
{
	if (b->json)
		printf("{\"bench\": \"attention\", \"case\": \"%s\", \"value\": %.4g, "
		       "\"unit\": \"GB/s\", \"peer\": \"memcpy\", \"peer_value\": %.4g, "
		       "\"ratio\": %.3f, \"must\": %s, \"goal\": %s}\n",
		       name, value, copy, value / copy, floor, goal);
	else
		printf("%-28s %8.2f GB/s | memcpy %.2f | ratio %.2f (must %s, goal %s)\n",
		       name, value, copy, value / copy, floor, goal);
}

static void report(const struct bench *b, const char *name, double value,
		   const char *peer, double peer_value, const char *floor,
		   const char *goal)
{
	double ratio = peer_value / value;

	if (b->json)
		printf("{\"bench\": \"attention\", \"case\": \"%s\", \"value\": %.4g, "
		       "\"unit\": \"us/token\", \"peer\": \"%s\", \"peer_value\": %.4g, "
		       "\"ratio\": %.3f, \"must\": %s, \"goal\": %s}\n",
		       name, value, peer, peer_value, ratio, floor, goal);
	else
		printf("%-28s %8.4f us/token | %s %8.4f | ratio %.2f (must %s, goal %s)\n",
		       name, value, peer, peer_value, ratio, floor, goal);
}

static void report_formats(struct bench *b, struct series s[N_FORMATS][N_CONTEXTS],
			   double rate)
{
	static const char *const goals[N_FORMATS] = {"null", "0.65", "null", "null"};
	char name[64];

	for (int f = 0; f < N_FORMATS; f++) {
		double bytes = kv_layout_bytes_per_token(&b->layout[f]);

		for (int c = 0; c < N_CONTEXTS && contexts[c] <= b->max_context; c++) {
			double us = median(&s[f][c]);

			snprintf(name, sizeof(name), "%s-%u", formats[f].name,
				 contexts[c]);
			report(b, name, us, "reading its bytes", bytes / rate * 1e-3,
			       "null", goals[f]);
			/* llama.cpp, f16, measured once: docs name the run. */
			if (formats[f].k == KV_FORMAT_INT8) {
				snprintf(name, sizeof(name), "int8-%u-best-peer",
					 contexts[c]);
				report(b, name, us, "llama.cpp f16, as in TARGETS", 4.05,
				       "4", "7");
			}
		}
	}
	for (int c = 0; c < N_CONTEXTS && contexts[c] <= b->max_context; c++) {
		static const struct {
			const char *name, *peer, *floor, *goal;
			int f, than;
		} pairs[] = {
			{"int8-vs-fp16", "fp16", "1.2", "1.6", 1, 0},
			{"int4-vs-int8", "int8", "1.0", "1.4", 2, 1},
			{"fp8-vs-fp16", "fp16", "1.0", "null", 3, 0},
		};

		for (size_t i = 0; i < KVD_ARRAY_LEN(pairs); i++) {
			snprintf(name, sizeof(name), "%s-%u", pairs[i].name, contexts[c]);
			report(b, name, median(&s[pairs[i].f][c]), pairs[i].peer,
			       median(&s[pairs[i].than][c]), pairs[i].floor,
			       pairs[i].goal);
		}
	}
}

/* Return: the bundles up to that name, which the CPU has to have. */
static uint32_t features_named(const char *name)
{
	int mask = kv_cpu_mask_parse(name);
	uint32_t features;

	must(name, mask);
	features = kv_cpu_features_masked((uint32_t)mask);
	must(name, features == (uint32_t)mask ? 0 : -ENOTSUP);
	return features;
}

int main(int argc, char **argv)
{
	static struct bench b = {.max_context = CONTEXT};
	static struct series s[N_FORMATS][N_CONTEXTS], shared[N_FORMATS],
		apart[N_FORMATS];
	static struct series rate, copy, write[2];
	uint32_t n_threads = 2;
	int rounds = 7;

	b.features = kv_cpu_features();
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			b.json = true;
		else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
			rounds = atoi(argv[++i]);
		else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
			n_threads = (uint32_t)atoi(argv[++i]);
		else if (strcmp(argv[i], "--max-context") == 0 && i + 1 < argc)
			b.max_context = (uint32_t)atoi(argv[++i]);
		else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
			b.features = features_named(argv[++i]);
		else
			return 2;
	}
	if (rounds < 1 || rounds > MAX_ROUNDS || b.max_context < 2 * SHARED ||
	    b.max_context > CONTEXT || b.max_context % CHUNK != 0)
		return 2;
	bench_open(&b, n_threads);
	for (int round = 0; round <= rounds; round++) {
		double r = read_rate(&b), copied = copy_rate(&b);
		double w[2] = {write_rate(&b, false), write_rate(&b, true)};

		/* The first round warms up. */
		if (round > 0) {
			rate.at[rate.n++] = r;
			copy.at[copy.n++] = copied;
			for (int k = 0; k < 2; k++)
				write[k].at[write[k].n++] = w[k];
		}
		for (int f = 0; f < N_FORMATS; f++) {
			for (int c = 0; c < N_CONTEXTS && contexts[c] <= b.max_context;
			     c++) {
				double ns = attend(&b, f, 1, contexts[c], false);

				if (round > 0)
					s[f][c].at[s[f][c].n++] = ns * 1e-3 / contexts[c];
			}
			for (int k = 0; k < 2; k++) {
				struct series *to = k ? &apart[f] : &shared[f];
				double ns = attend(&b, f, N_SEQS, SHARED, k);

				if (round > 0)
					to->at[to->n++] = ns * 1e-3 / SHARED / N_SEQS;
			}
		}
	}
	if (!b.json)
		printf("read bandwidth %.1f GB/s, %s, %u threads, medians of %d rounds\n",
		       median(&rate), kv_cpu_bundle_name(b.features), n_threads, rounds);
	report_formats(&b, s, median(&rate));
	for (int f = 0; f < N_FORMATS; f++) {
		char name[64];

		snprintf(name, sizeof(name), "%s-16-sharing-%u", formats[f].name, SHARED);
		report(&b, name, median(&shared[f]), "16 apart", median(&apart[f]),
		       "null", "null");
	}
	report_write(&b, "write-int8", median(&write[0]), median(&copy), "0.3", "0.6");
	report_write(&b, "write-int8-rotated", median(&write[1]), median(&copy), "null",
		     "null");
	return 0;
}
