/* SPDX-License-Identifier: MIT */
/*
 * The transport, measured beside what it could be at best: a ring with nothing but
 * a sequence word in its entries ("slot", both sides polling), and an eventfd
 * each way (both sides sleeping). Each case alternates with its baseline, round
 * by round, in this one run; figures are medians over the rounds, of the median
 * round trip in each.
 *
 * Talks to the daemon at $KVD_SOCKET; without one it starts $KVD_BUILD/daemon/kvd
 * for itself, without a model; without that, the test suite's fake daemon. It
 * says which.
 *
 * usage: bench_ipc [--json] [--rounds N] [--idle-clients N] [--idle-seconds N]
 *                  [--no-pin]
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kvclient.h>

#include "tests/unit/ipc/fake_daemon.h"

#define RING       256u
#define DEPTH      64u
#define AWAKE_N    20000u
#define ASLEEP_N   60u
#define DEPTH_N    200000u
#define MAX_ROUNDS 101

static bool json;
static bool pin = true;
static int rounds = 7;
static int idle_clients = 100;
static int idle_seconds = 5;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void die(const char *what)
{
	fprintf(stderr, "bench_ipc: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void die_client(const char *what)
{
	fprintf(stderr, "bench_ipc: %s: %s\n", what, kvc_errmsg());
	exit(1);
}

static void pin_to(pid_t pid, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (pin)
		(void)sched_setaffinity(pid, sizeof(set), &set);
}

static int last_cpu(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN) - 1;
}

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare_double);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ------------------------------------------------------------------------
 * Baselines, each with a child that answers.
 */
struct slot {
	_Alignas(64) uint64_t seq;
	uint8_t bytes[56];
};

struct slots {
	struct slot sq[RING];
	struct slot pad[64];
	struct slot cq[RING];
};

static uint64_t load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static pid_t spawn(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin_to(0, last_cpu());
	}
	return pid;
}

/* Round trips at @depth. Return: median ns of one, or with depth > 1 ops/s. */
static double slot_run(uint32_t n, uint32_t depth)
{
	struct slots *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double *lat = calloc(n, sizeof(*lat)), ret;
	uint64_t i, sent = 0, start = 0, t = 0, warm = n / 20 + depth;
	uint8_t m[56] = {0};
	pid_t pid;

	if (s == MAP_FAILED || !lat)
		die("memory");
	pid = spawn();
	if (pid == 0) {
		for (i = 0; i < n + warm; i++) {
			while (load(&s->sq[i % RING].seq) != i + 1)
				;
			memcpy(m, s->sq[i % RING].bytes, 56);
			m[8] ^= 1;
			memcpy(s->cq[i % RING].bytes, m, 56);
			store(&s->cq[i % RING].seq, i + 1);
		}
		_exit(0);
	}
	for (i = 0; i < n + warm; i++) {
		if (i == warm)
			start = now_ns();
		if (depth == 1)
			t = now_ns();
		for (; sent < n + warm && sent - i < depth; sent++) {
			memcpy(m, &sent, 8);
			memcpy(s->sq[sent % RING].bytes, m, 56);
			store(&s->sq[sent % RING].seq, sent + 1);
		}
		while (load(&s->cq[i % RING].seq) != i + 1)
			;
		memcpy(m, s->cq[i % RING].bytes, 56);
		if (memcmp(m, &i, 8) != 0)
			die("slot: wrong answer");
		if (depth == 1 && i >= warm)
			lat[i - warm] = (double)(now_ns() - t);
	}
	ret = depth > 1 ? n / ((double)(now_ns() - start) / 1e9) : median(lat, n);
	waitpid(pid, NULL, 0);
	munmap(s, sizeof(*s));
	free(lat);
	return ret;
}

static void nap(void)
{
	struct timespec ts = {.tv_nsec = 3000000};

	nanosleep(&ts, NULL);
}

static double eventfd_run(uint32_t n)
{
	int to = eventfd(0, EFD_CLOEXEC), from = eventfd(0, EFD_CLOEXEC);
	double *lat = calloc(n, sizeof(*lat)), ret;
	uint64_t v = 1, t;
	uint32_t i;
	pid_t pid;

	if (to < 0 || from < 0 || !lat)
		die("eventfd");
	pid = spawn();
	if (pid == 0) {
		for (i = 0; i < n; i++)
			if (read(to, &v, 8) != 8 || write(from, &v, 8) != 8)
				_exit(1);
		_exit(0);
	}
	for (i = 0; i < n; i++) {
		nap();
		t = now_ns();
		v = 1;
		if (write(to, &v, 8) != 8 || read(from, &v, 8) != 8)
			die("eventfd");
		lat[i] = (double)(now_ns() - t);
	}
	ret = median(lat, n);
	waitpid(pid, NULL, 0);
	close(to);
	close(from);
	free(lat);
	return ret;
}

/* ------------------------------------------------------------------------
 * kvd.
 */
