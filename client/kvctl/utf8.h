/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_UTF8_H
#define KVD_CLIENT_KVCTL_UTF8_H

/*
 * What kvctl has to know of UTF-8: where a valid sequence ends, and how to show bytes of
 * unknown origin on a terminal. Pure functions.
 */
#include <stddef.h>
#include <stdio.h>

/*
 * Length (1..4) of the valid sequence at @str, which has @len >= 1 bytes; 0 if there is
 * none: a stray continuation byte, an overlong form, a surrogate, more than U+10FFFF or
 * a sequence that @len cuts short. Source: Unicode 15, table 3-7.
 */
size_t utf8_sequence_len(const char *str, size_t len);

/*
 * Writes @len bytes with every control character but newline and tab shown as '?': what
 * a model or another client wrote must not be able to steer this terminal.
 */
void utf8_put_shown(FILE *f, const char *str, size_t len);

#endif
