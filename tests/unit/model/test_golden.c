/* SPDX-License-Identifier: MIT */
/*
 * The reference cases on one CPU variant: test_golden MODEL CASES tokens|c|avx2|... [loose]
 *
 * Tolerances are those of the cases' README: a greedy token must match while every margin
 * so far is above 0.1, logprobs agree within 0.02 on average and 0.4 at worst, perplexity
 * within 0.5 %. Once a token differs the contexts differ too, so a case is compared up to
 * there.
 *
 * "loose" is for weights that were rounded again to another type of 8 bits or so: that alone
 * moves logprobs by about 0.05, and a wrong scale or order of codes by several.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/chat.h"
#include "daemon/model/tokenizer.h"
#include "kernels/cpu_features.h"
#include "tests/unit/model/harness.h"

#define MAX_LEN    2048
#define CHUNK      512
#define SKIP       77
#define MIN_MARGIN 0.1
#define MEAN_ERROR 0.02
#define MAX_ERROR  0.4
#define PPL_ERROR  0.005
#define LOOSE      5 /* times that */

static unsigned n_failed;
static double slack = 1;

struct errors {
	double sum, max;
	size_t n;
};

static void errors_add(struct errors *e, double got, double want)
{
	double d = fabs(got - want);

	if (!(d <= e->max))
		e->max = d;
	e->sum += d;
	e->n++;
}

static void errors_check(const struct errors *e, const char *what)
{
	double mean = e->n ? e->sum / (double)e->n : 0;
	bool ok = e->n && mean <= slack * MEAN_ERROR && e->max <= slack * MAX_ERROR;

	printf("%s: %s: %zu logprobs, mean abs error %.5f, worst %.4f\n",
	       ok ? "ok" : "FAIL", what, e->n, mean, e->max);
	n_failed += !ok;
}

static size_t read_hex(FILE *f, char **ret)
{
	char *word, *out;
	size_t len;

	if (fscanf(f, "%ms", &word) != 1)
		die("bad cases");
	len = strcmp(word, "-") ? strlen(word) / 2 : 0;
	out = malloc(len + 1);
	if (!out)
		die("out of memory");
	for (size_t i = 0; i < len; i++) {
		char digits[3] = {word[2 * i], word[2 * i + 1], 0};

		out[i] = (char)strtoul(digits, NULL, 16);
	}
	free(word);
	*ret = out;
	return len;
}

static uint32_t read_ids(FILE *f, int32_t *ids)
{
	unsigned n;

	if (fscanf(f, "%u", &n) != 1 || n > MAX_LEN)
		die("bad cases");
	for (unsigned i = 0; i < n; i++) {
		if (fscanf(f, "%d", &ids[i]) != 1)
			die("bad cases");
	}
	return n;
}

static void read_floats(FILE *f, double *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (fscanf(f, "%lf", &v[i]) != 1)
			die("bad cases");
	}
}

static void same_ids(const char *what, const struct token_list *got, const int32_t *want,
		     uint32_t n)
{
	bool ok = got->n == n && !memcmp(got->ids, want, n * sizeof(*want));

	if (!ok)
		printf("FAIL: %s: %zu tokens, %u expected, or others\n", what, got->n, n);
	n_failed += !ok;
}

struct cases {
	struct tokenizer *tok;
	struct chat_template *chat;
	struct harness *h; /* NULL: tokens only */
	struct errors greedy;
	unsigned n;
};

static void check_generate(struct cases *c, const char *kind, const int32_t *prompt,
			   uint32_t n_prompt, const int32_t *want, uint32_t n,
			   const double *logprobs, const double *margins)
{
	static int32_t tokens[MAX_LEN];
	static float got[MAX_LEN];
	bool sure = true;

	harness_generate(c->h, 0, prompt, n_prompt, CHUNK, n, tokens, got);
	for (uint32_t i = 0; i < n; i++) {
		sure = sure && margins[i] > slack * MIN_MARGIN;
		if (tokens[i] != want[i]) {
			if (sure)
				printf("FAIL: %s case %u: token %u is %d, not %d\n", kind,
				       c->n, i, tokens[i], want[i]);
			n_failed += sure;
			return;
		}
		errors_add(&c->greedy, got[i], logprobs[i]);
	}
}

