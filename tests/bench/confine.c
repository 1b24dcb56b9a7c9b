/* SPDX-License-Identifier: MIT */
/*
 * Runs a command under a seccomp filter that as_installed.py wrote, without the start of a Python
 * in the time that a benchmark takes.
 *
 * usage: confine FILTER COMMAND...
 */
#include <err.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct sock_filter code[BPF_MAXINSNS];

int main(int argc, char **argv)
{
	struct sock_fprog program = {.filter = code};
	ssize_t n;
	int fd;

	if (argc < 3)
		errx(2, "usage: confine FILTER COMMAND...");
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, code, sizeof(code));
	if (n < 0)
		err(1, "%s", argv[1]);
	program.len = (unsigned short)((size_t)n / sizeof(code[0]));
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		err(1, "seccomp filter");
	execv(argv[2], argv + 2);
	err(127, "%s", argv[2]);
}
