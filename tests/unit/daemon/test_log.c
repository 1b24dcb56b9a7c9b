/* SPDX-License-Identifier: MIT */
/* The three forms of an entry, what untrusted text becomes, and the rate limit. */
#include "daemon/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "daemon/escape.h"
#include "daemon/log_format.h"
#include "daemon/log_rate.h"
#include "daemon/msgid.h"
#include "ipc/base.h"
#include "tests/unit/suite.h"

static char captured[32768];
static int saved_stderr;
static FILE *file;

static void capture_begin(void)
{
	file = tmpfile();
	ck_assert_ptr_nonnull(file);
	saved_stderr = dup(STDERR_FILENO);
	ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
}

static const char *capture_end(void)
{
	ssize_t n;

	ck_assert_int_ge(dup2(saved_stderr, STDERR_FILENO), 0);
	close(saved_stderr);
	n = pread(fileno(file), captured, sizeof(captured) - 1, 0);
	ck_assert_int_ge(n, 0);
	captured[n] = '\0';
	fclose(file);
	return captured;
}

START_TEST(plain_lines)
{
	ck_assert_int_eq(log_open(LOG_TARGET_STDERR, LOG_INFO), LOG_TARGET_STDERR);
	capture_begin();
	errno = EDOM;
	log_error("model %s is bad", "x.gguf");
	log_debug("not shown");
	log_errno(LOG_WARNING, -ENOENT, "%s", "/etc/kvd");
	log_errno(LOG_WARNING, ENOENT, "%s", "/etc/kvd");
	log_event(LOG_NOTICE,
		  LOG_FIELDS(.client_id = 3, .request_id = 9, .uid = 0, .has_uid = true,
			     .detail = "a\"\n\xff", .detail_len = 4),
		  "client sent rubbish");
	log_info("two\nlines \x1b[31m \xc3\xa4 \xc2\x9b \xed\xa0\x80 \\n");
	ck_assert_int_eq(errno, EDOM);
	ck_assert_str_eq(capture_end(),
			 "kvd: error: model x.gguf is bad\n"
			 "kvd: warning: /etc/kvd: No such file or directory\n"
			 "kvd: warning: /etc/kvd: No such file or directory\n"
			 "kvd: notice: client sent rubbish (client 3, request 9, uid 0): "
			 "\"a\"\\x0a\\xff\"\n"
			 "kvd: info: two\\x0alines \\x1b[31m \xc3\xa4 \\xc2\\x9b "
			 "\\xed\\xa0\\x80 \\n\n");
}
END_TEST

/* Values are expressions: the macro must not evaluate them when nothing is written. */
START_TEST(levels)
{
	int n = 0;

	log_open(LOG_TARGET_STDERR, LOG_ERR);
	capture_begin();
	log_warning("%d", ++n);
	log_error("%d", ++n);
	ck_assert_str_eq(capture_end(), "kvd: error: 1\n");
	ck_assert(log_enabled(LOG_ERR));
	ck_assert(!log_enabled(LOG_WARNING));
}
END_TEST

START_TEST(json_lines)
{
	static const struct timespec now = {.tv_sec = 951827696, .tv_nsec = 123456789};
	char buf[LOG_LINE_MAX];
	struct log_entry entry = {
		.level = LOG_WARNING,
		.fields = LOG_FIELDS(.message_id = MSGID_CLIENT_PROTOCOL,
				     .client_id = UINT64_MAX, .request_id = 1,
				     .uid = 1000, .has_uid = true, .error = -EACCES),
		.file = "../daemon/x.c",
		.func = "f",
		.line = 12,
		.message = "he said \"no\" \\x00",
		.detail = "a\\\\b",
	};

	log_format_json(buf, &entry, &now);
	ck_assert_str_eq(
		buf, "{\"time\":\"2000-02-29T12:34:56.123456Z\",\"priority\":4,"
		     "\"level\":\"warning\",\"message\":\"he said \\\"no\\\" \\\\x00\","
		     "\"message_id\":\"" MSGID_CLIENT_PROTOCOL "\","
		     "\"kvd_client\":18446744073709551615,\"kvd_request\":1,"
		     "\"kvd_uid\":1000,\"kvd_errno\":13,\"error\":\"Permission "
		     "denied\",\"kvd_detail\":\"a\\\\\\\\b\","
		     "\"code_file\":\"daemon/x.c\",\"code_line\":12,"
		     "\"code_func\":\"f\"}\n");
	log_open(LOG_TARGET_JSON, LOG_INFO);
	capture_begin();
	log_info("x");
	ck_assert_ptr_nonnull(strstr(capture_end(), "\"message\":\"x\",\"code_file\":"));
}
END_TEST

