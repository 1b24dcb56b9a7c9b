/* SPDX-License-Identifier: MIT */
/*
 * usage: kern_bench [--threads N] [--bundle NAME] [--rounds N] [ops|attention|model ...]
 *
 * Times of the CPU backend on the shapes of SmolLM2-135M, with random weights of its types
 * (Q4_1, head Q8_0), all 30 layers being there so that memory is as cold as in real use.
 * Best of the rounds. Without --bundle every bundle runs, and "x c" is the ratio to plain C.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu_backend.h"
#include "kernels/cpu_features.h"

#include "ipc/base.h"

enum {
	LAYERS = 30,
	D = 576,
	FF = 1536,
	HEADS = 9,
	KV_HEADS = 3,
	HD = 64,
	QKV = (HEADS + 2 * KV_HEADS) * HD,
	VOCAB = 49152,
	MAX_M = 512,
	MAX_CTX = 8192,
	BT = 16,
};

struct model {
	const struct kv_backend *be;
	struct kv_device *dev;
	struct kv_stream *st;
	struct kv_pool *pool;
	struct kv_rope *rope;
	struct kv_weight *qkv[LAYERS], *o[LAYERS], *up[LAYERS], *down[LAYERS], *head;
	float *x, *h, *q, *att, *gu, *act, *logits, *norm;
	uint32_t blocks[MAX_CTX / BT], tokens[MAX_M];
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void die(const char *what, int r)
{
	fprintf(stderr, "kern_bench: %s: %s\n", what, strerror(-r));
	exit(1);
}

static void must(const char *what, int r)
{
	if (r < 0)
		die(what, r);
}

static void *zalloc(struct model *m, size_t n)
{
	void *p;

	must("memory", m->be->mem_alloc(m->dev, n, &p));
	return p;
}

/* Random codes; the half-precision fields are made small and finite. */
static struct kv_weight *weight(struct model *m, enum kv_wtype type, uint32_t n,
				uint32_t k)
{
	size_t bytes = n * (size_t)kv_wtype_row_bytes(type, k);
	size_t group = (size_t)kv_wtype_row_bytes(type, kv_wtype_group(type));
	uint8_t *data = malloc(bytes);
	struct kv_weight_part part = {type, n, k, data};
	static uint64_t s = 88172645463325252u;
	struct kv_weight *w;

	if (!data)
		die("malloc", -12);
	for (size_t i = 0; i < bytes; i += 8) {
		s ^= s << 13;
		s ^= s >> 7;
		s ^= s << 17;
		memcpy(data + i, &s, bytes - i < 8 ? bytes - i : 8);
	}
	for (size_t i = 0; i < bytes; i += group) {
		data[i + 1] = 0x1c; /* a scale near 0.004 */
		if (type == KV_WTYPE_Q4_1)
			data[i + 3] = 0xa8; /* a minimum near -0.03 */
	}
	must("weight_pack", m->be->weight_pack(m->dev, &part, 1, &w));
	free(data);
	return w;
}

static void model_open(struct model *m, uint32_t features, uint32_t n_threads)
{
	struct kv_cpu_options cpu = {
		.n_threads = n_threads, .cpu_mask = features, .spin_us = 100};
	struct kv_options opt = {.cpu = &cpu};
	struct kv_rope_params rp = {KV_ROPE_NORMAL, HD, 10000, 1, NULL};
	struct kv_layout layout;

	m->be = kv_backend_cpu();
	must("open", m->be->open(&opt, NULL, 0, &m->dev));
	must("stream_open", m->be->stream_open(m->dev, &m->st));
	must("layout", kv_layout_init(&layout, 0, 0, LAYERS, KV_HEADS, HD, BT));
	must("pool", m->be->pool_open(m->dev, &layout, MAX_CTX / BT, 0, -1, 0, &m->pool));
	must("rope", m->be->rope_new(m->dev, &rp, &m->rope));
	for (int i = 0; i < LAYERS; i++) {
		m->qkv[i] = weight(m, KV_WTYPE_Q4_1, QKV, D);
		m->o[i] = weight(m, KV_WTYPE_Q4_1, D, D);
		m->up[i] = weight(m, KV_WTYPE_Q4_1, 2 * FF, D);
		m->down[i] = weight(m, KV_WTYPE_Q4_1, D, FF);
	}
	m->head = weight(m, KV_WTYPE_Q8_0, VOCAB, D);
	m->x = zalloc(m, (size_t)MAX_M * D * 4);
	m->h = zalloc(m, (size_t)MAX_M * D * 4);
	m->q = zalloc(m, (size_t)MAX_M * QKV * 4);
	m->att = zalloc(m, (size_t)MAX_M * D * 4);
	m->gu = zalloc(m, (size_t)MAX_M * 2 * FF * 4);
	m->act = zalloc(m, (size_t)MAX_M * FF * 4);
	m->logits = zalloc(m, (size_t)16 * VOCAB * 4);
	m->norm = zalloc(m, D * 4);
	for (int i = 0; i < D; i++)
		m->norm[i] = 1;
	for (int i = 0; i < MAX_CTX / BT; i++)
		m->blocks[i] = (uint32_t)i;
	for (int i = 0; i < MAX_M * D; i++)
		m->x[i] = m->h[i] = sinf((float)i);
	for (int i = 0; i < MAX_M * QKV; i++)
		m->q[i] = sinf((float)i * 0.37f);
	for (int i = 0; i < MAX_M * 2 * FF; i++)
		m->gu[i] = sinf((float)i * 0.11f);
	for (int i = 0; i < MAX_M * FF; i++)
		m->act[i] = sinf((float)i * 0.7f);
}

