/* SPDX-License-Identifier: MIT */
/* See error.h. */
#include "daemon/model/error.h"

#include <stddef.h>
#include <stdio.h>

static void make_printable(char *s)
{
	for (; *s; s++) {
		if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
			*s = '?';
	}
}

int load_vfail(struct load_error *err, const char *name, int code, const char *fmt,
	       va_list ap)
{
	int n;

	if (!err)
		return code;
	n = snprintf(err->text, sizeof(err->text), "%.160s: ", name);
	if (n > 0 && (size_t)n < sizeof(err->text)) {
		vsnprintf(err->text + n, sizeof(err->text) - (size_t)n, fmt, ap);
		make_printable(err->text + n);
	}
	return code;
}

int load_fail(struct load_error *err, const char *name, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	load_vfail(err, name, code, fmt, ap);
	va_end(ap);
	return code;
}