/* The largest entry there can be still is one whole line. */
START_TEST(nothing_is_too_long)
{
	static char text[5000];
	char *brace;

	memset(text, '\n', sizeof(text) - 1);
	for (int target = LOG_TARGET_STDERR; target <= LOG_TARGET_JSON; target++) {
		log_open((enum log_target)target, LOG_INFO);
		capture_begin();
		log_event(LOG_INFO, LOG_FIELDS(.detail = text, .detail_len = 4999), "%s",
			  text);
		capture_end();
		ck_assert_uint_gt(strlen(captured), 4096);
		ck_assert_ptr_eq(strchr(captured, '\n'), captured + strlen(captured) - 1);
	}
	brace = strstr(captured, "\"code_func\":\"");
	ck_assert_ptr_nonnull(brace);
	ck_assert_ptr_nonnull(strstr(brace, "\"}\n"));
}
END_TEST

START_TEST(escape_cuts_between_characters)
{
	char buf[12];

	ck_assert_uint_eq(escape_bytes(buf, sizeof(buf), "abcdefghijk", 11), 11);
	ck_assert_str_eq(buf, "abcdefghijk");
	ck_assert_uint_eq(escape_bytes(buf, sizeof(buf), "abcdefghijkl", 12), 11);
	ck_assert_str_eq(buf, "abcdefgh...");
	escape_bytes(buf, sizeof(buf), "\n\n\n\n", 4);
	ck_assert_str_eq(buf, "\\x0a\\x0a...");
	escape_controls(buf, sizeof(buf), "1234567\xc3\xa4\xc3\xa4\xc3\xa4", 13);
	ck_assert_str_eq(buf, "1234567...");
	ck_assert_uint_eq(escape_bytes(buf, 1, "abc", 3), 0);
	ck_assert_str_eq(buf, "");
	escape_bytes(buf, 3, "abc", 3);
	ck_assert_str_eq(buf, "..");
	escape_bytes(buf, sizeof(buf), "a\0b", 3);
	ck_assert_str_eq(buf, "a\\x00b");
}
END_TEST

START_TEST(message_ids)
{
#define ROW(name, what) {MSGID_##name, #name},
	static const struct {
		const char *id, *name;
	} ids[] = {KVD_MESSAGE_IDS(ROW)};
#undef ROW
	size_t n = KVD_ARRAY_LEN(ids);

	for (size_t i = 0; i < n; i++) {
		ck_assert_uint_eq(strlen(ids[i].id), 32);
		ck_assert_uint_eq(strspn(ids[i].id, "0123456789abcdef"), 32);
		for (size_t j = 0; j < i; j++)
			ck_assert_msg(strcmp(ids[i].id, ids[j].id) != 0, "%s and %s",
				      ids[i].name, ids[j].name);
	}
}
END_TEST

/* The rate limit, by a clock of our own. */

