/* SPDX-License-Identifier: MIT */
/* kvctl latency: round trips of requests that do nothing, over a ring. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

enum { OPT_COUNT = 256, OPT_INTERVAL };

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static int round_trip(struct kvc_ring *ring)
{
	struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);
	const struct kvd_cqe *cqe;
	int r;

	if (!sqe)
		return -EAGAIN;
	kvc_prep_nop(sqe);
	r = kvc_ring_submit(ring);
	if (r < 0)
		return r;
	r = kvc_ring_wait_cqe(ring, &cqe, 5000000000);
	if (r < 0)
		return r;
	r = cqe->res;
	kvc_ring_cqe_seen(ring);
	return r;
}

static int measure(struct kvc_ring *ring, double *times_us, size_t n,
		   uint64_t interval_ms)
{
	const struct timespec pause = {
		.tv_sec = (time_t)(interval_ms / 1000),
		.tv_nsec = (long)(interval_ms % 1000) * 1000000,
	};

	for (size_t i = 0; i < n; i++) {
		double begin;
		int r;

		if (interval_ms)
			nanosleep(&pause, NULL);
		begin = now_us();
		r = round_trip(ring);
		if (r < 0)
			return r;
		times_us[i] = now_us() - begin;
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print_times(const struct kvctl *ctl, double *times_us, size_t n)
{
	static const struct {
		const char *name;
		double share;
	} rows[] = {{"min_us", 0},
		    {"p50_us", 0.5},
		    {"p90_us", 0.9},
		    {"p99_us", 0.99},
		    {"max_us", 1}};
	struct json json;

	qsort(times_us, n, sizeof(*times_us), compare);
	json_init(&json, stdout);
	if (ctl->json) {
		json_open_object(&json, NULL);
		json_u64(&json, "count", n);
	} else {
		printf("%zu round trips\n", n);
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		double us = times_us[(size_t)(rows[i].share * (double)(n - 1))];

		if (ctl->json)
			json_f64(&json, rows[i].name, us, 6);
		else
			printf("  %.3s %10.2f us\n", rows[i].name, us);
	}
	if (ctl->json) {
		json_close_object(&json);
		json_end(&json);
	}
}

int cmd_latency(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"count", required_argument, NULL, OPT_COUNT},
		{"interval", required_argument, NULL, OPT_INTERVAL},
		KVCTL_COMMON_OPTIONS,
	};
	uint64_t n = 1000, interval_ms = 0;
	struct kvc_ring *ring = NULL;
	struct kvc_client *client;
	double *times_us;
	int c, r;

	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		if (c == OPT_COUNT)
			n = kvctl_parse_u64("--count", optarg, 1, 10000000);
		else if (c == OPT_INTERVAL)
			interval_ms = kvctl_parse_u64("--interval", optarg, 0, 60000);
	}
	kvctl_no_arguments(argc, argv);
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	times_us = calloc(n, sizeof(*times_us));
	r = times_us ? kvc_ring_open(client, &ring, NULL) : -ENOMEM;
	if (r == 0)
		r = measure(ring, times_us, n, interval_ms);
	if (r < 0)
		r = kvctl_fail("cannot measure", r);
	else
		print_times(ctl, times_us, n);
	kvc_ring_close(ring);
	free(times_us);
	kvc_close(client);
	return r;
}
