/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_BASE_H
#define KVD_IPC_BASE_H

/*
 * The few idioms that every folder above ipc/ shares: cleanup attributes,
 * container_of, checked arithmetic, the monotonic clock. Header only, no state,
 * any thread. Nothing goes in here that has a better home.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KVD_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* From an embedded member back to the object that holds it. Refuses a pointer that is not
 * of the member's own type. */
#define container_of(ptr, type, member)                                                  \
	({                                                                               \
		__typeof__(((type *)0)->member) *member_ptr_ = (ptr);                    \
		(type *)(void *)((char *)member_ptr_ - offsetof(type, member));          \
	})

/* Run on leaving the scope: _cleanup_(closep) int fd = -1; */
#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Memory of prompts and answers leaves no trace. @len: all bytes that were ever written. NULL is
 * fine. */
static inline void secret_free(void *p, size_t len)
{
	if (p)
		explicit_bzero(p, len);
	free(p);
}

/* As realloc(): @p is unchanged where NULL is returned. */
static inline void *secret_realloc(void *p, size_t old_len, size_t len)
{
	void *moved = malloc(len);

	if (!moved)
		return NULL;
	if (p)
		memcpy(moved, p, old_len < len ? old_len : len);
	secret_free(p, old_len);
	return moved;
}

static inline void closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

/* fd = fd_close(fd); */
static inline int fd_close(int fd)
{
	if (fd >= 0)
		close(fd);
	return -1;
}

static inline void fds_close(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		fds[i] = fd_close(fds[i]);
}

/* Take the value out and leave the empty one behind, past a cleanup attribute. */
static inline int fd_steal(int *fd)
{
	int ret = *fd;

	*fd = -1;
	return ret;
}

/* Is [off, off + len) inside [0, size)? No sum is formed, so none can wrap. */
static inline bool range_ok(uint64_t off, uint64_t len, uint64_t size)
{
	return len <= size && off <= size - len;
}

static inline bool is_power_of_two(uint64_t v)
{
	return v != 0 && (v & (v - 1)) == 0;
}

/* @align a power of two; the caller knows that v + align fits. */
static inline uint64_t align_up(uint64_t v, uint64_t align)
{
	return (v + align - 1) & ~(align - 1);
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* How long this thread had a CPU. A system call. */
static inline uint64_t clock_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