static void model_close(struct model *m)
{
	for (int i = 0; i < LAYERS; i++) {
		m->be->weight_free(m->qkv[i]);
		m->be->weight_free(m->o[i]);
		m->be->weight_free(m->up[i]);
		m->be->weight_free(m->down[i]);
	}
	m->be->weight_free(m->head);
	m->be->mem_free(m->dev, m->x, (size_t)MAX_M * D * 4);
	m->be->mem_free(m->dev, m->h, (size_t)MAX_M * D * 4);
	m->be->mem_free(m->dev, m->q, (size_t)MAX_M * QKV * 4);
	m->be->mem_free(m->dev, m->att, (size_t)MAX_M * D * 4);
	m->be->mem_free(m->dev, m->gu, (size_t)MAX_M * 2 * FF * 4);
	m->be->mem_free(m->dev, m->act, (size_t)MAX_M * FF * 4);
	m->be->mem_free(m->dev, m->logits, (size_t)16 * VOCAB * 4);
	m->be->mem_free(m->dev, m->norm, D * 4);
	m->be->rope_free(m->rope);
	m->be->pool_close(m->pool);
	m->be->stream_close(m->st);
	m->be->close(m->dev);
}

static void load_batch(struct model *m, uint32_t pos0, uint32_t n_rows,
		       struct kv_batch_entry *e)
{
	uint32_t n = (pos0 + n_rows + BT - 1) / BT;
	struct kv_batch b = {n_rows, 1, n, m->tokens, e, m->blocks};

	*e = (struct kv_batch_entry){0, n_rows, pos0, 0, n};
	must("batch_load", m->be->batch_load(m->st, &b));
}

static void linear(struct model *m, struct kv_weight *w, const float *x, size_t ldx,
		   float *y, size_t ldy, uint32_t rows)
{
	struct kv_linear a = {.w = w, .x = x, .y = y, .m = rows, .ldx = ldx, .ldy = ldy};

	must("linear", m->be->linear(m->st, &a));
}

static void attention(struct model *m, uint32_t layer)
{
	struct kv_attention a = {m->q, m->att, QKV, D, HEADS, 0.125f};

	must("attention", m->be->attention(m->st, m->pool, layer, &a));
}

static void rope(struct model *m, uint32_t layer)
{
	struct kv_qkv q = {m->q, QKV, 0, HEADS * HD, (HEADS + KV_HEADS) * HD, HEADS};

	must("rope", m->be->rope_kv_write(m->st, m->rope, m->pool, layer, &q));
}

static void norm(struct model *m, float *x, const float *add, uint32_t rows)
{
	struct kv_norm a = {.x = x,
			    .add = add,
			    .y = m->h,
			    .w = m->norm,
			    .ldx = D,
			    .ldadd = D,
			    .ldy = D,
			    .eps = 1e-5f,
			    .m = rows,
			    .d = D};

	must("rms_norm", m->be->rms_norm(m->st, &a));
}

/* Greedy with temperature 0. */
static void sample(struct model *m, uint32_t rows, float temperature)
{
	struct kv_sample want[16];
	struct kv_token tokens[16];

	for (uint32_t i = 0; i < rows; i++)
		want[i] = (struct kv_sample){.target = -1,
					     .params = {temperature, 0.95f, 0, 40, i},
					     .position = i};
	must("sample", m->be->sample(m->st, m->logits, VOCAB, VOCAB, want, tokens, rows));
}

