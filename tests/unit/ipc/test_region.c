/* SPDX-License-Identifier: MIT */
/* What a client may not do to the two memory files of a ring, tried one by one. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvd/abi.h>

#include "ipc/base.h"
#include "ipc/region.h"
#include "tests/unit/suite.h"

#define SIZE 16384u

static int peer_fd(const struct region *r)
{
	return fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
}

/* Nine ways to write to, or to shrink, the file that only the daemon writes. */
START_TEST(d2c_is_read_only_to_the_client)
{
	struct iovec iov = {"x", 1};
	struct region r, c;
	char path[64];
	struct stat st;
	void *map;
	int fd, again;

	ck_assert_int_eq(region_init(&r, REGION_D2C, SIZE), 0);
	memset(r.map, 0x5a, SIZE);
	fd = peer_fd(&r);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);

	map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert(map == MAP_FAILED && errno == EPERM);
	map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert(map != MAP_FAILED);
	ck_assert(mprotect(map, SIZE, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
	if (!emulator_lacks("MADV_REMOVE"))
		ck_assert(madvise(map, SIZE, MADV_REMOVE) < 0);
	ck_assert(write(fd, "x", 1) < 0 && errno == EPERM);
	ck_assert(pwritev(fd, &iov, 1, 0) < 0 && errno == EPERM);
	ck_assert(ftruncate(fd, 0) < 0 && errno == EPERM);
	ck_assert(ftruncate(fd, SIZE * 2) < 0 && errno == EPERM);
	ck_assert(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE) <
			  0 &&
		  errno == EPERM);
	ck_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);

	/* Reopening through /proc gives a descriptor, and no more rights. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		ck_assert(write(again, "x", 1) < 0 && errno == EPERM);
		ck_assert(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, again, 0) ==
			  MAP_FAILED);
		ck_assert(ftruncate(again, 0) < 0);
		close(again);
	}
	again = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
	ck_assert_int_lt(again, 0);
	ck_assert_uint_eq(((uint8_t *)map)[0], 0x5a);

	/* The daemon's own map still writes, and the client sees it. */
	((uint8_t *)r.map)[1] = 7;
	ck_assert_uint_eq(((uint8_t *)map)[1], 7);
	munmap(map, SIZE);

	ck_assert_int_eq(region_init_peer(&c, REGION_D2C, fd, SIZE), 0);
	ck_assert_uint_eq(((const uint8_t *)c.map)[1], 7);
	region_scrub(&r, 0, 1);
	ck_assert_uint_eq(((const uint8_t *)c.map)[0], 0);
	ck_assert_uint_eq(((const uint8_t *)c.map)[1], 7);
	region_scrub(&r, 0, SIZE);
	ck_assert_uint_eq(((const uint8_t *)c.map)[1], 0);
	region_deinit(&c);
	region_deinit(&r);
	region_deinit(&r);
}
END_TEST

static uint64_t resident_blocks(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks;
}

START_TEST(c2d_keeps_its_size)
{
	struct region r, c;
	int fd, keep;

	ck_assert_int_eq(region_init(&r, REGION_C2D, SIZE), 0);
	fd = peer_fd(&r);
	keep = peer_fd(&r);
	ck_assert(ftruncate(fd, 0) < 0 && errno == EPERM);
	ck_assert(ftruncate(fd, SIZE * 2) < 0 && errno == EPERM);
	ck_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);
	ck_assert_int_eq(region_init_peer(&c, REGION_C2D, fd, SIZE), 0);
	memset(c.map, 1, SIZE);
	ck_assert_uint_eq(((uint8_t *)r.map)[SIZE - 1], 1);

	/* The daemon gives the memory back under the client's mapping. */
	ck_assert_uint_gt(resident_blocks(keep), 0);
	r.fd = fd_close(r.fd);
	region_scrub(&r, 0, SIZE);
	if (!emulator_lacks("MADV_REMOVE")) {
		ck_assert_uint_eq(resident_blocks(keep), 0);
		ck_assert_uint_eq(((uint8_t *)c.map)[0], 0);
	}
	close(keep);
	region_deinit(&c);
	region_deinit(&r);
}
END_TEST

/* A client that is handed something else does not map it. */
START_TEST(peer_checks_before_mapping)
{
	struct region r, c;
	int fd;

	ck_assert_int_eq(region_init(&r, REGION_C2D, SIZE), 0);
	/* Writable where read-only was promised. */
	ck_assert_int_eq(region_init_peer(&c, REGION_D2C, peer_fd(&r), SIZE),
			 KVD_E_PROTO);
	ck_assert_ptr_null(c.map);
	ck_assert_int_eq(region_init_peer(&c, REGION_C2D, peer_fd(&r), SIZE * 2),
			 KVD_E_PROTO);
	ck_assert_int_eq(region_init_peer(&c, REGION_C2D, peer_fd(&r), 100), KVD_E_PROTO);
	ck_assert_int_eq(region_init_peer(&c, REGION_C2D, peer_fd(&r), 0), KVD_E_PROTO);
	region_deinit(&r);

	/* Unsealed: it could shrink under us. */
	fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, SIZE), 0);
	ck_assert_int_eq(region_init_peer(&c, REGION_C2D, fd, SIZE), KVD_E_PROTO);
	fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(region_init_peer(&c, REGION_C2D, fd, SIZE), KVD_E_PROTO);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* taken also on failure */

	ck_assert_int_eq(region_init(&r, REGION_C2D, 0), -EINVAL);
	ck_assert_int_eq(region_init(&r, REGION_C2D, 4097), -EINVAL);
}
END_TEST

START_TEST(children_do_not_inherit_the_mapping)
{
	struct region r;
	int status;
	pid_t pid;

	if (emulator_lacks("MADV_DONTFORK"))
		return;
	ck_assert_int_eq(region_init(&r, REGION_C2D, SIZE), 0);
	pid = fork();
	if (pid == 0) {
		unsigned char vec[4];
		int gone = mincore(r.map, SIZE, vec) < 0 && errno == ENOMEM;

		region_forget(&r);
		_exit(gone && r.fd == -1 ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	ck_assert_int_eq(status, 0);
	region_deinit(&r);
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		d2c_is_read_only_to_the_client,
		c2d_keeps_its_size,
		peer_checks_before_mapping,
		children_do_not_inherit_the_mapping,
	};

	return run_suite("region", tests, KVD_ARRAY_LEN(tests));
}
