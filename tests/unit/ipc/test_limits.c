/* SPDX-License-Identifier: MIT */
/* What is too large or out of range: who says so, and what the line says. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <kvclient.h>

#include "ipc/base.h"
#include "tests/unit/ipc/fake_daemon.h"
#include "tests/unit/suite.h"

static struct kvc_client *connect_to(const struct fake_daemon *fake)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *c = NULL;

	o.socket_path = fake->path;
	o.reconnect_ns = -1;
	ck_assert_int_eq(kvc_connect(&c, &o), 0);
	return c;
}

/* Defaults give way to what the daemon grants; what is asked for does not. */
START_TEST(small_arenas_are_enough)
{
	static const uint64_t grants[] = {65536, 70000, 1 << 20};
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvd_server_info server;
	struct kvc_result result;
	struct kvc_ring *ring;
	struct kvc_client *c;
	char *large = calloc(1, 2 << 20);

	memset(large, 'a', (2 << 20) - 1);
	for (size_t i = 0; i < KVD_ARRAY_LEN(grants); i++) {
		struct fake_daemon fake = {.max_arena = grants[i]};

		fake_daemon_start(&fake);
		c = connect_to(&fake);
		kvc_get_server_info(c, &server);
		ck_assert_uint_eq(server.max_in_bytes, grants[i]);
		ck_assert_int_eq(kvc_ping(c, -1), 0);
		ck_assert_int_eq(kvc_generate(c, "abc", NULL, &result), 0);
		ck_assert_str_eq(result.text, "abc");
		kvc_result_clear(&result);
		ck_assert_int_eq(kvc_generate(c, large, NULL, NULL), -E2BIG);
		ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "max_arena_per_ring"));
		ck_assert_int_eq(kvc_ring_open(c, &ring, NULL), 0);
		kvc_ring_close(ring);
		ck_assert_int_eq(kvc_ring_open(c, &ring, &o), 0);
		kvc_ring_close(ring);
		o.in_bytes = (1 << 20) + 1;
		ck_assert_int_eq(kvc_ring_open(c, &ring, &o), KVD_E_QUOTA);
		ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "1048577 bytes"));
		ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "max_arena_per_ring"));
		o.in_bytes = 0;
		kvc_close(c);
		fake_daemon_stop(&fake);
	}
	free(large);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("limits");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, small_arenas_are_enough);
	return run_case("client-limits", t);
}
