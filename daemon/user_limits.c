/* SPDX-License-Identifier: MIT */
/* See user_limits.h. */
#include "daemon/user_limits.h"

#include <inttypes.h>

#include <kvd/abi.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "ipc/base.h"

/* Descriptors of a ring: its eventfd and both ends of its pipe. */
#define RING_FILES 3

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* 0 in the configuration is no limit. */
static uint64_t limit(uint64_t n)
{
	return n ? n : USER_LIMITS_NONE;
}

void user_limits_init(const struct config *config, struct user_limits_row *ret_rows)
{
	const struct config_quota *q = &config->quota;
	uint64_t clients = config->daemon.max_clients,
		 per_client = config->daemon.max_rings_per_client,
		 connections =
			 min_u64(q->max_connections ? q->max_connections
						    : config->daemon.max_clients_per_uid,
				 clients),
		 rings = min_u64(limit(q->max_rings), connections * per_client),
		 in_flight = min_u64(connections * config->daemon.max_inflight_per_client,
				     rings * KVD_MAX_IN_FLIGHT),
		 seqs = config->scheduler.max_num_seqs,
		 running = min_u64(q->max_running ? q->max_running : seqs / 4, seqs);

	ret_rows[USER_LIMITS_CONNECTIONS] = (struct user_limits_row){
		"connections", "max_connections", connections, clients};
	ret_rows[USER_LIMITS_RINGS] = (struct user_limits_row){
		"rings, open or not let go of", "max_rings", rings, USER_LIMITS_NONE};
	ret_rows[USER_LIMITS_FILES] =
		(struct user_limits_row){"descriptors", "max_connections, max_rings",
					 connections + rings * RING_FILES,
					 clients * (1 + per_client * RING_FILES)};
	ret_rows[USER_LIMITS_STORE] =
		(struct user_limits_row){"places in the FD store", "max_connections",
					 2 * connections, 2 * clients};
	ret_rows[USER_LIMITS_MEMORY] =
		(struct user_limits_row){"bytes of rings and requests", "max_arena",
					 limit(q->max_arena), USER_LIMITS_NONE};
	ret_rows[USER_LIMITS_IN_FLIGHT] =
		(struct user_limits_row){"requests in flight", "max_inflight_per_client",
					 in_flight, USER_LIMITS_NONE};
	ret_rows[USER_LIMITS_WAITING] = (struct user_limits_row){
		"requests that wait", "max_waiting",
		min_u64(min_u64(limit(q->max_waiting), in_flight), ENGINE_MAX_WAITING),
		ENGINE_MAX_WAITING + seqs};
	ret_rows[USER_LIMITS_RUNNING] = (struct user_limits_row){
		"requests that run", "max_running", running ? running : 1, seqs};
	ret_rows[USER_LIMITS_BLOCKS] =
		(struct user_limits_row){"blocks of running requests", "max_blocks",
					 limit(q->max_blocks), USER_LIMITS_NONE};
	ret_rows[USER_LIMITS_LINES] = (struct user_limits_row){
		"log lines in log_rate_interval", "log_rate_burst",
		config->daemon.log_rate_interval_ns ? config->daemon.log_rate_burst
						    : USER_LIMITS_NONE,
		USER_LIMITS_NONE};
}

static void print_number(uint64_t n, FILE *out)
{
	if (n == USER_LIMITS_NONE)
		fprintf(out, " %12s", "-");
	else
		fprintf(out, " %12" PRIu64, n);
}

void user_limits_print(const struct config *config, FILE *out)
{
	struct user_limits_row rows[USER_LIMITS_N];

	user_limits_init(config, rows);
	fprintf(out, "%-32s %12s %12s  %s\n", "AT MOST", "ONE USER", "ALL USERS", "KEY");
	for (int i = 0; i < USER_LIMITS_N; i++) {
		fprintf(out, "%-32s", rows[i].what);
		print_number(rows[i].one, out);
		print_number(rows[i].all, out);
		fprintf(out, "  %s\n", rows[i].key);
	}
}
