/* SPDX-License-Identifier: MIT */
/* See planner.h. */
#include "daemon/planner.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/log.h"
#include "daemon/model/gguf.h"
#include "daemon/model/shape.h"
#include "ipc/base.h"
#include "ipc/proto.h"
#include "kernels/format.h"

enum { EXIT_BAD_USAGE = 2, MAX_BATCH = 1 << 20, MAX_CONTEXT = 1 << 30 };

/* The rows of the table. */
static const struct {
	const char *name;
	enum kv_format k, v;
} formats[] = {
	{"fp16", KV_FORMAT_FP16, KV_FORMAT_FP16},
	{"int8", KV_FORMAT_INT8, KV_FORMAT_INT8},
	{"fp8_e4m3", KV_FORMAT_FP8_E4M3, KV_FORMAT_FP8_E4M3},
	{"k=int8,v=int4", KV_FORMAT_INT8, KV_FORMAT_INT4},
	{"int4", KV_FORMAT_INT4, KV_FORMAT_INT4},
};

#define N_FORMATS KVD_ARRAY_LEN(formats)

/**
 * struct question - what was asked
 * @name:    of the model, "" when it was given by its shape
 * @n_ranks: devices that share the model
 * @context: tokens of a sequence, prompt and answer
 * @memory:  bytes for the pool, 0: not given
 */
struct question {
	char name[128];
	const char *path;
	uint32_t n_layers, n_heads, n_kv_heads, head_dim;
	uint32_t n_ranks, batch, context, block_tokens;
	uint64_t memory;
	bool json;
};

/**
 * struct answer - of one format; sizes in bytes, of all devices together
 * @total:    batch sequences of the context: whole blocks, and their tails
 * @fits:     sequences of that length in the memory
 * @tokens:   tokens of one long sequence in the memory
 * @ratio:    of fp16's bytes_per_token
 */
struct answer {
	bool possible;
	double bytes_per_token, ratio;
	uint64_t block_bytes, tail_bytes, total;
	uint64_t n_blocks, fits, tokens;
};

static int complain(int status, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int complain(int status, const char *fmt, ...)
{
	va_list args;

	fputs("kvd: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	putc('\n', stderr);
	return status;
}

/* Digits only, with a suffix K, M, G or T where @size. Return: 0 or -EINVAL. */
static int parse_number(const char *text, bool size, uint64_t max, uint64_t *ret)
{
	static const char suffixes[] = "KMGT";
	unsigned long long value;
	const char *suffix;
	char *end;

	if (*text < '0' || *text > '9')
		return error_origin(-EINVAL);
	errno = 0;
	value = strtoull(text, &end, 10);
	suffix = size && *end ? strchr(suffixes, *end) : NULL;
	if (suffix) {
		unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);

		if (value > UINT64_MAX >> shift)
			return error_origin(-EINVAL);
		value <<= shift;
		end++;
	}
	if (errno || *end || value < 1 || value > max)
		return error_origin(-EINVAL);
	*ret = value;
	return 0;
}

/* A file may hold any name; what is shown goes to a terminal. */
static void read_name(struct question *q, const struct gguf *gguf)
{
	char text[sizeof(q->name)];
	struct gguf_str name;

	if (gguf_get_str(gguf, "general.name", &name, NULL))
		return;
	snprintf(text, sizeof(text), "%.*s",
		 (int)(name.len < sizeof(text) ? name.len : sizeof(text) - 1), name.data);
	proto_set_string(q->name, sizeof(q->name), text);
}

static int read_model(struct question *q)
{
	struct model_params shape;
	struct load_error why = {""};
	struct gguf *gguf;
	int r;

	r = gguf_open(&gguf, q->path, &why);
	if (r)
		return complain(EXIT_FAILURE, "%s", *why.text ? why.text : strerror(-r));
	read_name(q, gguf);
	r = gguf_check_read(gguf, model_shape_read(gguf, &shape, &why), &why);
	gguf_free(gguf);
	if (r)
		return complain(EXIT_FAILURE, "%s", why.text);
	q->n_layers = shape.n_layers;
	q->n_heads = shape.n_heads;
	q->n_kv_heads = shape.n_kv_heads;
	q->head_dim = shape.head_dim;
	if (!q->context)
		q->context = shape.context_length;
	return 0;
}

/* @n sequences of the context; a sequence has a tail slot while it runs. At most
 * UINT64_MAX, which stands for all that is more. */
static uint64_t bytes_of(const struct question *q, const struct answer *a, uint64_t n)
{
	uint64_t blocks = ((uint64_t)q->context + q->block_tokens - 1) / q->block_tokens;

	uint64_t bytes;

	/* the bounds of a layout and of MAX_CONTEXT keep one sequence below 2^63 */
	if (__builtin_mul_overflow(n, blocks * a->block_bytes + a->tail_bytes, &bytes))
		return UINT64_MAX;
	return bytes;
}

static void answer(const struct question *q, size_t format, double fp16,
		   struct answer *ret)
{
	struct kv_layout layout;

	*ret = (struct answer){0};
	if (kv_layout_init(&layout, formats[format].k, formats[format].v, q->n_layers,
			   q->n_kv_heads / q->n_ranks, q->head_dim, q->block_tokens))
		return;
	ret->possible = true;
	ret->bytes_per_token = kv_layout_bytes_per_token(&layout) * q->n_ranks;
	ret->ratio = fp16 > 0 ? ret->bytes_per_token / fp16 : 1;
	ret->block_bytes = layout.block_bytes * q->n_ranks;
	ret->tail_bytes = layout.tail_bytes * q->n_ranks;
	ret->total = bytes_of(q, ret, q->batch);
	if (!q->memory)
		return;
	ret->n_blocks = q->memory / ret->block_bytes;
	ret->fits = q->memory / bytes_of(q, ret, 1);
	if (q->memory > ret->tail_bytes)
		ret->tokens = (q->memory - ret->tail_bytes) / ret->block_bytes *
			      q->block_tokens;
}

/* @s is printable UTF-8. */
static void print_string(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else
			putchar(c);
	}
	putchar('"');
}

