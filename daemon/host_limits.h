/* SPDX-License-Identifier: MIT */
/*
 * Limits that the system sets the daemon: open files, and memory and CPU time of its control
 * groups, of either version. What cannot be read sets no limit. Main thread. Logs nothing.
 */
#ifndef KVD_DAEMON_HOST_LIMITS_H
#define KVD_DAEMON_HOST_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* Raises the soft limit of open files to the hard one. Return: the limit that holds. */
uint64_t host_limits_raise_files(void);

/**
 * host_limits_memory() - the least memory limit of the own control group and those above it
 * @root: "" but in tests: is put before /proc and /sys
 * @ret_bytes: UINT64_MAX: no limit
 * @where: [where_size] the group that sets it, as "/kvd.slice"
 *
 * Return: 0; -errno when the group is not known.
 */
int host_limits_memory(const char *root, uint64_t *ret_bytes, char *where,
		       size_t where_size);

/* How many threads compute at a time: the least CPU quota of the groups, rounded down, and at
 * most @n_usable. Return: at least 1. */
uint32_t host_limits_cpus(const char *root, uint32_t n_usable);

#endif
