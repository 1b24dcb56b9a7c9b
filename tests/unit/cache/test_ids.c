/* SPDX-License-Identifier: MIT */
/* Ids that say nothing: a permutation under a key. */
#include "daemon/cache/cache.h"
#include "daemon/cache/ids.h"

#include <check.h>

#include "tests/unit/suite.h"

/* Source of key, text and result: appendix C of the paper on Simon and Speck, Speck64/128. */
START_TEST(the_published_vector)
{
	static const uint32_t key[4] = {0x03020100, 0x0b0a0908, 0x13121110, 0x1b1a1918};
	struct ids ids;

	ids_init(&ids, key);
	ck_assert_uint_eq(ids_hide(&ids, UINT64_C(0x3b7265747475432d)),
			  UINT64_C(0x8c6fa548454e028b));
	ck_assert_uint_eq(ids_show(&ids, UINT64_C(0x8c6fa548454e028b)),
			  UINT64_C(0x3b7265747475432d));
}
END_TEST

START_TEST(nothing_but_0_is_0)
{
	static const uint32_t key[4] = {1, 2, 3, 4};
	struct ids ids;
	uint64_t zero, to_zero;

	ids_init(&ids, key);
	ck_assert_uint_eq(ids_hide(&ids, 0), 0);
	ck_assert_uint_eq(ids_show(&ids, 0), 0);
	for (uint64_t i = 1; i < 10000; i++) {
		uint64_t id = ids_hide(&ids, i * UINT64_C(0x100000001));

		ck_assert_uint_ne(id, 0);
		ck_assert_uint_eq(ids_show(&ids, id), i * UINT64_C(0x100000001));
	}
	/* the names beside 0 in the cycle of the cipher: what is shown from an id that no name
	 * was given is one that leads back to it */
	zero = ids_show(&ids, UINT64_C(0x123456789));
	ck_assert_uint_eq(ids_hide(&ids, zero), UINT64_C(0x123456789));
	to_zero = ids_show(&ids, 1);
	ck_assert_uint_ne(to_zero, 0);
	ck_assert_uint_eq(ids_hide(&ids, to_zero), 1);
}
END_TEST

/* Names that follow one another: half of the bits change, and no difference comes twice. */
START_TEST(neighbours_are_far_apart)
{
	struct prefix_secret secrets[2] = {{{1}}, {{2}}};
	uint64_t last[2] = {0}, differences[2][256];

	for (int s = 0; s < 2; s++) {
		struct prefix_keyer keyer;
		struct ids ids;
		int n_bits = 0;

		ck_assert_int_eq(prefix_keyer_init(&keyer, &secrets[s], 256), 0);
		ck_assert_int_eq(ids_derive(&ids, &keyer), 0);
		prefix_keyer_deinit(&keyer);
		for (uint64_t i = 0; i < 256; i++) {
			uint64_t id = ids_hide(&ids, (7 + i) << 32 | (3 + i));

			differences[s][i] = id - last[s];
			n_bits += __builtin_popcountll(id ^ last[s]);
			last[s] = id;
			for (uint64_t k = 0; k < i; k++)
				ck_assert_uint_ne(differences[s][i], differences[s][k]);
		}
		/* 16,384 bits, of which half are expected: sigma is 64 */
		ck_assert_int_ge(n_bits, 8192 - 320);
		ck_assert_int_le(n_bits, 8192 + 320);
	}
	ck_assert_uint_ne(last[0], last[1]);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("ids");

	tcase_add_test(tc, the_published_vector);
	tcase_add_test(tc, nothing_but_0_is_0);
	tcase_add_test(tc, neighbours_are_far_apart);
	return run_case("ids", tc);
}
