/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "daemon/model/pretokenize.h"
#include "ipc/base.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Work is bounded by these and by the text's length, not by trust in the patterns. */
#define MAX_STAGES  2
#define MATCH_LIMIT 50000000u
#define HEAP_LIMIT  (64u << 10) /* KiB, for where the JIT is not allowed */

/* Unicode's White_Space, for a class. PCRE2's own \s has U+180E in it, which has been a
 * format character since Unicode 6.3. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"

/* Source: the GPT-2 paper's tokenizer, and the tokenizer.json files of the families. */
#define DIGIT_PATTERN "\\p{N}"
#define GPT2_PATTERN                                                                     \
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+"        \
	"|[" SPACE "]+(?![^" SPACE "])"
#define LLAMA3_PATTERN(digits)                                                           \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits             \
	"| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+"                    \
	"|[" SPACE "]+(?![^" SPACE "])"

/* The patterns are applied in sequence: each later one cuts the pieces of the one before, and
 * text that a pattern leaves unmatched stays a piece. */
static const struct family {
	const char *name;
	const char *patterns[MAX_STAGES];
	bool ignores_merges;
	bool adds_bos;
} families[] = {
	{.name = "smollm", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
	{.name = "gpt-2", .patterns = {GPT2_PATTERN}},
	{.name = "llama-bpe",
	 .patterns = {LLAMA3_PATTERN("\\p{N}{1,3}")},
	 .ignores_merges = true,
	 .adds_bos = true},
	{.name = "qwen2", .patterns = {LLAMA3_PATTERN("\\p{N}")}},
	{.name = "starcoder", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
	{.name = "refact", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
	{.name = "command-r", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
};

#define N_FAMILIES KVD_ARRAY_LEN(families)

struct pretokenizer {
	const struct family *family;
	pcre2_code *codes[MAX_STAGES];
	size_t n_stages;
	pcre2_match_context *context;
};

void pretokenizer_list(char *buf, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < N_FAMILIES && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%s", i ? " " : "",
					families[i].name);
}

bool pretokenizer_ignores_merges(const struct pretokenizer *pre)
{
	return pre->family->ignores_merges;
}

bool pretokenizer_adds_bos(const struct pretokenizer *pre)
{
	return pre->family->adds_bos;
}

static const struct family *find_family(const char *name, size_t len)
{
	for (size_t i = 0; i < N_FAMILIES; i++) {
		if (strlen(families[i].name) == len &&
		    !memcmp(families[i].name, name, len))
			return &families[i];
	}
	return NULL;
}

static int compile(struct pretokenizer *pre, const char *pattern)
{
	pcre2_code *code;
	PCRE2_SIZE where;
	int error;

	code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
			     PCRE2_UTF | PCRE2_UCP, &error, &where, NULL);
	if (!code)
		return -ENOMEM;
	/* A sandbox that forbids writable code pages makes this fail: the interpreter
	 * then gives the same matches, slower. */
	(void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	pre->codes[pre->n_stages++] = code;
	return 0;
}

int pretokenizer_new(struct pretokenizer **ret, const char *name, size_t len)
{
	const struct family *family = find_family(name, len);
	struct pretokenizer *pre;
	int r = 0;

	if (!family)
		return -ENOTSUP;
	pre = calloc(1, sizeof(*pre));
	if (!pre)
		return -ENOMEM;
	pre->family = family;
	pre->context = pcre2_match_context_create(NULL);
	if (!pre->context)
		r = -ENOMEM;
	for (size_t i = 0; r == 0 && i < MAX_STAGES && family->patterns[i]; i++)
		r = compile(pre, family->patterns[i]);
	if (r < 0) {
		pretokenizer_free(pre);
		return r;
	}
	pcre2_set_match_limit(pre->context, MATCH_LIMIT);
	pcre2_set_heap_limit(pre->context, HEAP_LIMIT);
	*ret = pre;
	return 0;
}

void pretokenizer_free(struct pretokenizer *pre)
{
	if (!pre)
		return;
	for (size_t i = 0; i < pre->n_stages; i++)
		pcre2_code_free(pre->codes[i]);
	pcre2_match_context_free(pre->context);
	free(pre);
}

/* One cutting run: the match data of each stage, used by one call only. */
struct cut {
	const struct pretokenizer *pre;
	pcre2_match_data *match[MAX_STAGES];
	pretokenize_fn *fn;
	void *arg;
};

static int cut_stage(const struct cut *cut, size_t stage, const uint8_t *text, size_t len)
{
	size_t pos = 0, start, end;
	const PCRE2_SIZE *ovector;
	int r, n;

	if (stage == cut->pre->n_stages)
		return cut->fn(cut->arg, text, len);
	ovector = pcre2_get_ovector_pointer(cut->match[stage]);
	while (pos < len) {
		/* The text was found valid; checking it again for every match would make
		 * the whole quadratic. */
		n = pcre2_match(cut->pre->codes[stage], text, len, pos,
				PCRE2_NO_UTF_CHECK, cut->match[stage], cut->pre->context);
		if (n == PCRE2_ERROR_NOMATCH)
			return cut_stage(cut, stage + 1, text + pos, len - pos);
		if (n == PCRE2_ERROR_NOMEMORY)
			return -ENOMEM;
		if (n < 0)
			return PRETOKENIZE_TOO_COMPLEX;
		start = ovector[0];
		end = ovector[1];
		if (start > pos) {
			r = cut_stage(cut, stage + 1, text + pos, start - pos);
			if (r)
				return r;
		}
		if (end > start) {
			r = cut_stage(cut, stage + 1, text + start, end - start);
			if (r)
				return r;
		}
		/* no pattern here matches nothing, but a loop must not rest on that */
		pos = end > pos ? end : pos + 1;
	}
	return 0;
}

int pretokenize(const struct pretokenizer *pre, const uint8_t *text, size_t len,
		pretokenize_fn *fn, void *arg)
{
	struct cut cut = {.pre = pre, .fn = fn, .arg = arg};
	int r = 0;

	for (size_t i = 0; i < pre->n_stages; i++) {
		cut.match[i] = pcre2_match_data_create(1, NULL);
		if (!cut.match[i])
			r = -ENOMEM;
	}
	if (r == 0)
		r = cut_stage(&cut, 0, text, len);
	for (size_t i = 0; i < pre->n_stages; i++)
		pcre2_match_data_free(cut.match[i]);
	return r;
}
