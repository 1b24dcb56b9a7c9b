/* SPDX-License-Identifier: MIT */
/* Accepting on both back ends, what is left behind, and how the back end is chosen. */
#include "daemon/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "daemon/loop_backend.h"
#include "ipc/base.h"
#include "tests/unit/daemon/loop_test.h"

struct door {
	struct loop_accept accept;
	unsigned int n, limit, n_errors;
	int error;
	int fds[64];
	rlim_t restore;
};

static int door_listen(struct sockaddr_un *addr, socklen_t *len)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	*len = sizeof(sa_family_t);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)addr, *len), 0); /* autobind */
	ck_assert_int_eq(listen(fd, 128), 0);
	*len = sizeof(*addr);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)addr, len), 0);
	return fd;
}

static int door_knock(const struct sockaddr_un *addr, socklen_t len)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(connect(fd, (const struct sockaddr *)addr, len), 0);
	return fd;
}

static void door_opens(struct loop_accept *accept, int fd)
{
	struct door *d = container_of(accept, struct door, accept);

	if (fd < 0) {
		struct rlimit limit;

		d->n_errors++;
		d->error = fd;
		/* Descriptors are there again; the loop must come back by itself. */
		ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
		limit.rlim_cur = d->restore;
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
		return;
	}
	ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
	ck_assert_int_ne(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	d->fds[d->n++] = fd;
	if (d->n == d->limit)
		loop_exit(loop, 1);
}

START_TEST(accepts_many)
{
	struct sockaddr_un addr;
	socklen_t len;
	struct door d = {.limit = 40};
	int clients[40], fd = door_listen(&addr, &len);

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(loop_accept_add(loop, &d.accept, fd, door_opens), 0);
	for (int i = 0; i < 20; i++)
		clients[i] = door_knock(&addr, len);
	d.limit = 20;
	ck_assert_int_eq(run(), 1);
	d.limit = 40;
	for (int i = 20; i < 40; i++)
		clients[i] = door_knock(&addr, len);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(d.n, 40);
	ck_assert_uint_eq(d.n_errors, 0);
	for (int i = 0; i < 40; i++) {
		/* Each is connected to one of ours. */
		ck_assert_int_eq(send(d.fds[i], "k", 1, 0), 1);
		close(d.fds[i]);
	}
	for (int i = 0; i < 40; i++) {
		char c;

		ck_assert_int_eq(recv(clients[i], &c, 1, 0), 1);
		close(clients[i]);
	}
	loop_accept_remove(&d.accept);
	loop_accept_remove(&d.accept);
	close(fd);
	loop_free(loop);
}
END_TEST

static void door_closes(struct loop_accept *accept, int fd)
{
	struct door *d = container_of(accept, struct door, accept);

	ck_assert_int_ge(fd, 0);
	close(fd);
	d->n++;
	loop_accept_remove(accept);
	memset(accept, 0xa5, sizeof(*accept));
	loop_exit(loop, 1);
}

START_TEST(accept_removed_in_callback)
{
	struct sockaddr_un addr;
	socklen_t len;
	struct door d = {0};
	struct loop_timer stop = {0};
	int clients[8], fd = door_listen(&addr, &len);
	char c;

	if (!loop_make(_i))
		return;
	for (int i = 0; i < 8; i++)
		clients[i] = door_knock(&addr, len);
	ck_assert_int_eq(loop_accept_add(loop, &d.accept, fd, door_closes), 0);
	ck_assert_int_eq(run(), 1);
	close(fd);
	loop_timer_start(loop, &stop, loop_now_refresh(loop) + 5 * MS, 0, stop_run);
	ck_assert_int_eq(run(), 7);
	ck_assert_uint_eq(d.n, 1);
	/* Whatever the kernel had already accepted was closed: no connection is held open
	 * by nobody. */
	for (int i = 0; i < 8; i++) {
		errno = 0;
		ck_assert_int_le(recv(clients[i], &c, 1, MSG_DONTWAIT), 0);
		ck_assert_int_ne(errno, EAGAIN);
		close(clients[i]);
	}
	loop_free(loop);
}
END_TEST

START_TEST(accept_waits_for_descriptors)
{
	struct sockaddr_un addr;
	socklen_t len;
	struct rlimit limit;
	struct door d = {.limit = 1};
	int fd = door_listen(&addr, &len), client;

	if (!loop_make(_i))
		return;
	client = door_knock(&addr, len);
	ck_assert_int_eq(loop_accept_add(loop, &d.accept, fd, door_opens), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	d.restore = limit.rlim_cur;
	limit.rlim_cur = (rlim_t)dup(0);
	close((int)limit.rlim_cur);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(d.n_errors, 1);
	ck_assert_int_eq(d.error, -EMFILE);
	ck_assert_uint_eq(d.n, 1);
	close(client);
	close(d.fds[0]);
	loop_accept_remove(&d.accept);
	close(fd);
	loop_free(loop);
}
END_TEST

static void must_not_run(struct loop_io *io, uint32_t events)
{
	ck_abort_msg("the watch is not ready");
}

START_TEST(free_with_everything_armed)
{
	struct sockaddr_un addr;
	socklen_t len;
	struct door d = {0};
	struct loop_io io = {0};
	struct loop_timer never = {0};
	struct loop_timer stop = {0};
	int fd = door_listen(&addr, &len), efd = eventfd(0, EFD_CLOEXEC), client;
	char byte;

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(loop_accept_add(loop, &d.accept, fd, door_opens), 0);
	ck_assert_int_eq(loop_io_add(loop, &io, efd, LOOP_READ, must_not_run), 0);
	loop_timer_start(loop, &never, UINT64_MAX - 1, 0, stop_run);
	loop_timer_start(loop, &stop, loop_now_refresh(loop) + MS, 0, stop_run);
	ck_assert_int_eq(run(), 7);
	client = door_knock(&addr, len);
	loop_free(loop);
	close(fd);
	ck_assert_int_le(recv(client, &byte, 1, 0), 0);
	close(client);
	close(efd);
}
END_TEST

/* The choice of the back end. */

static int try_op(unsigned char op)
{
	struct io_uring *ring = loop_uring_ring(loop);
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int r;

	switch (op) {
	case IORING_OP_SOCKET:
		io_uring_prep_socket(sqe, AF_UNIX, SOCK_STREAM, 0, 0);
		break;
	case IORING_OP_OPENAT:
		io_uring_prep_openat(sqe, AT_FDCWD, "/dev/null", O_RDONLY, 0);
		break;
	case IORING_OP_CONNECT:
		io_uring_prep_connect(sqe, 0, NULL, 0);
		break;
	case IORING_OP_WRITE:
		io_uring_prep_write(sqe, 1, "x", 0, 0);
		break;
	default:
		io_uring_prep_nop(sqe);
		break;
	}
	io_uring_sqe_set_data64(sqe, 42);
	ck_assert_int_eq(io_uring_submit_and_wait(ring, 1), 1);
	ck_assert_int_eq(io_uring_peek_cqe(ring, &cqe), 0);
	ck_assert_uint_eq(cqe->user_data, 42);
	r = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return r;
}

START_TEST(ring_is_restricted)
{
	struct io_uring *ring;
	int fd = 0;

	if (!have_uring)
		return;
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_IO_URING), 0);
	ck_assert_int_eq(try_op(IORING_OP_SOCKET), -EACCES);
	ck_assert_int_eq(try_op(IORING_OP_OPENAT), -EACCES);
	ck_assert_int_eq(try_op(IORING_OP_CONNECT), -EACCES);
	ck_assert_int_eq(try_op(IORING_OP_WRITE), -EACCES);
	ck_assert_int_eq(try_op(IORING_OP_NOP), -EACCES);
	ring = loop_uring_ring(loop);
	ck_assert_int_eq(io_uring_register_files(ring, &fd, 1), -EACCES);
	/* The restrictions cannot be widened either. */
	ck_assert_int_lt(syscall(SYS_io_uring_register, ring->ring_fd,
				 IORING_REGISTER_RESTRICTIONS, NULL, 0),
			 0);
	loop_free(loop);
}
END_TEST

