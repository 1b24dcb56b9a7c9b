/* SPDX-License-Identifier: MIT */
/*
 * Clients that misbehave, one kind per verb. Each plays until its time is up or it is
 * killed, connects again whenever the daemon throws it out, and prints how often that
 * was. Exit status 0 says only that the daemon could still be reached at the end.
 *
 *   hostile VERB SECONDS SEED
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/hostile.h"

#include "ipc/base.h"

uint32_t seed;
double deadline;
bool broken;

double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void nap_us(unsigned us)
{
	struct timespec ts = {.tv_nsec = (long)us * 1000};

	nanosleep(&ts, NULL);
}

/* Say what has been done, and do nothing more until the time is up. Return: 1. */
static unsigned hold_still(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
	while (now() < deadline)
		nap_us(100000);
	return 1;
}

int hung_up(int fd)
{
	char buf[512];
	ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN);
}

int attach(struct raw_client *client, struct raw_ring *ring, uint32_t sq, uint32_t cq)
{
	while (now() < deadline) {
		if (raw_connect(client, "hostile") < 0) {
			nap_us(2000);
			continue;
		}
		if (raw_ring_open(client, ring, sq, cq, 1 << 16, 4096) == 0)
			return 0;
		raw_close(client);
		nap_us(2000);
	}
	return -1;
}

/* @n requests that never end by themselves, each prompt @stride bytes after the last. */
static void ask_endlessly(struct raw_ring *ring, unsigned n, uint32_t stride,
			  uint32_t n_tokens)
{
	struct kvd_sqe sqe;

	for (unsigned i = 0; i < n; i++) {
		raw_prep_generate(ring, &sqe, (uint64_t)stride * i, n_tokens, 0,
				  seed + i);
		raw_submit(ring, &sqe);
	}
	raw_ring_bell(ring);
}

/* Many endless requests, and not one completion is ever read. */
static unsigned play_noread(void)
{
	struct raw_client client;
	struct raw_ring ring;

	if (attach(&client, &ring, 16, 4) < 0)
		return 0;
	ask_endlessly(&ring, 16, 1024, 100);
	return hold_still("submitted");
}

/* One request of a long prompt, read by nobody; to be killed in its prefill. */
static unsigned play_prefill(void)
{
	struct raw_client client;
	struct raw_ring ring;

	if (attach(&client, &ring, 4, 1024) < 0)
		return 0;
	ask_endlessly(&ring, 1, 0, 6000);
	return hold_still("submitted");
}

/* As many entries as the SQ holds and then as many again, over those not yet taken. */
static unsigned play_sqfull(void)
{
	struct raw_client client;
	struct raw_ring ring;

	if (attach(&client, &ring, 64, 4) < 0)
		return 0;
	ask_endlessly(&ring, 64, 512, 20);
	return hold_still("submitted");
}

/* Random bytes over everything that the client can write. */
static unsigned play_scribble(void)
{
	struct raw_client client;
	struct raw_ring ring;
	unsigned n_sessions = 0;

	while (attach(&client, &ring, 64, 64) == 0) {
		struct kvd_sqe sqe;
		unsigned style = raw_random(&seed) % 4;

		n_sessions++;
		raw_prep_generate(&ring, &sqe, 0, 200, 0, seed | 1);
		raw_submit(&ring, &sqe);
		raw_ring_bell(&ring);
		for (unsigned i = 0; i < 400 && now() < deadline && !hung_up(client.fd);
		     i++) {
			uint64_t len = ring.geometry.c2d_bytes, start = 0;

			/* Entries only, arena only, first page only, or all of it: a
			 * session that dies at the first bad word hides what lies behind. */
			if (style == 0) {
				start = ring.geometry.sq_off;
				len = (uint64_t)ring.geometry.sq_entries * 64;
			} else if (style == 1) {
				start = ring.geometry.in_off;
				len = ring.geometry.in_bytes;
			} else if (style == 2) {
				len = sizeof(struct kvd_client_page);
			}
			for (unsigned k = 0; k < 256; k++)
				ring.c2d[start + raw_random(&seed) % len] =
					(uint8_t)raw_random(&seed);
			raw_ring_bell(&ring);
			if (i % 16 == 0)
				nap_us(200);
		}
		raw_ring_close(&ring);
		raw_close(&client);
	}
	return n_sessions;
}

