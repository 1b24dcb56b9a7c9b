/* SPDX-License-Identifier: MIT */
/* The end of a ring: nothing that was written is left, and nothing else is touched. The file system
 * counts the pages of a file, and a descriptor of our own reads them without making any. */
#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base.h"
#include "ipc/ring.h"
#include "tests/unit/suite.h"

#define ARENA (4u << 20)
#define PAGE  4096u

static struct ring_daemon d;
static int c2d, d2c;

static void make_ring(uint32_t entries, uint64_t arena)
{
	int fds[KVD_RING_N_FDS];

	ck_assert_int_eq(ring_daemon_init(&d, entries, entries, arena, arena), 0);
	ring_daemon_get_fds(&d, fds);
	c2d = fcntl(fds[KVD_RING_FD_C2D], F_DUPFD_CLOEXEC, 0);
	d2c = fcntl(fds[KVD_RING_FD_D2C], F_DUPFD_CLOEXEC, 0);
	ck_assert_int_ge(c2d, 0);
	ck_assert_int_ge(d2c, 0);
	ring_daemon_close_files(&d);
}

static void end_ring(void)
{
	ring_daemon_deinit(&d);
	close(c2d);
	close(d2c);
}

static uint64_t pages_of(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512 / PAGE;
}

static void all_zero(int fd)
{
	static char bytes[1u << 16], zero[1u << 16];
	off_t off = 0;
	ssize_t n;

	while ((n = pread(fd, bytes, sizeof(bytes), off)) > 0) {
		ck_assert_msg(memcmp(bytes, zero, (size_t)n) == 0, "after byte %lld",
			      (long long)off);
		off += n;
	}
	ck_assert_int_eq(n, 0);
}

static void write_out(uint64_t off, uint64_t len)
{
	void *out = ring_daemon_out(&d, off, len);

	ck_assert_ptr_nonnull(out);
	memset(out, 0xa5, len);
}

static void post(unsigned n)
{
	struct kvd_cqe cqe = {.user_data = ~UINT64_C(0), .res = -1, .flags = ~0u};

	memset(cqe.u.raw, 0xa5, sizeof(cqe.u.raw));
	while (n--) {
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		/* as a client would that reads them */
		d.client->cq_pos++;
	}
}

/* Where pages, words of the bitmap and the arena begin and end. */
START_TEST(all_that_was_written_is_zero)
{
	static const struct {
		uint64_t off, len;
	} parts[] = {
		{0, 1},
		{PAGE - 4, 4},
		{2 * PAGE - 4, 8},
		{63 * PAGE + 4, PAGE},
		{64 * PAGE, 64 * PAGE},
		{128 * PAGE + 4, 200 * PAGE},
		{ARENA - 4, 4},
		{ARENA - PAGE, 0},
	};
	unsigned slices;

	if (emulator_lacks("MADV_REMOVE"))
		return;
	for (unsigned round = 0; round < 3; round++) {
		make_ring(64, ARENA);
		for (size_t i = 0; i < KVD_ARRAY_LEN(parts); i++)
			write_out(parts[i].off, parts[i].len);
		post(round * 40); /* none, some, more than there are */
		memset(d.in, 0xa5, ARENA);
		if (round)
			for (slices = 1; !ring_daemon_scrub(&d, round * 1000); slices++)
				ck_assert_uint_lt(slices, 100000);
		else
			ring_daemon_deinit(&d);
		all_zero(d2c);
		all_zero(c2d);
		ck_assert_uint_eq(pages_of(c2d), 0);
		end_ring();
	}
}
END_TEST

START_TEST(random_parts_are_zero)
{
	unsigned seed = 7;

	for (unsigned round = 0; round < test_rounds(20); round++) {
		uint64_t budget = 4096 + (uint64_t)rand_r(&seed) % 100000;

		make_ring(16, ARENA);
		for (unsigned i = 0; i < round; i++) {
			uint64_t len = (uint64_t)rand_r(&seed) % 20000;

			write_out((uint64_t)rand_r(&seed) % (ARENA - len) & ~3u, len);
		}
		post(round);
		while (!ring_daemon_scrub(&d, budget))
			;
		all_zero(d2c);
		end_ring();
	}
}
END_TEST

/* A look is no use, and a byte at the end does not cost the arena before it, nor the CQ. */
START_TEST(nothing_else_is_touched)
{
	uint64_t begin, used;

	make_ring(KVD_MAX_SQ_ENTRIES, KVD_MAX_ARENA_BYTES);
	begin = pages_of(d2c);
	ck_assert(ring_daemon_out_ok(&d, 0, KVD_MAX_ARENA_BYTES));
	post(1);
	write_out(KVD_MAX_ARENA_BYTES - 4, 4);
	write_out(KVD_MAX_ARENA_BYTES / 2, 4);
	used = pages_of(d2c);
	ck_assert_uint_eq(used, begin + 3);
	ck_assert(ring_daemon_scrub(&d, 1u << 20) || ring_daemon_scrub(&d, 64u << 20));
	ck_assert_uint_eq(pages_of(d2c), used);
	all_zero(d2c);
	end_ring();
}
END_TEST

/* Each slice costs what it may. */
START_TEST(slices_keep_to_their_budget)
{
	uint64_t dirty, before;
	unsigned n = 0;

	make_ring(16, ARENA);
	write_out(0, ARENA);
	dirty = ARENA / PAGE;
	do {
		before = d.scrub_pos;
		n++;
	} while (!ring_daemon_scrub(&d, 16 * PAGE) &&
		 d.scrub_pos < d.geometry.out_off + ARENA &&
		 d.scrub_pos - before <= 16 * PAGE + d.geometry.out_off);
	ck_assert_uint_ge(d.scrub_pos, d.geometry.out_off + ARENA);
	ck_assert_uint_ge(n, dirty / 16);
	ck_assert_uint_le(n, dirty / 16 + 2);
	end_ring();
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		all_that_was_written_is_zero,
		random_parts_are_zero,
		nothing_else_is_touched,
		slices_keep_to_their_budget,
	};

	return run_suite("scrub", tests, KVD_ARRAY_LEN(tests));
}
