/* SPDX-License-Identifier: MIT */
#include "tests/system/raw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

uint32_t raw_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

int raw_socket(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *path = getenv(KVD_SOCKET_ENV);
	int fd;

	if (!path || strlen(path) >= sizeof(addr.sun_path))
		return -EINVAL;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return fd;
}

int raw_connect(struct raw_client *client, const char *name)
{
	struct kvd_msg_hello hello = {
		.hdr = {.len = sizeof(hello), .type = KVD_MSG_HELLO, .tag = 1},
		.magic = KVD_HELLO_MAGIC,
		.version = KVD_ABI_VERSION,
	};
	ssize_t n;

	client->fd = raw_socket();
	if (client->fd < 0)
		return client->fd;
	strncpy(hello.name, name, sizeof(hello.name) - 1);
	if (send(client->fd, &hello, sizeof(hello), MSG_NOSIGNAL) < 0 ||
	    (n = recv(client->fd, &client->welcome, sizeof(client->welcome), 0)) < 0) {
		int r = -errno;

		close(client->fd);
		return r;
	}
	if ((size_t)n < sizeof(client->welcome) ||
	    client->welcome.hdr.type != KVD_MSG_WELCOME) {
		close(client->fd);
		return -EPROTO;
	}
	return 0;
}

void raw_close(struct raw_client *client)
{
	close(client->fd);
}

static int receive_ring(int socket_fd, struct kvd_msg_ring_opened *opened, int *fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(KVD_RING_N_FDS * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = opened, .iov_len = sizeof(*opened)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *cmsg;
	ssize_t n = recvmsg(socket_fd, &msg, MSG_CMSG_CLOEXEC);

	if (n < 0)
		return -errno;
	cmsg = CMSG_FIRSTHDR(&msg);
	if ((size_t)n >= sizeof(opened->hdr) && opened->hdr.type == KVD_MSG_ERROR &&
	    opened->hdr.status)
		return opened->hdr.status;
	if ((size_t)n < sizeof(*opened) || opened->hdr.type != KVD_MSG_RING_OPENED ||
	    !cmsg || cmsg->cmsg_len != CMSG_LEN(KVD_RING_N_FDS * sizeof(int)))
		return -EPROTO;
	memcpy(fds, CMSG_DATA(cmsg), KVD_RING_N_FDS * sizeof(int));
	return 0;
}

int raw_ring_open(struct raw_client *client, struct raw_ring *ring, uint32_t sq_entries,
		  uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes)
{
	struct kvd_msg_ring_open open = {
		.hdr = {.len = sizeof(open), .type = KVD_MSG_RING_OPEN, .tag = 2},
		.sq_entries = sq_entries,
		.cq_entries = cq_entries,
		.in_bytes = in_bytes,
		.out_bytes = out_bytes,
	};
	struct kvd_msg_ring_opened opened;
	void *map;
	int r;

	*ring = (struct raw_ring){0};
	if (send(client->fd, &open, sizeof(open), MSG_NOSIGNAL) < 0)
		return -errno;
	r = receive_ring(client->fd, &opened, ring->fds);
	if (r < 0)
		return r;
	ring->geometry = opened.geometry;
	ring->id = opened.ring_id;
	map = mmap(NULL, ring->geometry.c2d_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		   ring->fds[KVD_RING_FD_C2D], 0);
	if (map == MAP_FAILED)
		return -errno;
	ring->c2d = map;
	map = mmap(NULL, ring->geometry.d2c_bytes, PROT_READ, MAP_SHARED,
		   ring->fds[KVD_RING_FD_D2C], 0);
	if (map == MAP_FAILED)
		return -errno;
	ring->d2c = map;
	return 0;
}

void raw_ring_close(struct raw_ring *ring)
{
	munmap(ring->c2d, ring->geometry.c2d_bytes);
	munmap((void *)ring->d2c, ring->geometry.d2c_bytes);
	for (int i = 0; i < KVD_RING_N_FDS; i++)
		close(ring->fds[i]);
}

void raw_submit(struct raw_ring *ring, const struct kvd_sqe *sqe)
{
	struct kvd_sqe *slot = (struct kvd_sqe *)(ring->c2d + ring->geometry.sq_off);

	slot += ring->sq_tail & (ring->geometry.sq_entries - 1);
	memcpy((uint8_t *)slot + 8, (const uint8_t *)sqe + 8, sizeof(*sqe) - 8);
	__atomic_store_n(&slot->seq, ++ring->sq_tail, __ATOMIC_RELEASE);
}

void raw_ring_bell(struct raw_ring *ring)
{
	uint64_t one = 1;

	/* A full counter or a daemon that is gone is part of the game. */
	if (write(ring->fds[KVD_RING_FD_SUBMIT], &one, sizeof(one)) < 0)
		return;
}

uint64_t raw_space(const struct raw_ring *ring)
{
	const struct kvd_daemon_page *page = (const void *)ring->d2c;

	return ring->geometry.sq_entries -
	       (ring->sq_tail - __atomic_load_n(&page->sq_pos, __ATOMIC_ACQUIRE));
}

static uint32_t daemon_flags(const struct raw_ring *ring)
{
	const struct kvd_daemon_page *page = (const void *)ring->d2c;

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(&page->flags, __ATOMIC_RELAXED);
}

void raw_ring_kick(struct raw_ring *ring)
{
	if (daemon_flags(ring) & KVD_DAEMON_NEED_WAKEUP)
		raw_ring_bell(ring);
}

bool raw_pop(struct raw_ring *ring, struct kvd_cqe *ret)
{
	const struct kvd_cqe *cqe = (const void *)(ring->d2c + ring->geometry.cq_off);

	cqe += ring->cq_head & (ring->geometry.cq_entries - 1);
	if (__atomic_load_n(&cqe->seq, __ATOMIC_ACQUIRE) != ring->cq_head + 1)
		return false;
	*ret = *cqe;
	__atomic_store_n((uint64_t *)ring->c2d, ++ring->cq_head, __ATOMIC_RELEASE);
	if (daemon_flags(ring) & KVD_DAEMON_CQ_FULL)
		raw_ring_bell(ring);
	return true;
}

void raw_prep_generate(struct raw_ring *ring, struct kvd_sqe *sqe, uint64_t in_off,
		       uint32_t n_tokens, uint32_t max_tokens, uint32_t seed)
{
	struct kvd_gen_params params = {
		.size = sizeof(params),
		.flags = KVD_GEN_IGNORE_EOS,
		.max_tokens = max_tokens,
	};
	uint8_t *arena = ring->c2d + ring->geometry.in_off;

	memcpy(arena + in_off, &params, sizeof(params));
	for (uint32_t i = 0; i < n_tokens; i++) {
		uint32_t id = 1000 + raw_random(&seed) % 20000;

		memcpy(arena + in_off + sizeof(params) + 4 * i, &id, sizeof(id));
	}
	*sqe = (struct kvd_sqe){
		.user_data = seed,
		.opcode = KVD_OP_GENERATE,
		.input = KVD_INPUT_TOKENS,
		.in_len = 4 * n_tokens,
		.in_off = in_off + sizeof(params),
		.params_len = sizeof(params),
		.params_off = in_off,
	};
}