static uint64_t random_number(uint64_t limit)
{
	static const uint64_t edges[] = {
		0,          1,          3,          4,
		63,         64,         4095,       4096,
		65535,      65536,      0x7fffffff, 0x80000000,
		0xffffffff, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
	uint32_t pick = raw_random(&seed) % 8;

	if (pick == 0)
		return edges[raw_random(&seed) % 16];
	if (pick == 1)
		return ((uint64_t)raw_random(&seed) << 32) | raw_random(&seed);
	return raw_random(&seed) % (limit + 1);
}

/* The ring protocol is kept; what the entries say is not. */
static unsigned play_sqes(void)
{
	struct raw_client client;
	struct raw_ring ring;
	unsigned n_entries = 0;

	while (attach(&client, &ring, 64, 1024) == 0) {
		uint64_t *cq_pos = (uint64_t *)ring.c2d;
		uint64_t seen = 0;

		while (now() < deadline && !hung_up(client.fd)) {
			const struct kvd_cqe *cq =
				(void *)(ring.d2c + ring.geometry.cq_off);
			const struct kvd_daemon_page *page = (const void *)ring.d2c;
			struct kvd_sqe sqe = {0};

			while (__atomic_load_n(
				       &cq[seen & (ring.geometry.cq_entries - 1)].seq,
				       __ATOMIC_ACQUIRE) == seen + 1)
				seen++;
			__atomic_store_n(cq_pos, seen, __ATOMIC_RELEASE);
			raw_ring_bell(&ring);
			if (ring.sq_tail -
				    __atomic_load_n(&page->sq_pos, __ATOMIC_ACQUIRE) >=
			    ring.geometry.sq_entries) {
				nap_us(200);
				continue;
			}
			raw_prep_generate(&ring, &sqe, 256 * (n_entries % 64), 20, 4,
					  seed | 1);
			sqe.opcode = raw_random(&seed) % 4
					     ? (uint8_t)(raw_random(&seed) % 7)
					     : (uint8_t)raw_random(&seed);
			for (unsigned k = raw_random(&seed) % 4; k > 0; k--) {
				switch (raw_random(&seed) % 9) {
				case 0:
					sqe.flags = (uint8_t)raw_random(&seed);
					break;
				case 1:
					sqe.input = (uint16_t)random_number(4);
					break;
				case 2:
					sqe.in_len = (uint32_t)random_number(4096);
					break;
				case 3:
					sqe.in_off = random_number(65536);
					break;
				case 4:
					sqe.out_off = random_number(4096);
					break;
				case 5:
					sqe.out_len = (uint32_t)random_number(4096);
					break;
				case 6:
					sqe.params_len = (uint32_t)random_number(128);
					break;
				case 7:
					sqe.params_off = random_number(65536);
					break;
				default:
					sqe.arg = random_number(8);
					break;
				}
			}
			if (raw_random(&seed) % 4 == 0)
				ring.c2d[ring.geometry.in_off + 256 * (n_entries % 64) +
					 raw_random(&seed) % 144] =
					(uint8_t)raw_random(&seed);
			raw_submit(&ring, &sqe);
			n_entries++;
		}
		raw_ring_close(&ring);
		raw_close(&client);
	}
	return n_entries;
}

static void send_with_fd(int fd, const void *data, size_t len)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	int passed = STDOUT_FILENO;

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &passed, sizeof(passed));
	(void)!sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Packets of noise, half of them with a header that looks right. */
static unsigned play_packets(void)
{
	static uint8_t packet[KVD_MSG_MAX + 64];
	unsigned n_packets = 0;

	while (now() < deadline) {
		struct raw_client client;
		int greeted = raw_random(&seed) % 3 != 0;

		if (greeted ? raw_connect(&client, "hostile") < 0
			    : (client.fd = raw_socket()) < 0) {
			nap_us(2000);
			continue;
		}
		for (unsigned i = 0; i < 64 && now() < deadline && !hung_up(client.fd);
		     i++) {
			size_t len = random_number(
				raw_random(&seed) % 8 ? 200 : sizeof(packet));

			if (len > sizeof(packet))
				len = sizeof(packet);
			for (size_t k = 0; k < len; k++)
				packet[k] = raw_random(&seed) % 2
						    ? 0
						    : (uint8_t)raw_random(&seed);
			if (len >= sizeof(struct kvd_msg_hdr) && raw_random(&seed) % 2) {
				struct kvd_msg_hdr hdr = {
					.len = (uint32_t)len,
					.type = (uint16_t)(1 + raw_random(&seed) % 7),
					.tag = raw_random(&seed),
				};
				memcpy(packet, &hdr, sizeof(hdr));
			}
			if (raw_random(&seed) % 32 == 0)
				send_with_fd(client.fd, packet, len ? len : 1);
			else
				(void)!send(client.fd, packet, len,
					    MSG_NOSIGNAL | MSG_DONTWAIT);
			n_packets++;
		}
		raw_close(&client);
	}
	return n_packets;
}

