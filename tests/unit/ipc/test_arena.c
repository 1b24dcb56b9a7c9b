/* SPDX-License-Identifier: MIT */
/* The client's allocator of arena offsets, against a byte map. */
#include <check.h>
#include <string.h>

#include "client/arena.h"
#include "ipc/base.h"
#include "tests/unit/suite.h"

START_TEST(takes_all_and_gives_back)
{
	struct arena a;
	uint64_t off[4], x;
	int i;

	ck_assert_int_eq(arena_init(&a, 256, 4), 0);
	ck_assert(!arena_alloc(&a, 0, &x));
	ck_assert(!arena_alloc(&a, 257, &x));
	ck_assert(!arena_alloc(&a, ~0ull, &x));
	for (i = 0; i < 4; i++) {
		ck_assert(arena_alloc(&a, 1 + (uint64_t)i, &off[i]));
		ck_assert_uint_eq(off[i], (uint64_t)i * 64);
	}
	ck_assert(!arena_alloc(&a, 1, &x));
	arena_free(&a, off[1], 2);
	arena_free(&a, off[3], 4);
	ck_assert(!arena_alloc(&a, 65, &x));
	arena_free(&a, off[2], 3);
	ck_assert(arena_alloc(&a, 192, &x));
	ck_assert_uint_eq(x, 64);
	arena_free(&a, 0, 1);
	arena_free(&a, 64, 192);
	ck_assert(arena_alloc(&a, 256, &x));
	arena_deinit(&a);
	arena_deinit(&a);
	ck_assert_int_eq(arena_init(&a, 0, 1), 0);
	ck_assert(!arena_alloc(&a, 1, &x));
	arena_deinit(&a);
}
END_TEST

START_TEST(random_operations)
{
	enum { SLOTS = 64, SIZE = 64 * 1024 };
	static uint8_t used[SIZE];
	struct {
		uint64_t off, len;
	} held[SLOTS] = {{0}};
	uint64_t seed = 12345, len, off, i, sum = 0;
	struct arena a;
	int step, k;

	ck_assert_int_eq(arena_init(&a, SIZE, SLOTS), 0);
	for (step = 0; step < 20000; step++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		k = (int)(seed >> 58);
		if (held[k].len) {
			memset(used + held[k].off, 0, held[k].len);
			arena_free(&a, held[k].off, held[k].len);
			held[k].len = 0;
			continue;
		}
		len = 1 + (seed >> 20) % 4000;
		if (!arena_alloc(&a, len, &off))
			continue;
		ck_assert_uint_eq(off % ARENA_ALIGN, 0);
		ck_assert(range_ok(off, len, SIZE));
		/* One assertion a step: libcheck writes each of them to a file. */
		for (i = 0; i < len && !used[off + i]; i++)
			;
		ck_assert_uint_eq(i, len);
		memset(used + off, 1, len);
		held[k].off = off;
		held[k].len = len;
	}
	for (k = 0; k < SLOTS; k++)
		if (held[k].len)
			arena_free(&a, held[k].off, held[k].len);
	for (i = 0; i < a.n; i++)
		sum += a.extents[i].len;
	ck_assert_uint_eq(a.n, 1);
	ck_assert_uint_eq(sum, SIZE);
	arena_deinit(&a);
}
END_TEST

int main(void)
{
	const TTest *tests[] = {takes_all_and_gives_back, random_operations};

	return run_suite("arena", tests, KVD_ARRAY_LEN(tests));
}
