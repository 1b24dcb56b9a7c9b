/* SPDX-License-Identifier: MIT */
/*
 * The attacks on shared memory and sockets that are known one by one; the head of
 * test_hostile.py says which verb is which. See hostile.h.
 */
#include "tests/system/hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "hostile: %s\n", what);
	broken = true;
}

/* A second descriptor of the same file, open for writing, by its name in /proc. */
static int reopen(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void try_d2c(const struct raw_ring *ring)
{
	int fd = ring->fds[KVD_RING_FD_D2C], again = reopen(fd);
	size_t size = ring->geometry.d2c_bytes;
	void *map;

	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(map == MAP_FAILED, "D2C can be mapped for writing");
	must(mprotect((void *)ring->d2c, size, PROT_READ | PROT_WRITE) < 0,
	     "the map of D2C can be made writable");
	must(pwrite(fd, "x", 1, 0) < 0, "D2C can be written to");
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0,
	     "holes can be punched into D2C");
	must(madvise((void *)ring->d2c, size, MADV_REMOVE) < 0,
	     "pages of D2C can be removed");
	if (again >= 0) {
		map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
		must(map == MAP_FAILED, "D2C can be opened again and mapped for writing");
		must(pwrite(again, "x", 1, 0) < 0, "D2C can be opened again and written");
		close(again);
	}
}

/* Size and seals of either file are what they are; neither is of huge pages, which go
 * away in spite of seals. */
unsigned play_seals(void)
{
	static const int which[] = {KVD_RING_FD_C2D, KVD_RING_FD_D2C};
	struct raw_client client;
	struct raw_ring ring;
	unsigned n = 0;

	while (attach(&client, &ring, 16, 16) == 0) {
		for (int i = 0; i < 2; i++) {
			int fd = ring.fds[which[i]];
			struct statfs fs;

			must(ftruncate(fd, 0) < 0, "a ring's file can be truncated");
			must(ftruncate(fd, 1 << 30) < 0, "a ring's file can grow");
			must(fallocate(fd, 0, 1 << 30, 4096) < 0,
			     "a ring's file can be extended");
			must(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0,
			     "a ring's file can be sealed");
			must(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0,
			     "a ring's file can be sealed against later writes");
			must(fstatfs(fd, &fs) == 0 && fs.f_type != HUGETLBFS_MAGIC,
			     "a ring's file is of huge pages");
		}
		try_d2c(&ring);
		raw_ring_close(&ring);
		raw_close(&client);
		n++;
		nap_us(20000);
	}
	return n;
}

/* Any page of C2D may be a hole at any time; requests are running meanwhile. */
unsigned play_punch(void)
{
	struct raw_client client;
	struct raw_ring ring;
	unsigned n = 0;

	while (attach(&client, &ring, 64, 64) == 0) {
		for (unsigned i = 0; i < 200 && now() < deadline && !hung_up(client.fd);
		     i++) {
			uint64_t pages = ring.geometry.c2d_bytes / 4096;
			uint64_t page = raw_random(&seed) % pages;
			struct kvd_sqe sqe;

			raw_prep_generate(&ring, &sqe, 0, 200, 2, seed | 1);
			raw_submit(&ring, &sqe);
			raw_ring_bell(&ring);
			if (i % 2)
				(void)madvise(ring.c2d + page * 4096, 4096, MADV_REMOVE);
			else
				(void)fallocate(ring.fds[KVD_RING_FD_C2D],
						FALLOC_FL_PUNCH_HOLE |
							FALLOC_FL_KEEP_SIZE,
						(off_t)page * 4096, 4096);
			n++;
			nap_us(100);
		}
		raw_ring_close(&ring);
		raw_close(&client);
	}
	return n;
}