/* One step of the whole model: n_rows rows from pos0, logits of the last one. */
static void step(struct model *m, uint32_t pos0, uint32_t n_rows)
{
	const struct kv_backend *be = m->be;
	struct kv_batch_entry e;

	load_batch(m, pos0, n_rows, &e);
	norm(m, m->x, NULL, n_rows);
	for (uint32_t i = 0; i < LAYERS; i++) {
		linear(m, m->qkv[i], m->h, D, m->q, QKV, n_rows);
		rope(m, i);
		attention(m, i);
		linear(m, m->o[i], m->att, D, m->h, D, n_rows);
		norm(m, m->x, m->h, n_rows);
		linear(m, m->up[i], m->h, D, m->gu, 2 * FF, n_rows);
		be->silu_mul(m->st, m->gu, 2 * FF, m->act, FF, n_rows, FF);
		linear(m, m->down[i], m->act, FF, m->h, D, n_rows);
		norm(m, m->x, m->h, n_rows);
	}
	linear(m, m->head, m->h + (size_t)(n_rows - 1) * D, D, m->logits, VOCAB, 1);
	sample(m, 1, 0);
}

/* --- measuring ---------------------------------------------------------------------- */

enum { MAX_LINES = 64 };
static double c_ns[MAX_LINES];
static int n_line;

static void report(const char *bundle, const char *what, double ns, double bytes,
		   double ops)
{
	int line = n_line++ % MAX_LINES;

	if (strcmp(bundle, "c") == 0)
		c_ns[line] = ns;
	printf("%-11s %-26s %12.0f ns", bundle, what, ns);
	if (bytes > 0)
		printf(" %7.2f GB/s", bytes / ns);
	if (ops > 0)
		printf(" %7.1f Gop/s", ops / ns);
	if (c_ns[line] > 0)
		printf("  x c %.1f", c_ns[line] / ns);
	printf("\n");
	fflush(stdout);
}

/* Best time of fn over rounds, each of which goes through all layers: ns a call. */
#define BEST(ret, calls, stmt)                                                           \
	do {                                                                             \
		(ret) = INFINITY;                                                        \
		for (int round = 0; round < rounds; round++) {                           \
			uint64_t t = now_ns();                                           \
			for (uint32_t i = 0; i < (calls); i++) {                         \
				stmt;                                                    \
			}                                                                \
			t = now_ns() - t;                                                \
			(ret) = fmin((ret), (double)t / (calls));                        \
		}                                                                        \
	} while (0)

static void bench_linear(struct model *m, const char *bundle, int rounds)
{
	static const uint32_t ms[] = {1, 4, 8, 64, 512};
	struct {
		const char *name;
		struct kv_weight **w;
		uint32_t n, k;
	} shapes[] = {
		{"qkv  960x576", m->qkv, QKV, D},
		{"up  3072x576", m->up, 2 * FF, D},
		{"down 576x1536", m->down, D, FF},
	};
	char what[64];
	double ns;

	for (size_t s = 0; s < 3; s++) {
		const float *x = shapes[s].k == D ? m->h : m->act;
		float *y = shapes[s].n == D ? m->att : shapes[s].n == QKV ? m->q : m->gu;

		for (size_t k = 0; k < KVD_ARRAY_LEN(ms); k++) {
			double size = (double)shapes[s].n * shapes[s].k;

			BEST(ns, LAYERS,
			     linear(m, shapes[s].w[i], x, shapes[s].k, y, shapes[s].n,
				    ms[k]));
			snprintf(what, sizeof(what), "%s m %u", shapes[s].name, ms[k]);
			report(bundle, what, ns, size * 20 / 32, 2 * size * ms[k]);
		}
	}
	for (uint32_t rows = 1; rows <= 16; rows *= 16) {
		double size = (double)VOCAB * D;

		BEST(ns, 1, linear(m, m->head, m->h, D, m->logits, VOCAB, rows));
		snprintf(what, sizeof(what), "head 49152x576 m %u", rows);
		report(bundle, what, ns, size * 34 / 32, 2 * size * rows);
	}
}