START_TEST(rate_of_one_uid)
{
	struct log_rate rate = {.interval_ns = 1000, .burst = 10};
	struct log_rate_note note;
	unsigned int n = 0;

	for (int i = 0; i < 50; i++)
		n += log_rate_take(&rate, 5, 0, &note);
	ck_assert_uint_eq(n, 10);
	/* Another uid has its own bucket. */
	ck_assert(log_rate_take(&rate, 6, 0, &note));
	ck_assert_uint_eq(note.n_suppressed, 0);
	/* A tenth of the interval pays for one entry, which brings the note along. */
	ck_assert(!log_rate_take(&rate, 5, 99, &note));
	ck_assert(log_rate_take(&rate, 5, 100, &note));
	ck_assert_uint_eq(note.uid, 5);
	ck_assert_uint_eq(note.n_suppressed, 41);
	ck_assert(!log_rate_take(&rate, 5, 199, &note));
	/* A long silence fills the bucket once, not more. */
	n = 0;
	for (int i = 0; i < 50; i++)
		n += log_rate_take(&rate, 5, UINT64_MAX, &note);
	ck_assert_uint_eq(n, 10);
	ck_assert(log_rate_drain(&rate, &note));
	ck_assert_uint_eq(note.n_suppressed, 40);
	ck_assert(!log_rate_drain(&rate, &note));
}
END_TEST

START_TEST(rate_of_many_uids)
{
	struct log_rate rate = {.interval_ns = 1000, .burst = 1};
	struct log_rate_note note;
	uint64_t n_noted = 0, n_passed = 0, n_many = 0;

	/* Who finds no bucket shares one: each of the first passes once, of the rest one. */
	for (unsigned int turn = 0; turn < 2; turn++)
		for (unsigned int uid = 0; uid < 3 * LOG_RATE_UIDS; uid++) {
			n_passed += log_rate_take(&rate, uid,
						  turn * 3 * LOG_RATE_UIDS + uid, &note);
			n_noted += note.n_suppressed;
		}
	ck_assert_uint_eq(n_passed, LOG_RATE_UIDS + 1);
	ck_assert_uint_eq(n_noted, 0);
	/* A full bucket is given to another one, with what is owed about the uid before. */
	ck_assert(log_rate_take(&rate, 1000, 1000, &note));
	ck_assert_uint_eq(note.uid, 0);
	ck_assert(!note.many);
	n_passed++;
	n_noted += note.n_suppressed;
	while (log_rate_drain(&rate, &note)) {
		n_many += note.many;
		n_noted += note.n_suppressed;
	}
	/* Nothing that was left out is forgotten. */
	ck_assert_uint_eq(n_many, 1);
	ck_assert_uint_eq(n_passed + n_noted, 6 * LOG_RATE_UIDS + 1);
}
END_TEST

START_TEST(rate_switched_off)
{
	struct log_rate rate = {.interval_ns = 0, .burst = 1};
	struct log_rate_note note;

	for (int i = 0; i < 1000; i++)
		ck_assert(log_rate_take(&rate, 1, 0, &note));
}
END_TEST

START_TEST(suppressed_is_noted)
{
	log_open(LOG_TARGET_STDERR, LOG_INFO);
	log_set_rate_limit(UINT64_C(3600000000000), 2);
	capture_begin();
	for (int i = 0; i < 5; i++)
		log_event(LOG_INFO, LOG_FIELDS(.uid = 7, .has_uid = true), "n%d", i);
	log_info("about nobody");
	log_close();
	log_close();
	ck_assert_str_eq(capture_end(), "kvd: info: n0 (uid 7)\n"
					"kvd: info: n1 (uid 7)\n"
					"kvd: info: about nobody\n"
					"kvd: warning: suppressed 3 messages (uid 7)\n");
}
END_TEST

/* A reader that never reads: nothing waits, what is lost is counted, and flags of an open file
 * description that others share stay as they are. */
