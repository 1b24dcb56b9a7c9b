/* SPDX-License-Identifier: MIT */
#include "client/kvctl/utf8.h"

#include <stdbool.h>
#include <stdint.h>

#include "ipc/utf8.h"

/* What a model wrote must not steer the terminal; joiners and direction marks belong to answers. */
static void put(FILE *f, const char *str, size_t len, bool name)
{
	for (size_t i = 0; i < len;) {
		uint32_t code = 0;
		int n = utf8_next(str + i, len - i, &code);
		bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
		bool bad = name ? utf8_is_hidden(code)
				: control && code != '\n' && code != '\t';

		if (n <= 0 || bad)
			putc('?', f);
		else
			fwrite(str + i, 1, (size_t)n, f);
		i += n > 0 ? (size_t)n : 1;
	}
}

void utf8_put_shown(FILE *f, const char *str, size_t len)
{
	put(f, str, len, false);
}

void utf8_put_name(FILE *f, const char *str, size_t len)
{
	put(f, str, len, true);
}
