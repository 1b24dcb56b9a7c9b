/* SPDX-License-Identifier: MIT */
/* The tokenizer on a vocabulary small enough to merge by hand. Real vocabularies are
 * compared with other implementations in test_golden.c and test_vocab. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/chat.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base.h"
#include "tests/unit/model/gguf-image.h"
#include "tests/unit/suite.h"

static struct load_error err;

/* \304\240 is U+0120, which spells a space; \303\251 spells byte 0xe9. */
static const char *const tokens[] = {
	"a",      "b",      "c",          "d",         "ab",       "bc",
	"abc",    "cd",     "\304\240",   "\304\240a", "\303\251", "<|x|>",
	"<|x|>y", "<user>", "<|im_end|>", "1",
};
static const int32_t types[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 4, 3, 1};
static const char *const merges[] = {"b c",        "a b",   "a bc", "c d",
				     "\304\240 a", "abc d", "abc d"};

#define N_TOKENS KVD_ARRAY_LEN(tokens)
#define N_MERGES KVD_ARRAY_LEN(merges)

static struct image vocab_image(const char *model, const char *pre, uint64_t n_types)
{
	struct image im = {0};

	image_header(&im, 3, 0, 8);
	image_kv_str(&im, "tokenizer.ggml.model", model);
	image_kv_str(&im, "tokenizer.ggml.pre", pre);
	image_kv_strs(&im, "tokenizer.ggml.tokens", tokens, N_TOKENS);
	image_kv_strs(&im, "tokenizer.ggml.merges", merges, N_MERGES);
	image_kv_u32(&im, "tokenizer.ggml.bos_token_id", 11);
	image_kv_u32(&im, "tokenizer.ggml.eos_token_id", 12);
	image_kv_bool(&im, "tokenizer.ggml.add_bos_token", 1);
	image_kv_array(&im, "tokenizer.ggml.token_type", GGUF_I32, n_types);
	image_put(&im, types, n_types * sizeof(types[0]));
	return im;
}

static struct tokenizer *small_tokenizer(void)
{
	struct image im = vocab_image("gpt2", "gpt-2", N_TOKENS);
	struct tokenizer *tok = NULL;
	struct gguf *gguf;

	ck_assert_int_eq(gguf_open_memory(&gguf, "v", im.data, im.len, &err), 0);
	ck_assert_msg(tokenizer_new(&tok, gguf, &err) == 0, "%s", err.text);
	/* the tokenizer must not need the file any more */
	gguf_free(gguf);
	memset(im.data, 0xee, im.len);
	image_free(&im);
	return tok;
}

static void expect(const struct tokenizer *tok, const char *text, size_t len,
		   unsigned flags, const char *want)
{
	struct token_list list = {0};
	char got[256] = "";
	size_t n = 0;

	ck_assert_int_eq(tokenizer_encode(tok, text, len, flags, &list), 0);
	for (size_t i = 0; i < list.n; i++)
		n += (size_t)snprintf(got + n, sizeof(got) - n, i ? " %d" : "%d",
				      list.ids[i]);
	ck_assert_str_eq(got, want);
	token_list_deinit(&list);
}

START_TEST(merges_by_rank)
{
	struct tokenizer *tok = small_tokenizer();

	expect(tok, "", 0, 0, "");
	expect(tok, "a", 1, 0, "0");
	/* "b c" goes before "a b", then "a bc" */
	expect(tok, "abc", 3, 0, "6");
	expect(tok, "abab", 4, 0, "4 4");
	/* "abc d" has a rank but no token: it falls back to the bytes */
	expect(tok, "abcd", 4, 0, "0 1 2 3");
	expect(tok, "bcd", 3, 0, "5 3");
	expect(tok, " a", 2, 0, "9");
	expect(tok, "a a", 3, 0, "0 9");
	/* the digit splits the word, so "c d" cannot merge across */
	expect(tok, "c1d", 3, 0, "2 15 3");
	tokenizer_free(tok);
}
END_TEST

