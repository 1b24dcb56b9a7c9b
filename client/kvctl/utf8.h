/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_UTF8_H
#define KVD_CLIENT_KVCTL_UTF8_H

/* How bytes of unknown origin are shown on a terminal. Pure functions. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Has it no place in a name? Controls, line ends, direction marks, zero width, private use, no
 * characters. */
bool utf8_is_hidden(uint32_t code);

/* An answer: control characters but newline and tab are shown as '?'. */
void utf8_put_shown(FILE *f, const char *str, size_t len);

/* A name or single line: what utf8_is_hidden() is '?' too, one column each. */
void utf8_put_name(FILE *f, const char *str, size_t len);

#endif
