/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_UTF8_H
#define KVD_IPC_UTF8_H

/*
 * Strict UTF-8, the one decoder of daemon, library and kvctl: no surrogates, no overlong
 * forms, nothing above U+10FFFF. Pure functions, any thread, nothing to link.
 *
 * Source: Unicode 15, table 3-7.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_NONE = 0, UTF8_CUT = -1 };

/* The character at the start of @len >= 1 bytes. Return: its length, 1 to 4; UTF8_NONE: no
 * character starts here; UTF8_CUT: the bytes end inside one, which more bytes could complete. */
static inline int utf8_next(const void *s, size_t len, uint32_t *ret_code)
{
	const uint8_t *p = s;
	/* the second byte's range: it is what rules out overlong forms and surrogates */
	uint8_t low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
	uint8_t high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
	int n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t code = n == 1 ? p[0] : p[0] & (0x7fu >> n);

	if (p[0] > 0xf4 || (p[0] >= 0x80 && p[0] < 0xc2))
		return UTF8_NONE;
	for (int i = 1; i < n; i++) {
		if ((size_t)i == len)
			return UTF8_CUT;
		if (p[i] < low || p[i] > high)
			return UTF8_NONE;
		code = code << 6 | (p[i] & 0x3f);
		low = 0x80;
		high = 0xbf;
	}
	*ret_code = code;
	return n;
}

/* Length of the whole character at the start of @len >= 1 bytes, 0 if there is none. */
static inline size_t utf8_char_len(const void *s, size_t len)
{
	uint32_t code;
	int n = utf8_next(s, len, &code);

	return n > 0 ? (size_t)n : 0;
}

/* Has it no place in a name? Controls, line ends, direction marks, zero width, private use, no
 * characters: by these a name could pass for another one, or change the line it is in.
 *
 * Source: Unicode 15, general categories Cc, Cf, Zl, Zp, Co, noncharacters, and
 * Default_Ignorable_Code_Point of DerivedCoreProperties.txt. By code point, disjoint. */
static inline bool utf8_is_hidden(uint32_t code)
{
	static const struct {
		uint32_t first;
		uint32_t last;
	} hidden[] = {
		{0x0000, 0x001f},   {0x007f, 0x009f},   {0x00ad, 0x00ad},
		{0x034f, 0x034f},   {0x0600, 0x0605},   {0x061c, 0x061c},
		{0x06dd, 0x06dd},   {0x070f, 0x070f},   {0x0890, 0x0891},
		{0x08e2, 0x08e2},   {0x115f, 0x1160},   {0x17b4, 0x17b5},
		{0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},
		{0x2060, 0x206f},   {0x3164, 0x3164},   {0xe000, 0xf8ff},
		{0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},
		{0xffa0, 0xffa0},   {0xfff0, 0xfffb},   {0xfffe, 0xffff},
		{0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1343f},
		{0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0x10ffff},
	};

	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
		if (code >= hidden[i].first && code <= hidden[i].last)
			return true;
	/* the last two of each plane */
	return (code & 0xfffe) == 0xfffe;
}

/* Bytes at the start of @s that are whole characters. */
static inline size_t utf8_valid_len(const void *s, size_t len)
{
	const uint8_t *p = s;
	size_t at = 0, n;

	while (at < len && (n = utf8_char_len(p + at, len - at)))
		at += n;
	return at;
}

#endif