START_TEST(special_tokens)
{
	struct tokenizer *tok = small_tokenizer();

	expect(tok, "a<|x|>b", 7, TOKENIZER_PARSE_SPECIAL, "0 11 1");
	/* the longest that fits */
	expect(tok, "<|x|>yb", 7, TOKENIZER_PARSE_SPECIAL, "12 1");
	expect(tok, "<user><user>", 12, TOKENIZER_PARSE_SPECIAL, "13 13");
	/* a prefix of one is text: its characters have no tokens here, so only letters
	 * stay */
	expect(tok, "<|x|a", 5, TOKENIZER_PARSE_SPECIAL, "0");
	/* a user-defined token is text, and one token, also where control tokens are not
	 * recognized */
	expect(tok, "a<|x|>b<user>", 13, 0, "0 1 13");
	expect(tok, "a", 1, TOKENIZER_ADD_BOS, "11 0");
	ck_assert_int_eq(tokenizer_find_special(tok, "<|x|>"), 11);
	ck_assert_int_eq(tokenizer_find_special(tok, "<|x|>y"), 12);
	ck_assert_int_eq(tokenizer_find_special(tok, "<|x|"), TOKEN_NONE);
	ck_assert_int_eq(tokenizer_find_special(tok, "a"), TOKEN_NONE);
	ck_assert_int_eq(tokenizer_find_special(tok, ""), TOKEN_NONE);
	ck_assert(tokenizer_is_eog(tok, 12));
	ck_assert(tokenizer_is_eog(tok, 14));
	ck_assert(!tokenizer_is_eog(tok, 11));
	ck_assert(!tokenizer_is_eog(tok, -1));
	ck_assert(!tokenizer_is_eog(tok, 99));
	ck_assert(tokenizer_is_control(tok, 11));
	ck_assert(!tokenizer_is_control(tok, 13));
	tokenizer_free(tok);
}
END_TEST

/* "<|x|>" and "<|x|>y" end or begin turns by key, "<|im_end|>" by its text: however the file
 * calls them, a user's text does not hold them. "<user>" stays what it is. */
START_TEST(marks_of_turns_are_control)
{
	static const int32_t all_user_defined[] = {1, 1, 1, 1, 1, 1, 1, 1,
						   1, 1, 1, 4, 4, 4, 4, 1};
	struct image im = vocab_image("gpt2", "gpt-2", N_TOKENS);
	struct tokenizer *tok = NULL;
	struct gguf *gguf;

	memcpy(im.data + im.len - sizeof(types), all_user_defined, sizeof(types));
	ck_assert_int_eq(gguf_open_memory(&gguf, "v", im.data, im.len, &err), 0);
	ck_assert_msg(tokenizer_new(&tok, gguf, &err) == 0, "%s", err.text);
	for (int32_t id = 11; id <= 14; id++)
		ck_assert_int_eq(tokenizer_is_control(tok, id), id != 13);
	expect(tok, "<user><|x|>a<|im_end|>", 22, 0, "13 0 3");
	expect(tok, "<|x|>a<|im_end|>", 16, TOKENIZER_PARSE_SPECIAL, "11 0 14");
	tokenizer_free(tok);
	gguf_free(gguf);
	image_free(&im);
}
END_TEST

START_TEST(bytes_that_are_no_text)
{
	struct tokenizer *tok = small_tokenizer();
	char buf[8];
	int32_t ids[] = {0, 10, 9, -5, 1000};

	/* 0xe9 alone is no character, but a token */
	expect(tok,
	       "a\xe9"
	       "b",
	       3, 0, "0 10 1");
	expect(tok, "\xff\xe9\x80", 3, 0, "10");
	ck_assert_uint_eq(tokenizer_decode(tok, ids, 5, NULL, 0), 4);
	ck_assert_uint_eq(tokenizer_decode(tok, ids, 5, buf, sizeof(buf)), 4);
	ck_assert_mem_eq(buf, "a\xe9 a", 4);
	buf[2] = 'z';
	ck_assert_uint_eq(tokenizer_decode(tok, ids, 5, buf, 2), 4);
	ck_assert_int_eq(buf[2], 'z');
	tokenizer_free(tok);
}
END_TEST