START_TEST(ring_leaves_no_descriptor)
{
	int before = dup(0), after;

	close(before);
	for (int i = 0; i < 100; i++) {
		if (!loop_make(_i))
			return;
		loop = loop_free(loop);
	}
	after = dup(0);
	close(after);
	ck_assert_int_eq(before, after);
}
END_TEST

static void deny(unsigned int syscall_nr, int error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, syscall_nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned int)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = 4, .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		_exit(77);
}

/* Runs in a child: a filter cannot be taken back. Return: exit status. */
static int child_without_setup(int error)
{
	struct loop *l;
	const char *step = "";

	deny(SYS_io_uring_setup, error);
	unsetenv("KVD_IO_BACKEND");
	if (loop_new(&l, LOOP_BACKEND_IO_URING) != -error)
		return 1;
	if (loop_new(&l, LOOP_BACKEND_AUTO) != 0)
		return 2;
	if (loop_backend_of(l) != LOOP_BACKEND_EPOLL)
		return 3;
	if (loop_fallback(l, &step) != -error || strcmp(step, "io_uring_setup") != 0)
		return 4;
	loop_free(l);
	return 0;
}

/* A ring that cannot be restricted is not used. Nor does epoll need its newest call. */
static int child_without_register(int error)
{
	struct loop_timer stop = {0};
	const char *step = "";

	deny(SYS_io_uring_register, error);
	deny(SYS_epoll_pwait2, error);
	unsetenv("KVD_IO_BACKEND");
	if (loop_new(&loop, LOOP_BACKEND_AUTO) != 0)
		return 1;
	if (loop_backend_of(loop) != LOOP_BACKEND_EPOLL)
		return 2;
	if (have_uring && (loop_fallback(loop, &step) != -error ||
			   strcmp(step, "IORING_REGISTER_RESTRICTIONS") != 0))
		return 3;
	if (loop_timer_start(loop, &stop, loop_now(loop) + MS / 2, 0, stop_run) != 0 ||
	    run() != 7)
		return 4;
	loop_free(loop);
	return 0;
}

