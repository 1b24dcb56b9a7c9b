/* SPDX-License-Identifier: MIT */
#include "daemon/model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer-internal.h"
#include "ipc/base.h"
#include "ipc/utf8.h"

int token_list_add(struct token_list *list, int32_t id)
{
	if (list->n == list->cap) {
		size_t cap = list->cap ? list->cap : 64;
		int32_t *ids;

		if (cap > SIZE_MAX / 2 / sizeof(*ids))
			return -ENOMEM;
		cap *= 2;
		ids = secret_realloc(list->ids, list->n * sizeof(*ids),
				     cap * sizeof(*ids));
		if (!ids)
			return -ENOMEM;
		list->ids = ids;
		list->cap = cap;
	}
	list->ids[list->n++] = id;
	return 0;
}

void token_list_deinit(struct token_list *list)
{
	secret_free(list->ids, list->cap * sizeof(list->ids[0]));
	memset(list, 0, sizeof(*list));
}

uint32_t tokenizer_n_tokens(const struct tokenizer *tok)
{
	return tok->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
	return tok->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
	return tok->eos;
}

static bool in_range(const struct tokenizer *tok, int32_t id)
{
	return id >= 0 && (uint32_t)id < tok->n_tokens;
}

bool tokenizer_is_eog(const struct tokenizer *tok, int32_t id)
{
	return in_range(tok, id) && tok->eog[id];
}

bool tokenizer_is_control(const struct tokenizer *tok, int32_t id)
{
	return in_range(tok, id) && tok->types[id] == TOKEN_CONTROL;
}

struct gguf_str tokenizer_piece(const struct tokenizer *tok, int32_t id)
{
	if (!in_range(tok, id))
		return (struct gguf_str){.data = "", .len = 0};
	return strings_at(&tok->strings, (uint32_t)id);
}

size_t tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n,
			char *buf, size_t cap)
{
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		struct gguf_str piece = tokenizer_piece(tok, ids[i]);

		if (len < cap) {
			size_t room = cap - len;

			memcpy(buf + len, piece.data,
			       piece.len < room ? piece.len : room);
		}
		len += piece.len;
	}
	return len;
}

int32_t tokenizer_find_special(const struct tokenizer *tok, const char *text)
{
	return whole_find(&tok->specials, &tok->strings, text);
}

/*
 * Whole tokens are found first (whole.h), leftmost first: user-defined ones ("<think>", runs of
 * blanks) are text and always found; control tokens, which carry structure, only where the
 * caller says so. The text between is cut into pieces (pretokenize.h) and each piece is merged
 * (bpe.h). Bytes that are not valid UTF-8 form pieces of their own and map one by one.
 */
struct encoding {
	const struct tokenizer *tok;
	struct bpe_scratch scratch;
	struct token_list *list;
};

/* A symbol that no token spells falls back to the tokens of its bytes, as far as there are
 * such. */
static int add_bytes(struct encoding *enc, const uint8_t *s, size_t len)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < len; i++) {
		int32_t id = enc->tok->byte_tokens[s[i]];

		if (id != TOKEN_NONE)
			r = token_list_add(enc->list, id);
	}
	return r;
}

static int encode_piece(void *arg, const uint8_t *piece, size_t len)
{
	struct encoding *enc = arg;
	const struct tokenizer *tok = enc->tok;
	const struct bpe_node *nodes;
	int r;

	if (pretokenizer_ignores_merges(tok->pre)) {
		uint32_t id = strings_find(&tok->strings, piece, len);

		if (id < tok->n_tokens)
			return token_list_add(enc->list, (int32_t)id);
	}
	r = bpe_merge(&tok->bpe, &enc->scratch, piece, len);
	if (r < 0)
		return r;
	nodes = enc->scratch.nodes;
	for (uint32_t i = 0; i != BPE_NONE; i = nodes[i].next) {
		size_t end = nodes[i].next == BPE_NONE ? len : nodes[i].next;

		if (nodes[i].symbol < tok->n_tokens)
			r = token_list_add(enc->list, (int32_t)nodes[i].symbol);
		else
			r = add_bytes(enc, piece + i, end - i);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Text between whole tokens: runs of valid characters are cut, other bytes are not. */
static int encode_plain(struct encoding *enc, const uint8_t *s, size_t len)
{
	size_t pos = 0, n;
	uint32_t code;
	int r;

	while (pos < len) {
		n = utf8_valid_len(s + pos, len - pos);
		if (n) {
			r = pretokenize(enc->tok->pre, s + pos, n, encode_piece, enc);
			if (r)
				return r;
			pos += n;
		}
		for (n = 0; pos + n < len; n++) {
			if (utf8_next(s + pos + n, len - pos - n, &code) > 0)
				break;
		}
		if (n) {
			r = encode_piece(enc, s + pos, n);
			if (r)
				return r;
			pos += n;
		}
	}
	return 0;
}

static int encode_text(struct encoding *enc, const struct whole_tokens *set,
		       const uint8_t *s, size_t len)
{
	size_t start = 0, pos = 0, n = 0;
	int r;

	while (pos < len) {
		int32_t id = whole_at(set, &enc->tok->strings, s + pos, len - pos, &n);

		if (id == TOKEN_NONE) {
			pos++;
			continue;
		}
		r = encode_plain(enc, s + start, pos - start);
		if (r)
			return r;
		r = token_list_add(enc->list, id);
		if (r < 0)
			return r;
		pos += n;
		start = pos;
	}
	return encode_plain(enc, s + start, len - start);
}

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t len,
		     unsigned flags, struct token_list *list)
{
	struct encoding enc = {.tok = tok, .list = list};
	const uint8_t *s = (const uint8_t *)text;
	size_t n_before = list->n;
	int r = 0;

	_Static_assert((int)PRETOKENIZE_TOO_COMPLEX == (int)TOKENIZER_TOO_COMPLEX,
		       "the condition passes through");
	if (len > TOKENIZER_MAX_TEXT)
		return TOKENIZER_TOO_LONG;
	if ((flags & TOKENIZER_ADD_BOS) && tok->add_bos)
		r = token_list_add(list, tok->bos);
	if (r == 0)
		r = encode_text(&enc,
				flags & TOKENIZER_PARSE_SPECIAL ? &tok->specials
								: &tok->user_defined,
				s, len);
	bpe_scratch_deinit(&enc.scratch);
	if (r)
		list->n = n_before;
	return r;
}
