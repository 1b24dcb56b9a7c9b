/* SPDX-License-Identifier: MIT */
/*
 * A setting that systemd accepts is not always enforced: a container may lack the means, a
 * drop-in may loosen it, and a system call may lead past a filter. So each row of the table is
 * an act without effect that has to be refused, tried in a short-lived child process, so that a
 * filter that kills is a refusal too. A system call gets arguments that the kernel itself
 * refuses with another error than EPERM: nothing happens where it is permitted, and the two can
 * be told apart.
 */
#include "daemon/sandbox.h"

#include <errno.h>
#include <linux/sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log.h"
#include "ipc/base.h"

struct act {
	const char *what;
	const char *setting;
	bool (*permitted)(void);
	bool not_with_gpu;
};

/* A call came through to the kernel: any answer but that of the filter, or of a kernel
 * that has it switched off. */
static bool reached(long r)
{
	return r >= 0 || (errno != EPERM && errno != ENOSYS && errno != EACCES);
}

static bool can_keep_rights(void)
{
	return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1;
}

static bool has_capabilities(void)
{
	if (geteuid() == 0)
		return true;
	for (unsigned long cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1)
			return true;
	return false;
}

static bool can_open_network(void)
{
	static const int families[] = {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET};

	for (size_t i = 0; i < KVD_ARRAY_LEN(families); i++)
		if (socket(families[i], SOCK_DGRAM, 0) >= 0)
			return true;
	return false;
}

static bool can_use_io_uring(void)
{
	return reached(syscall(SYS_io_uring_setup, 0, NULL)) ||
	       reached(syscall(SYS_io_uring_register, -1, 0, NULL, 0));
}

static bool can_reach_processes(void)
{
	return reached(syscall(SYS_process_vm_readv, 0, NULL, 0UL, NULL, 0UL, 1UL)) ||
	       reached(syscall(SYS_pidfd_open, 0, 0)) ||
	       reached(syscall(SYS_ptrace, 16 /* PTRACE_ATTACH */, 0, 0, 0));
}

static bool can_make_namespaces(void)
{
	/* The low bits are a signal's number, which this call does not take. */
	return reached(syscall(SYS_unshare, CLONE_NEWUSER | 1));
}

static bool can_use_odd_calls(void)
{
	return reached(syscall(SYS_keyctl, -1, 0, 0, 0, 0)) ||
	       reached(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0UL)) ||
	       reached(syscall(SYS_personality, 0xffffffffUL)) ||
	       reached(syscall(SYS_userfaultfd, ~0));
}

static bool can_set_realtime(void)
{
	return reached(syscall(SYS_sched_setscheduler, 0, -1, NULL));
}

static bool can_set_priorities(void)
{
	return reached(syscall(SYS_setpriority, -1, 0, 0)) ||
	       reached(syscall(SYS_ioprio_set, -1, 0, 0)) ||
	       reached(syscall(SYS_sched_setattr, 0, NULL, 0U));
}

