/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_UTF8_H
#define KVD_CLIENT_KVCTL_UTF8_H

/*
 * How bytes of unknown origin are shown on a terminal. Pure functions.
 */
#include <stddef.h>
#include <stdio.h>

/*
 * Writes @len bytes with every control character but newline and tab shown as '?': what
 * a model or another client wrote must not be able to steer this terminal.
 */
void utf8_put_shown(FILE *f, const char *str, size_t len);

#endif
