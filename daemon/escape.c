/* SPDX-License-Identifier: MIT */
/* See escape.h. */
#include "daemon/escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ipc/utf8.h"

/* Copies pieces of @src, each either kept or escaped whole, and marks a cut by "...". */
struct cutter {
	char *dst;
	size_t size, len;
	size_t safe; /* length up to which "..." still fits behind */
};

static bool cutter_add(struct cutter *cutter, const char *piece, size_t len)
{
	if (cutter->len + len >= cutter->size) {
		cutter->len = cutter->safe;
		for (int i = 0; i < 3 && cutter->len + 1 < cutter->size; i++)
			cutter->dst[cutter->len++] = '.';
		return false;
	}
	memcpy(cutter->dst + cutter->len, piece, len);
	cutter->len += len;
	if (cutter->len + 3 < cutter->size)
		cutter->safe = cutter->len;
	return true;
}

static bool cutter_add_hex(struct cutter *cutter, char byte)
{
	char hex[5];

	(void)snprintf(hex, sizeof(hex), "\\x%02x", (unsigned char)byte);
	return cutter_add(cutter, hex, 4);
}

static bool is_printable(char c)
{
	return c >= 0x20 && c < 0x7f;
}

size_t escape_bytes(char *dst, size_t size, const char *src, size_t len)
{
	struct cutter cutter = {.dst = dst, .size = size};
	bool fits = true;

	for (size_t i = 0; i < len && fits; i++) {
		if (src[i] == '\\')
			fits = cutter_add(&cutter, "\\\\", 2);
		else if (is_printable(src[i]))
			fits = cutter_add(&cutter, &src[i], 1);
		else
			fits = cutter_add_hex(&cutter, src[i]);
	}
	dst[cutter.len] = '\0';
	return cutter.len;
}

/* Bytes of the character at @s, 0 if there is none that may be shown: hidden ones are not. */
static size_t shown_len(const char *s, size_t len)
{
	uint32_t code;
	int n = utf8_next(s, len, &code);

	return n > 0 && !utf8_is_hidden(code) ? (size_t)n : 0;
}

size_t escape_controls(char *dst, size_t size, const char *src, size_t len)
{
	struct cutter cutter = {.dst = dst, .size = size};
	bool fits = true;
	size_t n;

	for (size_t i = 0; i < len && fits; i += n) {
		n = shown_len(src + i, len - i);
		if (n) {
			fits = cutter_add(&cutter, src + i, n);
		} else {
			fits = cutter_add_hex(&cutter, src[i]);
			n = 1;
		}
	}
	dst[cutter.len] = '\0';
	return cutter.len;
}
