/* SPDX-License-Identifier: MIT */
/* The name of the socket: made, taken over, left alone, removed. */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "tests/unit/suite.h"

static char folder[64], path[96];
static struct listener first, second;

static void setup(void)
{
	strcpy(folder, "/tmp/kvd-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/kvd.sock", folder);
	listener_init(&first);
	listener_init(&second);
}

static int remove_one(const char *name, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(name);
}

static void teardown(void)
{
	listener_deinit(&first);
	listener_deinit(&second);
	nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct sockaddr_un address(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	strcpy(addr.sun_path, path);
	return addr;
}

static int connect_to(int type)
{
	struct sockaddr_un addr = address();
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(fd);
		return -errno;
	}
	return fd;
}

/* A bound socket without a daemon behind it; listening or not. */
static int bind_other(int type, int backlog)
{
	struct sockaddr_un addr = address();
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	if (backlog >= 0)
		ck_assert_int_eq(listen(fd, backlog), 0);
	return fd;
}

static unsigned int n_files(void)
{
	char command[128];
	unsigned int n = 0;
	FILE *out;

	snprintf(command, sizeof(command), "ls -A %s | wc -l", folder);
	out = popen(command, "r");
	ck_assert_int_eq(fscanf(out, "%u", &n), 1);
	pclose(out);
	return n;
}

START_TEST(makes_and_removes_the_name)
{
	mode_t mask = umask(0077);
	struct peer_cred cred;
	struct stat st;
	int fd, type;
	socklen_t len = sizeof(type);

	ck_assert_int_eq(listener_open(&first, path), 0);
	ck_assert_uint_eq(umask(mask), 0077);
	ck_assert(!first.activated);
	ck_assert_int_eq(lstat(path, &st), 0);
	ck_assert(S_ISSOCK(st.st_mode));
	ck_assert_uint_eq(st.st_mode & 07777, 0660);
	ck_assert_int_eq(getsockopt(first.fd, SOL_SOCKET, SO_TYPE, &type, &len), 0);
	ck_assert_int_eq(type, SOCK_SEQPACKET);
	ck_assert_int_ne(fcntl(first.fd, F_GETFD) & FD_CLOEXEC, 0);
	ck_assert_int_eq(connect_to(SOCK_STREAM), -EPROTOTYPE);
	fd = connect_to(SOCK_SEQPACKET);
	ck_assert_int_ge(fd, 0);
	/* From the client's side: who listened. */
	ck_assert_int_eq(peer_cred_get(fd, &cred), 0);
	ck_assert_uint_eq(cred.uid, getuid());
	ck_assert_uint_eq(cred.gid, getgid());
	ck_assert_int_eq(cred.pid, getpid());
	close(fd);
	listener_deinit(&first);
	listener_deinit(&first);
	ck_assert_uint_eq(n_files(), 0);
}
END_TEST

START_TEST(second_daemon_is_refused)
{
	char expected[256];
	int fd;

	ck_assert_int_eq(listener_open(&first, path), 0);
	ck_assert_int_eq(listener_open(&second, path), -EADDRINUSE);
	snprintf(expected, sizeof(expected), "another kvd (pid %d) serves %s",
		 (int)getpid(), path);
	ck_assert_str_eq(second.error, expected);
	ck_assert_int_eq(second.fd, -1);
	listener_deinit(&second);
	/* The first one goes on. */
	fd = connect_to(SOCK_SEQPACKET);
	ck_assert_int_ge(fd, 0);
	close(fd);
}
END_TEST

START_TEST(left_over_socket_is_replaced)
{
	int fd;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		/* Dies without cleaning up, lock file and all. */
		_exit(listener_open(&first, path) == 0 ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_uint_eq(n_files(), 2);
	ck_assert_int_eq(connect_to(SOCK_SEQPACKET), -ECONNREFUSED);
	ck_assert_int_eq(listener_open(&first, path), 0);
	fd = connect_to(SOCK_SEQPACKET);
	ck_assert_int_ge(fd, 0);
	close(fd);
	listener_deinit(&first);
	ck_assert_uint_eq(n_files(), 0);
}
END_TEST

/* The socket of a daemon that was killed answers a little longer than its process lives. */
START_TEST(socket_that_is_being_left_is_replaced)
{
	int fd = bind_other(SOCK_SEQPACKET, 8);
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		usleep(300000);
		_exit(0);
	}
	close(fd);
	ck_assert_int_eq(listener_open(&first, path), 0);
	fd = connect_to(SOCK_SEQPACKET);
	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}
END_TEST

/* A daemon that answers keeps the name: of our kind, of another, and with a full backlog. */
START_TEST(live_stranger_is_left_alone)
{
	static const int types[] = {SOCK_SEQPACKET, SOCK_STREAM, SOCK_SEQPACKET};
	int fd = bind_other(types[_i], _i == 2 ? 0 : 8), client = -1;
	struct stat before, after;

	if (_i == 2)
		client = connect_to(SOCK_SEQPACKET);
	ck_assert_int_eq(lstat(path, &before), 0);
	ck_assert_int_eq(listener_open(&first, path), -EADDRINUSE);
	ck_assert_ptr_nonnull(strstr(first.error, "another process listens on /tmp/"));
	ck_assert_int_eq(lstat(path, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	ck_assert_uint_eq(n_files(), 1);
	close(fd);
	if (client >= 0)
		close(client);
}
END_TEST

START_TEST(name_that_is_no_socket)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);

	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_int_eq(listener_open(&first, path), -EEXIST);
	ck_assert_ptr_nonnull(strstr(first.error, "exists and is not a socket"));
	ck_assert_int_eq(access(path, F_OK), 0);
	ck_assert_uint_eq(n_files(), 1);
}
END_TEST

