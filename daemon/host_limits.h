/* SPDX-License-Identifier: MIT */
/*
 * Limits that the system sets the daemon: open files, and memory and CPU time of its control
 * groups.
 *
 * Looked at once, before anything big is made, so that a limit that is too small is one
 * clear line at the start and not a kill by the kernel under load. Main thread. Relies on
 * /proc/self/cgroup and /sys/fs/cgroup, in either version of control groups; what cannot be
 * read there sets no limit. Logs nothing.
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
 * @ret_bytes: UINT64_MAX when there is no limit
 * @where: [where_size] the group that sets it, as "/kvd.slice"
 *
 * Return: 0; -errno when the group is not known.
 */
int host_limits_memory(const char *root, uint64_t *ret_bytes, char *where,
		       size_t where_size);

/**
 * host_limits_cpus() - how many threads can compute at a time
 * @n_usable: CPUs of the affinity mask
 *
 * The least CPU quota of the own control group and those above it, rounded down: more threads
 * than that wait at each barrier for one that the kernel throttles.
 *
 * Return: 1 .. @n_usable.
 */
uint32_t host_limits_cpus(const char *root, uint32_t n_usable);

#endif