static void lose(int fd, int other)
{
	int n = 0, saved = dup(STDERR_FILENO);
	size_t len = 0;
	ssize_t got;
	char *at;

	ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
	log_open(LOG_TARGET_STDERR, LOG_INFO);
	/* Enough for a pipe of 64 KiB and for what a socket holds. */
	for (int i = 0; i < 3000; i++)
		log_info("%0200d", i);
	ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
	close(saved);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	ck_assert_int_ge(fcntl(other, F_SETFL, O_NONBLOCK), 0);
	while ((got = read(other, captured, sizeof(captured))) > 0)
		for (ssize_t i = 0; i < got; i++)
			n += captured[i] == '\n';
	ck_assert_int_gt(n, 10);
	ck_assert_int_lt(n, 3000);
	saved = dup(STDERR_FILENO);
	ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
	log_catch_up();
	log_catch_up();
	log_info("again");
	ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
	close(saved);
	while (len < sizeof(captured) - 1 &&
	       (got = read(other, captured + len, sizeof(captured) - 1 - len)) > 0)
		len += (size_t)got;
	captured[len] = '\0';
	at = captured + (*captured == '\n'); /* ends a line that was cut */
	ck_assert_ptr_eq(strstr(at, "kvd: warning: "), at);
	/* A cut line is one of those that were lost, and was counted above if it has an end. */
	ck_assert_int_le(abs(3000 - n - atoi(at + strlen("kvd: warning: "))), 1);
	ck_assert_ptr_nonnull(strstr(at,
				     " messages were lost here: the log took no more\n"
				     "kvd: info: again\n"));
	close(fd);
	close(other);
}

START_TEST(pipe_that_nobody_reads)
{
	int fds[2];

	ck_assert_int_eq(pipe(fds), 0);
	lose(fds[1], fds[0]);
}
END_TEST

/* As a service manager connects standard error with its log. */
START_TEST(socket_that_nobody_reads)
{
	int fds[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	lose(fds[1], fds[0]);
}
END_TEST

/* Where /proc/self/fd cannot be opened, as for a pipe of another user. */
START_TEST(pipe_that_cannot_be_opened_again)
{
	int status, fds[2];
	pid_t pid;

	ck_assert_int_eq(pipe(fds), 0);
	ck_assert_int_eq(fchmod(fds[1], 0), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (getuid() == 0 && (setgid(65534) || setuid(65534)))
			_exit(1);
		lose(fds[1], fds[0]);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	close(fds[0]);
	close(fds[1]);
}
END_TEST

/* The journal, played by a socket of our own in a mount namespace. */

static int journal_bind(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX,
				   .sun_path = "/run/systemd/journal/socket"};
	int fd;

	if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		return -1;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("kvd-test", "/run", "tmpfs", 0, NULL) < 0)
		return -1;
	if (log_open(LOG_TARGET_JOURNAL, LOG_INFO) != LOG_TARGET_STDERR)
		_exit(10);
	if (mkdir("/run/systemd", 0755) < 0 || mkdir("/run/systemd/journal", 0755) < 0)
		return -1;
	fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	return fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 ? fd : -1;
}

static bool has_line(const char *entry, const char *line)
{
	const char *at = strstr(entry, line);

	return at && (at == entry || at[-1] == '\n') && at[strlen(line)] == '\n';
}

