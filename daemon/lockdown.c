/* SPDX-License-Identifier: MIT */
/*
 * kvd.service has to permit io_uring for the loop, and what an io_uring does passes by the
 * filter of the unit. So the loop's ring is restricted to a few operations (loop_uring.c), and
 * nobody in this process can make or change another. The kernel takes no filter from a plain
 * user without NO_NEW_PRIVS.
 */
#include "daemon/lockdown.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "daemon/log.h"
#include "ipc/base.h"

/* Set in the number where a program for x32 calls; other architectures have no such bit. */
#define X32_BIT 0x40000000u

/* Calls from 424 on have one number on all architectures that kvd is built for, 32-bit ones
 * included, so the architecture of the caller need not be looked at. */
_Static_assert(SYS_io_uring_setup == 425 && SYS_io_uring_enter == 426 &&
		       SYS_io_uring_register == 427,
	       "numbers of io_uring");

int lockdown_io_uring(bool enter_too)
{
	/* Jumps count the instructions that they leave out. */
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~X32_BIT),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_register, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
			 enter_too ? SYS_io_uring_enter : SYS_io_uring_setup, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog program = {
		.len = KVD_ARRAY_LEN(code),
		.filter = code,
	};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		return error_origin(-errno);
	return 0;
}
