/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_MAPPING_H
#define KVD_DAEMON_MODEL_MAPPING_H

/*
 * A file mapped for reading, whose bytes may go away: somebody cuts it, its disk fails. The
 * kernel says so by SIGBUS to the thread that touches a missing page. While a mapping is open
 * that signal is handled: what is missing reads as zeros, and the loss is remembered, for the
 * reader to ask when it is done.
 *
 * Owns the process's handler of SIGBUS while a mapping is open; signals that concern no mapping
 * go to the handler before. Any thread that does not block SIGBUS may read. Opening and closing:
 * one thread at a time.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * struct mapping - all-zero is closed
 * @data: [len]
 * @fd:   of the file, its own
 */
struct mapping {
	const uint8_t *data;
	size_t len;
	int fd;
	unsigned slot;
};

/**
 * mapping_open() - map the first @len bytes of @fd, which is kept as it is
 *
 * Return: 0; -EMFILE more mappings than one loader needs; -errno.
 */
int mapping_open(struct mapping *ret, int fd, size_t len);
/* Idempotent. */
void mapping_close(struct mapping *map);

/* Whether zeros were read for bytes that are lost; they stay so. */
bool mapping_lost(const struct mapping *map);
/* Bytes that the file has now, at most @len: fewer, if it was cut. */
size_t mapping_size_now(const struct mapping *map);

#endif
