/* SPDX-License-Identifier: MIT */
#include "client/kvctl/utf8.h"

size_t utf8_sequence_len(const char *str, size_t len)
{
	const unsigned char *s = (const unsigned char *)str;
	unsigned char low = 0x80, high = 0xbf;
	size_t n;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf) {
		n = 2;
	} else if (s[0] >= 0xe0 && s[0] <= 0xef) {
		n = 3;
		if (s[0] == 0xe0)
			low = 0xa0;
		else if (s[0] == 0xed)
			high = 0x9f;
	} else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
		n = 4;
		if (s[0] == 0xf0)
			low = 0x90;
		else if (s[0] == 0xf4)
			high = 0x8f;
	} else {
		return 0;
	}
	if (len < n || s[1] < low || s[1] > high)
		return 0;
	for (size_t i = 2; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

void utf8_put_shown(FILE *f, const char *str, size_t len)
{
	for (size_t i = 0; i < len;) {
		unsigned char c = (unsigned char)str[i];
		size_t n = utf8_sequence_len(str + i, len - i);

		/* U+0080 to U+009F are controls too. */
		if (n == 0 ||
		    (n == 1 && (c < 0x20 || c == 0x7f) && c != '\n' && c != '\t') ||
		    (n == 2 && c == 0xc2 && (unsigned char)str[i + 1] < 0xa0))
			putc('?', f);
		else
			fwrite(str + i, 1, n, f);
		i += n ? n : 1;
	}
}
