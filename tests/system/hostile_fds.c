/* SPDX-License-Identifier: MIT */
/* Attacks by descriptors in messages, both ways. See hostile.h. */
#include "tests/system/hostile.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* All that one message takes. */
#define MAX_FDS 253

/* Connections of play_linger() that are open at once. */
#define N_PEERS 512

/* Return: whether it was sent. */
static bool send_fds(int sock, const int *fds, size_t n)
{
	static union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct kvd_msg_hdr hdr = {.len = sizeof(hdr), .type = KVD_MSG_STATS, .tag = 9};
	struct iovec iov = {.iov_base = &hdr, .iov_len = sizeof(hdr)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(n * sizeof(int)),
	};

	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_RIGHTS;
	control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(&control.align), fds, n * sizeof(int));
	return sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

/* As many descriptors as a message takes, again and again. */
unsigned play_fds(void)
{
	int fds[MAX_FDS];
	unsigned n = 0;

	for (int i = 0; i < MAX_FDS; i++)
		fds[i] = STDOUT_FILENO;
	while (now() < deadline) {
		struct raw_client client;

		if (raw_connect(&client, "hostile") < 0) {
			nap_us(2000);
			continue;
		}
		/* Refused at once where the kernel lets the daemon say so. */
		for (int i = 0; i < 8; i++)
			n += send_fds(client.fd, fds, MAX_FDS);
		nap_us(1000);
		raw_close(&client);
	}
	return n + 1;
}

/* A TCP connection whose last close waits for seconds. */
static int lingering(int *ret_peer)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger on = {.l_onoff = 1, .l_linger = 10};
	static char junk[65536];
	socklen_t len = sizeof(a);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&a, &len) < 0 ||
	    connect(fd, (struct sockaddr *)&a, len) < 0)
		perror("hostile: loopback");
	*ret_peer = accept(listener, NULL, NULL);
	close(listener);
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &on, sizeof(on));
	while (send(fd, junk, sizeof(junk), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
		;
	return fd;
}

/* The message becomes its only owner, since the daemon has other packets to read before: one that
 * is received, one that is unread when the session ends, and one whose sender hangs up. */
unsigned play_linger(void)
{
	struct kvd_msg_hdr stats = {
		.len = sizeof(stats), .type = KVD_MSG_STATS, .tag = 9};
	static int peers[N_PEERS];
	unsigned n = 0;

	while (now() < deadline) {
		struct raw_client client;
		int peer, fd;
		bool sent;

		if (raw_connect(&client, "hostile") < 0) {
			nap_us(2000);
			continue;
		}
		fd = lingering(&peer);
		for (int i = 0; i < 100; i++)
			(void)send(client.fd, &stats, sizeof(stats), MSG_NOSIGNAL);
		if (n % 3 == 1)
			(void)send(client.fd, "", 1, MSG_NOSIGNAL);
		sent = send_fds(client.fd, &fd, 1);
		if (!sent)
			(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){0},
					 sizeof(struct linger));
		close(fd);
		if (n % 3 != 2)
			nap_us(20000);
		raw_close(&client);
		/* whose end would be that of the waiting */
		if (n >= N_PEERS)
			close(peers[n % N_PEERS]);
		peers[n++ % N_PEERS] = peer;
	}
	return n;
}

/* Opens rings and receives none, on as many connections as it gets. Each reply that lies there
 * counts against the daemon, also after the session's end. */
unsigned play_inflight(void)
{
	struct kvd_msg_ring_open open = {
		.hdr = {.len = sizeof(open), .type = KVD_MSG_RING_OPEN, .tag = 2},
		.sq_entries = 1,
		.cq_entries = 1,
	};
	struct kvd_msg_ring_close close_it = {
		.hdr = {.len = sizeof(close_it), .type = KVD_MSG_RING_CLOSE, .tag = 3},
	};
	static struct raw_client clients[128];
	unsigned n_clients = 0, n = 0;

	while (n_clients < 128 && raw_connect(&clients[n_clients], "hostile") == 0)
		n_clients++;
	for (unsigned k = 1; k <= 64; k++)
		for (unsigned i = 0; i < n_clients; i++) {
			close_it.ring_id = k;
			n += send(clients[i].fd, &open, sizeof(open),
				  MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
			(void)send(clients[i].fd, &close_it, sizeof(close_it),
				   MSG_NOSIGNAL | MSG_DONTWAIT);
			if (i % 8 == 7)
				nap_us(200);
		}
	while (now() < deadline)
		nap_us(20000);
	while (n_clients)
		raw_close(&clients[--n_clients]);
	return n;
}
