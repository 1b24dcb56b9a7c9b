/* SPDX-License-Identifier: MIT */
/* Which files are read, and in which order, in a root of our own. */
#include "daemon/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "tests/unit/suite.h"

static struct config config;
static struct config_report report;
static char root[64];
static char said[4096];

static void collect(struct config_report *r, const char *text)
{
	ck_assert_uint_lt(strlen(said) + strlen(text) + 2, sizeof(said));
	strcat(said, text);
	strcat(said, "\n");
}

static void setup(void)
{
	said[0] = '\0';
	report = (struct config_report){.fn = collect};
	ck_assert_int_eq(config_init(&config), 0);
	strcpy(root, "/tmp/kvd-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void teardown(void)
{
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	config_deinit(&config);
}

static const char *in_root(const char *path)
{
	static char full[512];

	snprintf(full, sizeof(full), "%s%s", root, path);
	return full;
}

static void make_folders(const char *path)
{
	char full[512];

	strcpy(full, in_root(path));
	for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		ck_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
		*p = '/';
	}
}

static void put(const char *path, const char *text)
{
	FILE *file;

	make_folders(path);
	file = fopen(in_root(path), "w");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
}

static int load(const char *file)
{
	return config_load(&config, root, file, &report);
}

START_TEST(no_file_at_all)
{
	ck_assert_int_eq(load(NULL), 0);
	ck_assert_uint_eq(config.daemon.spin_us, 50);
	ck_assert_int_eq(load("/nonexistent/kvd.conf"), 1);
	ck_assert_str_eq(
		said,
		"/nonexistent/kvd.conf: cannot be read: No such file or directory\n");
}
END_TEST

/* Takes away the strongest file one after the other. */
START_TEST(folder_precedence)
{
	static const char *const folders[] = {"/etc/kvd", "/run/kvd",
					      "/usr/local/lib/kvd", "/usr/lib/kvd"};
	char path[256], text[256];

	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/kvd.conf", folders[i]);
		snprintf(text, sizeof(text), "[daemon]\nspin_us = %d\n", 10 + i);
		put(path, text);
		snprintf(path, sizeof(path), "%s/kvd.conf.d/50-a.conf", folders[i]);
		snprintf(text, sizeof(text), "[daemon]\nmax_clients = %d\n", 10 + i);
		put(path, text);
	}
	for (unsigned int i = 0; i < 4; i++) {
		ck_assert_int_eq(load(NULL), 0);
		ck_assert_uint_eq(config.daemon.spin_us, 10 + i);
		ck_assert_uint_eq(config.daemon.max_clients, 10 + i);
		snprintf(path, sizeof(path), "%s/kvd.conf", folders[i]);
		ck_assert_int_eq(unlink(in_root(path)), 0);
		snprintf(path, sizeof(path), "%s/kvd.conf.d/50-a.conf", folders[i]);
		ck_assert_int_eq(unlink(in_root(path)), 0);
	}
}
END_TEST

START_TEST(drop_ins_in_order_of_name)
{
	put("/etc/kvd/kvd.conf", "[daemon]\nspin_us = 1\nmax_clients = 1\n");
	/* The folder does not matter, the name does. */
	put("/etc/kvd/kvd.conf.d/20-b.conf", "[daemon]\nspin_us = 2\nmax_clients = 2\n");
	put("/usr/lib/kvd/kvd.conf.d/30-c.conf", "[daemon]\nspin_us = 3\n");
	put("/run/kvd/kvd.conf.d/10-a.conf", "[daemon]\nspin_us = 4\nmax_clients = 4\n"
					     "log_rate_burst = 4\n");
	put("/etc/kvd/kvd.conf.d/99-not", "[daemon]\nspin_us = 5\n");
	put("/etc/kvd/kvd.conf.d/.99-hidden.conf", "[daemon]\nspin_us = 6\n");
	ck_assert_int_eq(load(NULL), 0);
	ck_assert_uint_eq(config.daemon.spin_us, 3);
	ck_assert_uint_eq(config.daemon.max_clients, 2);
	ck_assert_uint_eq(config.daemon.log_rate_burst, 4);
}
END_TEST

