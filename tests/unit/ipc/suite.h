/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_IPC_SUITE_H
#define KVD_TESTS_IPC_SUITE_H

/* The main() of a test program that has one list of tests. */

#include <check.h>
#include <stddef.h>
#include <stdlib.h>

static inline int run_suite(const char *name, const TTest *const *tests, size_t n)
{
	Suite *s = suite_create(name);
	TCase *t = tcase_create(name);
	SRunner *sr;
	size_t i;
	int failed;

	tcase_set_timeout(t, 120);
	for (i = 0; i < n; i++)
		tcase_add_test(t, tests[i]);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
