/* SPDX-License-Identifier: MIT */
/* Builds a tokenizer from a model file's metadata. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer-internal.h"
#include "ipc/base.h"
#include "ipc/utf8.h"

/* Ids are int32_t and a symbol must stay below BPE_NONE with all merges added. */
#define MAX_TOKENS (1u << 22)

/* ---- byte-level text ---- */

/*
 * Byte-level vocabularies spell each byte as a printable character: those of Latin-1 as
 * themselves, the others (00 to 20, 7f to a0, ad) as U+0100 and up in order. Return: the byte
 * or -1.
 */
static int byte_of_code(uint32_t code)
{
	if ((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xff))
		return code == 0xad ? -1 : (int)code;
	if (code >= 0x100 && code <= 0x120)
		return (int)(code - 0x100);
	if (code >= 0x121 && code <= 0x142)
		return (int)(code - 0x121 + 0x7f);
	return code == 0x143 ? 0xad : -1;
}

/*
 * Rewrites a spelled text into the bytes it stands for, never more than @len of them.
 * Characters that spell nothing stay as they are; then *ret_plain is false, and the text
 * must not be found by its bytes, since another token may spell the same ones.
 */
static size_t unspell(const char *text, size_t len, uint8_t *out, bool *ret_plain)
{
	const uint8_t *s = (const uint8_t *)text;
	size_t pos = 0, n_out = 0;

	*ret_plain = true;
	while (pos < len) {
		uint32_t code;
		int n = utf8_next(s + pos, len - pos, &code);
		int byte = n > 0 ? byte_of_code(code) : -1;

		if (n <= 0)
			n = 1;
		if (byte >= 0) {
			out[n_out++] = (uint8_t)byte;
		} else {
			memcpy(out + n_out, s + pos, (size_t)n);
			n_out += (size_t)n;
			*ret_plain = false;
		}
		pos += (size_t)n;
	}
	return n_out;
}

/* ---- parts of the file ---- */

struct loader {
	struct tokenizer *tok;
	const struct gguf *gguf;
	struct load_error *err;
	uint8_t *buf; /* one unspelled text */
	size_t buf_cap;
};

static int loader_nomem(const struct loader *ld)
{
	return gguf_fail(ld->err, ld->gguf, -ENOMEM, "out of memory for the tokenizer");
}

static int loader_reserve(struct loader *ld, size_t len)
{
	uint8_t *buf;

	if (len <= ld->buf_cap)
		return 0;
	buf = realloc(ld->buf, len);
	if (!buf)
		return -ENOMEM;
	ld->buf = buf;
	ld->buf_cap = len;
	return 0;
}

static int load_model_kind(struct loader *ld)
{
	struct gguf_str model = {"", 0};
	int r;

	r = gguf_get_str(ld->gguf, "tokenizer.ggml.model", &model, ld->err);
	if (r > 0)
		return gguf_fail(ld->err, ld->gguf, -EINVAL,
				 "key tokenizer.ggml.model is missing");
	if (r == 0 && !gguf_str_eq(model, "gpt2"))
		return gguf_fail(
			ld->err, ld->gguf, -ENOTSUP,
			"tokenizer.ggml.model %.*s is not supported; supported: gpt2",
			(int)(model.len < 64 ? model.len : 64), model.data);
	return r;
}

static int load_pretokenizer(struct loader *ld)
{
	struct gguf_str pre = {"", 0};
	char known[160];
	int r;

	pretokenizer_list(known, sizeof(known));
	r = gguf_get_str(ld->gguf, "tokenizer.ggml.pre", &pre, ld->err);
	if (r < 0)
		return r;
	if (r > 0)
		return gguf_fail(ld->err, ld->gguf, -ENOTSUP,
				 "key tokenizer.ggml.pre is missing; supported: %s",
				 known);
	r = pretokenizer_new(&ld->tok->pre, pre.data, pre.len);
	if (r == -ENOTSUP)
		return gguf_fail(
			ld->err, ld->gguf, r,
			"tokenizer.ggml.pre %.*s is not supported; supported: %s",
			(int)(pre.len < 64 ? pre.len : 64), pre.data, known);
	return r < 0 ? loader_nomem(ld) : 0;
}

static int load_token(struct loader *ld, uint32_t i, struct gguf_str text)
{
	struct tokenizer *tok = ld->tok;
	bool plain;
	size_t len;
	int r;

	if (tok->types[i] != TOKEN_NORMAL)
		return strings_add(&tok->strings, (const uint8_t *)text.data, text.len);
	r = loader_reserve(ld, text.len);
	if (r < 0)
		return r;
	len = unspell(text.data, text.len, ld->buf, &plain);
	r = strings_add(&tok->strings, ld->buf, len);
	return r < 0 || !len || !plain ? r : strings_map_last(&tok->strings);
}

