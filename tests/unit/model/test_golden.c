/* SPDX-License-Identifier: MIT */
/*
 * The reference cases on one CPU variant:
 * test_golden MODEL CASES tokens|c|avx2|... [REFERENCE]
 *
 * Tolerances are those of the cases' README: a greedy token must match while every margin
 * so far is above 0.1, logprobs agree within 0.02 on average and 0.4 at worst, perplexity
 * within 0.5 %. Once a token differs the contexts differ too, so a case is compared up to
 * there.
 *
 * REFERENCE is for weights that were rounded again, which alone moves logprobs by more than
 * that: the same weights as F32, as somebody else dequantized them. All tokens of the cases
 * are scored by both, within the same tolerances. That the F32 path itself is right, the
 * cases say.
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

static unsigned n_failed;

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
	bool ok = e->n && mean <= MEAN_ERROR && e->max <= MAX_ERROR;

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
	struct harness *h;   /* NULL: tokens only */
	struct harness *ref; /* NULL: the cases hold what is right */
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
		sure = sure && margins[i] > MIN_MARGIN;
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

/* The cases' own tokens, @h against @ref. */
static void check_scores(struct cases *c, const int32_t *prompt, uint32_t n_prompt,
			 const int32_t *answer, uint32_t n)
{
	static int32_t ids[MAX_LEN];
	static float got[MAX_LEN], want[MAX_LEN];

	if (n_prompt + n > MAX_LEN)
		die("bad cases");
	memcpy(ids, prompt, n_prompt * sizeof(ids[0]));
	memcpy(ids + n_prompt, answer, n * sizeof(ids[0]));
	harness_score_all(c->h, 0, ids, n_prompt + n, CHUNK, got);
	harness_score_all(c->ref, 0, ids, n_prompt + n, CHUNK, want);
	for (uint32_t i = 1; i < n_prompt + n; i++)
		errors_add(&c->greedy, got[i], want[i]);
}

static void generate_case(struct cases *c, FILE *f, bool chat)
{
	static int32_t prompt[MAX_LEN], want[MAX_LEN];
	static double logprobs[MAX_LEN], margins[MAX_LEN];
	struct token_list list = {0};
	uint32_t n_prompt, n;
	char *text;
	size_t len = read_hex(f, &text), bad;

	n_prompt = read_ids(f, prompt);
	n = read_ids(f, want);
	read_floats(f, logprobs, n);
	read_floats(f, margins, n);
	if (chat) {
		struct chat_message msg = {"user", 4, text, len};

		if (chat_encode(c->chat, &msg, 1, &list, &bad))
			die("cannot format a chat");
	} else if (tokenizer_encode(c->tok, text, len, TOKENIZER_ADD_BOS, &list)) {
		die("cannot encode a text");
	}
	same_ids(chat ? "chat prompt" : "text prompt", &list, prompt, n_prompt);
	if (c->ref)
		check_scores(c, prompt, n_prompt, want, n);
	else if (c->h)
		check_generate(c, chat ? "chat" : "text", prompt, n_prompt, want, n,
			       logprobs, margins);
	token_list_deinit(&list);
	free(text);
}

static void score_case(struct cases *c, FILE *f)
{
	static int32_t ids[MAX_LEN];
	static double want[MAX_LEN];
	static float got[MAX_LEN], ref[MAX_LEN];
	struct errors errors = {0};
	double want_ppl, ppl, sum = 0, ref_sum = 0;
	uint32_t n;
	bool ok;

	if (fscanf(f, "%lf", &want_ppl) != 1)
		die("bad cases");
	n = read_ids(f, ids);
	read_floats(f, want, n - 1);
	if (!c->h)
		return;
	harness_score_all(c->h, 0, ids, n, CHUNK, got);
	if (c->ref)
		harness_score_all(c->ref, 0, ids, n, CHUNK, ref);
	for (uint32_t i = 1; i < n; i++) {
		errors_add(&errors, got[i], c->ref ? (double)ref[i] : want[i - 1]);
		sum += got[i];
		ref_sum += ref[i];
	}
	if (c->ref)
		want_ppl = exp(-ref_sum / (n - 1));
	errors_check(&errors, "score");
	ppl = exp(-sum / (n - 1));
	ok = fabs(ppl / want_ppl - 1) <= PPL_ERROR;
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
		errors_check(&c->greedy, c->ref ? "prompts, answers" : "greedy");
	printf("%u cases, %u failures\n", c->n, n_failed);
	if (c->n < 49)
		die("cases are missing");
}

int main(int argc, char **argv)
{
	struct cases cases = {0};
	struct load_error err;
	struct harness h, ref;
	struct gguf *gguf;
	FILE *f;
	int mask = 0;

	if (argc < 4)
		die("usage: test_golden MODEL CASES tokens|best|BUNDLE [REFERENCE]");
	if (strcmp(argv[3], "best") == 0) {
		mask = (int)kv_cpu_features();
	} else if (strcmp(argv[3], "tokens")) {
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
	if (mask && argc > 4) {
		if (gguf_open(&gguf, argv[4], &err))
			die("%s", err.text);
		harness_init(&ref, gguf, (uint32_t)mask, 0, 1, MAX_LEN, CHUNK);
		gguf_free(gguf);
		cases.ref = &ref;
	}
	run_cases(&cases, f);
	fclose(f);
	if (cases.h)
		harness_deinit(&h);
	if (cases.ref)
		harness_deinit(&ref);
	chat_template_free(cases.chat);
	tokenizer_free(cases.tok);
	return n_failed != 0;
}
