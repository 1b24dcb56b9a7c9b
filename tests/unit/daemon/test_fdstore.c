/* SPDX-License-Identifier: MIT */
/* The FD store, with a service manager that is a socket of the test. */
#include "daemon/fdstore.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/daemon/manager.h"
#include "tests/unit/suite.h"

static char heard[512];
static int heard_fd;

static void setup(void)
{
	manager_open();
	setenv("FDSTORE", "3", 1);
	unsetenv("KVD_FDSTORE_MAX");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	heard_fd = -1;
}

static void teardown(void)
{
	if (heard_fd >= 0)
		close(heard_fd);
	manager_close();
}

/* What the manager got: text, and a descriptor in heard_fd. "" for nothing. */
static const char *listen_once(void)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = heard, .iov_len = sizeof(heard) - 1};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(manager, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);

	if (heard_fd >= 0)
		close(heard_fd);
	heard_fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&heard_fd, CMSG_DATA(c), sizeof(heard_fd));
	heard[n < 0 ? 0 : n] = '\0';
	return heard;
}

static bool same_file(int a, int b)
{
	struct stat x, y;

	ck_assert_int_eq(fstat(a, &x), 0);
	ck_assert_int_eq(fstat(b, &y), 0);
	return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* As the manager starts a service: descriptors from 3 on, and their names. In a child, whose
 * own descriptors matter to nobody. */
static void hand_over(int n, const char *names)
{
	char text[16];

	manager = fcntl(manager, F_DUPFD_CLOEXEC, 50);
	for (int i = 0; i < n; i++) {
		int fd = memfd_create("kept", 0);

		if (manager < 0 || fd < 0 || dup2(fd, 3 + i) < 0)
			_exit(200);
		if (fd >= 3 + n)
			close(fd);
	}
	snprintf(text, sizeof(text), "%d", n);
	setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	setenv("LISTEN_FDNAMES", names, 1);
}

/* Exit status of a child: which of its checks failed, from 1; 0: none. */
#define CHECK(condition)                                                                 \
	do {                                                                             \
		n++;                                                                     \
		if (!(condition))                                                        \
			return n;                                                        \
	} while (0)

static int in_child(int (*fn)(void))
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(fn());
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

START_TEST(push_and_remove)
{
	struct fdstore store;
	int fd = memfd_create("x", MFD_CLOEXEC);

	ck_assert_int_eq(fdstore_init(&store), 0);
	ck_assert(fdstore_is_there(&store));
	ck_assert_int_eq(fdstore_push(&store, FDSTORE_POOL, fd), 0);
	ck_assert_str_eq(listen_once(), "FDSTORE=1\nFDNAME=kvpool");
	ck_assert(same_file(heard_fd, fd));
	ck_assert_int_eq(fdstore_push(&store, "client-1", fd), 0);
	ck_assert_int_eq(fdstore_push(&store, "client-2", fd), 0);
	listen_once();
	listen_once();
	/* the manager would drop it without a word */
	ck_assert_int_eq(fdstore_push(&store, "client-3", fd), FDSTORE_FULL);
	ck_assert_str_eq(listen_once(), "");
	ck_assert_int_eq(fdstore_remove(&store, "client-1"), 0);
	ck_assert_str_eq(listen_once(), "FDSTOREREMOVE=1\nFDNAME=client-1");
	ck_assert_int_eq(fdstore_push(&store, "client-3", fd), 0);
	ck_assert_int_eq(fdstore_push(&store, "a:b", fd), -EINVAL);
	ck_assert_int_eq(fdstore_push(&store, "a\nREADY=1", fd), -EINVAL);
	ck_assert_int_eq(fdstore_push(&store, "", fd), -EINVAL);
	ck_assert_int_eq(fdstore_push(&store, "x", -1), -EINVAL);
	fdstore_deinit(&store);
	fdstore_deinit(&store);
	close(fd);
}
END_TEST

START_TEST(a_full_queue_holds_nobody_up)
{
	struct fdstore store;
	int fd = memfd_create("x", MFD_CLOEXEC), r;
	char name[FDSTORE_NAME_MAX];
	uint32_t n = 0;

	setenv("FDSTORE", "100000", 1);
	ck_assert_int_eq(fdstore_init(&store), 0);
	store.no_wait = true;
	do {
		snprintf(name, sizeof(name), "client-%u", n + 1);
		r = fdstore_push(&store, name, fd);
	} while (!r && ++n < 100000);
	ck_assert_int_eq(r, -EAGAIN);
	ck_assert_uint_eq(store.n_entries, n);
	ck_assert_int_eq(fdstore_remove(&store, "client-1"), -EAGAIN);
	ck_assert_uint_eq(store.n_entries, n);
	/* of a socket that was shut down the manager lets go by itself */
	fdstore_leave(&store, "client-1");
	ck_assert_uint_eq(store.n_entries, n - 1);
	ck_assert_str_eq(listen_once(), "FDSTORE=1\nFDNAME=client-1");
	ck_assert_int_eq(fdstore_push(&store, "client-0", fd), 0);
	fdstore_deinit(&store);
	close(fd);
}
END_TEST

/* What is counted is what lies there: a name that does not is no room gained. */
START_TEST(room_is_counted_by_name)
{
	struct fdstore store;
	int fd = memfd_create("x", MFD_CLOEXEC);

	setenv("FDSTORE", "2", 1);
	ck_assert_int_eq(fdstore_init(&store), 0);
	ck_assert_int_eq(fdstore_push(&store, FDSTORE_POOL, fd), 0);
	ck_assert_int_eq(fdstore_push(&store, FDSTORE_IMAGE, fd), 0);
	ck_assert_int_eq(fdstore_push(&store, "client-1", fd), FDSTORE_FULL);
	ck_assert_int_eq(fdstore_remove(&store, FDSTORE_WEIGHTS), 0);
	ck_assert_int_eq(fdstore_push(&store, "client-1", fd), FDSTORE_FULL);
	fdstore_leave(&store, "client-7");
	ck_assert_int_eq(fdstore_push(&store, "client-1", fd), FDSTORE_FULL);
	ck_assert_int_eq(fdstore_remove(&store, FDSTORE_IMAGE), 0);
	ck_assert_int_eq(fdstore_push(&store, "client-1", fd), 0);
	ck_assert_int_eq(fdstore_push(&store, "client-2", fd), FDSTORE_FULL);
	fdstore_deinit(&store);
	close(fd);
}
END_TEST

START_TEST(barrier_says_when_it_waits_in_vain)
{
	struct fdstore store;

	ck_assert_int_eq(fdstore_init(&store), 0);
	ck_assert_int_eq(fdstore_barrier(&store, UINT64_C(1000000)), -ETIMEDOUT);
	ck_assert_str_eq(listen_once(), "BARRIER=1");
	ck_assert_int_ge(heard_fd, 0);
	fdstore_deinit(&store);
}
END_TEST

static int take_what_came_back(void)
{
	struct fdstore store;
	static const char *const prefixes[] = {FDSTORE_ADMIN, FDSTORE_CLIENT, NULL};
	char name[FDSTORE_NAME_MAX];
	int n = 0;

	hand_over(9, "kvd:client-12:kvpool:strange:kvd-admin:client-7:kvimage:admin-11:"
		     "client-100");
	CHECK(fdstore_init(&store) == 0);
	CHECK(store.n_entries == 7);
	CHECK(fdstore_take(&store, FDSTORE_POOL) == 5);
	CHECK(fdstore_take(&store, FDSTORE_POOL) == -ENOENT);
	CHECK(fcntl(5, F_GETFD) == FD_CLOEXEC);
	/* by number, of whichever kind */
	CHECK(fdstore_take_next(&store, prefixes, name) == 8);
	CHECK(strcmp(name, "client-7") == 0);
	CHECK(fdstore_take_next(&store, prefixes, name) == 10);
	CHECK(strcmp(name, "admin-11") == 0);
	CHECK(fdstore_take_next(&store, prefixes, name) == 4);
	CHECK(strcmp(name, "client-12") == 0);
	CHECK(fdstore_take_next(&store, prefixes, name) == 11);
	CHECK(strcmp(name, "client-100") == 0);
	CHECK(fdstore_take_next(&store, prefixes, name) == -ENOENT);
	CHECK(fdstore_take(&store, FDSTORE_IMAGE) == 9);
	CHECK(fdstore_drop(&store, name) == 1);
	CHECK(strcmp(name, "strange") == 0);
	CHECK(strcmp(listen_once(), "FDSTOREREMOVE=1\nFDNAME=strange") == 0);
	CHECK(fcntl(6, F_GETFD) == -1);
	/* listening sockets are none of its business */
	CHECK(fcntl(3, F_GETFD) >= 0);
	CHECK(fcntl(7, F_GETFD) >= 0);
	CHECK(store.n_entries == 6);
	fdstore_deinit(&store);
	return 0;
}

START_TEST(what_came_back)
{
	ck_assert_int_eq(in_child(take_what_came_back), 0);
}
END_TEST

static int take_one_of_two(void)
{
	struct fdstore store;
	char name[FDSTORE_NAME_MAX];
	int n = 0;

	hand_over(2, "kvpool:kvpool");
	CHECK(fdstore_init(&store) == 0);
	CHECK(fdstore_take(&store, FDSTORE_POOL) == -EEXIST);
	CHECK(fdstore_remove(&store, FDSTORE_POOL) == 0);
	CHECK(fcntl(3, F_GETFD) == -1 && fcntl(4, F_GETFD) == -1);
	CHECK(fdstore_drop(&store, name) == 0);
	fdstore_deinit(&store);
	return 0;
}

START_TEST(two_of_one_name)
{
	ck_assert_int_eq(in_child(take_one_of_two), 0);
}
END_TEST

START_TEST(without_a_store)
{
	static const struct {
		const char *fdstore, *ours;
		uint32_t max;
	} cases[] = {
		{NULL, NULL, 0}, {NULL, "8", 8},  {"2", "8", 2},
		{"0", "8", 0},   {"-1", NULL, 0}, {"9x", NULL, 0},
	};
	struct fdstore store;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		unsetenv("FDSTORE");
		unsetenv("KVD_FDSTORE_MAX");
		if (cases[i].fdstore)
			setenv("FDSTORE", cases[i].fdstore, 1);
		if (cases[i].ours)
			setenv("KVD_FDSTORE_MAX", cases[i].ours, 1);
		ck_assert_int_eq(fdstore_init(&store), 0);
		ck_assert_uint_eq(store.max, cases[i].max);
		fdstore_deinit(&store);
	}
	setenv("FDSTORE", "4", 1);
	unsetenv("NOTIFY_SOCKET");
	ck_assert_int_eq(fdstore_init(&store), 0);
	ck_assert(!fdstore_is_there(&store));
	ck_assert_int_eq(fdstore_push(&store, "x", 1), 0);
	ck_assert_int_eq(fdstore_remove(&store, "x"), 0);
	ck_assert_int_eq(fdstore_barrier(&store, UINT64_C(1000000000)), 0);
	ck_assert_str_eq(listen_once(), "");
	fdstore_deinit(&store);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("fdstore");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, push_and_remove);
	tcase_add_test(tcase, a_full_queue_holds_nobody_up);
	tcase_add_test(tcase, room_is_counted_by_name);
	tcase_add_test(tcase, barrier_says_when_it_waits_in_vain);
	tcase_add_test(tcase, what_came_back);
	tcase_add_test(tcase, two_of_one_name);
	tcase_add_test(tcase, without_a_store);
	return run_case("fdstore", tcase);
}
