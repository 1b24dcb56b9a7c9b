/* SPDX-License-Identifier: MIT */
/*
 * Runs a program of which a system call fails, in any way the kernel could have it fail:
 *
 *   failcall REPORT CALL[@KIND]:ERRNO:N[+] PROGRAM [ARGUMENT]...
 *   failcall REPORT census PROGRAM [ARGUMENT]...
 *
 * The N-th such call gives ERRNO (a number); with + all later ones do, too. KIND says what
 * the descriptor of the call is (file, socket, memfd, eventfd, pipe, ...; anon for mmap).
 * Counting begins when the program calls prctl(PR_SET_DUMPABLE), which kvd does first of
 * all, so that the dynamic loader's own calls are left alone. REPORT gets a line for each
 * kind of call with its number, or the number of calls and of those that failed.
 *
 * The program keeps the process id that its parent knows. A grandchild answers the
 * notifications of a seccomp filter: no tracer, so leak checkers and debuggers still work.
 * Needs Linux 5.9, whose listener hangs up when
 * the last process of the filter is gone.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL(name, fd_argument)                                                          \
	{                                                                                \
#name, SYS_##name, fd_argument                                           \
	}
#define NO_FD (-1)

/* Those that the daemon, its libraries or a client may make, and which argument is a
 * descriptor. */
static const struct call {
	const char *name;
	int nr, fd_argument;
} calls[] = {
#ifdef SYS_open /* older calls, which newer architectures never had */
	CALL(open, NO_FD),
	CALL(stat, NO_FD),
	CALL(lstat, NO_FD),
	CALL(access, NO_FD),
	CALL(unlink, NO_FD),
	CALL(readlink, NO_FD),
	CALL(poll, NO_FD),
	CALL(epoll_wait, NO_FD),
#endif
	CALL(read, 0),
	CALL(write, 0),
	CALL(readv, 0),
	CALL(writev, 0),
	CALL(pread64, 0),
	CALL(pwrite64, 0),
	CALL(preadv2, 0),
	CALL(close, 0),
	CALL(openat, NO_FD),
	CALL(fstat, 0),
	CALL(newfstatat, NO_FD),
	CALL(statx, NO_FD),
	CALL(faccessat, NO_FD),
	CALL(getdents64, 0),
	CALL(lseek, 0),
	CALL(mmap, 4),
	CALL(munmap, NO_FD),
	CALL(mprotect, NO_FD),
	CALL(mremap, NO_FD),
	CALL(madvise, NO_FD),
	CALL(brk, NO_FD),
	CALL(mlock, NO_FD),
	CALL(memfd_create, NO_FD),
	CALL(ftruncate, 0),
	CALL(fallocate, 0),
	CALL(fcntl, 0),
	CALL(flock, 0),
	CALL(fchmod, 0),
	CALL(unlinkat, NO_FD),
	CALL(ioctl, 0),
	CALL(socket, NO_FD),
	CALL(bind, NO_FD),
	CALL(listen, NO_FD),
	CALL(connect, NO_FD),
	CALL(accept4, NO_FD),
	CALL(sendmsg, NO_FD),
	CALL(recvmsg, NO_FD),
	CALL(sendto, NO_FD),
	CALL(recvfrom, NO_FD),
	CALL(getsockopt, NO_FD),
	CALL(setsockopt, NO_FD),
	CALL(getsockname, NO_FD),
	CALL(getpeername, NO_FD),
	CALL(ppoll, NO_FD),
	CALL(epoll_create1, NO_FD),
	CALL(epoll_ctl, NO_FD),
	CALL(epoll_pwait, NO_FD),
	CALL(epoll_pwait2, NO_FD),
	CALL(eventfd2, NO_FD),
	CALL(signalfd4, NO_FD),
	CALL(timerfd_create, NO_FD),
	CALL(timerfd_settime, NO_FD),
	CALL(pipe2, NO_FD),
	CALL(io_uring_setup, NO_FD),
	CALL(io_uring_register, NO_FD),
	CALL(io_uring_enter, NO_FD),
	CALL(clone, NO_FD),
	CALL(clone3, NO_FD),
	CALL(futex, NO_FD),
	CALL(wait4, NO_FD),
	CALL(kill, NO_FD),
	CALL(prctl, NO_FD),
	CALL(prlimit64, NO_FD),
	CALL(sched_getaffinity, NO_FD),
	CALL(sched_setaffinity, NO_FD),
	CALL(sched_yield, NO_FD),
	CALL(getrandom, NO_FD),
	CALL(clock_nanosleep, NO_FD),
	CALL(rt_sigaction, NO_FD),
	CALL(rt_sigprocmask, NO_FD),
	CALL(sigaltstack, NO_FD),
	CALL(sysinfo, NO_FD),
	CALL(uname, NO_FD),
	CALL(getpid, NO_FD),
	CALL(gettid, NO_FD),
	CALL(getuid, NO_FD),
	CALL(geteuid, NO_FD),
	CALL(exit_group, NO_FD),
};

