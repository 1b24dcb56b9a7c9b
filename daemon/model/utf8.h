/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_UTF8_H
#define KVD_DAEMON_MODEL_UTF8_H

/*
 * Strict UTF-8: which bytes form characters (no surrogates, no overlong forms, nothing
 * above U+10FFFF). Owns nothing, any thread, relies on nothing.
 */

#include <stddef.h>
#include <stdint.h>

/**
 * utf8_next - the character at the start of some bytes
 * @s: @len >= 1 bytes
 * @ret_code: its code point, on success
 *
 * Return: its length, 1 to 4; 0 when no valid character starts here; -1 when the bytes
 *	   end inside one that more bytes could complete.
 */
static inline int utf8_next(const uint8_t *s, size_t len, uint32_t *ret_code)
{
	uint8_t lo = 0x80, hi = 0xbf;
	uint32_t code;
	int n;

	if (s[0] < 0x80) {
		*ret_code = s[0];
		return 1;
	}
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	if (s[0] < 0xe0) {
		n = 2;
		code = s[0] & 0x1f;
	} else if (s[0] < 0xf0) {
		n = 3;
		code = s[0] & 0x0f;
		if (s[0] == 0xe0)
			lo = 0xa0;
		else if (s[0] == 0xed)
			hi = 0x9f;
	} else {
		n = 4;
		code = s[0] & 0x07;
		if (s[0] == 0xf0)
			lo = 0x90;
		else if (s[0] == 0xf4)
			hi = 0x8f;
	}
	for (int i = 1; i < n; i++) {
		if ((size_t)i >= len)
			return -1;
		if (s[i] < lo || s[i] > hi)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
		lo = 0x80;
		hi = 0xbf;
	}
	*ret_code = code;
	return n;
}

/* Bytes at the start of @s that are whole, valid characters. */
static inline size_t utf8_valid_prefix(const uint8_t *s, size_t len)
{
	size_t pos = 0;
	uint32_t code;

	while (pos < len) {
		int n = utf8_next(s + pos, len - pos, &code);

		if (n <= 0)
			break;
		pos += (size_t)n;
	}
	return pos;
}

#endif
