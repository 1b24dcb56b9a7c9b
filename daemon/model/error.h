/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_ERROR_H
#define KVD_DAEMON_MODEL_ERROR_H

/* Why a model cannot be loaded; filled by every loader that returns -errno, empty on success. Any
 * thread. */

#include <stdarg.h>

/* @text: one line, without newline, that names the file, what is wrong and where */
struct load_error {
	char text[320];
};

/* Writes "NAME: text" into @err, which may be NULL. Bytes of the file may reach a terminal: what is
 * not printable ASCII becomes '?'. Return: @code. */
int load_fail(struct load_error *err, const char *name, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int load_vfail(struct load_error *err, const char *name, int code, const char *fmt,
	       va_list ap) __attribute__((format(printf, 4, 0)));

#endif
