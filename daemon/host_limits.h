/* SPDX-License-Identifier: MIT */
/* Limits that the system sets the daemon: open files, and memory and CPU time of its control
 * groups, of either version. What cannot be read sets no limit. Main thread. Logs nothing. */
#ifndef KVD_DAEMON_HOST_LIMITS_H
#define KVD_DAEMON_HOST_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* Raises the soft limit of open files to the hard one. Return: the limit that holds;
 * UINT64_MAX: none, or it is not known. */
uint64_t host_limits_raise_files(void);

/* The least memory limit of the own group and those above it; UINT64_MAX: none. @root: "" but in
 * tests: put before /proc and /sys. @where: [where_size] the group that sets it, as "/kvd.slice".
 * Return: 0; -errno: the group is not known. */
int host_limits_memory(const char *root, uint64_t *ret_bytes, char *where,
		       size_t where_size);

/* How many threads can compute at a time: the least CPU quota of the groups, rounded down, and at
 * most @n_usable. Return: at least 1. */
uint32_t host_limits_cpus(const char *root, uint32_t n_usable);

#endif