/* Each call that the ring takes can be refused on its own. */
static int child_without_enter(int error)
{
	const char *step = "";

	deny(SYS_io_uring_enter, error);
	unsetenv("KVD_IO_BACKEND");
	if (have_uring && loop_new(&loop, LOOP_BACKEND_IO_URING) != -error)
		return 1;
	if (loop_new(&loop, LOOP_BACKEND_AUTO) != 0)
		return 2;
	if (loop_backend_of(loop) != LOOP_BACKEND_EPOLL)
		return 3;
	if (have_uring &&
	    (loop_fallback(loop, &step) != -error || strcmp(step, "io_uring_enter") != 0))
		return 4;
	loop_free(loop);
	return 0;
}

static void expect_child(int (*child)(int), int argument)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(child(argument));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	if (WEXITSTATUS(status) != 77)
		ck_assert_int_eq(WEXITSTATUS(status), 0);
}

START_TEST(auto_falls_back_to_epoll)
{
	static const int errors[] = {EPERM, ENOSYS, EACCES, ENOMEM};

	expect_child(child_without_setup, errors[_i]);
	expect_child(child_without_enter, errors[_i]);
}
END_TEST

START_TEST(unrestricted_ring_is_not_used)
{
	static const int errors[] = {EPERM, ENOSYS};

	expect_child(child_without_register, errors[_i]);
}
END_TEST

START_TEST(environment_chooses)
{
	ck_assert_int_eq(setenv("KVD_IO_BACKEND", "epoll", 1), 0);
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_AUTO), 0);
	ck_assert_int_eq(loop_backend_of(loop), LOOP_BACKEND_EPOLL);
	ck_assert_int_eq(loop_fallback(loop, NULL), 0);
	loop_free(loop);
	unsetenv("KVD_IO_BACKEND");
	ck_assert_int_eq(loop_new(&loop, (enum loop_backend)9), -EINVAL);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("loop-accept");

	probe_uring();
	tcase_set_timeout(tcase, 60);
	tcase_add_loop_test(tcase, accepts_many, 0, 2);
	tcase_add_loop_test(tcase, accept_removed_in_callback, 0, 2);
	tcase_add_loop_test(tcase, accept_waits_for_descriptors, 0, 2);
	tcase_add_loop_test(tcase, free_with_everything_armed, 0, 2);
	tcase_add_loop_test(tcase, ring_leaves_no_descriptor, 0, 2);
	tcase_add_loop_test(tcase, auto_falls_back_to_epoll, 0, 4);
	tcase_add_loop_test(tcase, unrestricted_ring_is_not_used, 0, 2);
	tcase_add_test(tcase, ring_is_restricted);
	tcase_add_test(tcase, environment_chooses);
	return run_case("loop-accept", tcase);
}
