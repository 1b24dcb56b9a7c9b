/* SPDX-License-Identifier: MIT */
/* Prompts and answers leave no trace in freed memory: each block that is freed or moved while
 * a text goes its way is searched for it, as text and as token ids. */
#include <check.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvd/abi.h>

#include "daemon/model/chat.h"
#include "daemon/model/gguf.h"
#include "daemon/model/text.h"
#include "daemon/serve/emit.h"
#include "daemon/serve/input.h"
#include "ipc/sqe.h"
#include "tests/unit/suite.h"

void __real_free(void *p);
void __wrap_free(void *p);
void *__real_realloc(void *p, size_t size);
void *__wrap_realloc(void *p, size_t size);

#define SECRET "xylophone quarantine 7 zeppelin"

static const void *markers[2];
static size_t marker_len[2];
static unsigned n_traces;

static void search(void *p)
{
	for (int i = 0; p && i < 2; i++)
		if (marker_len[i] &&
		    memmem(p, malloc_usable_size(p), markers[i], marker_len[i]))
			n_traces++;
}

void __wrap_free(void *p)
{
	search(p);
	__real_free(p);
}

/* As one that always moves. */
void *__wrap_realloc(void *p, size_t size)
{
	size_t old = p ? malloc_usable_size(p) : 0;
	void *moved = malloc(size);

	if (!moved)
		return NULL;
	if (p)
		memcpy(moved, p, old < size ? old : size);
	__wrap_free(p);
	return moved;
}

static void watch(int i, const void *marker, size_t len)
{
	markers[i] = marker;
	marker_len[i] = len;
}

START_TEST(the_test_finds_what_is_left)
{
	char *text = strdup("so " SECRET " it is, and so on");

	watch(0, SECRET, strlen(SECRET));
	text = realloc(text, 4096);
	ck_assert_uint_eq(n_traces, 1);
	free(text);
	ck_assert_uint_eq(n_traces, 2);
}
END_TEST

START_TEST(answers_leave_no_trace)
{
	struct sqe_span stop = {(const uint8_t *)SECRET, (uint32_t)strlen(SECRET)};
	struct emit emit;
	char piece[16];

	watch(0, SECRET, strlen(SECRET));
	ck_assert_int_eq(emit_init(&emit, NULL, 0), 0);
	for (int i = 0; i < 200; i++)
		ck_assert_int_eq(emit_push(&emit, SECRET, strlen(SECRET)), 0);
	ck_assert_uint_gt(emit_take(&emit, piece, sizeof(piece), false), 0);
	emit_deinit(&emit);
	ck_assert_int_eq(emit_init(&emit, &stop, 1), 0);
	emit_deinit(&emit);
	ck_assert_uint_eq(n_traces, 0);
}
END_TEST

static void put_message(char *to, size_t *len, const char *role, const char *text)
{
	uint32_t role_len = (uint32_t)strlen(role), text_len = (uint32_t)strlen(text);

	memcpy(to + *len, &role_len, 4);
	memcpy(to + *len + 4, &text_len, 4);
	memcpy(to + *len + 8, role, role_len);
	memcpy(to + *len + 8 + role_len, text, text_len);
	*len += 8 + role_len + text_len;
}

/* Text of many words, and one long word, whose merges take memory of their own. */
static char *long_text(void)
{
	char *text = malloc(200000), *at = text;

	for (int i = 0; i < 2000; i++)
		at += sprintf(at, "%s. ", SECRET);
	memset(at, 'q', 20000);
	strcpy(at + 20000, SECRET);
	return text;
}

START_TEST(prompts_leave_no_trace)
{
	const char *path = getenv("KVD_MODEL");
	struct token_list list = {0}, sample = {0};
	struct chat_template *chat;
	struct model_text model;
	struct tokenizer *tok;
	struct load_error why;
	struct gguf *gguf;
	uint64_t detail;
	char *text, *turns;
	size_t len = 0;

	if (!path || gguf_open(&gguf, path, &why))
		return;
	ck_assert_int_eq(tokenizer_new(&tok, gguf, &why), 0);
	ck_assert_int_eq(chat_template_new(&chat, gguf, tok, NULL, &why), 0);
	model = (struct model_text){tok, chat, tokenizer_n_tokens(tok)};
	text = long_text();
	turns = malloc(300000);
	put_message(turns, &len, "user", text);
	/* the ids of the sentence in the middle of text */
	ck_assert_int_eq(
		tokenizer_encode(tok, " " SECRET, strlen(SECRET) + 1, 0, &sample), 0);
	watch(0, SECRET, strlen(SECRET));
	watch(1, sample.ids + 1, (sample.n - 2) * sizeof(int32_t));
	ck_assert_int_eq(input_tokens(&model, KVD_INPUT_TEXT, text,
				      (uint32_t)strlen(text), 0, &list, &detail),
			 0);
	ck_assert_ptr_nonnull(
		memmem(list.ids, list.n * sizeof(int32_t), markers[1], marker_len[1]));
	token_list_deinit(&list);
	ck_assert_uint_eq(n_traces, 0);
	ck_assert_int_eq(input_tokens(&model, KVD_INPUT_CHAT, turns, (uint32_t)len, 0,
				      &list, &detail),
			 0);
	token_list_deinit(&list);
	ck_assert_uint_eq(n_traces, 0);
	watch(0, NULL, 0);
	watch(1, NULL, 0);
	token_list_deinit(&sample);
	free(text);
	free(turns);
	chat_template_free(chat);
	tokenizer_free(tok);
	gguf_free(gguf);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("secrets");

	tcase_add_test(tcase, the_test_finds_what_is_left);
	tcase_add_test(tcase, answers_leave_no_trace);
	tcase_add_test(tcase, prompts_leave_no_trace);
	return run_case("secrets", tcase);
}