static int load_tokens(struct loader *ld)
{
	struct tokenizer *tok = ld->tok;
	const struct gguf_kv *tokens, *types = NULL;
	const uint8_t *cursor;
	int r;

	r = gguf_get_array(ld->gguf, "tokenizer.ggml.tokens", GGUF_STRING, &tokens,
			   ld->err);
	if (r < 0)
		return r;
	if (r > 0 || !tokens->n || tokens->n > MAX_TOKENS)
		return gguf_fail(ld->err, ld->gguf, -EINVAL,
				 "tokenizer.ggml.tokens is missing, empty or has more "
				 "than %u tokens",
				 MAX_TOKENS);
	r = gguf_get_array(ld->gguf, "tokenizer.ggml.token_type", GGUF_I32, &types,
			   ld->err);
	if (r < 0)
		return r;
	if (types && types->n != tokens->n)
		return gguf_fail(ld->err, ld->gguf, -EINVAL,
				 "tokenizer.ggml.token_type has %llu entries for %llu "
				 "tokens",
				 (unsigned long long)types->n,
				 (unsigned long long)tokens->n);
	tok->n_tokens = (uint32_t)tokens->n;
	tok->types = calloc(tok->n_tokens, 1);
	tok->eog = calloc(tok->n_tokens, 1);
	if (!tok->types || !tok->eog || strings_grow_map(&tok->strings) < 0)
		return loader_nomem(ld);
	cursor = tokens->data;
	for (uint32_t i = 0; i < tok->n_tokens; i++) {
		int32_t type = types ? gguf_array_i32(types, i) : TOKEN_NORMAL;

		if (type < TOKEN_NORMAL || type > TOKEN_BYTE)
			return gguf_fail(ld->err, ld->gguf, -EINVAL,
					 "token %u has unknown type %d", i, type);
		tok->types[i] = (uint8_t)type;
		if (load_token(ld, i, gguf_next_str(tokens, &cursor)) < 0)
			return loader_nomem(ld);
	}
	return 0;
}

/* One line of merges is "LEFT RIGHT", both spelled; a space is never spelled as itself, and
 * LEFT is not empty. */
static int load_merge(struct loader *ld, uint32_t rank, struct gguf_str line)
{
	struct strings *strings = &ld->tok->strings;
	uint32_t left, right, result;
	const char *space;
	bool plain_left, plain_right;
	size_t n_left, n_right;
	int r;

	space = line.len > 2 ? memchr(line.data + 1, ' ', line.len - 2) : NULL;
	if (!space)
		return -EINVAL;
	r = loader_reserve(ld, line.len);
	if (r < 0)
		return r;
	n_left = unspell(line.data, (size_t)(space - line.data), ld->buf, &plain_left);
	n_right = unspell(space + 1, line.len - (size_t)(space + 1 - line.data),
			  ld->buf + n_left, &plain_right);
	if (!plain_left || !plain_right)
		return 0; /* no text ever consists of these symbols */
	r = strings_intern(strings, ld->buf, n_left, &left);
	if (r == 0)
		r = strings_intern(strings, ld->buf + n_left, n_right, &right);
	if (r == 0)
		r = strings_intern(strings, ld->buf, n_left + n_right, &result);
	if (r == 0)
		bpe_add(&ld->tok->bpe, left, right, rank, result);
	return r;
}

static int load_merges(struct loader *ld)
{
	struct tokenizer *tok = ld->tok;
	const struct gguf_kv *merges;
	const uint8_t *cursor;
	int r;

	r = gguf_get_array(ld->gguf, "tokenizer.ggml.merges", GGUF_STRING, &merges,
			   ld->err);
	if (r < 0)
		return r;
	if (r > 0 || merges->n > MAX_TOKENS)
		return gguf_fail(
			ld->err, ld->gguf, -EINVAL,
			"tokenizer.ggml.merges is missing or has more than %u merges",
			MAX_TOKENS);
	if (bpe_init(&tok->bpe, merges->n) < 0)
		return loader_nomem(ld);
	for (uint32_t b = 0; b < 256; b++) {
		uint8_t byte = (uint8_t)b;

		r = strings_intern(&tok->strings, &byte, 1, &tok->bpe.bytes[b]);
		if (r < 0)
			return loader_nomem(ld);
		tok->byte_tokens[b] = tok->bpe.bytes[b] < tok->n_tokens
					      ? (int32_t)tok->bpe.bytes[b]
					      : TOKEN_NONE;
	}
	cursor = merges->data;
	for (uint32_t i = 0; i < merges->n; i++) {
		r = load_merge(ld, i, gguf_next_str(merges, &cursor));
		if (r == -EINVAL)
			return gguf_fail(ld->err, ld->gguf, r,
					 "tokenizer.ggml.merges: entry %u is not two "
					 "parts with a space between them",
					 i);
		if (r < 0)
			return loader_nomem(ld);
	}
	return 0;
}

