/* SPDX-License-Identifier: MIT */
/* See failing_alloc.h. */
#include "tests/unit/failing_alloc.h"

#include <stdbool.h>
#include <stddef.h>

long fail_after = -1;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);

static bool fails(void)
{
	return fail_after >= 0 && fail_after-- == 0;
}

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}
