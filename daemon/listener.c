/* SPDX-License-Identifier: MIT */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"

#define SOCKET_MODE 0660

void listener_init(struct listener *listener)
{
	*listener = (struct listener){.fd = -1, .lock_fd = -1};
}

static __attribute__((format(printf, 3, 4))) int fail(struct listener *listener,
						      int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(listener->error, sizeof(listener->error), format, args);
	va_end(args);
	return error;
}

int listener_take(struct listener *listener, const char *name)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(0, &names), fd = -1, r = 0;

	if (n < 0)
		return fail(listener, n, "descriptors from the service manager: %s",
			    strerror(-n));
	for (int i = 0; i < n && r == 0; i++) {
		if (strcmp(names[i], name) != 0)
			continue;
		if (fd >= 0)
			r = fail(
				listener, -EEXIST,
				"the service manager handed over two sockets named \"%s\"",
				name);
		fd = SD_LISTEN_FDS_START + i;
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	if (r < 0 || fd < 0)
		return r;
	r = sd_is_socket(fd, AF_UNIX, 0, 1);
	if (r <= 0)
		return fail(listener, r < 0 ? r : error_origin(-ENOTSOCK),
			    "descriptor %d (\"%s\") is not a listening unix socket", fd,
			    name);
	r = sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1);
	if (r <= 0)
		return fail(
			listener, r < 0 ? r : error_origin(-EPROTOTYPE),
			"socket \"%s\" is not of type SEQPACKET; the socket unit needs "
			"ListenSequentialPacket=",
			name);
	listener->fd = fd;
	listener->activated = true;
	return 1;
}

static char *lock_path(const char *path)
{
	char *lock;

	return asprintf(&lock, "%s.lock", path) < 0 ? NULL : lock;
}

/* Whether @fd still is the file of that name: its last holder removes it. Return: 1 or 0,
 * -errno. */
static int is_same_file(int fd, const char *path)
{
	struct stat a, b;

	if (fstat(fd, &a) < 0)
		return error_origin(-errno);
	if (lstat(path, &b) < 0)
		return errno == ENOENT ? 0 : error_origin(-errno);
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int lock_take(struct listener *listener, const char *path)
{
	char *lock = lock_path(path), pid[16] = "";
	int fd, n, r;

	if (!lock)
		return fail(listener, -ENOMEM, "out of memory");
	for (;;) {
		fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
			  0600);
		if (fd < 0) {
			r = fail(listener, -errno, "%s: %s", lock, strerror(errno));
			break;
		}
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			r = error_origin(-errno);
			n = (int)pread(fd, pid, sizeof(pid) - 1, 0);
			if (r == -EWOULDBLOCK)
				r = fail(listener, -EADDRINUSE,
					 "another kvd (pid %d) serves %s",
					 n > 0 ? atoi(pid) : 0, path);
			else
				r = fail(listener, r, "%s: %s", lock, strerror(-r));
			close(fd);
			break;
		}
		r = is_same_file(fd, lock);
		if (r < 0) {
			r = fail(listener, r, "%s: %s", lock, strerror(-r));
			close(fd);
			break;
		}
		if (r > 0) {
			n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
			/* For people only; a full disk must not stop us. */
			if (ftruncate(fd, 0) == 0)
				n = (int)pwrite(fd, pid, (size_t)n, 0);
			listener->lock_fd = fd;
			r = 0;
			break;
		}
		/* Its holder removed it between our two steps. */
		close(fd);
	}
	free(lock);
	return r;
}

/* How long a name may answer although we have its lock, and how often that is asked. */
#define PROBE_TRIES    40
#define PROBE_PAUSE_NS 50000000

/* Return: 0: somebody listens; -ECONNREFUSED, -ENOENT: nobody does; -errno. */
static int probe(const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

	if (fd < 0)
		return error_origin(-errno);
	r = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0
		    ? error_origin(-errno)
		    : 0;
	close(fd);
	/* EAGAIN is a full backlog, EPROTOTYPE a listener of another kind. */
	return r == -EAGAIN || r == -EPROTOTYPE ? 0 : r;
}

/*
 * Removes a name that is left over from a daemon that died: the lock is free by now. A process
 * that answers keeps its socket; but what a killed daemon's io_uring waits for, the socket among
 * it, the kernel gives up a little later than the lock.
 */
