/* SPDX-License-Identifier: MIT */
/*
 * What connected clients that do nothing cost those that do, and the daemon at rest: 10,
 * 100 and 1,000 of them, each with a ring that it has used once, against the first of these.
 * All figures are CPU time of the daemon's loop thread as the kernel counts it, but for the
 * round trip, which is the median that a client sees in the best of some rounds.
 *
 * Starts $KVD_BUILD/daemon/kvd for itself, without a model. Linear cost shows as equal
 * figures for each session; what is not paid for each session, as equal figures.
 *
 * usage: bench_sessions [--json]
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kvclient.h>

#define MAX_IDLE     1000
#define N_SIZES      3
#define N_NOPS       5000
#define N_ROUNDS     12
#define IDLE_SECONDS 4

/* One line of figures for a number of idle sessions. */
struct figures {
	double connect_us;  /* of the daemon, for each session with its ring */
	double nop_ns;      /* round trip of another client */
	double nop_cpu_ns;  /* of the daemon, for each of these */
	double list_us;     /* for each entry of a list of all clients */
	double idle_permil; /* of a core, while nobody does anything */
	double close_us;    /* for each session, all ending at once while one watches */
};

static const int sizes[N_SIZES] = {10, 100, MAX_IDLE};
static char path[64];
static pid_t kvd;

static void fail(const char *what)
{
	fprintf(stderr, "bench_sessions: %s: %s\n", what, kvc_errmsg());
	if (kvd > 0)
		kill(kvd, SIGTERM);
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void nap(unsigned ms)
{
	const struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&ts, NULL);
}

/* What the daemon's loop thread has used so far. */
static double cpu_ns(void)
{
	unsigned long long ran = 0;
	char name[64];
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%d/schedstat", (int)kvd);
	f = fopen(name, "re");
	if (!f || fscanf(f, "%llu", &ran) != 1)
		fail("no schedstat");
	fclose(f);
	return (double)ran;
}

static struct kvc_client *connect_one(const char *label)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *client;

	o.socket_path = path;
	o.client_name = label;
	if (kvc_connect(&client, &o) < 0)
		fail("connecting");
	return client;
}

static struct kvc_ring *open_ring(struct kvc_client *client)
{
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_ring *ring;

	o.sq_entries = 8;
	o.in_bytes = 4096;
	o.out_bytes = 4096;
	if (kvc_ring_open(client, &ring, &o) < 0)
		fail("opening a ring");
	return ring;
}

static void nop(struct kvc_ring *ring)
{
	const struct kvd_cqe *cqe;

	kvc_prep_nop(kvc_ring_get_sqe(ring));
	if (kvc_ring_submit(ring) < 0 || kvc_ring_wait_cqe(ring, &cqe, -1) < 0)
		fail("a NOP");
	kvc_ring_cqe_seen(ring);
}

/* Each on a CPU of its own, or they take turns on one. */
static void pin_to(pid_t pid, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	(void)sched_setaffinity(pid, sizeof(set), &set);
}

