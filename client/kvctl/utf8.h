/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_UTF8_H
#define KVD_CLIENT_KVCTL_UTF8_H

/* How bytes of unknown origin are shown on a terminal. Pure functions. */
#include <stddef.h>
#include <stdio.h>

/* An answer: control characters but newline and tab are shown as '?'. */
void utf8_put_shown(FILE *f, const char *str, size_t len);

/* A name or single line: what utf8_is_hidden() is '?' too, one column each. */
void utf8_put_name(FILE *f, const char *str, size_t len);

#endif
