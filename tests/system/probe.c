/* SPDX-License-Identifier: MIT */
/*
 * An honest client that looks at the clock:
 *
 *   probe nop|stats|tokens SECONDS INTERVAL_US DAEMON_PID
 *
 * An answer is that of a NOP, of a STATS, or a token of one answer without an end. Prints
 * one line of JSON: how many answers, their times in microseconds, and of the worst what is
 * left when both sides' waits for a CPU are taken off. The kernel counts those for
 * each thread ("run delay" in schedstat), so that a busy machine is not taken for a slow
 * daemon. Ends early by SIGTERM. Exit status 0, or 1 when the daemon failed.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvclient.h>

struct sample {
	double us, served_us;
};

static char daemon_path[64];
static volatile sig_atomic_t stop;

static void on_sigterm(int signo)
{
	stop = 1;
}

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

/* How long a thread group's first thread, here the daemon's loop, has waited for a CPU; 0
 * where the kernel does not count it. */
static double waited_us(const char *path)
{
	unsigned long long ran, waited = 0;
	FILE *f = fopen(path, "re");

	if (!f)
		return 0;
	if (fscanf(f, "%llu %llu", &ran, &waited) != 2)
		waited = 0;
	fclose(f);
	return (double)waited * 1e-3;
}

static int ask_nop(struct kvc_ring *ring)
{
	struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);
	const struct kvd_cqe *cqe;
	int r;

	if (!sqe)
		return -EAGAIN;
	kvc_prep_nop(sqe);
	r = kvc_ring_submit(ring);
	if (r >= 0)
		r = kvc_ring_wait_cqe(ring, &cqe, -1);
	if (r < 0)
		return r;
	r = cqe->res;
	kvc_ring_cqe_seen(ring);
	return r;
}

static int ask_stats(struct kvc_client *client)
{
	struct kvd_stats stats = {.size = sizeof(stats)};

	return kvc_stats(client, &stats);
}

/* The answer of which each token is awaited is asked for again when the context ends it. */
static int ask_token(struct kvc_ring *ring)
{
	static bool asked;
	const struct kvd_cqe *cqe;
	int r = 0;

	if (!asked) {
		const uint32_t prompt[] = {1000, 2000, 3000};
		const struct kvc_input input = {KVD_INPUT_TOKENS, 0, prompt, 3};
		const struct kvc_gen_opts opts = {
			.size = sizeof(opts),
			.gen_flags = KVD_GEN_IGNORE_EOS,
		};
		struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);

		if (!sqe)
			return -EAGAIN;
		kvc_prep_generate(sqe, &input, &opts);
		r = kvc_ring_submit(ring);
		asked = r >= 0;
	}
	if (r >= 0)
		r = kvc_ring_wait_cqe(ring, &cqe, -1);
	if (r < 0)
		return r;
	asked = cqe->flags & KVD_CQE_MORE;
	r = asked ? 0 : cqe->res;
	kvc_ring_cqe_seen(ring);
	return r < 0 ? r : 0;
}

static int ask(struct kvc_client *client, struct kvc_ring *ring, bool tokens)
{
	if (!ring)
		return ask_stats(client);
	return tokens ? ask_token(ring) : ask_nop(ring);
}

static int measure(struct kvc_client *client, struct kvc_ring *ring, bool tokens,
		   struct sample *sample)
{
	double waited = waited_us(daemon_path) + waited_us("/proc/self/schedstat");
	double begin = now_us();
	int r = ask(client, ring, tokens);

	sample->us = now_us() - begin;
	waited = waited_us(daemon_path) + waited_us("/proc/self/schedstat") - waited;
	sample->served_us = sample->us > waited ? sample->us - waited : 0;
	return r;
}

static int compare_us(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	return (x->us > y->us) - (x->us < y->us);
}

static int compare_served(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	return (x->served_us > y->served_us) - (x->served_us < y->served_us);
}

static size_t rank(size_t n, double share)
{
	return (size_t)(share * (double)(n - 1));
}

static void print(struct sample *samples, size_t n)
{
	qsort(samples, n, sizeof(*samples), compare_us);
	printf("{\"n\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f", n,
	       samples[rank(n, 0.5)].us, samples[rank(n, 0.99)].us, samples[n - 1].us);
	qsort(samples, n, sizeof(*samples), compare_served);
	printf(", \"served_p99_us\": %.1f, \"served_max_us\": %.1f}\n",
	       samples[rank(n, 0.99)].served_us, samples[n - 1].served_us);
}

int main(int argc, char **argv)
{
	struct kvc_client *client;
	struct kvc_ring *ring = NULL;
	struct timespec pause;
	struct sample *samples;
	size_t n = 0, cap = 1 << 20;
	double end;
	bool tokens;
	long us;
	int r;

	if (argc != 5 || (strcmp(argv[1], "nop") && strcmp(argv[1], "stats") &&
			  strcmp(argv[1], "tokens"))) {
		fprintf(stderr,
			"usage: probe nop|stats|tokens SECONDS INTERVAL_US DAEMON_PID\n");
		return 2;
	}
	tokens = !strcmp(argv[1], "tokens");
	us = atol(argv[3]);
	pause = (struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
	snprintf(daemon_path, sizeof(daemon_path), "/proc/%d/schedstat", atoi(argv[4]));
	samples = calloc(cap, sizeof(*samples));
	if (!samples)
		return 1;
	signal(SIGTERM, on_sigterm);
	r = kvc_connect(&client, NULL);
	if (!r && strcmp(argv[1], "stats"))
		r = kvc_ring_open(client, &ring, NULL);
	end = now_us() + atof(argv[2]) * 1e6;
	/* once at least, however soon it is stopped */
	while (!r && n < cap && (!n || (!stop && now_us() < end))) {
		r = measure(client, ring, tokens, &samples[n]);
		n += !r;
		if (us)
			nanosleep(&pause, NULL);
	}
	if (r || !n) {
		fprintf(stderr, "probe: %s\n", kvc_errmsg());
		return 1;
	}
	print(samples, n);
	kvc_ring_close(ring);
	kvc_close(client);
	free(samples);
	return 0;
}