static int clear_path(struct listener *listener, const struct sockaddr_un *addr)
{
	const struct timespec pause = {.tv_nsec = PROBE_PAUSE_NS};
	struct stat st;
	int r;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0
				       : fail(listener, -errno, "%s: %s", addr->sun_path,
					      strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return fail(listener, -EEXIST, "%s exists and is not a socket",
			    addr->sun_path);
	r = probe(addr);
	for (unsigned int i = 0; r == 0 && i < PROBE_TRIES; i++) {
		nanosleep(&pause, NULL);
		r = probe(addr);
	}
	if (r == 0)
		return fail(listener, -EADDRINUSE, "another process listens on %s",
			    addr->sun_path);
	if (r != -ECONNREFUSED && r != -ENOENT)
		return fail(listener, r, "%s: %s", addr->sun_path, strerror(-r));
	if (unlink(addr->sun_path) < 0 && errno != ENOENT)
		return fail(listener, -errno, "%s cannot be removed: %s", addr->sun_path,
			    strerror(errno));
	return 0;
}

static int bind_path(struct listener *listener, const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;
	struct stat st;
	mode_t mask;

	if (fd < 0)
		return fail(listener, -errno, "socket: %s", strerror(errno));
	/* bind() gives the name the mode of the socket, less the umask. A chmod() afterwards
	 * would go by the name, and may meet what somebody else put there. No other thread
	 * runs yet that makes files. */
	mask = umask(0);
	r = fchmod(fd, SOCKET_MODE) < 0 ||
			    bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ||
			    lstat(addr->sun_path, &st) < 0 ||
			    listen(fd, LISTENER_BACKLOG) < 0
		    ? error_origin(-errno)
		    : 0;
	(void)umask(mask);
	if (r < 0) {
		fail(listener, r, "%s: %s", addr->sun_path, strerror(-r));
		close(fd);
		return r;
	}
	listener->fd = fd;
	listener->dev = st.st_dev;
	listener->ino = st.st_ino;
	return 0;
}

int listener_reserve(struct listener *listener, const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int r;

	if (listener->fd >= 0 || listener->lock_fd >= 0)
		return 0;
	if (strlen(path) >= sizeof(addr.sun_path))
		return fail(listener, -ENAMETOOLONG,
			    "socket path is longer than %zu bytes",
			    sizeof(addr.sun_path) - 1);
	if (!*path)
		return fail(listener, -EINVAL, "socket path is empty");
	strcpy(addr.sun_path, path);
	listener->path = strdup(path);
	if (!listener->path)
		return fail(listener, -ENOMEM, "out of memory");
	r = lock_take(listener, path);
	if (r < 0) {
		/* The lock is another's. */
		free(listener->path);
		listener->path = NULL;
		return r;
	}
	r = clear_path(listener, &addr);
	if (r < 0)
		listener_deinit(listener);
	return r;
}

int listener_open(struct listener *listener, const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int r;

	if (listener->fd >= 0)
		return 0;
	r = listener_reserve(listener, path);
	if (r < 0)
		return r;
	strcpy(addr.sun_path, listener->path);
	r = bind_path(listener, &addr);
	if (r < 0)
		listener_deinit(listener);
	return r;
}

int listener_start(struct listener *listener, struct loop *loop, loop_accept_fn fn)
{
	return loop_accept_add(loop, &listener->accept, listener->fd, fn);
}

void listener_deinit(struct listener *listener)
{
	struct stat st;
	char *lock;

	loop_accept_remove(&listener->accept);
	if (listener->path) {
		if (lstat(listener->path, &st) == 0 && st.st_dev == listener->dev &&
		    st.st_ino == listener->ino)
			(void)unlink(listener->path);
		lock = lock_path(listener->path);
		if (lock)
			(void)unlink(lock);
		free(lock);
		free(listener->path);
		listener->path = NULL;
	}
	if (listener->fd >= 0)
		close(listener->fd);
	/* Last: the next holder of the lock finds the names gone. */
	if (listener->lock_fd >= 0)
		close(listener->lock_fd);
	listener->fd = listener->lock_fd = -1;
}

int peer_cred_get(int fd, struct peer_cred *ret_cred)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return error_origin(-errno);
	*ret_cred = (struct peer_cred){.uid = cred.uid, .gid = cred.gid, .pid = cred.pid};
	return 0;
}
