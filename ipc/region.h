/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_REGION_H
#define KVD_IPC_REGION_H

/*
 * The two memory files of a ring: made, mapped and sealed by the daemon, checked
 * and mapped by the client. The only file that knows about seals. Any thread;
 * a region has one owner. Does not look at what is inside.
 *
 *   kind  writer  seals                           daemon maps  client maps
 *   C2D   client  SHRINK GROW SEAL                read-write   read-write
 *   D2C   daemon  SHRINK GROW SEAL FUTURE_WRITE   read-write   read-only
 *
 * The size can never change, so no access behind a check can fault for the length
 * (SIGBUS). A client may still punch holes into C2D: its bytes turn to 0 at any time.
 */

#include <stddef.h>
#include <stdint.h>

enum region_kind {
	REGION_C2D,
	REGION_D2C,
};

/**
 * struct region - one memory file, mapped
 * @fd:   -1 once it was passed on and closed
 * @map:  NULL when not mapped
 * @size: bytes, a multiple of the page size
 */
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

/*
 * Daemon: create, size (a multiple of 4096), map and seal. The map is zeroed, excluded from
 * core dumps and not inherited by fork(). On failure @r is as REGION_NULL.
 */
int region_init(struct region *r, enum region_kind kind, size_t size);

/* Client: check a received file and map it. Takes @fd, also on failure. KVD_E_PROTO if size
 * or seals are not as they must be. */
int region_init_peer(struct region *r, enum region_kind kind, int fd, size_t size);

/* Daemon: give the contents back before letting go. @n_dirty: D2C: bytes from the start that
 * were ever written. */
void region_scrub(struct region *r, size_t n_dirty);

/* Unmap and close. Idempotent; fine on REGION_NULL. */
void region_deinit(struct region *r);

/* In a child after fork(): forget the mapping, which fork() did not copy. */
void region_forget(struct region *r);

#endif
