/* SPDX-License-Identifier: MIT */
/*
 * Allocations that fail on demand, for tests of the paths behind them.
 *
 * The program is linked with failing_alloc_link_args, so that malloc() and calloc() of its
 * own objects and static libraries pass through here and go on to whatever allocator the
 * build has, a sanitizer's too. One thread at a time.
 */
#ifndef KVD_TESTS_FAILING_ALLOC_H
#define KVD_TESTS_FAILING_ALLOC_H

/* Allocations that succeed before one fails; it counts down and stays at -1 then. */
extern long fail_after;

#endif
