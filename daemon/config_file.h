/* SPDX-License-Identifier: MIT */
/*
 * Reading configuration files: which ones, in which order, line by line.
 *
 * Owns nothing. Runs at start, before the loop. Relies on inih for the syntax, which it
 * feeds itself: the library cuts lines at 200 bytes in silence and knows no line
 * numbers, so this reader counts lines and refuses long ones, NUL bytes, and lines that
 * are neither a section, a key nor a comment. What keys mean is config.h's.
 *
 * Files of one name replace each other, by folder: /etc/kvd, /run/kvd,
 * /usr/local/lib/kvd, /usr/lib/kvd; the first one found counts. This holds for kvd.conf
 * and for each kvd.conf.d/NAME.conf. The main file is read first, then the drop-ins in
 * order of NAME whatever their folder, later values replacing earlier ones. An empty
 * file, or a link to /dev/null, masks those of the same name in later folders.
 */
#ifndef KVD_DAEMON_CONFIG_FILE_H
#define KVD_DAEMON_CONFIG_FILE_H

#include <stddef.h>

#include "daemon/config.h"

#define CONFIG_LINE_MAX 198           /* bytes of a line, without its newline */
#define CONFIG_FILE_MAX (1024 * 1024) /* bytes of a file */

/**
 * config_load() - read all files that apply
 * @root: "" or a folder that takes the place of / (for tests and images)
 * @file: NULL for the folders above; else this file is the main one, it must exist, and
 *        its drop-ins are those in FILE.d/ alone
 *
 * No file at all is fine if @file is NULL: the defaults stand.
 *
 * Return: 0, 1 if mistakes were reported (right lines were applied), or -ENOMEM.
 */
int config_load(struct config *config, const char *root, const char *file,
		struct config_report *report);

/* Reads one file. Return: as config_load(); a file that cannot be read is a mistake. */
int config_load_file(struct config *config, const char *path,
		     struct config_report *report);

/**
 * config_load_text() - parse the contents of a file
 * @name: what mistakes call it
 * @text, @len: any bytes; need not be terminated
 */
int config_load_text(struct config *config, const char *name, const char *text,
		     size_t len, struct config_report *report);

#endif