static int load_specials(struct loader *ld)
{
	struct tokenizer *tok = ld->tok;
	unsigned mask =
		1u << TOKEN_UNKNOWN | 1u << TOKEN_CONTROL | 1u << TOKEN_USER_DEFINED;
	int r = whole_collect(&tok->specials, &tok->strings, tok->types, tok->n_tokens,
			      mask);

	return r < 0 ? loader_nomem(ld) : 0;
}

/* An optional key that names a token. */
static int load_id(struct loader *ld, const char *key, int32_t *ret)
{
	uint32_t id;
	int r;

	*ret = TOKEN_NONE;
	r = gguf_get_u32(ld->gguf, key, &id, ld->err);
	if (r)
		return r < 0 ? r : 0;
	if (id >= ld->tok->n_tokens)
		return gguf_fail(ld->err, ld->gguf, -EINVAL,
				 "%s is %u, the vocabulary has %u tokens", key, id,
				 ld->tok->n_tokens);
	*ret = (int32_t)id;
	return 0;
}

static const char *const eog_texts[] = {
	"<|im_end|>",    "<|eot_id|>",    "<|eom_id|>",
	"<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
};
static const char *const turn_texts[] = {
	"<|im_start|>",
	"<|start_header_id|>",
	"<|end_header_id|>",
	"<start_of_turn>",
};

static bool is_one_of(struct gguf_str text, const char *const *texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (gguf_str_eq(text, texts[i]))
			return true;
	return false;
}

static bool marks_a_turn(const struct tokenizer *tok, uint32_t id)
{
	struct gguf_str text = strings_at(&tok->strings, id);

	return tok->eog[id] || (int32_t)id == tok->bos ||
	       is_one_of(text, eog_texts, KVD_ARRAY_LEN(eog_texts)) ||
	       is_one_of(text, turn_texts, KVD_ARRAY_LEN(turn_texts));
}

/*
 * Files exist that call the marks of turns user-defined. Those would be found in what a user
 * writes, who could then end the turn and begin another one's.
 */
static int load_user_defined(struct loader *ld)
{
	struct tokenizer *tok = ld->tok;

	for (uint32_t i = 0; i < tok->n_tokens; i++)
		if (tok->types[i] == TOKEN_USER_DEFINED && marks_a_turn(tok, i))
			tok->types[i] = TOKEN_CONTROL;
	if (whole_collect(&tok->user_defined, &tok->strings, tok->types, tok->n_tokens,
			  1u << TOKEN_USER_DEFINED) < 0)
		return loader_nomem(ld);
	return 0;
}

static int load_roles(struct loader *ld)
{
	struct tokenizer *tok = ld->tok;
	int32_t eot = TOKEN_NONE;
	int r;

	r = load_id(ld, "tokenizer.ggml.bos_token_id", &tok->bos);
	if (r == 0)
		r = load_id(ld, "tokenizer.ggml.eos_token_id", &tok->eos);
	if (r == 0)
		r = load_id(ld, "tokenizer.ggml.eot_token_id", &eot);
	if (r < 0)
		return r;
	if (tok->eos != TOKEN_NONE)
		tok->eog[tok->eos] = 1;
	if (eot != TOKEN_NONE)
		tok->eog[eot] = 1;
	for (size_t i = 0; i < KVD_ARRAY_LEN(eog_texts); i++) {
		int32_t id = whole_find(&tok->specials, &tok->strings, eog_texts[i]);

		if (id != TOKEN_NONE)
			tok->eog[id] = 1;
	}
	tok->add_bos = pretokenizer_adds_bos(tok->pre);
	r = gguf_get_bool(ld->gguf, "tokenizer.ggml.add_bos_token", &tok->add_bos,
			  ld->err);
	if (r < 0)
		return r;
	if (tok->bos == TOKEN_NONE)
		tok->add_bos = false;
	return 0;
}

int tokenizer_new(struct tokenizer **ret, const struct gguf *gguf, struct load_error *err)
{
	struct loader ld = {.gguf = gguf, .err = err};
	int r;

	ld.tok = calloc(1, sizeof(*ld.tok));
	if (!ld.tok)
		return loader_nomem(&ld);
	r = load_model_kind(&ld);
	if (r == 0)
		r = load_pretokenizer(&ld);
	if (r == 0)
		r = load_tokens(&ld);
	if (r == 0)
		r = load_merges(&ld);
	if (r == 0)
		r = load_specials(&ld);
	if (r == 0)
		r = load_roles(&ld);
	if (r == 0)
		r = load_user_defined(&ld);
	free(ld.buf);
	if (r < 0) {
		tokenizer_free(ld.tok);
		return r;
	}
	*ret = ld.tok;
	return 0;
}

void tokenizer_free(struct tokenizer *tok)
{
	if (!tok)
		return;
	strings_deinit(&tok->strings);
	free(tok->types);
	free(tok->eog);
	whole_deinit(&tok->specials);
	whole_deinit(&tok->user_defined);
	bpe_deinit(&tok->bpe);
	pretokenizer_free(tok->pre);
	free(tok);
}