static void print_json(const struct question *q, const struct answer *answers)
{
	bool first = true;

	fputs("{\"model\":{\"name\":", stdout);
	print_string(q->name);
	printf(",\"n_layers\":%u,\"n_kv_heads\":%u,\"head_dim\":%u},\"batch\":%u,"
	       "\"context\":%u,\"block_tokens\":%u,\"tensor_parallel_size\":%u,"
	       "\"memory\":%" PRIu64 ",\"formats\":{",
	       q->n_layers, q->n_kv_heads, q->head_dim, q->batch, q->context,
	       q->block_tokens, q->n_ranks, q->memory);
	for (size_t i = 0; i < N_FORMATS; i++) {
		const struct answer *a = &answers[i];

		if (!a->possible)
			continue;
		printf("%s\"%s\":{\"bytes_per_token\":%.10g,\"ratio\":%.6g,"
		       "\"block_bytes\":%" PRIu64 ",\"tail_bytes\":%" PRIu64
		       ",\"bytes\":%" PRIu64,
		       first ? "" : ",", formats[i].name, a->bytes_per_token, a->ratio,
		       a->block_bytes, a->tail_bytes, a->total);
		if (q->memory)
			printf(",\"num_blocks\":%" PRIu64 ",\"batch_that_fits\":%" PRIu64
			       ",\"tokens_that_fit\":%" PRIu64,
			       a->n_blocks, a->fits, a->tokens);
		putchar('}');
		first = false;
	}
	puts("}}");
}

/* Sizes as people say them, in powers of ten, as the papers count. */
static const char *size_text(uint64_t bytes, char buf[static 24])
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
	double value = (double)bytes;
	unsigned unit = 0;

	while (value >= 999.95 && unit < 6) {
		value /= 1000;
		unit++;
	}
	snprintf(buf, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return buf;
}

static void print_text(const struct question *q, const struct answer *answers)
{
	char buf[24];

	printf("%s%s%u layers, %u KV heads of %u; batch %u, context %u, blocks of %u",
	       q->name, *q->name ? ": " : "", q->n_layers, q->n_kv_heads, q->head_dim,
	       q->batch, q->context, q->block_tokens);
	if (q->n_ranks > 1)
		printf(", over %u devices", q->n_ranks);
	fputs("\n\n", stdout);
	printf("%-14s %12s %8s %12s", "format", "bytes/token", "of fp16", "this batch");
	if (q->memory)
		printf("   %s holds", size_text(q->memory, buf));
	putchar('\n');
	for (size_t i = 0; i < N_FORMATS; i++) {
		const struct answer *a = &answers[i];

		if (!a->possible) {
			printf("%-14s cannot store it\n", formats[i].name);
			continue;
		}
		printf("%-14s %12.10g %8.3f %12s", formats[i].name, a->bytes_per_token,
		       a->ratio, size_text(a->total, buf));
		if (q->memory)
			printf("   a batch of %" PRIu64 ", or %" PRIu64 " tokens",
			       a->fits, a->tokens);
		putchar('\n');
	}
}