#define N_CALLS (sizeof(calls) / sizeof(calls[0]))
#define N_KINDS 12

static const char *const kinds[N_KINDS] = {"any",      "file", "socket",   "memfd",
					   "eventfd",  "pipe", "signalfd", "epoll",
					   "io_uring", "anon", "closed",   "other"};
static unsigned long counts[N_CALLS][N_KINDS];

static bool census;
static size_t wanted_call, wanted_kind;
static int wanted_error;
static unsigned long wanted_nth, n_seen, n_failed;
static bool wanted_all;

static int parse(const char *text)
{
	char name[32], kind[16] = "any", plus = 0;
	int n;

	if (!strcmp(text, "census")) {
		census = true;
		return 0;
	}
	n = sscanf(text, "%31[a-z0-9_]@%15[a-z_]:%d:%lu%c", name, kind, &wanted_error,
		   &wanted_nth, &plus);
	if (n < 4) {
		strcpy(kind, "any");
		n = sscanf(text, "%31[a-z0-9_]:%d:%lu%c", name, &wanted_error,
			   &wanted_nth, &plus) +
		    1;
	}
	wanted_all = plus == '+';
	while (wanted_call < N_CALLS && strcmp(calls[wanted_call].name, name))
		wanted_call++;
	while (wanted_kind < N_KINDS && strcmp(kinds[wanted_kind], kind))
		wanted_kind++;
	return n >= 4 && wanted_call < N_CALLS && wanted_kind < N_KINDS ? 0 : -1;
}

/* What descriptor @fd of thread @tid is, as an index into kinds[]. */
static size_t kind_of(pid_t tid, int fd)
{
	static const struct {
		const char *begin;
		size_t kind;
	} names[] = {
		{"socket:", 2},
		{"/memfd:", 3},
		{"anon_inode:[eventfd", 4},
		{"pipe:", 5},
		{"anon_inode:[signalfd", 6},
		{"anon_inode:[eventpoll", 7},
		{"anon_inode:[io_uring", 8},
		{"/", 1},
	};
	char path[64], text[256];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)tid, fd);
	n = readlink(path, text, sizeof(text) - 1);
	if (n < 0)
		return 10;
	text[n] = '\0';
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(text, names[i].begin, strlen(names[i].begin)))
			return names[i].kind;
	return 11;
}

/* Return: the error to give, or 0 to let the call go on. */
static int judge(const struct seccomp_notif *notif)
{
	static bool armed;
	size_t call = 0, kind = 0;

	if (notif->data.nr == SYS_prctl && notif->data.args[0] == PR_SET_DUMPABLE) {
		armed = true;
		return 0;
	}
	while (call < N_CALLS && calls[call].nr != notif->data.nr)
		call++;
	if (!armed || call == N_CALLS)
		return 0;
	if (calls[call].fd_argument >= 0) {
		int fd = (int)notif->data.args[calls[call].fd_argument];

		kind = fd < 0 ? 9 : kind_of((pid_t)notif->pid, fd);
	}
	counts[call][kind]++;
	if (census || call != wanted_call || (wanted_kind && kind != wanted_kind))
		return 0;
	n_seen++;
	if (n_seen < wanted_nth || (n_seen > wanted_nth && !wanted_all))
		return 0;
	n_failed++;
	return wanted_error;
}

