/* SPDX-License-Identifier: MIT */
/* To be preloaded: a kernel before 6.16, where descriptors cannot be refused (SO_PASSRIGHTS). */
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#define PASSRIGHTS 83

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	static int (*next)(int, int, int, const void *, socklen_t);

	if (level == SOL_SOCKET && name == PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "setsockopt");
	return next(fd, level, name, value, len);
}