static void nop(struct kvc_ring *ring)
{
	const struct kvd_cqe *cqe;

	kvc_prep_nop(kvc_ring_get_sqe(ring));
	if (kvc_ring_submit(ring) != 1 || kvc_ring_wait_cqe(ring, &cqe, -1) < 0)
		die_client("NOP");
	if (cqe->res != 0)
		die("NOP: wrong answer");
	kvc_ring_cqe_seen(ring);
}

static double kvd_latency(struct kvc_ring *ring, uint32_t n, bool asleep)
{
	double *lat = calloc(n, sizeof(*lat)), ret;
	uint32_t i, warm = asleep ? 0 : n / 20;
	uint64_t t;

	if (!lat)
		die("memory");
	for (i = 0; i < n + warm; i++) {
		if (asleep)
			nap();
		t = now_ns();
		nop(ring);
		if (i >= warm)
			lat[i - warm] = (double)(now_ns() - t);
	}
	ret = median(lat, n);
	free(lat);
	return ret;
}

static double kvd_depth(struct kvc_ring *ring, uint32_t n)
{
	uint32_t warm = n / 20, sent = 0, done = 0;
	const struct kvd_cqe *cqe;
	uint64_t start = 0;

	while (done < n + warm) {
		while (sent < n + warm && sent - done < DEPTH) {
			kvc_prep_nop(kvc_ring_get_sqe(ring));
			sent++;
		}
		kvc_ring_submit(ring);
		if (kvc_ring_wait_cqe(ring, &cqe, -1) < 0)
			die_client("NOP");
		do {
			kvc_ring_cqe_seen(ring);
			if (++done == warm)
				start = now_ns();
		} while (kvc_ring_peek_cqe(ring, &cqe) == 0);
	}
	return n / ((double)(now_ns() - start) / 1e9);
}

/* User and system time of @pid, in seconds. */
static double cpu_seconds(pid_t pid)
{
	unsigned long user = 0, sys = 0;
	char path[64], line[1024] = "";
	const char *p;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f || !fgets(line, sizeof(line), f))
		die(path);
	fclose(f);
	/* The name may hold anything; the fields count from its last ')'. */
	p = strrchr(line, ')');
	if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			 &user, &sys) != 2)
		die(path);
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

/* Percent of a core that the daemon uses while clients do nothing. */
static double idle_run(const char *path, pid_t daemon)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client **c = calloc((size_t)idle_clients, sizeof(*c));
	struct kvc_ring *ring;
	double before, used;
	uint64_t start;
	int i;

	o.socket_path = path;
	for (i = 0; i < idle_clients; i++) {
		if (kvc_connect(&c[i], &o) < 0 || kvc_ring_open(c[i], &ring, NULL) < 0)
			die_client("idle clients");
		nop(ring);
	}
	sleep(1);
	before = cpu_seconds(daemon);
	start = now_ns();
	sleep((unsigned)idle_seconds);
	used = cpu_seconds(daemon) - before;
	used = 100 * used / ((double)(now_ns() - start) / 1e9);
	for (i = 0; i < idle_clients; i++)
		kvc_close(c[i]);
	free(c);
	return used;
}

/* The process that listens there, as the kernel knows it. */
static pid_t peer_pid(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	if (sock < 0 || connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		die(path);
	close(sock);
	return cred.pid;
}

/*
 * @values and @peers: [n] by round; a larger ratio is better for kvd. @must and
 * @goal are limits of the ratio.
 */
static void report(const char *name, const char *unit, double *values, const char *peer,
		   double *peers, int n, bool smaller_is_better, double must, double goal)
{
	double ratios[MAX_ROUNDS], value, peer_value, ratio;
	int i;

	for (i = 0; i < n; i++)
		ratios[i] =
			smaller_is_better ? peers[i] / values[i] : values[i] / peers[i];
	value = median(values, (size_t)n);
	peer_value = median(peers, (size_t)n);
	ratio = median(ratios, (size_t)n);
	if (json)
		printf("{\"bench\":\"ipc\",\"case\":\"%s\",\"value\":%.1f,\"unit\":\"%s\","
		       "\"peer\":\"%s\",\"peer_value\":%.1f,\"ratio\":%.3f,"
		       "\"must\":%.3f,\"goal\":%.3f}\n",
		       name, value, unit, peer, peer_value, ratio, must, goal);
	else
		printf("%-12s %12.1f %-6s %-8s %12.1f  ratio %.2f  must %.2f %s  goal "
		       "%.2f %s\n",
		       name, value, unit, peer, peer_value, ratio, must,
		       ratio >= must ? "met" : "MISSED", goal,
		       ratio >= goal ? "met" : "missed");
	fflush(stdout);
}

static void report_idle(double percent)
{
	if (json)
		printf("{\"bench\":\"ipc\",\"case\":\"idle_%d_clients\",\"value\":%.3f,"
		       "\"unit\":\"%%core\",\"peer\":null,\"peer_value\":null,"
		       "\"ratio\":null,\"must\":1,\"goal\":0.1}\n",
		       idle_clients, percent);
	else
		printf("%-12s %12.3f %% of a core with %d clients  must < 1 %s  goal < "
		       "0.1 %s\n",
		       "idle", percent, idle_clients, percent < 1 ? "met" : "MISSED",
		       percent < 0.1 ? "met" : "missed");
}

/* Start the kvd that was built, as kvd.service starts it, on a socket of its own. False if
 * there is none. */
static bool start_kvd(char *path, size_t size, pid_t *ret_pid)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	const char *build = getenv("KVD_BUILD");
	char program[512], option[256];
	struct kvc_client *c;
	int i;

	snprintf(program, sizeof(program), "%s/daemon/kvd", build ? build : "");
	if (!build || access(program, X_OK) < 0)
		return false;
	snprintf(path, size, "/tmp/kvd-bench-%d.sock", (int)getpid());
	snprintf(option, sizeof(option), "daemon.socket=%s", path);
	*ret_pid = fork();
	if (*ret_pid < 0)
		die("fork");
	if (*ret_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(STDERR_FILENO, STDOUT_FILENO);
		/* the idle clients are of one user */
		execlp("python3", "python3", AS_INSTALLED, program, "-o", option, "-o",
		       "daemon.max_clients_per_uid=1024", "-o", "quota.max_rings=0", "-o",
		       "model.path=", (char *)NULL);
		_exit(127);
	}
	o.socket_path = path;
	for (i = 0; i < 500; i++) {
		nap();
		if (kvc_connect(&c, &o) == 0) {
			kvc_close(c);
			return true;
		}
		if (waitpid(*ret_pid, NULL, WNOHANG) == *ret_pid)
			break;
		nap();
	}
	die_client("kvd does not start");
	return false;
}

