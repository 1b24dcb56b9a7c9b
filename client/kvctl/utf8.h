/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_UTF8_H
#define KVD_CLIENT_KVCTL_UTF8_H

/*
 * How bytes of unknown origin are shown on a terminal. Pure functions.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Has it no place in a name? Controls, line ends, what turns the direction of text around,
 * what takes no room, what is for private use or no character at all: by them a name could
 * pass for another one, or change the line it stands in.
 */
bool utf8_is_hidden(uint32_t code);

/*
 * Writes @len bytes of an answer with every control character but newline and tab shown
 * as '?': what a model wrote must not be able to steer this terminal. What joins emojis or
 * turns text around belongs to answers.
 */
void utf8_put_shown(FILE *f, const char *str, size_t len);

/*
 * The same for names and single lines, of clients, models, domains: what utf8_is_hidden()
 * is '?' too, one column each.
 */
void utf8_put_name(FILE *f, const char *str, size_t len);

#endif
