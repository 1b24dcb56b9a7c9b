/* SPDX-License-Identifier: MIT */
/* The decoder against table 3-7 of the Unicode standard (version 15), row by row, and each code
 * point against the bits that table 3-6 assigns to it. */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/utf8.h"
#include "tests/unit/suite.h"

#include "ipc/base.h"

/* Table 3-7: ranges of the first to the fourth byte. */
static const struct row {
	int n;
	uint8_t low[4], high[4];
} rows[] = {
	{1, {0x00}, {0x7f}},
	{2, {0xc2, 0x80}, {0xdf, 0xbf}},
	{3, {0xe0, 0xa0, 0x80}, {0xe0, 0xbf, 0xbf}},
	{3, {0xe1, 0x80, 0x80}, {0xec, 0xbf, 0xbf}},
	{3, {0xed, 0x80, 0x80}, {0xed, 0x9f, 0xbf}},
	{3, {0xee, 0x80, 0x80}, {0xef, 0xbf, 0xbf}},
	{4, {0xf0, 0x90, 0x80, 0x80}, {0xf0, 0xbf, 0xbf, 0xbf}},
	{4, {0xf1, 0x80, 0x80, 0x80}, {0xf3, 0xbf, 0xbf, 0xbf}},
	{4, {0xf4, 0x80, 0x80, 0x80}, {0xf4, 0x8f, 0xbf, 0xbf}},
};

/* Whether the first @n bytes of @s are those of a row. */
static bool fits(const struct row *row, const uint8_t *s, int n)
{
	for (int i = 0; i < n; i++)
		if (s[i] < row->low[i] || s[i] > row->high[i])
			return false;
	return true;
}

static int by_table(const uint8_t *s, int len)
{
	for (size_t i = 0; i < KVD_ARRAY_LEN(rows); i++) {
		const struct row *row = &rows[i];

		if (fits(row, s, row->n < len ? row->n : len))
			return row->n <= len ? row->n : UTF8_CUT;
	}
	return UTF8_NONE;
}

static void compare(const uint8_t *s, int len)
{
	uint32_t code;
	int got = utf8_next(s, (size_t)len, &code), want = by_table(s, len);

	if (got != want)
		ck_abort_msg("%02x %02x %02x %02x, %d bytes: %d, not %d", s[0], s[1],
			     s[2], s[3], len, got, want);
}

/* All strings of three bytes, whole and cut short; a fourth byte at each edge of its range. */
START_TEST(strings_are_judged_as_the_table_does)
{
	static const uint8_t last[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
	uint8_t s[4];

	for (uint32_t i = 0; i < 1u << 24; i++) {
		s[0] = (uint8_t)(i >> 16);
		s[1] = (uint8_t)(i >> 8);
		s[2] = (uint8_t)i;
		s[3] = 0x80;
		compare(s, 3);
		if (!s[2])
			compare(s, 2);
		if (!s[1] && !s[2])
			compare(s, 1);
		for (size_t k = 0; s[0] >= 0xf0 && k < sizeof(last); k++) {
			s[3] = last[k];
			compare(s, 4);
		}
	}
}
END_TEST

static int encode(uint32_t c, uint8_t *s)
{
	if (c < 0x80) {
		s[0] = (uint8_t)c;
		return 1;
	}
	if (c < 0x800) {
		s[0] = (uint8_t)(0xc0 + c / 64);
		s[1] = (uint8_t)(0x80 + c % 64);
		return 2;
	}
	if (c < 0x10000) {
		s[0] = (uint8_t)(0xe0 + c / 4096);
		s[1] = (uint8_t)(0x80 + c / 64 % 64);
		s[2] = (uint8_t)(0x80 + c % 64);
		return 3;
	}
	s[0] = (uint8_t)(0xf0 + c / 262144);
	s[1] = (uint8_t)(0x80 + c / 4096 % 64);
	s[2] = (uint8_t)(0x80 + c / 64 % 64);
	s[3] = (uint8_t)(0x80 + c % 64);
	return 4;
}

START_TEST(every_code_point_comes_back)
{
	for (uint32_t c = 0; c <= 0x10ffff; c++) {
		bool surrogate = c >= 0xd800 && c <= 0xdfff;
		uint32_t code = 0xffffffff;
		uint8_t s[4];
		int n = encode(c, s), got = utf8_next(s, sizeof(s), &code);

		if (got != (surrogate ? 0 : n) || (!surrogate && code != c))
			ck_abort_msg("U+%04X: %d bytes, U+%04X", c, got, code);
		ck_assert_uint_eq(utf8_char_len(s, (size_t)n - 1 + !(n - 1)),
				  n == 1 ? 1 : 0);
	}
}
END_TEST

START_TEST(valid_text_ends_before_the_first_fault)
{
	static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
	static const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};

	for (size_t len = 0; len <= sizeof(text) - 1; len++)
		ck_assert_uint_eq(utf8_valid_len(text, len), ends[len]);
	ck_assert_uint_eq(utf8_valid_len("ab\xed\xa0\x80", 5), 2);
	ck_assert_uint_eq(utf8_valid_len("\xc0\x80", 2), 0);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("utf8");

	tcase_add_test(tc, strings_are_judged_as_the_table_does);
	tcase_add_test(tc, every_code_point_comes_back);
	tcase_add_test(tc, valid_text_ends_before_the_first_fault);
	return run_case("utf8", tc);
}