/*
 * Beginnings of HELLO, with the wish to be kept, and the answers to notices that nobody
 * sent; what comes back is never read.
 */
static unsigned play_halves(void)
{
	unsigned n_packets = 0;

	while (now() < deadline) {
		int fd = raw_socket();

		if (fd < 0) {
			nap_us(2000);
			continue;
		}
		for (unsigned i = 0; i < 64 && now() < deadline; i++) {
			struct kvd_msg_hello hello = {
				.hdr = {.len = sizeof(hello),
					.type = KVD_MSG_HELLO,
					.tag = raw_random(&seed) % 4},
				.magic = KVD_HELLO_MAGIC,
				.version = KVD_ABI_VERSION,
				.features = KVD_FEATURE_KEEP,
				.name = "hostile",
			};
			size_t len = raw_random(&seed) % 4
					     ? sizeof(hello)
					     : 1 + raw_random(&seed) % sizeof(hello);

			if (raw_random(&seed) % 4 == 0)
				hello.hdr.len = (uint32_t)len;
			if (raw_random(&seed) % 4 == 0)
				hello.hdr.type = KVD_MSG_STATS;
			if (send(fd, &hello, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
				break;
			n_packets++;
		}
		close(fd);
	}
	return n_packets;
}

/* A hundred connections, each with a ring, that do nothing at all. */
static unsigned play_idle(unsigned n)
{
	struct raw_client *clients = calloc(n, sizeof(*clients));
	unsigned i;

	if (!clients)
		return 0;
	for (i = 0; i < n; i++) {
		struct raw_ring ring;

		if (attach(&clients[i], &ring, 16, 16) < 0)
			return i;
	}
	hold_still("connected");
	free(clients);
	return i;
}

static const struct verb {
	const char *name;
	unsigned (*play)(void);
} verbs[] = {
	{"noread", play_noread},     {"prefill", play_prefill},
	{"sqfull", play_sqfull},     {"scribble", play_scribble},
	{"sqes", play_sqes},         {"packets", play_packets},
	{"halves", play_halves},     {"seals", play_seals},
	{"punch", play_punch},       {"keep", play_keep},
	{"uffd", play_uffd},         {"locks", play_locks},
	{"fds", play_fds},           {"deaf", play_deaf},
	{"connects", play_connects}, {"flip", play_flip},
	{"bells", play_bells},       {"positions", play_positions},
	{"linger", play_linger},     {"inflight", play_inflight},
};

#define N_VERBS KVD_ARRAY_LEN(verbs)

int main(int argc, char **argv)
{
	struct raw_client client;
	unsigned count;
	size_t i = 0;

	while (argc == 4 && i < N_VERBS && strcmp(argv[1], verbs[i].name))
		i++;
	if (argc != 4 || (i == N_VERBS && strncmp(argv[1], "idle", 4))) {
		fprintf(stderr, "usage: hostile VERB|idleN SECONDS SEED\nverbs:");
		for (i = 0; i < N_VERBS; i++)
			fprintf(stderr, " %s", verbs[i].name);
		fprintf(stderr, "\n");
		return 2;
	}
	deadline = now() + atof(argv[2]);
	seed = (uint32_t)atol(argv[3]) * 2654435761u | 1;
	count = i < N_VERBS ? verbs[i].play() : play_idle((unsigned)atoi(argv[1] + 4));
	printf("%s: %u\n", argv[1], count);
	if (!count) {
		fprintf(stderr, "hostile: it never came to do it\n");
		return 1;
	}
	for (int tries = 0; tries < 100; tries++) {
		if (raw_connect(&client, "hostile") == 0)
			return broken;
		nap_us(20000);
	}
	fprintf(stderr, "hostile: the daemon does not answer any more\n");
	return 1;
}