static void start(void)
{
	const char *build = getenv("KVD_BUILD");
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	char program[512], option[128];
	struct kvc_client *client;

	snprintf(program, sizeof(program), "%s/daemon/kvd", build ? build : "build");
	snprintf(path, sizeof(path), "/tmp/kvd-bench-%d.sock", (int)getpid());
	snprintf(option, sizeof(option), "daemon.socket=%s", path);
	kvd = fork();
	if (kvd == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(STDERR_FILENO, STDOUT_FILENO);
		execl(program, program, "-o", option, "-o", "model.path=", "-o",
		      "daemon.max_clients=2048", "-o", "daemon.max_clients_per_uid=2048",
		      "-o", "quota.max_rings=0", "-o", "daemon.log_level=warning",
		      (char *)NULL);
		_exit(127);
	}
	o.socket_path = path;
	for (int i = 0; i < 1000; i++) {
		nap(10);
		if (kvc_connect(&client, &o) == 0) {
			kvc_close(client);
			return;
		}
		if (waitpid(kvd, NULL, WNOHANG) == kvd)
			break;
	}
	kvd = 0;
	fail("kvd does not start; $KVD_BUILD names its build folder");
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The best of some rounds: others who want the CPUs make the others slower. */
static void measure_nops(struct kvc_ring *ring, struct figures *f)
{
	static uint64_t times[N_NOPS];

	for (int round = 0; round < N_ROUNDS; round++) {
		double before;

		nap(20);
		for (int i = 0; i < 1000; i++)
			nop(ring);
		before = cpu_ns();
		for (int i = 0; i < N_NOPS; i++) {
			uint64_t t = now_ns();

			nop(ring);
			times[i] = now_ns() - t;
		}
		/* counted at the kernel's ticks: only the sum of all rounds tells */
		f->nop_cpu_ns += (cpu_ns() - before) / N_NOPS / N_ROUNDS;
		qsort(times, N_NOPS, sizeof(times[0]), by_value);
		if (round == 0 || (double)times[N_NOPS / 2] < f->nop_ns)
			f->nop_ns = (double)times[N_NOPS / 2];
	}
}

static void measure(int n, struct figures *f)
{
	static struct kvc_client *idle[MAX_IDLE];
	static struct kvd_client_info infos[MAX_IDLE + 8];
	static struct kvd_event events[KVD_EVENTS_PAGE];
	struct kvc_client *busy = connect_one("busy"), *watcher = connect_one("watcher");
	struct kvc_ring *ring = open_ring(busy);
	const int lists = 20;
	uint64_t lost, begin;
	double before;
	int listed;

	before = cpu_ns();
	for (int i = 0; i < n; i++) {
		idle[i] = connect_one("idle");
		nop(open_ring(idle[i]));
	}
	nap(20);
	f->connect_us = (cpu_ns() - before) / 1e3 / n;
	measure_nops(ring, f);
	before = cpu_ns();
	for (int i = 0; i < lists; i++) {
		listed = kvc_clients(busy, infos, MAX_IDLE + 8);
		if (listed != n + 2)
			fail("a list of clients");
	}
	f->list_us = (cpu_ns() - before) / 1e3 / lists / (n + 2);
	nap(500);
	before = cpu_ns();
	begin = now_ns();
	nap(1000 * IDLE_SECONDS);
	f->idle_permil = 1000 * (cpu_ns() - before) / (double)(now_ns() - begin);
	if (kvc_events(watcher, events, KVD_EVENTS_PAGE, &lost) < 0)
		fail("watching");
	before = cpu_ns();
	for (int i = 0; i < n; i++)
		kvc_close(idle[i]);
	while (kvc_clients(busy, infos, MAX_IDLE + 8) > 2)
		nap(5);
	f->close_us = (cpu_ns() - before) / 1e3 / n;
	kvc_close(watcher);
	kvc_close(busy);
}

static void report(bool json, int n, const char *name, double value, const char *unit,
		   double first, double must)
{
	double ratio = value > 0 ? first / value : 1;

	if (json)
		printf("{\"bench\":\"sessions\",\"case\":\"%s_%d\",\"value\":%.4g,"
		       "\"unit\":\"%s\",\"peer\":\"%d sessions\",\"peer_value\":%.4g,"
		       "\"ratio\":%.4g,\"must\":%.4g,\"goal\":%.4g}\n",
		       name, n, value, unit, sizes[0], first, ratio, must, 1.0);
	else
		printf("%5d idle sessions: %-26s %9.2f %-9s %.2fx of %d sessions\n", n,
		       name, value, unit, first > 0 ? value / first : 0, sizes[0]);
}

int main(int argc, char **argv)
{
	bool json = argc > 1 && !strcmp(argv[1], "--json");
	struct figures f[N_SIZES] = {0};
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	start();
	pin_to(kvd, (int)sysconf(_SC_NPROCESSORS_ONLN) - 1);
	pin_to(0, 0);
	for (int i = 0; i < N_SIZES; i++) {
		const struct figures *at = &f[i];
		int n = sizes[i];

		measure(n, &f[i]);
		report(json, n, "nop_round_trip", at->nop_ns, "ns", f[0].nop_ns, 0.67);
		report(json, n, "nop_cpu", at->nop_cpu_ns, "ns", f[0].nop_cpu_ns, 0.67);
		report(json, n, "connect_cpu_each", at->connect_us, "us", f[0].connect_us,
		       0.5);
		report(json, n, "list_cpu_each", at->list_us, "us", f[0].list_us, 0.5);
		report(json, n, "end_watched_cpu_each", at->close_us, "us", f[0].close_us,
		       0.5);
		report(json, n, "rest", at->idle_permil, "permil", f[0].idle_permil, 0);
	}
	kill(kvd, SIGTERM);
	waitpid(kvd, NULL, 0);
	unlink(path);
	return 0;
}
