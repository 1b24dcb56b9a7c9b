/* SPDX-License-Identifier: MIT */
/*
 * Order in region_init(): map before FUTURE_WRITE, since it refuses new writable
 * mappings also to its maker; seal before anybody else has the descriptor.
 *
 * What the seals leave possible. Pages are charged to the process that touches them first; a cgroup
 * or tmpfs limit can still turn a first touch into SIGBUS, so the daemon touches little.
 * FUTURE_WRITE lets only mappings made before it write. It holds against root and against
 * the daemon's own uid, which a read-only descriptor does not (they can reopen it through
 * /proc). The price: a restarted daemon cannot write to the region again, so rings are made
 * again after a restart; and holes cannot be punched into D2C, whose pages live as long as
 * the client keeps them mapped, so they are zeroed instead. The attacks that were tried:
 * kvd-abi(7).
 */
#include "ipc/region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvd/abi.h>

#include "ipc/base.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS_SIZE (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int region_seals(enum region_kind kind)
{
	return kind == REGION_D2C ? SEALS_SIZE | F_SEAL_FUTURE_WRITE : SEALS_SIZE;
}

int memfd_sealable(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		/* Kernels before 6.3 do not know NOEXEC_SEAL. */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd < 0 ? -errno : fd;
}

static int region_create(enum region_kind kind)
{
	return memfd_sealable(kind == REGION_D2C ? "kvd-d2c" : "kvd-c2d");
}

int region_init(struct region *r, enum region_kind kind, size_t size)
{
	_cleanup_(closep) int fd = -1;
	void *map;
	int rc;

	*r = (struct region)REGION_NULL;
	if (size == 0 || size % 4096 != 0)
		return -EINVAL;

	fd = region_create(kind);
	if (fd < 0)
		return fd;
	if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)size) < 0)
		return -errno;

	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (fcntl(fd, F_ADD_SEALS, region_seals(kind)) < 0) {
		rc = -errno;
		munmap(map, size);
		return rc;
	}

	/* Prompts belong in no core file and in no child. Best effort. */
	(void)madvise(map, size, MADV_DONTDUMP);
	(void)madvise(map, size, MADV_DONTFORK);

	r->fd = fd_steal(&fd);
	r->kind = kind;
	r->map = map;
	r->size = size;
	return 0;
}

int region_lend(struct region *r)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", r->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	/* The mapping keeps the one that it was made with. */
	fd_close(r->fd);
	r->fd = fd;
	return 0;
}

int region_init_peer(struct region *r, enum region_kind kind, int fd, size_t size)
{
	_cleanup_(closep) int owned = fd;
	struct stat st;
	void *map;
	int prot, seals;

	*r = (struct region)REGION_NULL;
	if (size == 0 || size % 4096 != 0)
		return KVD_E_PROTO;

	seals = fcntl(owned, F_GET_SEALS);
	if (seals < 0 || (seals & region_seals(kind)) != region_seals(kind))
		return KVD_E_PROTO;
	if (fstat(owned, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size != size)
		return KVD_E_PROTO;

	prot = kind == REGION_C2D ? PROT_READ | PROT_WRITE : PROT_READ;
	map = mmap(NULL, size, prot, MAP_SHARED, owned, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (madvise(map, size, MADV_DONTFORK) < 0) {
		munmap(map, size);
		return -errno;
	}
	(void)madvise(map, size, MADV_DONTDUMP);

	r->fd = fd_steal(&owned);
	r->kind = kind;
	r->map = map;
	r->size = size;
	return 0;
}

void region_scrub(struct region *r, uint64_t off, uint64_t len)
{
	uint8_t *at = r->map;

	if (!at)
		return;
	if (r->kind == REGION_C2D)
		/* Punches the hole through the map: works without the fd. */
		(void)madvise(at + off, len, MADV_REMOVE);
	else
		explicit_bzero(at + off, len);
}

void region_deinit(struct region *r)
{
	if (r->map)
		munmap(r->map, r->size);
	fd_close(r->fd);
	*r = (struct region)REGION_NULL;
}

void region_forget(struct region *r)
{
	fd_close(r->fd);
	*r = (struct region)REGION_NULL;
}
