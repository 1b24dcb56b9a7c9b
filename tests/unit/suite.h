/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_SUITE_H
#define KVD_TESTS_SUITE_H

/* How main() of a test program ends: its tests are run and counted. And what they leave out
 * where an emulator of a process, which KVD_EMULATOR names, has not all of the system. */

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* For what an emulator says it does and does not do, or has not at all: the caller leaves it out
 * then. ./dev test counts the line as a skip. Never true on a machine of its own. */
static inline bool emulator_lacks(const char *what)
{
	const char *emulator = getenv("KVD_EMULATOR");

	if (!emulator)
		return false;
	printf("skipped: %s has no %s\n", emulator, what);
	fflush(stdout);
	return true;
}

/* @n rounds of something repeated, or the per cent of them that KVD_TEST_ROUNDS says. */
static inline unsigned test_rounds(unsigned n)
{
	const char *share = getenv("KVD_TEST_ROUNDS");
	unsigned long long some = share ? n * strtoull(share, NULL, 10) / 100 : n;

	return some ? (unsigned)some : 1;
}

/* A suite of one test case. Return: exit status. */
static inline int run_case(const char *name, TCase *tcase)
{
	Suite *suite = suite_create(name);
	SRunner *runner;
	int n_failed;

	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* The same for one list of tests. */
static inline int run_suite(const char *name, const TTest *const *tests, size_t n)
{
	TCase *tcase = tcase_create(name);

	tcase_set_timeout(tcase, 120);
	for (size_t i = 0; i < n; i++)
		tcase_add_test(tcase, tests[i]);
	return run_case(name, tcase);
}

#endif
