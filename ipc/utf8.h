/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_UTF8_H
#define KVD_IPC_UTF8_H

/*
 * Strict UTF-8, the one decoder of daemon, library and kvctl: no surrogates, no overlong
 * forms, nothing above U+10FFFF. Pure functions, any thread, nothing to link.
 *
 * Source: Unicode 15, table 3-7.
 */

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