START_TEST(bad_paths)
{
	char text[256];

	memset(text, 'x', sizeof(text) - 1);
	text[0] = '/';
	text[108] = '\0';
	ck_assert_int_eq(listener_open(&first, text), -ENAMETOOLONG);
	ck_assert_str_eq(first.error, "socket path is longer than 107 bytes");
	ck_assert_int_eq(listener_open(&first, ""), -EINVAL);
	snprintf(text, sizeof(text), "%s/none/kvd.sock", folder);
	ck_assert_int_eq(listener_open(&first, text), -ENOENT);
	ck_assert_ptr_nonnull(strstr(first.error, "No such file or directory"));
}
END_TEST

/* If somebody replaced the name meanwhile, it is theirs. */
START_TEST(foreign_name_is_not_removed)
{
	int fd;

	ck_assert_int_eq(listener_open(&first, path), 0);
	ck_assert_int_eq(unlink(path), 0);
	fd = bind_other(SOCK_SEQPACKET, 8);
	listener_deinit(&first);
	ck_assert_int_eq(access(path, F_OK), 0);
	close(fd);
}
END_TEST

/* Activation: in a child, which has its descriptors at 3 as a service would. */

static int activated_child(const int *fds, int n, const char *names)
{
	char number[16];
	int r;

	for (int i = 0; i < n; i++)
		if (dup2(fds[i], 40 + i) < 0)
			return 70;
	for (int i = 0; i < n; i++)
		if (dup2(40 + i, 3 + i) < 0)
			return 71;
	snprintf(number, sizeof(number), "%d", n);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	r = listener_take(&first, LISTENER_FD_NAME);
	if (r < 0)
		return -r;
	/* The administrators' socket is asked for as well, and there is none. */
	if (n != 3)
		return listener_take(&second, LISTENER_ADMIN_FD_NAME)
			       ? 72
			       : -listener_open(&first, path);
	if (listener_take(&second, LISTENER_ADMIN_FD_NAME) != 1 || second.fd != 5)
		return 73;
	return -listener_open(&first, path);
}

static int run_activated(const int *fds, int n, const char *names, int want_fd)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		int r = activated_child(fds, n, names);

		if (r == 0 && (first.fd != want_fd || first.activated != (want_fd == 4)))
			r = 99;
		listener_deinit(&first);
		_exit(r);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

START_TEST(activation)
{
	int good = bind_other(SOCK_SEQPACKET, 8), other, fds[3], pair[2];
	char moved[128];

	ck_assert_int_ge(fcntl(good, F_DUPFD, 50), 0);
	snprintf(moved, sizeof(moved), "%s/moved", folder);
	ck_assert_int_eq(rename(path, moved), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	fds[0] = pair[0];
	fds[1] = good;
	ck_assert_int_eq(run_activated(fds, 2, "pool:kvd", 4), 0);
	/* The name in the file system is the manager's. */
	ck_assert_int_eq(access(moved, F_OK), 0);
	ck_assert_int_eq(run_activated(fds, 2, "kvd:kvd", 4), EEXIST);
	ck_assert_int_eq(run_activated(fds, 2, "kvd:pool", 3), ENOTSOCK);
	/* Two sockets are told apart by name, whatever their order. */
	fds[2] = good;
	ck_assert_int_eq(run_activated(fds, 3, "pool:kvd:kvd-admin", 4), 0);
	other = bind_other(SOCK_STREAM, 8);
	ck_assert_int_eq(unlink(path), 0);
	fds[1] = other;
	ck_assert_int_eq(run_activated(fds, 2, "pool:kvd", 4), EPROTOTYPE);
	close(good);
	close(other);
	close(pair[0]);
	close(pair[1]);
}
END_TEST

/* Accepting, through the loop. */

static struct loop *loop;
static struct peer_cred seen;

static void client_arrives(struct loop_accept *accept, int fd)
{
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(peer_cred_get(fd, &seen), 0);
	close(fd);
	loop_exit(loop, 1);
}

START_TEST(serves_through_the_loop)
{
	int status;
	pid_t pid;

	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_AUTO), 0);
	ck_assert_int_eq(listener_open(&first, path), 0);
	ck_assert_int_eq(listener_start(&first, loop, client_arrives), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(connect_to(SOCK_SEQPACKET) >= 0 ? 0 : 1);
	ck_assert_int_eq(loop_run(loop), 1);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(seen.pid, pid);
	ck_assert_uint_eq(seen.uid, getuid());
	listener_deinit(&first);
	ck_assert_ptr_null(first.accept.loop);
	loop_free(loop);
	ck_assert_int_eq(peer_cred_get(-1, &seen), -EBADF);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("listener");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, makes_and_removes_the_name);
	tcase_add_test(tcase, second_daemon_is_refused);
	tcase_add_test(tcase, left_over_socket_is_replaced);
	tcase_add_test(tcase, socket_that_is_being_left_is_replaced);
	tcase_add_loop_test(tcase, live_stranger_is_left_alone, 0, 3);
	tcase_add_test(tcase, name_that_is_no_socket);
	tcase_add_test(tcase, bad_paths);
	tcase_add_test(tcase, foreign_name_is_not_removed);
	tcase_add_test(tcase, activation);
	tcase_add_test(tcase, serves_through_the_loop);
	return run_case("listener", tcase);
}