START_TEST(link_to_dev_null_masks)
{
	put("/usr/lib/kvd/kvd.conf.d/50-x.conf", "[daemon]\nspin_us = 3\n");
	make_folders("/etc/kvd/kvd.conf.d/50-x.conf");
	ck_assert_int_eq(symlink("/dev/null", in_root("/etc/kvd/kvd.conf.d/50-x.conf")),
			 0);
	put("/usr/lib/kvd/kvd.conf", "[daemon]\nspin_us = 4\n");
	put("/etc/kvd/kvd.conf", "");
	ck_assert_int_eq(load(NULL), 0);
	ck_assert_uint_eq(config.daemon.spin_us, 50);
}
END_TEST

START_TEST(explicit_file_stands_alone)
{
	put("/etc/kvd/kvd.conf", "[daemon]\nspin_us = 1\n");
	put("/etc/kvd/kvd.conf.d/50-x.conf", "[daemon]\nmax_clients = 1\n");
	put("/my.conf", "[daemon]\nspin_us = 2\n");
	put("/my.conf.d/50-y.conf", "[daemon]\nlog_rate_burst = 2\n");
	ck_assert_int_eq(load(in_root("/my.conf")), 0);
	ck_assert_uint_eq(config.daemon.spin_us, 2);
	ck_assert_uint_eq(config.daemon.max_clients, 1024);
	ck_assert_uint_eq(config.daemon.log_rate_burst, 2);
}
END_TEST

/* Every file's mistakes are reported, not only those of the first. */
START_TEST(mistakes_of_all_files)
{
	char expected[1024];

	put("/etc/kvd/kvd.conf", "[daemon]\nspin_us = a lot\n");
	put("/run/kvd/kvd.conf.d/1.conf", "\n[daemn]\n");
	make_folders("/etc/kvd/kvd.conf.d/2.conf/x");
	ck_assert_int_eq(load(NULL), 1);
	snprintf(expected, sizeof(expected),
		 "%s/etc/kvd/kvd.conf:2: [daemon] spin_us: \"a lot\" is not a number\n"
		 "%s/run/kvd/kvd.conf.d/1.conf:2: [daemn]: unknown section; did you mean "
		 "[daemon]?\n"
		 "%s/etc/kvd/kvd.conf.d/2.conf: cannot be read: Is a directory\n",
		 root, root, root);
	ck_assert_str_eq(said, expected);
}
END_TEST

START_TEST(files_that_are_none)
{
	char *big = malloc(CONFIG_FILE_MAX + 2);

	ck_assert_ptr_nonnull(big);
	/* A FIFO without a writer must not hold up the start. */
	ck_assert_int_eq(mkfifo(in_root("/fifo"), 0600), 0);
	ck_assert_int_eq(config_load_file(&config, in_root("/fifo"), &report), 1);
	memset(big, '\n', CONFIG_FILE_MAX + 1);
	big[CONFIG_FILE_MAX + 1] = '\0';
	put("/big.conf", big);
	ck_assert_int_eq(config_load_file(&config, in_root("/big.conf"), &report), 1);
	ck_assert_ptr_nonnull(strstr(said, "/fifo: cannot be read: Invalid argument\n"));
	ck_assert_ptr_nonnull(
		strstr(said, "/big.conf: cannot be read: File too large\n"));
	free(big);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("config-file");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, no_file_at_all);
	tcase_add_test(tcase, folder_precedence);
	tcase_add_test(tcase, drop_ins_in_order_of_name);
	tcase_add_test(tcase, link_to_dev_null_masks);
	tcase_add_test(tcase, explicit_file_stands_alone);
	tcase_add_test(tcase, mistakes_of_all_files);
	tcase_add_test(tcase, files_that_are_none);
	return run_case("config-file", tcase);
}
