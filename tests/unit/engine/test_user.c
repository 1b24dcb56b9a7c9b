/* SPDX-License-Identifier: MIT */
/* Which domain a uid belongs to, and what its limits are. */
#include "daemon/user.h"

#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/proto_admin.h>

#include "daemon/config.h"
#include "tests/unit/failing_alloc.h"
#include "tests/unit/suite.h"

static struct config config;
static struct users users;
static char error[256];
static struct config_report report;
static int pair[2];

static void no_mistake(struct config_report *r, const char *text)
{
	ck_abort_msg("%s", text);
}

/* The last line; report.n_errors says how many there were. */
static void keep_line(struct config_report *r, const char *text)
{
	snprintf(error, sizeof(error), "%s", text);
}

static void set(const char *section, const char *key, const char *value)
{
	struct config_report none = {.fn = no_mistake};

	ck_assert_int_eq(config_set(&config, "test", section, key, value, &none), 0);
}

static void setup(void)
{
	report = (struct config_report){.fn = keep_line};
	ck_assert_int_eq(config_init(&config), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
}

static void teardown(void)
{
	users_deinit(&users);
	config_deinit(&config);
	close(pair[0]);
	close(pair[1]);
}

static struct user *connect_uid(uid_t uid, gid_t gid)
{
	struct user *user;

	ck_assert_int_eq(user_connect(&users, pair[0], uid, gid, false, &user), 0);
	return user;
}

/* Names that cannot be resolved are counted, and no reason to fail. */
static unsigned mistakes(void)
{
	report.n_errors = 0;
	ck_assert_int_eq(users_init(&users, &config, &report), 0);
	return report.n_errors;
}

START_TEST(each_uid_is_a_domain_without_others)
{
	struct user *user;
	uint32_t domain;
	char text[64];

	ck_assert_int_eq(users_init(&users, &config, &report), 0);
	user = connect_uid(1000, 100);
	ck_assert_uint_eq(user->domain, 1000);
	ck_assert_ptr_null(user->domain_name);
	ck_assert_ptr_eq(connect_uid(1000, 100), user);
	ck_assert_uint_eq(user->n_connections, 2);
	user_disconnect(&users, user);
	user_disconnect(&users, user);
	ck_assert_ptr_null(users.list);
	ck_assert_int_eq(
		user_connect(&users, pair[0], USER_DOMAIN_NAMED, 1, false, &user),
		-EPERM);
	ck_assert(users_parse_domain(&users, "uid:42", &domain));
	ck_assert_uint_eq(domain, 42);
	ck_assert(!users_parse_domain(&users, "42", &domain));
	ck_assert(!users_parse_domain(&users, "uid:", &domain));
	ck_assert(!users_parse_domain(&users, "uid:4x", &domain));
	ck_assert(!users_parse_domain(&users, "uid:4294901760", &domain));
	ck_assert(!users_parse_domain(&users, "uid:99999999999999999999", &domain));
	users_print_domain(&users, 7, text, sizeof(text));
	ck_assert_str_eq(text, "uid:7");
}
END_TEST

START_TEST(members_share_a_domain)
{
	struct user_charge charge = {0}, other = {0};
	struct user *a, *b, *c, *d;
	uint32_t domain;
	char text[64];

	set("quota", "max_blocks", "500");
	set("quota", "max_arena", "8K");
	set("domain lab", "users", "1001, root");
	set("domain lab", "groups", "2000 2001");
	set("domain lab", "max_blocks", "10");
	set("domain lab", "guaranteed_blocks", "4");
	set("domain lab", "max_running", "3");
	set("domain lab", "max_running", "");
	set("domain lab", "max_waiting", "5");
	set("domain lab", "max_connections", "2");
	set("domain other", "groups", "root");
	ck_assert_int_eq(users_init(&users, &config, &report), 0);
	a = connect_uid(1001, 100);
	b = connect_uid(1002, 2001);
	c = connect_uid(0, 5);
	d = connect_uid(1003, 0);
	ck_assert_str_eq(a->domain_name, "lab");
	ck_assert_uint_ge(a->domain, USER_DOMAIN_NAMED);
	ck_assert_uint_eq(a->domain, b->domain);
	ck_assert_uint_eq(a->domain, c->domain);
	ck_assert_str_eq(d->domain_name, "other");
	ck_assert_uint_ne(a->domain, d->domain);
	ck_assert_uint_eq(a->quota.max_blocks, 10);
	ck_assert_uint_eq(a->quota.min_blocks, 4);
	/* a quarter of max_num_seqs, which is 128 */
	ck_assert_uint_eq(a->quota.max_running, 32);
	ck_assert_uint_eq(a->quota.max_waiting, 5);
	ck_assert_uint_eq(d->quota.max_blocks, 500);
	ck_assert(users_parse_domain(&users, "lab", &domain));
	ck_assert_uint_eq(domain, a->domain);
	users_print_domain(&users, domain, text, sizeof(text));
	ck_assert_str_eq(text, "lab");
	/* the limits are each user's own */
	ck_assert_int_eq(user_connect(&users, pair[0], 1001, 1, false, &a), 0);
	ck_assert_int_eq(user_connect(&users, pair[0], 1001, 1, false, &a), -EDQUOT);
	/* an administrator gets in, is counted, and makes no room by leaving */
	ck_assert_int_eq(user_connect(&users, pair[0], 1001, 1, true, &a), 0);
	ck_assert_int_eq(user_connect(&users, pair[0], 1001, 1, false, &a), -EDQUOT);
	user_disconnect(&users, a);
	ck_assert_int_eq(user_connect(&users, pair[0], 1001, 1, false, &a), -EDQUOT);
	ck_assert_int_eq(user_charge(&charge, b, USER_BYTES, 8000), 0);
	ck_assert_int_eq(user_charge(&charge, b, USER_BYTES, 8000), -EDQUOT);
	ck_assert_uint_eq(charge.amount[USER_BYTES], 8000);
	ck_assert_int_eq(user_charge(&other, a, USER_BYTES, 8192), 0);
	b->max[USER_BYTES] = 100;
	ck_assert_int_eq(user_charge(&charge, b, USER_BYTES, 1), -EDQUOT);
	b->max[USER_BYTES] = 0;
	ck_assert_int_eq(user_charge(&charge, b, USER_BYTES, 1 << 20), 0);
	ck_assert_uint_eq(b->used[USER_BYTES], 8000 + (1 << 20));
	user_charge_deinit(&charge);
	user_charge_deinit(&charge);
	ck_assert_uint_eq(b->used[USER_BYTES], 0);
	user_charge_deinit(&other);
	/* what an administrator set stays, and the rest is the domain's */
	b->set = KVD_QUOTA_BLOCKS;
	b->quota.max_blocks = 77;
	user_disconnect(&users, b);
	b = connect_uid(1002, 2001);
	ck_assert_uint_eq(b->quota.max_blocks, 77);
	ck_assert_uint_eq(b->max[USER_BYTES], 8192);
}
END_TEST

/* Each limit comes from the administrator, else the domain, else [quota], else [daemon]. */
START_TEST(the_nearest_limit_counts)
{
	static const char *const keys[] = {"guaranteed_blocks", "max_blocks",
					   "max_running",       "max_waiting",
					   "max_connections",   "max_arena"};
	struct user *user;

	for (unsigned i = 0; i < 6; i++) {
		set("quota", keys[i], "7");
		if (i % 2)
			set("domain lab", keys[i], "70");
	}
	set("domain lab", "users", "1001");
	set("domain more", "guaranteed_blocks", "71");
	set("domain more", "max_running", "72");
	set("domain more", "max_connections", "73");
	set("domain more", "max_arena", "74");
	set("domain more", "users", "1002");
	ck_assert_int_eq(users_init(&users, &config, &report), 0);
	user = connect_uid(1001, 1);
	ck_assert_uint_eq(user->quota.min_blocks, 7);
	ck_assert_uint_eq(user->quota.max_blocks, 70);
	ck_assert_uint_eq(user->quota.max_running, 7);
	ck_assert_uint_eq(user->quota.max_waiting, 70);
	ck_assert_uint_eq(user->max_connections, 7);
	ck_assert_uint_eq(user->max[USER_BYTES], 70);
	user = connect_uid(1002, 1);
	ck_assert_uint_eq(user->quota.min_blocks, 71);
	ck_assert_uint_eq(user->quota.max_running, 72);
	ck_assert_uint_eq(user->max_connections, 73);
	ck_assert_uint_eq(user->max[USER_BYTES], 74);
	user_disconnect(&users, user);
	/* all of them set by hand, before the user comes */
	user = users_get(&users, 1002);
	ck_assert_ptr_nonnull(user);
	user->set = KVD_QUOTA_ALL;
	user->quota = (struct sched_quota){1, 2, 3, 4};
	user->max_connections = 5;
	user->max[USER_BYTES] = 6;
	ck_assert_ptr_eq(connect_uid(1002, 1), user);
	ck_assert_uint_eq(user->quota.min_blocks, 1);
	ck_assert_uint_eq(user->quota.max_blocks, 2);
	ck_assert_uint_eq(user->quota.max_running, 3);
	ck_assert_uint_eq(user->quota.max_waiting, 4);
	ck_assert_uint_eq(user->max_connections, 5);
	ck_assert_uint_eq(user->max[USER_BYTES], 6);
	/* who was given limits stays in the list, which rises */
	user_disconnect(&users, user);
	ck_assert_uint_eq(users.list->uid, 1001);
	ck_assert_ptr_eq(users.list->next, user);
	ck_assert_ptr_eq(users_get(&users, 1002), user);
	(void)connect_uid(3, 1);
	ck_assert_uint_eq(users.list->uid, 3);
}
END_TEST

/* Charges add up to what the user has, wherever they go along to. */
START_TEST(charges_end_with_what_they_are_for)
{
	struct user_charge a = {0}, b = {0}, kept;
	struct user *user;

	ck_assert_uint_eq(mistakes(), 0);
	user = connect_uid(1000, 1);
	user->max[USER_BYTES] = 100;
	ck_assert_int_eq(user_charge(&a, user, USER_BYTES, 60), 0);
	ck_assert_int_eq(user_charge(&b, user, USER_BYTES, 41), -EDQUOT);
	ck_assert_ptr_null(b.user);
	ck_assert_int_eq(user_charge(&b, user, USER_BYTES, 40), 0);
	user_charge_shrink(&a, USER_BYTES, 10);
	ck_assert_uint_eq(user->used[USER_BYTES], 50);
	kept = user_charge_take(&a);
	user_charge_deinit(&a);
	ck_assert_uint_eq(user->used[USER_BYTES], 50);
	user_charge_deinit(&b);
	ck_assert_uint_eq(user->used[USER_BYTES], 10);
	user_charge_deinit(&kept);
	ck_assert_uint_eq(user->used[USER_BYTES], 0);
	/* beyond what the counter holds is beyond any limit */
	ck_assert_int_eq(user_charge(&a, user, USER_BYTES, UINT64_MAX), -EDQUOT);
	user_disconnect(&users, user);
}
END_TEST

/* What a reload changes holds for those who are connected; what was set by hand stays. */
START_TEST(limits_follow_a_reload)
{
	struct user *plain, *member, *by_hand;

	set("domain lab", "users", "1001");
	set("domain lab", "max_blocks", "5");
	ck_assert_uint_eq(mistakes(), 0);
	plain = connect_uid(1000, 1);
	member = connect_uid(1001, 1);
	by_hand = connect_uid(1002, 1);
	by_hand->set = KVD_QUOTA_CONNECTIONS;
	by_hand->max_connections = 9;
	set("daemon", "max_clients_per_uid", "3");
	set("quota", "max_running", "4");
	set("quota", "max_arena", "1M");
	set("domain lab", "max_blocks", "6");
	users_reload(&users);
	ck_assert_uint_eq(plain->max_connections, 3);
	ck_assert_uint_eq(plain->quota.max_running, 4);
	ck_assert_uint_eq(plain->quota.max_blocks, 0);
	ck_assert_uint_eq(plain->max[USER_BYTES], 1 << 20);
	ck_assert_uint_eq(member->quota.max_blocks, 6);
	ck_assert_str_eq(member->domain_name, "lab");
	ck_assert_uint_eq(by_hand->max_connections, 9);
	ck_assert_uint_eq(by_hand->quota.max_running, 4);
	/* it lets the next one in, or keeps it out */
	(void)connect_uid(1000, 1);
	(void)connect_uid(1000, 1);
	ck_assert_int_eq(user_connect(&users, pair[0], 1000, 1, false, &plain), -EDQUOT);
}
END_TEST

START_TEST(names_of_domains)
{
	uint32_t domain;
	char text[64];

	set("domain lab", "users", "1001");
	ck_assert_int_eq(users_init(&users, &config, &report), 0);
	ck_assert(users_parse_domain(&users, "public", &domain));
	ck_assert_uint_eq(domain, PREFIX_DOMAIN_PUBLIC);
	users_print_domain(&users, domain, text, sizeof(text));
	ck_assert_str_eq(text, "public");
	ck_assert(!users_parse_domain(&users, "labs", &domain));
	ck_assert(!users_parse_domain(&users, "uid:/", &domain));
	ck_assert(!users_parse_domain(&users, "uid::", &domain));
	users_print_domain(&users, 5, text, sizeof(text));
	ck_assert_str_eq(text, "uid:5");
	users_deinit(&users);
	set("domain lab", "users", "1001 4294901760");
	ck_assert_int_eq(mistakes(), 1);
	users_deinit(&users);
	set("domain lab", "users", "1001 root:");
	ck_assert_int_eq(mistakes(), 1);
	users_deinit(&users);
	set("domain lab", "users", "1001");
	set("domain public", "users", "1002");
	ck_assert_int_eq(users_init(&users, &config, &report), USERS_BAD_DOMAIN);
	ck_assert_ptr_nonnull(strstr(error, "[domain public]: this name means"));
}
END_TEST

START_TEST(names_with_one_number)
{
	/* found by trying names */
	set("domain team-85", "users", "1001");
	set("domain lab", "users", "1003");
	set("domain team-129", "users", "1002");
	ck_assert_int_eq(users_init(&users, &config, &report), USERS_BAD_DOMAIN);
	ck_assert_ptr_nonnull(strstr(error, "[domain team-85]"));
}
END_TEST

START_TEST(a_group_of_the_peer_counts)
{
	gid_t gids[64];
	char text[32];
	struct user *user;
	int n = getgroups(64, gids);

	/* SO_PEERGROUPS tells this process's own */
	if (n <= 0)
		return;
	snprintf(text, sizeof(text), "%u", (unsigned)gids[n - 1]);
	set("domain mine", "groups", text);
	ck_assert_int_eq(users_init(&users, &config, &report), 0);
	user = connect_uid(1234, 99999);
	ck_assert_str_eq(user->domain_name, "mine");
}
END_TEST

START_TEST(mistakes_are_named)
{
	set("domain lab", "users", "no-such-user-here");
	ck_assert_int_eq(mistakes(), 1);
	ck_assert_str_eq(error, "test: [domain lab]: no user 'no-such-user-here'");
	users_deinit(&users);
	set("domain lab", "users", "12x");
	ck_assert_int_eq(mistakes(), 1);
	users_deinit(&users);
	set("domain lab", "users", "");
	set("domain lab", "groups", "no-such-group-here");
	ck_assert_int_eq(mistakes(), 1);
	ck_assert_ptr_nonnull(strstr(error, "no group"));
	/* The others of the list are there. */
	users_deinit(&users);
	set("domain lab", "groups", "");
	set("domain lab", "users", "1001,no-such-user-here,-1 1002");
	ck_assert_int_eq(mistakes(), 2);
	ck_assert_str_eq(connect_uid(1002, 1)->domain_name, "lab");
	users_deinit(&users);
	set("domain two", "users", "1002");
	ck_assert_int_eq(mistakes(), 3);
	ck_assert_str_eq(error,
			 "test: [domain two]: uid 1002 belongs to [domain lab] already");
	ck_assert_str_eq(connect_uid(1002, 1)->domain_name, "lab");
}
END_TEST

START_TEST(without_memory)
{
	struct user *user;
	int r = -1;

	set("domain lab", "users", "1001");
	set("domain lab", "groups", "2001,99999999999");
	ck_assert_int_eq(mistakes(), 1);
	users_deinit(&users);
	set("domain lab", "groups", "2001");
	for (long n = 0; r; n++) {
		users_deinit(&users);
		fail_after = n;
		r = users_init(&users, &config, &report);
		fail_after = -1;
		ck_assert(!r || r == -ENOMEM);
	}
	for (long n = 0; n < 2; n++) {
		fail_after = n;
		r = user_connect(&users, pair[0], 1001, 1, false, &user);
		fail_after = -1;
		ck_assert_int_eq(r, -ENOMEM);
		ck_assert_ptr_null(users.list);
	}
	/* no socket, no groups but the one that is told */
	ck_assert_int_eq(user_connect(&users, -1, 1005, 2001, false, &user), 0);
	ck_assert_str_eq(user->domain_name, "lab");
}
END_TEST

/* A number that stands for many is no user, and no group. */
START_TEST(ids_that_the_kernel_hides)
{
	struct user *user;

	ck_assert(!user_map_is_partial("         0          0 4294967295\n"));
	ck_assert(user_map_is_partial("         0       1000          1\n"));
	ck_assert(user_map_is_partial("0 1000 1\n1 100000 65536\n"));
	ck_assert(!user_map_is_partial(
		"0 1 2147483647\n2147483647 2147483648 2147483648\n"));
	ck_assert(user_map_is_partial(""));
	set("domain lab", "groups", "65534");
	ck_assert_uint_eq(mistakes(), 0);
	users.map = (struct user_map){
		.overflow_uid = 65534,
		.overflow_gid = 65534,
	};
	user = connect_uid(65534, 65534);
	ck_assert_str_eq(user->domain_name, "lab");
	user_disconnect(&users, user);
	users.map.hidden_uids = users.map.hidden_gids = true;
	ck_assert_int_eq(user_connect(&users, -1, 65534, 1, false, &user),
			 -EADDRNOTAVAIL);
	ck_assert_int_eq(user_connect(&users, -1, 65534, 1, true, &user), -EADDRNOTAVAIL);
	ck_assert_int_eq(user_connect(&users, -1, 65533, 65534, false, &user), 0);
	ck_assert_ptr_null(user->domain_name);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("user");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, each_uid_is_a_domain_without_others);
	tcase_add_test(tc, members_share_a_domain);
	tcase_add_test(tc, the_nearest_limit_counts);
	tcase_add_test(tc, charges_end_with_what_they_are_for);
	tcase_add_test(tc, limits_follow_a_reload);
	tcase_add_test(tc, ids_that_the_kernel_hides);
	tcase_add_test(tc, names_of_domains);
	tcase_add_test(tc, names_with_one_number);
	tcase_add_test(tc, a_group_of_the_peer_counts);
	tcase_add_test(tc, mistakes_are_named);
	tcase_add_test(tc, without_memory);
	return run_case("user", tc);
}
