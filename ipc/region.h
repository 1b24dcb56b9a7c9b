/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_REGION_H
#define KVD_IPC_REGION_H

/*
 * The two memory files of a ring: made, mapped and sealed by the daemon, checked and mapped by
 * the client. Any thread; a region has one owner. Does not look at the contents.
 *
 *   kind  writer  seals                           daemon maps  client maps
 *   C2D   client  SHRINK GROW SEAL                read-write   read-write
 *   D2C   daemon  SHRINK GROW SEAL FUTURE_WRITE   read-write   read-only
 *
 * The size never changes, so no access behind a check can fault for the length. A client may
 * still punch holes into C2D: its bytes turn to 0 at any time.
 */

#include <stddef.h>
#include <stdint.h>

enum region_kind {
	REGION_C2D,
	REGION_D2C,
};

/* @fd: -1 once it was passed on and closed; @map: NULL when not mapped; @size: bytes of whole
 * pages. */
struct region {
	int fd;
	enum region_kind kind;
	void *map;
	size_t size;
};

#define REGION_NULL                                                                      \
	{                                                                                \
		.fd = -1                                                                 \
	}

/* A memory file that can be sealed and, since Linux 6.3, not be run. */
int memfd_sealable(const char *name);

/* Daemon: @size is a multiple of 4096. The map is zeroed, excluded from core dumps and not
 * inherited by fork(). On failure @r is as REGION_NULL. */
int region_init(struct region *r, enum region_kind kind, size_t size);

/* Daemon: @r->fd becomes a description of its own that only reads, whose last close, mappings
 * included, inotify reports as IN_CLOSE_NOWRITE. Return: 0; -errno with @r as it was: -ENOENT
 * without /proc. */
int region_lend(struct region *r);

/* Client: takes @fd, also on failure. KVD_E_PROTO: wrong size or seals. */
int region_init_peer(struct region *r, enum region_kind kind, int fd, size_t size);

/* Daemon: zeroes a part, which the caller knows to be inside; C2D, whole pages: frees it. */
void region_scrub(struct region *r, uint64_t off, uint64_t len);

/* Unmap and close. Idempotent; fine on REGION_NULL. */
void region_deinit(struct region *r);

/* In a child after fork(), which did not copy the mapping. */
void region_forget(struct region *r);

#endif
