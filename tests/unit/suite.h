/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_SUITE_H
#define KVD_TESTS_SUITE_H

/* How main() of a test program ends: its tests are run and counted. */

#include <check.h>
#include <stddef.h>
#include <stdlib.h>

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
