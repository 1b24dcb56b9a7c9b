/* SPDX-License-Identifier: MIT */
/* Reads configuration files: which ones, in which order, line by line. Runs at the start and at a
 * reload. Owns nothing; what keys mean is config.h's. */
#ifndef KVD_DAEMON_CONFIG_FILE_H
#define KVD_DAEMON_CONFIG_FILE_H

#include <stddef.h>

#include "daemon/config.h"

/* Bytes of a line, without its newline, and of a file. */
#define CONFIG_LINE_MAX 198
#define CONFIG_FILE_MAX (1024 * 1024)

/* All files that apply, in the order of kvd.conf(5). @root: "" or a folder that takes the place of
 * /. @file: the main file, with drop-ins from FILE.d/ alone; NULL: those of the system, if any.
 * Return: 0; 1: mistakes were reported, right lines were applied; -ENOMEM. */
int config_load(struct config *config, const char *root, const char *file,
		struct config_report *report);

/* One file, and the contents of one. Return: as config_load(). */
int config_load_file(struct config *config, const char *path,
		     struct config_report *report);

int config_load_text(struct config *config, const char *name, const char *text,
		     size_t len, struct config_report *report);

#endif
