/* SPDX-License-Identifier: MIT */
#include "client/kvctl/utf8.h"

#include "ipc/utf8.h"

void utf8_put_shown(FILE *f, const char *str, size_t len)
{
	for (size_t i = 0; i < len;) {
		uint32_t code = 0;
		int n = utf8_next(str + i, len - i, &code);

		/* U+0080 to U+009F are controls too. */
		if (n <= 0 || (code < 0x20 && code != '\n' && code != '\t') ||
		    (code >= 0x7f && code < 0xa0))
			putc('?', f);
		else
			fwrite(str + i, 1, (size_t)n, f);
		i += n > 0 ? (size_t)n : 1;
	}
}