static void generate_case(struct cases *c, FILE *f, bool chat)
{
	static int32_t prompt[MAX_LEN], want[MAX_LEN];
	static double logprobs[MAX_LEN], margins[MAX_LEN];
	struct token_list list = {0};
	uint32_t n_prompt, n;
	char *text;
	size_t len = read_hex(f, &text);

	n_prompt = read_ids(f, prompt);
	n = read_ids(f, want);
	read_floats(f, logprobs, n);
	read_floats(f, margins, n);
	if (chat) {
		struct chat_message msg = {"user", 4, text, len};

		if (chat_encode(c->chat, &msg, 1, &list))
			die("cannot format a chat");
	} else if (tokenizer_encode(c->tok, text, len, TOKENIZER_ADD_BOS, &list)) {
		die("cannot encode a text");
	}
	same_ids(chat ? "chat prompt" : "text prompt", &list, prompt, n_prompt);
	if (c->h)
		check_generate(c, chat ? "chat" : "text", prompt, n_prompt, want, n,
			       logprobs, margins);
	token_list_deinit(&list);
	free(text);
}

static void score_case(struct cases *c, FILE *f)
{
	static int32_t ids[MAX_LEN];
	static double want[MAX_LEN];
	static float got[MAX_LEN];
	struct errors errors = {0};
	double want_ppl, ppl, sum = 0;
	uint32_t n;
	bool ok;

	if (fscanf(f, "%lf", &want_ppl) != 1)
		die("bad cases");
	n = read_ids(f, ids);
	read_floats(f, want, n - 1);
	if (!c->h)
		return;
	harness_score_all(c->h, 0, ids, n, CHUNK, got);
	for (uint32_t i = 1; i < n; i++) {
		errors_add(&errors, got[i], want[i - 1]);
		sum += got[i];
	}
	errors_check(&errors, "score");
	ppl = exp(-sum / (n - 1));
	ok = fabs(ppl / want_ppl - 1) <= slack * PPL_ERROR;
	printf("%s: perplexity %.4f, reference %.4f\n", ok ? "ok" : "FAIL", ppl,
	       want_ppl);
	n_failed += !ok;
}

static void tokenize_case(struct cases *c, FILE *f)
{
	static int32_t want[MAX_LEN];
	struct token_list list = {0};
	char *text, back[4096];
	size_t len = read_hex(f, &text);
	uint32_t n = read_ids(f, want);

	if (tokenizer_encode(c->tok, text, len, TOKENIZER_PARSE_SPECIAL, &list))
		die("cannot encode a text");
	same_ids("tokenize", &list, want, n);
	if (tokenizer_decode(c->tok, list.ids, list.n, back, sizeof(back)) != len ||
	    memcmp(back, text, len) != 0) {
		printf("FAIL: tokenize case %u does not come back\n", c->n);
		n_failed++;
	}
	token_list_deinit(&list);
	free(text);
}

static void run_cases(struct cases *c, FILE *f)
{
	char kind[16];

	while (fscanf(f, "%15s", kind) == 1) {
		c->n++;
		if (!strcmp(kind, "tokenize"))
			tokenize_case(c, f);
		else if (!strcmp(kind, "score"))
			score_case(c, f);
		else
			generate_case(c, f, !strcmp(kind, "chat"));
	}
	if (c->h)
		errors_check(&c->greedy, "greedy");
	printf("%u cases, %u failures\n", c->n, n_failed);
	if (c->n < 49)
		die("cases are missing");
}

int main(int argc, char **argv)
{
	struct cases cases = {0};
	struct gguf_error err;
	struct harness h;
	struct gguf *gguf;
	FILE *f;
	int mask = 0;

	if (argc < 4)
		die("usage: test_golden MODEL CASES tokens|c|avx2|avx512|avx512vnni [loose]");
	if (argc > 4)
		slack = LOOSE;
	if (strcmp(argv[3], "tokens")) {
		mask = kv_cpu_mask_parse(argv[3]);
		if (mask < 0)
			die("no such variant: %s", argv[3]);
		if (kv_cpu_features_masked((uint32_t)mask) != (uint32_t)mask) {
			printf("skipped: this CPU has no %s\n", argv[3]);
			return SKIP;
		}
	}
	if (gguf_open(&gguf, argv[1], &err) || tokenizer_new(&cases.tok, gguf, &err) ||
	    chat_template_new(&cases.chat, gguf, cases.tok, NULL, &err))
		die("%s", err.text);
	f = fopen(argv[2], "r");
	if (!f)
		die("cannot read %s", argv[2]);
	if (mask) {
		harness_init(&h, gguf, (uint32_t)mask, 0, 1, MAX_LEN, CHUNK);
		printf("variant %s\n", h.props.variant);
		cases.h = &h;
	}
	gguf_free(gguf);
	run_cases(&cases, f);
	fclose(f);
	if (cases.h)
		harness_deinit(&h);
	chat_template_free(cases.chat);
	tokenizer_free(cases.tok);
	return n_failed != 0;
}
