/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_MAPPING_H
#define KVD_DAEMON_MODEL_MAPPING_H

/* A file mapped for reading, whose bytes may go away: somebody cuts it, its disk fails. What is
 * missing reads as zeros, for the reader to ask about when it is done. Owns the process's handler
 * of SIGBUS while a mapping is open. Any thread that does not block that signal may read; opening
 * and closing: one thread at a time. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All-zero is closed. */
struct mapping {
	const uint8_t *data;
	size_t len;
	int fd;
	unsigned slot;
};

/* Maps the first @len bytes of @fd, which stays the caller's. Return: 0; -EMFILE: too many
 * mappings; -errno. */
int mapping_open(struct mapping *ret, int fd, size_t len);
/* Idempotent. */
void mapping_close(struct mapping *map);

/* Whether zeros were, or may have been, read for bytes that are lost. */
bool mapping_lost(const struct mapping *map);
/* Bytes that the file has now, at most those mapped. */
size_t mapping_size_now(const struct mapping *map);

#endif