static void answer(int listener)
{
	struct seccomp_notif notif = {0};
	struct seccomp_notif_resp resp = {0};
	int error;

	/* The caller may be dead, or a signal has called it off. */
	if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notif) < 0)
		return;
	error = judge(&notif);
	resp.id = notif.id;
	if (error)
		resp.error = -error;
	else
		resp.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	(void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &resp);
}

static void report(const char *path)
{
	char temporary[4096];
	FILE *f;

	snprintf(temporary, sizeof(temporary), "%s.new", path);
	f = fopen(temporary, "we");
	if (!f)
		return;
	if (!census)
		fprintf(f, "%lu %lu\n", n_seen, n_failed);
	for (size_t i = 0; census && i < N_CALLS; i++)
		for (size_t k = 0; k < N_KINDS; k++)
			if (counts[i][k])
				fprintf(f, "%s@%s %lu\n", calls[i].name, kinds[k],
					counts[i][k]);
	fclose(f);
	/* Whole or not there: the reader waits for it. */
	(void)rename(temporary, path);
}

static void supervise(const char *path, pid_t pid, const volatile int *listener_there)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), listener;
	struct pollfd p = {.events = POLLIN};

	if (pidfd < 0)
		_exit(1);
	while (*listener_there < 0) {
		p.fd = pidfd;
		if (poll(&p, 1, 1) > 0)
			_exit(1);
	}
	listener = (int)syscall(SYS_pidfd_getfd, pidfd, *listener_there, 0);
	if (listener < 0) {
		kill(pid, SIGKILL);
		_exit(1);
	}
	p.fd = listener;
	while (poll(&p, 1, -1) >= 0 || errno == EINTR) {
		if (p.revents & POLLIN)
			answer(listener);
		else if (p.revents & POLLHUP)
			break; /* nobody has the filter any more */
	}
	report(path);
	_exit(0);
}

static int install(void)
{
	const uint32_t notify = SECCOMP_RET_USER_NOTIF, allow = SECCOMP_RET_ALLOW;
	struct sock_filter some[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 2, 0),
		/* Or the listener would be closed before it is taken over. */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[wanted_call].nr, 0,
			 1),
		BPF_STMT(BPF_RET | BPF_K, notify),
		BPF_STMT(BPF_RET | BPF_K, allow),
	};
	struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, notify)};
	struct sock_fprog program = {
		.len = census ? 1 : sizeof(some) / sizeof(some[0]),
		.filter = census ? all : some,
	};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			    SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

int main(int argc, char **argv)
{
	volatile int *listener_there;
	pid_t child, self = getpid();

	if (argc < 4 || parse(argv[2]) < 0) {
		fprintf(stderr, "usage: failcall REPORT CALL[@KIND]:ERRNO:N[+]|census "
				"PROGRAM...\n");
		return 125;
	}
	listener_there = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (listener_there == MAP_FAILED)
		return 125;
	*listener_there = -1;
	fflush(NULL);
	child = fork();
	if (child == 0) {
		setsid();
		if (fork() == 0)
			supervise(argv[1], self, listener_there);
		_exit(0);
	}
	if (child < 0 || waitpid(child, NULL, 0) < 0)
		return 125;
	/* With Yama only a tracer by our leave may take the descriptor. */
	(void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	*listener_there = install();
	if (*listener_there < 0) {
		perror("failcall: seccomp");
		return 125;
	}
	execv(argv[3], argv + 3);
	perror("failcall: exec");
	return 125;
}