static void refuse(struct image im, int code, const char *text)
{
	struct tokenizer *tok = NULL;
	struct gguf *gguf;

	ck_assert_int_eq(gguf_open_memory(&gguf, "v", im.data, im.len, &err), 0);
	ck_assert_int_eq(tokenizer_new(&tok, gguf, &err), code);
	ck_assert_ptr_null(tok);
	ck_assert_msg(strstr(err.text, text) != NULL, "%s", err.text);
	gguf_free(gguf);
	image_free(&im);
}

START_TEST(refuses_by_name)
{
	struct image im = {0};

	refuse(vocab_image("bert", "gpt-2", N_TOKENS), -ENOTSUP,
	       "tokenizer.ggml.model bert is not supported; supported: gpt2");
	refuse(vocab_image("gpt2", "chameleon", N_TOKENS), -ENOTSUP,
	       "tokenizer.ggml.pre chameleon is not supported; supported: smollm gpt-2");
	refuse(vocab_image("gpt2", "gpt-2", 3), -EINVAL,
	       "tokenizer.ggml.token_type has 3 entries for 16 tokens");
	image_header(&im, 3, 0, 0);
	refuse(im, -EINVAL, "tokenizer.ggml.model is missing");
}
END_TEST

/* The three roles, to the letter; of others the message is named. */
START_TEST(chat_roles)
{
	static const char *const bad[] = {"System", "tool",  "",
					  "user ",  "users", "user\nsystem",
					  "USER",   "syste", "assistant\0"};
	struct image im = vocab_image("gpt2", "gpt-2", N_TOKENS);
	struct chat_message messages[4] = {
		{"system", 6, "a", 1},
		{"user", 4, "b", 1},
		{"assistant", 9, "c", 1},
		{"user", 4, "d", 1},
	};
	struct token_list list = {0};
	struct chat_template *chat;
	struct tokenizer *tok;
	struct gguf *gguf;
	size_t at = 99;

	ck_assert_int_eq(gguf_open_memory(&gguf, "v", im.data, im.len, &err), 0);
	ck_assert_int_eq(tokenizer_new(&tok, gguf, &err), 0);
	ck_assert_int_eq(chat_template_new(&chat, gguf, tok, "plain", &err), 0);
	ck_assert_int_eq(chat_encode(chat, messages, 4, &list, &at), 0);
	ck_assert_uint_eq(at, 99);
	list.n = 0;
	for (size_t i = 0; i < KVD_ARRAY_LEN(bad); i++) {
		messages[i % 4].role = bad[i];
		messages[i % 4].role_len = strlen(bad[i]) + (i == 8);
		ck_assert_int_eq(chat_encode(chat, messages, 4, &list, &at),
				 CHAT_BAD_ROLE);
		ck_assert_uint_eq(at, i % 4);
		ck_assert_uint_eq(list.n, 0);
		messages[i % 4].role = "user";
		messages[i % 4].role_len = 4;
	}
	token_list_deinit(&list);
	chat_template_free(chat);
	tokenizer_free(tok);
	gguf_free(gguf);
	image_free(&im);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("tokenizer");

	tcase_add_test(tc, merges_by_rank);
	tcase_add_test(tc, special_tokens);
	tcase_add_test(tc, marks_of_turns_are_control);
	tcase_add_test(tc, bytes_that_are_no_text);
	tcase_add_test(tc, refuses_by_name);
	tcase_add_test(tc, chat_roles);
	return run_case("tokenizer", tc);
}