static int journal_child(void)
{
	char entry[8192];
	int fd = journal_bind();
	struct stat st;
	ssize_t n;

	if (fd < 0)
		return 77;
	if (log_open(LOG_TARGET_JOURNAL, LOG_INFO) != LOG_TARGET_JOURNAL)
		return 1;
	log_event(LOG_WARNING,
		  LOG_FIELDS(.message_id = MSGID_CLIENT_PROTOCOL, .client_id = 4,
			     .request_id = 5, .uid = 1000, .has_uid = true,
			     .error = -EPROTO, .detail = "x\ny", .detail_len = 3),
		  "bad packet");
	n = recv(fd, entry, sizeof(entry) - 1, MSG_DONTWAIT);
	if (n < 0)
		return 2;
	entry[n] = '\0';
	if (!has_line(entry, "MESSAGE=bad packet: Protocol error") ||
	    !has_line(entry, "PRIORITY=4") || !has_line(entry, "SYSLOG_IDENTIFIER=kvd") ||
	    !has_line(entry, "MESSAGE_ID=" MSGID_CLIENT_PROTOCOL) ||
	    !has_line(entry, "KVD_CLIENT=4") || !has_line(entry, "KVD_REQUEST=5") ||
	    !has_line(entry, "KVD_UID=1000") || !has_line(entry, "KVD_ERRNO=71") ||
	    !has_line(entry, "KVD_DETAIL=x\\x0ay") ||
	    !has_line(entry, "CODE_FUNC=journal_child") ||
	    !has_line(entry, "CODE_FILE=tests/unit/daemon/test_log.c"))
		return 3;
	/* It does not read: nothing waits. */
	for (int i = 0; i < 1000; i++)
		log_info("%d", i);
	for (int i = 0; recv(fd, entry, sizeof(entry), MSG_DONTWAIT) > 0; i++)
		if (i > 999)
			return 7;
	log_info("again");
	n = recv(fd, entry, sizeof(entry) - 1, MSG_DONTWAIT);
	if (n < 0)
		return 8;
	entry[n] = '\0';
	if (!strstr(entry, " messages were lost here") ||
	    !has_line(entry, "MESSAGE_ID=" MSGID_LOG_LOST))
		return 9;
	/* AUTO: the journal exactly if standard error is the stream that was handed over. */
	if (fstat(STDERR_FILENO, &st) < 0)
		return 4;
	snprintf(entry, sizeof(entry), "%ju:%ju", (uintmax_t)st.st_dev,
		 (uintmax_t)st.st_ino);
	setenv("JOURNAL_STREAM", entry, 1);
	if (log_open(LOG_TARGET_AUTO, LOG_INFO) != LOG_TARGET_JOURNAL)
		return 5;
	snprintf(entry, sizeof(entry), "%ju:%ju", (uintmax_t)st.st_dev,
		 (uintmax_t)st.st_ino + 1);
	setenv("JOURNAL_STREAM", entry, 1);
	if (log_open(LOG_TARGET_AUTO, LOG_INFO) != LOG_TARGET_STDERR)
		return 6;
	return 0;
}

START_TEST(journal_fields)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(journal_child());
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		printf("journal_fields: no mount namespace here, not tested\n");
	else
		ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

/* The same trouble is one line in 30 s, another one is a line at once. */
START_TEST(lasting_trouble)
{
	const uint64_t start = 5, later = start + UINT64_C(30000000000);
	struct log_last last = {0};

	ck_assert(log_due(&last, -EIO, start));
	ck_assert(!log_due(&last, -EIO, start));
	ck_assert(!log_due(&last, -EIO, later - 1));
	/* what was not logged does not put the next line off */
	ck_assert(log_due(&last, -EIO, later));
	ck_assert(log_due(&last, -ENOMEM, later));
	ck_assert(log_due(&last, -EIO, later));
	ck_assert(!log_due(&last, -EIO, later));
	last = (struct log_last){0};
	ck_assert(log_due(&last, -EIO, later));
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("log");

	tcase_add_test(tcase, plain_lines);
	tcase_add_test(tcase, levels);
	tcase_add_test(tcase, json_lines);
	tcase_add_test(tcase, nothing_is_too_long);
	tcase_add_test(tcase, pipe_that_nobody_reads);
	tcase_add_test(tcase, socket_that_nobody_reads);
	tcase_add_test(tcase, pipe_that_cannot_be_opened_again);
	tcase_add_test(tcase, escape_cuts_between_characters);
	tcase_add_test(tcase, message_ids);
	tcase_add_test(tcase, rate_of_one_uid);
	tcase_add_test(tcase, rate_of_many_uids);
	tcase_add_test(tcase, rate_switched_off);
	tcase_add_test(tcase, suppressed_is_noted);
	tcase_add_test(tcase, lasting_trouble);
	tcase_add_test(tcase, journal_fields);
	return run_case("log", tcase);
}
