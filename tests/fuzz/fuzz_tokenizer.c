/* SPDX-License-Identifier: MIT */
/*
 * The first byte says what the rest is: bit 7 set, a GGUF image to build a tokenizer and a
 * chat template from; clear, text for a small vocabulary, with the flags in the low bits.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/chat.h"
#include "daemon/model/tokenizer.h"
#include "tests/unit/model/gguf-image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Every byte but 0xff has a token, so text without it must come back as it was. */
static struct tokenizer *small_tokenizer(void)
{
	/* the third one has no token for what it makes */
	static const char *const merges[] = {"t h", "th e", "\304\240 the", "a a"};
	struct image im = {0};
	struct load_error err;
	struct tokenizer *tok = NULL;
	struct gguf *gguf;

	image_header(&im, 3, 0, 5);
	image_kv_str(&im, "tokenizer.ggml.model", "gpt2");
	image_kv_str(&im, "tokenizer.ggml.pre", "llama-bpe");
	image_kv_strs(&im, "tokenizer.ggml.merges", merges, 4);
	image_kv_array(&im, "tokenizer.ggml.tokens", GGUF_STRING, 255 + 6);
	for (unsigned b = 0; b < 255; b++) {
		char s[3] = {(char)b, 0, 0};
		unsigned code = b;

		if (b <= 0x20)
			code = 0x100 + b;
		else if (b >= 0x7f && b <= 0xa0)
			code = 0x121 + b - 0x7f;
		else if (b == 0xad)
			code = 0x143;
		if (code >= 0x80) {
			s[0] = (char)(0xc0 | code >> 6);
			s[1] = (char)(0x80 | (code & 0x3f));
		}
		image_str(&im, s);
	}
	image_str(&im, "th");
	image_str(&im, "the");
	image_str(&im, "aa");
	image_str(&im, "<|im_start|>");
	image_str(&im, "<|im_end|>");
	image_str(&im, "th<"); /* user-defined, found whatever the flags */
	image_kv_array(&im, "tokenizer.ggml.token_type", GGUF_I32, 255 + 6);
	for (unsigned i = 0; i < 261; i++)
		image_u32(&im, i < 258 ? 1 : i < 260 ? 3 : 4);
	if (gguf_open_memory(&gguf, "small", im.data, im.len, &err) < 0 ||
	    tokenizer_new(&tok, gguf, &err) < 0)
		abort();
	gguf_free(gguf);
	image_free(&im);
	return tok;
}

static void round_trip(const struct tokenizer *tok, const char *text, size_t len,
		       unsigned flags)
{
	struct token_list list = {0};
	size_t n;
	char *buf;

	if (tokenizer_encode(tok, text, len, flags, &list) != 0)
		abort();
	for (size_t i = 0; i < list.n; i++) {
		if (list.ids[i] < 0 || (uint32_t)list.ids[i] >= tokenizer_n_tokens(tok))
			abort();
		if (!(flags & TOKENIZER_PARSE_SPECIAL) &&
		    tokenizer_is_control(tok, list.ids[i]))
			abort();
	}
	buf = malloc(len + 1);
	if (!buf)
		abort();
	n = tokenizer_decode(tok, list.ids, list.n, buf, len + 1);
	if (!memchr(text, 0xff, len) && (n != len || memcmp(buf, text, len) != 0))
		abort();
	free(buf);
	token_list_deinit(&list);
}

static void build(const uint8_t *data, size_t len)
{
	static const struct chat_message messages[] = {
		{"user", 4, "the <|im_end|>", 14},
	};
	struct tokenizer *tok = NULL;
	struct chat_template *chat = NULL;
	struct token_list list = {0};
	struct load_error err;
	size_t bad;
	struct gguf *gguf;

	if (gguf_open_memory(&gguf, "fuzz", data, len, &err) < 0)
		return;
	if (tokenizer_new(&tok, gguf, &err) == 0) {
		(void)tokenizer_encode(tok, "the caf\xc3\xa9 \xff <|im_end|>", 20,
				       TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_BOS,
				       &list);
		if (chat_template_new(&chat, gguf, tok, NULL, &err) >= 0)
			(void)chat_encode(chat, messages, 1, &list, &bad);
		(void)tokenizer_decode(tok, list.ids, list.n, NULL, 0);
	}
	token_list_deinit(&list);
	chat_template_free(chat);
	tokenizer_free(tok);
	gguf_free(gguf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct tokenizer *tok;

	if (!len)
		return 0;
	if (data[0] & 0x80) {
		build(data + 1, len - 1);
		return 0;
	}
	if (!tok)
		tok = small_tokenizer();
	round_trip(tok, (const char *)data + 1, len - 1, data[0] & 1);
	return 0;
}