/* Hang up and keep the maps: what stood in them is gone soon. */
unsigned play_keep(void)
{
	struct raw_client client;
	struct raw_ring ring;
	unsigned n = 0;

	while (attach(&client, &ring, 16, 64) == 0) {
		volatile uint8_t *first = ring.c2d + ring.geometry.in_off;
		struct kvd_sqe sqe;
		double end;

		raw_prep_generate(&ring, &sqe, 0, 100, 2, seed | 1);
		raw_submit(&ring, &sqe);
		raw_ring_bell(&ring);
		nap_us(20000);
		must(*first != 0, "the arena is empty before its time");
		raw_close(&client);
		end = now() + 30;
		while (*first && now() < end)
			nap_us(1000);
		must(*first == 0, "the arena is as it was after the client left");
		raw_ring_close(&ring);
		n++;
	}
	return n;
}

/* Pages of C2D that would wait for their owner's leave: the daemon does not. */
unsigned play_uffd(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	struct raw_client client;
	struct raw_ring ring;
	struct kvd_sqe sqe;
	int fd;

	if (attach(&client, &ring, 16, 64) < 0)
		return 0;
	/* Written before, since this client's own access would wait for ever. */
	raw_prep_generate(&ring, &sqe, 0, 200, 2, seed | 1);
	raw_submit(&ring, &sqe);
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0) {
		printf("no userfaultfd here\n");
		return 1;
	}
	range.range.start = (uintptr_t)ring.c2d + ring.geometry.in_off;
	range.range.len = ring.geometry.in_bytes & ~UINT64_C(4095);
	(void)madvise(ring.c2d + ring.geometry.in_off, range.range.len, MADV_REMOVE);
	must(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "userfaultfd takes no shared file");
	raw_ring_bell(&ring);
	while (now() < deadline)
		nap_us(100000);
	return 1;
}

/* All that it may lock, the ring first. Its own limit ends that, or else this program. */
unsigned play_locks(void)
{
	enum { PIECE = 4 << 20, MOST = 64 };
	struct raw_client client;
	struct raw_ring ring;
	struct kvd_sqe sqe;
	unsigned n = 0;

	if (attach(&client, &ring, 16, 64) < 0)
		return 0;
	(void)mlock(ring.c2d, ring.geometry.c2d_bytes);
	(void)mlock(ring.d2c, ring.geometry.d2c_bytes);
	while (n++ < MOST) {
		void *piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (piece == MAP_FAILED || mlock(piece, PIECE) < 0)
			break;
	}
	raw_prep_generate(&ring, &sqe, 0, 200, 2, seed | 1);
	raw_submit(&ring, &sqe);
	raw_ring_bell(&ring);
	while (now() < deadline)
		nap_us(100000);
	return n;
}

/* Asks without end and reads no answer. */
unsigned play_deaf(void)
{
	struct kvd_msg_hdr hdr = {.len = sizeof(hdr), .type = KVD_MSG_STATS, .tag = 9};
	unsigned n = 0;

	while (now() < deadline) {
		struct raw_client client;
		ssize_t r = 0;

		if (raw_connect(&client, "hostile") < 0) {
			nap_us(2000);
			continue;
		}
		while (now() < deadline) {
			r = send(client.fd, &hdr, sizeof(hdr),
				 MSG_NOSIGNAL | MSG_DONTWAIT);
			if (r < 0 && errno != EAGAIN)
				break;
			if (r < 0)
				nap_us(500);
		}
		n += r < 0;
		raw_close(&client);
	}
	return n;
}

/* As many bare connections as there is room for; then all at once are gone. */
unsigned play_connects(void)
{
	static int fds[512];
	unsigned n = 0;

	while (now() < deadline) {
		int n_fds = 0;

		while (n_fds < 512 && now() < deadline) {
			int fd = raw_socket();

			if (fd < 0)
				break;
			fds[n_fds++] = fd;
			n++;
		}
		nap_us(50000);
		while (n_fds)
			close(fds[--n_fds]);
	}
	return n;
}

static bool flipping;