static void parse(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			json = true;
		else if (strcmp(argv[i], "--no-pin") == 0)
			pin = false;
		else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
			rounds = atoi(argv[++i]);
		else if (strcmp(argv[i], "--idle-clients") == 0 && i + 1 < argc)
			idle_clients = atoi(argv[++i]);
		else if (strcmp(argv[i], "--idle-seconds") == 0 && i + 1 < argc)
			idle_seconds = atoi(argv[++i]);
		else
			rounds = 0;
	}
	if (rounds < 1 || rounds > MAX_ROUNDS || idle_clients < 0 || idle_seconds < 1) {
		fprintf(stderr, "usage: bench_ipc [--json] [--rounds N] "
				"[--idle-clients N] [--idle-seconds N] [--no-pin]\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	double values[4][MAX_ROUNDS], peers[4][MAX_ROUNDS];
	struct fake_daemon fake = {.spin_ns = 200000};
	const char *path = getenv(KVD_SOCKET_ENV);
	struct kvc_client *client;
	struct kvc_ring *ring;
	char own_path[64] = "";
	bool use_fake = false;
	cpu_set_t before;
	pid_t daemon = 0;
	int i;

	parse(argc, argv);
	if (path && path[0]) {
		daemon = peer_pid(path);
		fprintf(stderr, "bench_ipc: kvd at %s, process %d\n", path, (int)daemon);
	} else if (start_kvd(own_path, sizeof(own_path), &daemon)) {
		path = own_path;
		fprintf(stderr, "bench_ipc: kvd of $KVD_BUILD, without a model\n");
	} else {
		use_fake = true;
		fake_daemon_start(&fake);
		path = fake.path;
		daemon = fake.pid;
		fprintf(stderr, "bench_ipc: the fake daemon of the test suite\n");
	}
	CPU_ZERO(&before);
	(void)sched_getaffinity(daemon, sizeof(before), &before);
	if (daemon > 1)
		pin_to(daemon, last_cpu());
	pin_to(0, 0);

	o.socket_path = path;
	o.client_name = "bench_ipc";
	if (kvc_connect(&client, &o) < 0 || kvc_ring_open(client, &ring, NULL) < 0)
		die_client("connect");
	for (i = 0; i < rounds; i++) {
		peers[0][i] = slot_run(AWAKE_N, 1);
		values[0][i] = kvd_latency(ring, AWAKE_N, false);
		peers[1][i] = eventfd_run(ASLEEP_N);
		values[1][i] = kvd_latency(ring, ASLEEP_N, true);
		peers[2][i] = slot_run(DEPTH_N, DEPTH);
		values[2][i] = kvd_depth(ring, DEPTH_N);
	}
	kvc_ring_close(ring);
	kvc_close(client);
	if (daemon > 1 && pin)
		(void)sched_setaffinity(daemon, sizeof(before), &before);

	/* Limits of TARGETS.md. */
	report("nop_awake", "ns", values[0], "slot", peers[0], rounds, true, 1 / 3.0,
	       1 / 1.5);
	report("nop_asleep", "ns", values[1], "eventfd", peers[1], rounds, true, 1 / 1.2,
	       1 / 1.05);
	report("nop_depth64", "ops/s", values[2], "slot", peers[2], rounds, false, 0.25,
	       0.5);
	if (daemon > 1 && idle_clients > 0)
		report_idle(idle_run(path, daemon));
	if (use_fake)
		fake_daemon_stop(&fake);
	if (own_path[0]) {
		kill(daemon, SIGTERM);
		waitpid(daemon, NULL, 0);
		unlink(own_path);
	}
	return 0;
}
