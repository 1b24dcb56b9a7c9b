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
 * The size can never change, so no access behind a check can fault for the
 * length (SIGBUS). What stays possible, and callers must live with:
 *
 *  - A client may punch holes into C2D: bytes turn to 0 at any time.
 *  - Pages are charged to who touches them first; a cgroup or tmpfs limit can
 *    still turn a first touch into SIGBUS, so the daemon touches little.
 *  - FUTURE_WRITE lets only mappings made before it write. It holds against
 *    root and against the daemon's own uid, which a read-only descriptor does
 *    not (they can reopen it through /proc). The price: a restarted daemon
 *    cannot write to the region again, so rings are made anew after a restart;
 *    and holes cannot be punched, so pages of D2C live as long as the client
 *    keeps them mapped. region_deinit() therefore zeroes what was written.
 *
 * Facts behind this and the attacks that were tried: kvd-abi(7).
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

/* A memory file that can be sealed and, since Linux 6.3, not be run. Return: the descriptor or
 * -errno. */
int memfd_sealable(const char *name);

/**
 * region_init() - daemon: create, size, map and seal, in the order that is safe
 * @kind: which side writes
 * @size: a multiple of 4096, not 0
 *
 * The map is zeroed, excluded from core dumps and not inherited by fork().
 * Return: 0, -errno; then @r is as REGION_NULL.
 */
int region_init(struct region *r, enum region_kind kind, size_t size);

/**
 * region_init_peer() - client: check a received file and map it
 * @fd:   taken, also on failure
 * @size: what the daemon said it is
 *
 * Return: 0; KVD_E_PROTO if size or seals are not as they must be; -errno.
 */
int region_init_peer(struct region *r, enum region_kind kind, int fd, size_t size);

/**
 * region_scrub() - daemon: give the contents back before letting go
 * @n_dirty: D2C: bytes from the start that were ever written; C2D: ignored
 *
 * C2D: the pages are freed at once, also under a client that keeps its mapping.
 * D2C: the bytes are zeroed.
 */
void region_scrub(struct region *r, size_t n_dirty);

/* Unmap and close. Idempotent; fine on REGION_NULL. */
void region_deinit(struct region *r);

/*
 * In a child after fork(): forget the mapping, which fork() did not copy
 * (MADV_DONTFORK), without unmapping what may now stand in its place.
 */
void region_forget(struct region *r);

#endif