static int parse_arguments(int argc, char **argv, struct question *q)
{
	static const struct option longs[] = {
		{"plan", no_argument, NULL, 'P'},
		{"model", required_argument, NULL, 'm'},
		{"layers", required_argument, NULL, 'l'},
		{"heads", required_argument, NULL, 'n'},
		{"kv-heads", required_argument, NULL, 'k'},
		{"head-dim", required_argument, NULL, 'd'},
		{"batch", required_argument, NULL, 'b'},
		{"context", required_argument, NULL, 'c'},
		{"block-size", required_argument, NULL, 's'},
		{"tensor-parallel-size", required_argument, NULL, 'p'},
		{"memory", required_argument, NULL, 'M'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	int at = 0;

	for (int c; (c = getopt_long(argc, argv, "", longs, &at)) != -1;) {
		uint64_t value = 0;
		uint32_t *field = c == 'l'   ? &q->n_layers
				  : c == 'n' ? &q->n_heads
				  : c == 'k' ? &q->n_kv_heads
				  : c == 'd' ? &q->head_dim
				  : c == 'b' ? &q->batch
				  : c == 'c' ? &q->context
				  : c == 's' ? &q->block_tokens
				  : c == 'p' ? &q->n_ranks
					     : NULL;
		uint64_t max = c == 'M'   ? UINT64_C(1) << 60
			       : c == 'b' ? MAX_BATCH
			       : c == 'c' ? MAX_CONTEXT
			       : c == 'p' ? CONFIG_MAX_RANKS
					  : 4096;

		if (c == '?')
			return EXIT_BAD_USAGE;
		if (c == 'm')
			q->path = optarg;
		else if (c == 'j')
			q->json = true;
		if (!field && c != 'M')
			continue;
		if (parse_number(optarg, c == 'M', max, &value))
			return complain(EXIT_BAD_USAGE,
					"--%s: '%s' is not a number from 1 to %" PRIu64
					"%s",
					longs[at].name, optarg, max,
					c == 'M' ? ", such as 512M or 80G" : "");
		if (field)
			*field = (uint32_t)value;
		else
			q->memory = value;
	}
	if (optind < argc)
		return complain(EXIT_BAD_USAGE, "unexpected argument '%s'", argv[optind]);
	if (q->path && (q->n_layers || q->n_heads || q->n_kv_heads || q->head_dim))
		return complain(EXIT_BAD_USAGE,
				"--model tells the shape; leave out --layers, --heads, "
				"--kv-heads and --head-dim");
	if (!q->path && (!q->n_layers || !q->head_dim || (!q->n_heads && !q->n_kv_heads)))
		return complain(EXIT_BAD_USAGE,
				"name a file by --model, or give --layers, --heads (or "
				"--kv-heads) and --head-dim");
	return 0;
}

int planner_main(int argc, char **argv)
{
	struct question q = {
		.n_ranks = 1, .batch = 1, .block_tokens = KV_BLOCK_TOKENS_MIN};
	struct answer answers[N_FORMATS];
	int r;

	r = parse_arguments(argc, argv, &q);
	if (!r && q.path)
		r = read_model(&q);
	if (r)
		return r;
	if (!q.n_kv_heads)
		q.n_kv_heads = q.n_heads;
	if (q.n_kv_heads % q.n_ranks)
		return complain(
			EXIT_FAILURE,
			"%u KV heads cannot be divided by --tensor-parallel-size, "
			"which is %u",
			q.n_kv_heads, q.n_ranks);
	if (!q.context)
		q.context = 4096;
	for (size_t i = 0; i < N_FORMATS; i++)
		answer(&q, i, i ? answers[0].bytes_per_token : 0, &answers[i]);
	if (!answers[0].possible)
		return complain(EXIT_FAILURE,
				"no blocks of %u tokens for %u layers and %u KV heads of "
				"%u: a head_dim is a multiple of 8 up to %d, a block has "
				"%d or %d tokens",
				q.block_tokens, q.n_layers, q.n_kv_heads, q.head_dim,
				KV_HEAD_DIM_MAX, KV_BLOCK_TOKENS_MIN,
				KV_BLOCK_TOKENS_MAX);
	if (q.json)
		print_json(&q, answers);
	else
		print_text(&q, answers);
	if (fflush(stdout) || ferror(stdout))
		return complain(EXIT_FAILURE, "cannot write: %s", strerror(errno));
	return EXIT_SUCCESS;
}