/* Good and bad values in turn, faster than anybody reads twice. */
static void *flip(void *arg)
{
	struct raw_ring *ring = arg;
	struct kvd_sqe *slots = (void *)(ring->c2d + ring->geometry.sq_off);

	for (unsigned i = 0; __atomic_load_n(&flipping, __ATOMIC_RELAXED); i++) {
		struct kvd_sqe *sqe = &slots[i / 2 % ring->geometry.sq_entries];
		bool bad = i % 2;

		__atomic_store_n(&sqe->in_off, bad ? UINT64_C(0xfffffffff000) : 64,
				 __ATOMIC_RELAXED);
		__atomic_store_n(&sqe->in_len, bad ? 0xffffffff : 400, __ATOMIC_RELAXED);
		__atomic_store_n(&sqe->params_len, bad ? 0xfffffff0 : 64,
				 __ATOMIC_RELAXED);
		/* The input too: a token that is checked and then another. */
		__atomic_store_n((uint32_t *)(ring->c2d + ring->geometry.in_off + 128),
				 bad ? 0xffffffff : 7, __ATOMIC_RELAXED);
	}
	return NULL;
}

unsigned play_flip(void)
{
	struct raw_client client;
	struct raw_ring ring;
	unsigned n = 0;

	while (attach(&client, &ring, 64, 1024) == 0) {
		uint64_t *cq_pos = (uint64_t *)ring.c2d, seen = 0;
		pthread_t thread;

		flipping = true;
		if (pthread_create(&thread, NULL, flip, &ring))
			return n;
		while (now() < deadline && !hung_up(client.fd)) {
			const struct kvd_cqe *cq =
				(void *)(ring.d2c + ring.geometry.cq_off);
			const struct kvd_daemon_page *page = (const void *)ring.d2c;
			struct kvd_sqe sqe;

			while (__atomic_load_n(
				       &cq[seen & (ring.geometry.cq_entries - 1)].seq,
				       __ATOMIC_ACQUIRE) == seen + 1)
				seen++;
			__atomic_store_n(cq_pos, seen, __ATOMIC_RELEASE);
			if (ring.sq_tail -
				    __atomic_load_n(&page->sq_pos, __ATOMIC_ACQUIRE) >=
			    ring.geometry.sq_entries) {
				raw_ring_bell(&ring);
				nap_us(100);
				continue;
			}
			raw_prep_generate(&ring, &sqe, 0, 100, 1, seed | 1);
			raw_submit(&ring, &sqe);
			raw_ring_bell(&ring);
			n++;
		}
		__atomic_store_n(&flipping, false, __ATOMIC_RELAXED);
		pthread_join(thread, NULL);
		raw_ring_close(&ring);
		raw_close(&client);
	}
	return n;
}

/* Nothing to do for the daemon, and it is woken for that all the time. */
unsigned play_bells(void)
{
	struct raw_client client;
	struct raw_ring ring;
	unsigned n = 0;

	if (attach(&client, &ring, 64, 64) < 0)
		return 0;
	while (now() < deadline && !hung_up(client.fd)) {
		for (int i = 0; i < 1000; i++)
			raw_ring_bell(&ring);
		n += 1000;
		nap_us(1000);
	}
	return n;
}

/* Positions and sequence numbers that cannot be. */
unsigned play_positions(void)
{
	static const uint64_t values[] = {65, 0xdeadbeef, UINT64_C(1) << 32,
					  UINT64_C(1) << 63, UINT64_MAX};
	struct raw_client client;
	struct raw_ring ring;
	unsigned n = 0;

	while (attach(&client, &ring, 64, 64) == 0) {
		struct kvd_sqe *slots = (void *)(ring.c2d + ring.geometry.sq_off);
		uint64_t value = values[n % 5];
		double end = now() + 30;
		struct kvd_sqe sqe;

		/* More answers than the queue holds: the position has to be looked at. */
		raw_prep_generate(&ring, &sqe, 0, 20, 200, seed | 1);
		raw_submit(&ring, &sqe);
		if (n / 5 % 2)
			__atomic_store_n(&slots[1].seq, value + 2, __ATOMIC_RELEASE);
		else
			__atomic_store_n((uint64_t *)ring.c2d, value, __ATOMIC_RELEASE);
		raw_ring_bell(&ring);
		while (!hung_up(client.fd) && now() < end && now() < deadline) {
			raw_ring_bell(&ring);
			nap_us(1000);
		}
		must(now() < end, "an impossible position is taken");
		raw_ring_close(&ring);
		raw_close(&client);
		n++;
	}
	return n;
}
