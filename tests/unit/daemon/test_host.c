/* SPDX-License-Identifier: MIT */
/* What the host grants: memory limits out of a made-up /proc and /sys, open files, and the
 * probe of the sandbox against filters of our own. */
#include "daemon/host_limits.h"
#include "daemon/lockdown.h"
#include "daemon/loop.h"
#include "daemon/sandbox.h"
#include "ipc/base.h"

#include <errno.h>
#include <ftw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "tests/unit/suite.h"

static char root[64];

static void setup(void)
{
	strcpy(root, "/tmp/kvd-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static int remove_one(const char *name, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(name);
}

static void teardown(void)
{
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file below root, with the folders above it. */
static void put(const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		mkdir(path, 0755);
	}
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

START_TEST(memory_limit_is_the_least_above)
{
	char where[64];
	uint64_t bytes;

	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), -ENOENT);
	put("/proc/self/cgroup", "1:name=systemd:/init.scope\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), -ENOENT);
	put("/proc/self/cgroup", "0::/kvd.slice/kvd.service\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, UINT64_MAX);
	ck_assert_str_eq(where, "");
	put("/sys/fs/cgroup/kvd.slice/kvd.service/memory.max", "max\n");
	put("/sys/fs/cgroup/kvd.slice/memory.max", "1073741824\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, 1073741824);
	ck_assert_str_eq(where, "/kvd.slice");
	put("/sys/fs/cgroup/kvd.slice/kvd.service/memory.max", "4096\n");
	put("/sys/fs/cgroup/memory.max", "8192\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, 4096);
	ck_assert_str_eq(where, "/kvd.slice/kvd.service");
	/* In a container the own group is the root, which has a limit then. */
	put("/proc/self/cgroup", "0::/\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, 8192);
	ck_assert_str_eq(where, "/");
}
END_TEST

/* Version 1: a container of Docker sees the host's path, and only its own limit. */
START_TEST(memory_limit_of_version_1)
{
	char where[64];
	uint64_t bytes;

	put("/proc/self/cgroup", "4:memory:/docker/abc\n1:name=systemd:/docker/abc\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, UINT64_MAX);
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "125829120\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, 125829120);
	ck_assert_str_eq(where, "/");
	put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "65536\n");
	ck_assert_int_eq(host_limits_memory(root, &bytes, where, sizeof(where)), 0);
	ck_assert_uint_eq(bytes, 65536);
	ck_assert_str_eq(where, "/docker/abc");
}
END_TEST

/* Quota and period as the kernel prints them, and whole CPUs worked out by hand. */
START_TEST(cpu_quota_of_a_group)
{
	static const struct {
		const char *max;
		const char *quota, *period;
		uint32_t cpus;
	} rows[] = {
		{"max 100000\n", "-1\n", "100000\n", 8},
		{"50000 100000\n", "50000\n", "100000\n", 1},
		{"399999 100000\n", "399999\n", "100000\n", 3},
		{"400000 100000\n", "400000\n", "100000\n", 4},
		{"20000 5000\n", "20000\n", "5000\n", 4},
		{"6400000 100000\n", "6400000\n", "100000\n", 8},
		{"400000 0\n", "400000\n", "0\n", 8},
		{"many\n", "\n", "\n", 8},
	};

	ck_assert_uint_eq(host_limits_cpus(root, 8), 8);
	put("/proc/self/cgroup", "0::/kvd.slice/kvd.service\n");
	put("/sys/fs/cgroup/kvd.slice/kvd.service/cpu.max", rows[_i].max);
	ck_assert_uint_eq(host_limits_cpus(root, 8), rows[_i].cpus);
	/* The one above it holds as well. */
	put("/sys/fs/cgroup/kvd.slice/cpu.max", "200000 100000\n");
	ck_assert_uint_eq(host_limits_cpus(root, 8), rows[_i].cpus < 2 ? 1 : 2);
	ck_assert_uint_eq(host_limits_cpus(root, 1), 1);
	/* Version 1, and a machine with both. */
	put("/proc/self/cgroup", "3:cpuset:/no\n2:cpu,cpuacct:/a\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", rows[_i].quota);
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", rows[_i].period);
	ck_assert_uint_eq(host_limits_cpus(root, 8), rows[_i].cpus);
	put("/proc/self/cgroup", "2:cpu,cpuacct:/a\n0::/kvd.slice\n");
	ck_assert_uint_eq(host_limits_cpus(root, 8), rows[_i].cpus < 2 ? 1 : 2);
	put("/proc/self/cgroup", "2:cpuacct:/a\n1:cpuset:/a\n");
	ck_assert_uint_eq(host_limits_cpus(root, 8), 8);
}
END_TEST

START_TEST(files_are_raised_to_the_hard_limit)
{
	struct rlimit limit = {.rlim_cur = 16, .rlim_max = 32};

	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(host_limits_raise_files(), 32);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 32);
}
END_TEST

static const struct sandbox_row *row_of(const struct sandbox_row *rows, int n,
					const char *act)
{
	for (int i = 0; i < n; i++)
		if (strcmp(rows[i].act, act) == 0)
			return &rows[i];
	ck_abort_msg("no row '%s'", act);
}

/* From here on calls of this number get the answer. */
static void filter_call(unsigned int number, unsigned int answer)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = KVD_ARRAY_LEN(code), .filter = code};

	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(probe_sees_what_a_filter_refuses)
{
	static const unsigned int answers[] = {
		SECCOMP_RET_ERRNO | EPERM,
		SECCOMP_RET_ERRNO | EAFNOSUPPORT,
		SECCOMP_RET_KILL_PROCESS,
	};
	struct sandbox_row rows[SANDBOX_MAX_ROWS];
	unsigned int n_permitted, n_before;
	char text[1024];
	int n;

	if (emulator_lacks("seccomp"))
		return;
	n = sandbox_probe(SANDBOX_FULL, rows, &n_before);
	ck_assert_int_gt(n, 10);
	ck_assert_int_eq(row_of(rows, n, "open network sockets")->result,
			 SANDBOX_PERMITTED);
	ck_assert_int_eq(row_of(rows, n, "gain rights by running a program")->result,
			 SANDBOX_PERMITTED);
	filter_call(SYS_socket, answers[_i]);
	n = sandbox_probe(SANDBOX_FULL, rows, &n_permitted);
	/* One by the filter, one by the bit that a filter needs. */
	ck_assert_uint_eq(n_permitted, n_before - 2);
	ck_assert_int_eq(row_of(rows, n, "open network sockets")->result,
			 SANDBOX_REFUSED);
	sandbox_describe(rows, n, text, sizeof(text));
	ck_assert_ptr_null(strstr(text, "network"));
	ck_assert_ptr_nonnull(strstr(text, "write code and run it "
					   "(MemoryDenyWriteExecute=)"));
	sandbox_describe(rows, n, text, 20);
	ck_assert_uint_eq(strlen(text), 19);
	/* What the GPU's drop-in gives up is not asked for. */
	n = sandbox_probe(SANDBOX_GPU, rows, &n_permitted);
	ck_assert_int_eq(row_of(rows, n, "write code and run it")->result,
			 SANDBOX_SKIPPED);
}
END_TEST

static struct loop *ring_loop;

static void stop_loop(struct loop_timer *timer, uint64_t now_ns)
{
	loop_exit(ring_loop, 0);
}

static long ring_setup(void)
{
	return syscall(SYS_io_uring_setup, 0, NULL) < 0 ? errno : 0;
}

static long ring_register(void)
{
	return syscall(SYS_io_uring_register, -1, 0, NULL, 0) < 0 ? errno : 0;
}

static long ring_enter(void)
{
	return syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0) < 0 ? errno : 0;
}

/* The ring that is there goes on; no other can be made, by the probe's account and by trying. */
START_TEST(no_further_ring_after_lockdown)
{
	struct sandbox_row rows[SANDBOX_MAX_ROWS];
	unsigned int n_permitted;
	int n;

	if (ring_enter() != EBADF)
		return; /* a kernel or a container without io_uring */
	ck_assert_int_ne(ring_register(), EPERM);
	ck_assert_int_eq(loop_new(&ring_loop, LOOP_BACKEND_IO_URING), 0);
	ck_assert_int_eq(lockdown_io_uring(false), 0);
	n = sandbox_probe(SANDBOX_FULL, rows, &n_permitted);
	ck_assert_int_eq(row_of(rows, n, "make or change an io_uring")->result,
			 SANDBOX_REFUSED);
	ck_assert_int_eq(ring_setup(), EPERM);
	ck_assert_int_eq(ring_register(), EPERM);
	ck_assert_int_eq(ring_enter(), EBADF);
	for (int i = 0; i < 3; i++) {
		struct loop_timer stop = {0};

		ck_assert_int_eq(loop_timer_start(ring_loop, &stop,
						  loop_now(ring_loop) + 1000, 0,
						  stop_loop),
				 0);
		ck_assert_int_eq(loop_run(ring_loop), 0);
	}
	ck_assert_int_eq(lockdown_io_uring(true), 0);
	ck_assert_int_eq(ring_enter(), EPERM);
	loop_free(ring_loop);
}
END_TEST

START_TEST(probe_level)
{
	unsetenv("KVD_SANDBOX");
	ck_assert_int_eq(sandbox_expected(), SANDBOX_NONE);
	setenv("KVD_SANDBOX", "", 1);
	ck_assert_int_eq(sandbox_expected(), SANDBOX_NONE);
	setenv("KVD_SANDBOX", "gpu", 1);
	ck_assert_int_eq(sandbox_expected(), SANDBOX_GPU);
	setenv("KVD_SANDBOX", "full", 1);
	ck_assert_int_eq(sandbox_expected(), SANDBOX_FULL);
	setenv("KVD_SANDBOX", "fulll", 1);
	ck_assert_int_eq(sandbox_expected(), SANDBOX_FULL);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("host");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, memory_limit_is_the_least_above);
	tcase_add_test(tcase, memory_limit_of_version_1);
	tcase_add_loop_test(tcase, cpu_quota_of_a_group, 0, 8);
	tcase_add_test(tcase, files_are_raised_to_the_hard_limit);
	tcase_add_loop_test(tcase, probe_sees_what_a_filter_refuses, 0, 3);
	tcase_add_test(tcase, no_further_ring_after_lockdown);
	tcase_add_test(tcase, probe_level);
	return run_case("host", tcase);
}