static bool can_write_code(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

static bool can_run_programs(void)
{
	return access("/bin/sh", X_OK) == 0 || access("/usr/bin/env", X_OK) == 0;
}

static bool is_writable(const char *path)
{
	struct statvfs fs;

	return statvfs(path, &fs) == 0 && !(fs.f_flag & ST_RDONLY);
}

static bool can_write_system(void)
{
	return is_writable("/") || is_writable("/usr") || is_writable("/etc");
}

static bool can_see_homes(void)
{
	return access("/home", R_OK) == 0 || access("/root", R_OK) == 0;
}

static bool can_see_devices(void)
{
	return access("/dev/kmsg", F_OK) == 0 || access("/dev/mem", F_OK) == 0;
}

static bool can_see_processes(void)
{
	return access("/proc/1", F_OK) == 0;
}

static bool can_see_kernel_settings(void)
{
	return access("/proc/sys", F_OK) == 0;
}

static bool can_use_named_memory(void)
{
	return access("/dev/shm", R_OK) == 0;
}

static bool can_dump_core(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max != 0;
}

static const struct act acts[] = {
	{"gain rights by running a program", "NoNewPrivileges=", can_keep_rights, false},
	{"use capabilities", "CapabilityBoundingSet=", has_capabilities, false},
	{"open network sockets", "RestrictAddressFamilies=", can_open_network, false},
	{"make or change an io_uring", "kvd's own filter", can_use_io_uring, false},
	{"reach into other processes", "SystemCallFilter=", can_reach_processes, false},
	{"use keys, tracing and the like", "SystemCallFilter=", can_use_odd_calls, false},
	{"make namespaces", "RestrictNamespaces=", can_make_namespaces, false},
	{"run with real-time priority", "RestrictRealtime=", can_set_realtime, false},
	{"change priorities", "SystemCallFilter=", can_set_priorities, false},
	{"write code and run it", "MemoryDenyWriteExecute=", can_write_code, true},
	{"run other programs", "NoExecPaths=", can_run_programs, false},
	{"write to the system's files", "ProtectSystem=", can_write_system, false},
	{"read home folders", "ProtectHome=", can_see_homes, false},
	{"see devices", "PrivateDevices=", can_see_devices, true},
	{"see other users' processes", "ProtectProc=", can_see_processes, false},
	{"see the kernel's settings", "ProcSubset=", can_see_kernel_settings, true},
	{"use /dev/shm", "InaccessiblePaths=", can_use_named_memory, false},
	{"dump core", "LimitCORE=", can_dump_core, false},
};

#define N_ACTS KVD_ARRAY_LEN(acts)

_Static_assert(N_ACTS <= SANDBOX_MAX_ROWS, "struct sandbox_row array is too small");

enum sandbox_level sandbox_expected(void)
{
	const char *wish = getenv("KVD_SANDBOX");

	if (!wish || !*wish)
		return SANDBOX_NONE;
	return strcmp(wish, "gpu") == 0 ? SANDBOX_GPU : SANDBOX_FULL;
}

/* In the child: what it has tried is written down before the next act may kill it. */
static void try_from(volatile uint8_t *permitted, volatile uint32_t *next)
{
	for (uint32_t i = *next; i < N_ACTS; i++) {
		*next = i + 1;
		permitted[i] = acts[i].permitted();
	}
}

struct probe_page {
	uint32_t next;
	uint8_t permitted[N_ACTS];
};

int sandbox_probe(enum sandbox_level level, struct sandbox_row *rows,
		  unsigned int *ret_n_permitted)
{
	struct probe_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned int n_permitted = 0;
	uint32_t before;
	pid_t pid;

	if (page == MAP_FAILED)
		return error_origin(-errno);
	/* Each child tries one act at least, whatever becomes of it. */
	do {
		before = page->next;
		pid = fork();
		if (pid < 0) {
			int r = error_origin(-errno);

			munmap(page, sizeof(*page));
			return r;
		}
		if (pid == 0) {
			try_from(page->permitted, &page->next);
			_exit(0);
		}
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	} while (page->next < N_ACTS && page->next > before);
	for (size_t i = 0; i < N_ACTS; i++) {
		rows[i] = (struct sandbox_row){
			.act = acts[i].what,
			.setting = acts[i].setting,
			.result = level == SANDBOX_GPU && acts[i].not_with_gpu
					  ? SANDBOX_SKIPPED
				  : page->permitted[i] ? SANDBOX_PERMITTED
						       : SANDBOX_REFUSED,
		};
		n_permitted += rows[i].result == SANDBOX_PERMITTED;
	}
	munmap(page, sizeof(*page));
	*ret_n_permitted = n_permitted;
	return (int)N_ACTS;
}

void sandbox_describe(const struct sandbox_row *rows, int n_rows, char *text, size_t size)
{
	size_t used = 0;

	text[0] = '\0';
	for (int i = 0; i < n_rows && used < size; i++) {
		if (rows[i].result != SANDBOX_PERMITTED)
			continue;
		used += (size_t)snprintf(text + used, size - used, "%s%s (%s)",
					 used ? ", " : "", rows[i].act, rows[i].setting);
	}
}
