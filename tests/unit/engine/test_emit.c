/* SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/emit.h"
#include "ipc/base.h"
#include "ipc/sqe.h"
#include "tests/unit/suite.h"

static void start(struct emit *emit, const char *a, const char *b)
{
	struct sqe_span stops[2] = {0};
	unsigned n = 0;

	if (a)
		stops[n++] = (struct sqe_span){(const uint8_t *)a, (uint32_t)strlen(a)};
	if (b)
		stops[n++] = (struct sqe_span){(const uint8_t *)b, (uint32_t)strlen(b)};
	ck_assert_int_eq(emit_init(emit, stops, n), 0);
}

/* Everything that may be shown now, as a string. */
static const char *taken(struct emit *emit, size_t cap, bool last)
{
	static char out[256];
	size_t n = emit_take(emit, out, cap, last);

	out[n] = 0;
	return out;
}

START_TEST(no_stops_passes_through)
{
	struct emit e;

	start(&e, NULL, NULL);
	ck_assert_int_eq(emit_push(&e, "Paris.", 6), 0);
	ck_assert_str_eq(taken(&e, 28, false), "Paris.");
	ck_assert_str_eq(taken(&e, 28, true), "");
	emit_deinit(&e);
}
END_TEST

START_TEST(utf8_is_held_until_whole)
{
	struct emit e;

	start(&e, NULL, NULL);
	emit_push(&e, "a\xe2\x82", 3);
	ck_assert_str_eq(taken(&e, 28, false), "a");
	ck_assert_str_eq(taken(&e, 28, false), "");
	emit_push(&e, "\xac", 1);
	ck_assert_str_eq(taken(&e, 28, false), "\xe2\x82\xac");
	/* Bytes that are no UTF-8 do not wait. */
	emit_push(&e, "\x80\xff", 2);
	ck_assert_str_eq(taken(&e, 28, false), "\xef\xbf\xbd\xef\xbf\xbd");
	/* An end that never completes is never shown. */
	emit_push(&e, "z\xf0\x9f\x98", 4);
	ck_assert(emit_pending(&e, true));
	ck_assert_str_eq(taken(&e, 28, false), "z");
	ck_assert(!emit_pending(&e, true));
	ck_assert_str_eq(taken(&e, 28, true), "");
	emit_deinit(&e);
}
END_TEST

/*
 * What replaces what, whatever the cut into tokens. Source: Unicode 15, tables 3-8 to 3-11;
 * '?' stands for U+FFFD here.
 */
START_TEST(maximal_subparts_are_replaced)
{
	static const struct {
		const char *bytes;
		const char *want;
	} cases[] = {
		{"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", "????????A"},
		{"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", "????????A"},
		{"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", "?????A??B"},
		{"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "????A"},
		{"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a???b?c??d"},
		{"\xf0\x9f\x98\x80\xe2\x82", "\xf0\x9f\x98\x80"},
		{"\xf8\x88\x80\x80\x80", "?????"},
	};

	for (size_t i = 0; i < KVD_ARRAY_LEN(cases); i++) {
		const char *bytes = cases[i].bytes, *want = cases[i].want;
		size_t len = strlen(bytes);

		for (unsigned cut = 0; cut < 1u << (len - 1); cut++) {
			char got[64] = "";
			struct emit e;
			size_t from = 0;

			start(&e, NULL, NULL);
			for (size_t at = 1; at <= len; at++) {
				if (at < len && !(cut >> (at - 1) & 1))
					continue;
				ck_assert_int_eq(emit_push(&e, bytes + from, at - from),
						 0);
				from = at;
				strcat(got, taken(&e, 28, at == len));
			}
			emit_deinit(&e);
			for (char *p; (p = strstr(got, "\xef\xbf\xbd"));) {
				*p = '?';
				memmove(p + 1, p + 3, strlen(p + 3) + 1);
			}
			ck_assert_str_eq(got, want);
		}
	}
}
END_TEST

START_TEST(pieces_do_not_cut_characters)
{
	struct emit e;

	start(&e, NULL, NULL);
	emit_push(&e,
		  "abc\xe2\x82\xac"
		  "d",
		  7);
	ck_assert_str_eq(taken(&e, 5, false), "abc");
	ck_assert_str_eq(taken(&e, 5, false), "\xe2\x82\xac"
					      "d");
	emit_deinit(&e);
}
END_TEST

START_TEST(stop_is_never_shown)
{
	struct emit e;

	start(&e, "STOP", "\n\n");
	emit_push(&e, "one S", 5);
	ck_assert_str_eq(taken(&e, 28, false), "one ");
	emit_push(&e, "T", 1);
	ck_assert_str_eq(taken(&e, 28, false), "");
	emit_push(&e, "AR\n", 3); /* "STAR": no stop after all */
	ck_assert_str_eq(taken(&e, 28, false), "STAR");
	emit_push(&e, "x STOP y", 8);
	ck_assert(e.stopped);
	ck_assert_str_eq(taken(&e, 28, false), "\nx ");
	emit_push(&e, "more", 4);
	ck_assert_str_eq(taken(&e, 28, true), "");
	emit_deinit(&e);
}
END_TEST

START_TEST(overlapping_beginnings)
{
	struct emit e;

	/* After "aab" + "aab" the stop "aabaac" may still begin at the second a. */
	start(&e, "aabaac", NULL);
	emit_push(&e, "aabaab", 6);
	ck_assert_str_eq(taken(&e, 28, false), "aab");
	emit_push(&e, "aac", 3);
	ck_assert(e.stopped);
	ck_assert_str_eq(taken(&e, 28, true), "");
	emit_deinit(&e);
}
END_TEST

/* Whatever the cut into tokens, the text shown is the text before the stop. */
START_TEST(any_cut_gives_the_same_text)
{
	static const char text[] = "x\xc3\xa9 ab abc abcabd\xe2\x82\xac end";
	static const char want[] = "x\xc3\xa9 ab abc abc";

	srand((unsigned)_i);
	for (int round = 0; round < 2000; round++) {
		struct emit e;
		char out[128];
		size_t at = 0, n = 0;

		start(&e, "abd", "abcabx");
		while (at < strlen(text)) {
			size_t len = 1 + (size_t)rand() % 5;

			if (len > strlen(text) - at)
				len = strlen(text) - at;
			ck_assert_int_eq(emit_push(&e, text + at, len), 0);
			at += len;
			n += emit_take(&e, out + n, 4 + (size_t)rand() % 6, false);
		}
		for (size_t more; (more = emit_take(&e, out + n, 4, true));)
			n += more;
		ck_assert_uint_eq(n, strlen(want));
		ck_assert_mem_eq(out, want, n);
		emit_deinit(&e);
	}
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("emit");

	tcase_add_test(tc, no_stops_passes_through);
	tcase_add_test(tc, utf8_is_held_until_whole);
	tcase_add_test(tc, maximal_subparts_are_replaced);
	tcase_add_test(tc, pieces_do_not_cut_characters);
	tcase_add_test(tc, stop_is_never_shown);
	tcase_add_test(tc, overlapping_beginnings);
	tcase_add_loop_test(tc, any_cut_gives_the_same_text, 0, 5);
	return run_case("emit", tc);
}