static void bench_rows(struct model *m, const char *bundle, int rounds)
{
	const struct kv_backend *be = m->be;
	struct kv_batch_entry e;
	double ns;

	for (uint32_t rows = 1; rows <= 512; rows *= 512) {
		char what[64];

		BEST(ns, 20, norm(m, m->x, NULL, rows); (void)i);
		snprintf(what, sizeof(what), "rms_norm m %u", rows);
		report(bundle, what, ns, 8.0 * D * rows, 0);
		BEST(ns, 20, be->silu_mul(m->st, m->gu, 2 * FF, m->act, FF, rows, FF);
		     (void)i);
		snprintf(what, sizeof(what), "silu_mul m %u", rows);
		report(bundle, what, ns, 12.0 * FF * rows, 0);
		load_batch(m, 0, rows, &e);
		BEST(ns, LAYERS, rope(m, i));
		snprintf(what, sizeof(what), "rope_kv_write m %u", rows);
		report(bundle, what, ns, 4.0 * QKV * rows, 0);
	}
	for (uint32_t rows = 1; rows <= 16; rows *= 16) {
		for (int hot = 0; hot <= 1; hot++) {
			char what[64];

			BEST(ns, 20, sample(m, rows, (float)hot); (void)i);
			snprintf(what, sizeof(what), "sample%s 49152 m %u",
				 hot ? " top_k 40" : " greedy", rows);
			report(bundle, what, ns, 4.0 * VOCAB * rows, 0);
		}
	}
}

static void bench_attention(struct model *m, const char *bundle, int rounds)
{
	static const struct {
		uint32_t pos0, rows;
	} cases[] = {{0, 1}, {255, 1}, {1023, 1}, {7167, 1}, {0, 512}, {3584, 512}};
	struct kv_batch_entry e;
	double ns;

	for (size_t k = 0; k < KVD_ARRAY_LEN(cases); k++) {
		double kv_bytes =
			(double)(cases[k].pos0 + cases[k].rows) * KV_HEADS * HD * 4;
		double pairs =
			(cases[k].pos0 + cases[k].rows / 2.0 + 0.5) * cases[k].rows;
		char what[64];

		load_batch(m, cases[k].pos0, cases[k].rows, &e);
		BEST(ns, LAYERS, attention(m, i));
		snprintf(what, sizeof(what), "attention pos %u m %u", cases[k].pos0,
			 cases[k].rows);
		report(bundle, what, ns, kv_bytes, pairs * HEADS * HD * 4);
	}
}

static void bench_model(struct model *m, const char *bundle, int rounds)
{
	double ns;

	memset(m->x, 0, (size_t)MAX_M * D * 4);
	BEST(ns, 1, step(m, 0, 512); (void)i);
	report(bundle, "prefill 512", ns, 0, 0);
	printf("%-11s   %.1f tok/s\n", bundle, 512e9 / ns);
	BEST(ns, 16, step(m, i, 1));
	report(bundle, "decode, empty", ns, 0, 0);
	printf("%-11s   %.1f tok/s\n", bundle, 1e9 / ns);
	BEST(ns, 4, step(m, 7168 + i, 1));
	report(bundle, "decode, 7168", ns, 0, 0);
	printf("%-11s   %.1f tok/s\n", bundle, 1e9 / ns);
}

static bool wanted(const char *name, char **names, int n)
{
	for (int i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return n == 0;
}

int main(int argc, char **argv)
{
	uint32_t n_threads = 2;
	const char *only = NULL;
	int arg = 1, rounds = 10;

	for (; arg + 1 < argc && argv[arg][0] == '-'; arg += 2) {
		if (strcmp(argv[arg], "--threads") == 0)
			n_threads = (uint32_t)atoi(argv[arg + 1]);
		else if (strcmp(argv[arg], "--rounds") == 0)
			rounds = atoi(argv[arg + 1]);
		else if (strcmp(argv[arg], "--bundle") == 0)
			only = argv[arg + 1];
		else
			return 2;
	}
	for (int i = 0; i < 5; i++) {
		uint32_t set = (1u << (i + 1)) - 1;
		const char *name = kv_cpu_bundle_name(set);
		struct model m = {0};
		int n = i == 0 ? 1 + rounds / 10 : rounds;

		if ((kv_cpu_features() & set) != set || (only && strcmp(only, name) != 0))
			continue;
		model_open(&m, set, n_threads);
		n_line = 0;
		if (wanted("ops", argv + arg, argc - arg)) {
			bench_linear(&m, name, n);
			bench_rows(&m, name, n);
		}
		if (wanted("attention", argv + arg, argc - arg))
			bench_attention(&m, name, n);
		if (wanted("model", argv + arg, argc - arg))
			bench_model(&m, name, n);
		model_close(&m);
	}
	return 0;
}
