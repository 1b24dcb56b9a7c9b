/* SPDX-License-Identifier: MIT */
/*
 * What everything else of a client stands on: its lock, the state of its connection, the
 * socket and the two handshake messages, and what WELCOME has said.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "client/internal.h"
#include "ipc/barrier.h"
#include "ipc/base.h"
#include "ipc/doorbell.h"
#include "ipc/status.h"

void ring_wake(struct kvc_ring *r)
{
	int fd = __atomic_load_n(&r->wake_fd, __ATOMIC_RELAXED);

	if (fd >= 0)
		doorbell_signal_submit(fd);
}

void client_lock(struct kvc_client *c)
{
	pthread_mutex_lock(&c->ctl_lock);
}

int client_lock_until(struct kvc_client *c, uint64_t deadline_ns)
{
	const struct timespec at = {
		.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u),
	};

	if (!deadline_ns) {
		client_lock(c);
		return 0;
	}
	return pthread_mutex_clocklock(&c->ctl_lock, CLOCK_MONOTONIC, &at) == 0 ? 0
										: -ETIME;
}

bool client_trylock(struct kvc_ring *r)
{
	struct kvc_client *c = r->client;

	if (pthread_mutex_trylock(&c->ctl_lock) == 0)
		return true;
	/* A healthy ring that watches the socket is woken by that. */
	if (!ring_stale(r) && !r->unwatched)
		return false;
	__atomic_store_n(&r->missed, true, __ATOMIC_RELAXED);
	__atomic_store_n(&c->missed, true, __ATOMIC_RELEASE);
	/* Either the lock is free now, or who gives it back sees the word. */
	shm_full_barrier();
	return pthread_mutex_trylock(&c->ctl_lock) == 0;
}

void client_unlock(struct kvc_client *c)
{
	do {
		if (__atomic_exchange_n(&c->missed, false, __ATOMIC_ACQ_REL))
			for (struct kvc_ring *r = c->rings; r; r = r->next)
				if (__atomic_exchange_n(&r->missed, false,
							__ATOMIC_RELAXED))
					ring_wake(r);
		pthread_mutex_unlock(&c->ctl_lock);
		shm_full_barrier();
	} while (__atomic_load_n(&c->missed, __ATOMIC_RELAXED) &&
		 pthread_mutex_trylock(&c->ctl_lock) == 0);
}

static int fail_connect(int err, const char *path)
{
	switch (err) {
	case ENOENT:
	case ECONNREFUSED:
	case ENOTDIR:
		return kvc_fail(
			-err,
			"kvd is not running at %s; start it: systemctl start kvd, "
			"or set $" KVD_SOCKET_ENV,
			path);
	case EACCES:
	case EPERM:
		return kvc_fail(-err,
				"cannot connect to %s: Permission denied. Add yourself "
				"to group kvd-clients: sudo usermod -aG kvd-clients "
				"$USER, then log in again.",
				path);
	case EPROTOTYPE:
		return kvc_fail(-err, "%s is a socket of another kind, not kvd's", path);
	case EAGAIN:
		return kvc_fail(-ETIME,
				"kvd at %s accepts no connections: it is stopped "
				"or overloaded",
				path);
	default:
		return kvc_fail(-err, "cannot connect to %s: %s", path,
				status_text(-err));
	}
}

int client_open_socket(struct kvc_client *c, bool wait, uint64_t deadline_ns,
		       int *ret_sock)
{
	_cleanup_(closep) int sock = -1;
	const char *path = c->path;
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct timeval tv = {0};
	uint64_t now;

	if (strlen(path) >= sizeof(addr.sun_path))
		return kvc_fail(-ENAMETOOLONG,
				"socket path %s is too long (%zu bytes at most)", path,
				sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path) + 1);

	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK),
		      0);
	if (sock < 0)
		return kvc_fail(-errno, "cannot make a socket: %s", status_text(-errno));
	if (wait && deadline_ns) {
		/* Bounds connect() while the daemon's backlog is full. */
		now = clock_ns();
		if (now < deadline_ns) {
			tv.tv_sec = (time_t)((deadline_ns - now) / 1000000000u);
			tv.tv_usec = (long)((deadline_ns - now) % 1000000000u / 1000);
		}
		tv.tv_usec += tv.tv_usec < 999999;
		(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	}
	while (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		if (errno != EINTR)
			return fail_connect(errno, path);
	*ret_sock = fd_steal(&sock);
	return 0;
}

void client_hello_init(const struct kvc_client *c, struct kvd_msg_hello *hello)
{
	*hello = (struct kvd_msg_hello){
		.magic = KVD_HELLO_MAGIC,
		.version = KVD_ABI_VERSION,
		.features = c->reconnect ? KVD_FEATURE_KEEP : 0,
	};
	memcpy(hello->name, c->name, sizeof(hello->name));
}

int client_welcome(struct kvc_client *c, const struct kvd_msg_welcome *welcome)
{
	if (welcome->server.version != KVD_ABI_VERSION)
		return KVD_E_VERSION;
	pthread_mutex_lock(&c->info_lock);
	c->server = welcome->server;
	c->server.release[sizeof(c->server.release) - 1] = 0;
	c->model = welcome->model;
	c->model.name[sizeof(c->model.name) - 1] = 0;
	c->model.arch[sizeof(c->model.arch) - 1] = 0;
	pthread_mutex_unlock(&c->info_lock);
	return 0;
}

int client_check(struct kvc_client *c)
{
	if (client_forked(c))
		return kvc_fail_status(-EOWNERDEAD, 0);
	if (client_state(c) == CLIENT_DEAD)
		return kvc_fail_status(-ECONNRESET, 0);
	return 0;
}

/* A restart may change what is read here. A forked child's copy of the lock may be held
 * by nobody. */
static void lock_info(const struct kvc_client *c)
{
	if (!client_forked(c))
		pthread_mutex_lock((pthread_mutex_t *)&c->info_lock);
}

static void unlock_info(const struct kvc_client *c)
{
	if (!client_forked(c))
		pthread_mutex_unlock((pthread_mutex_t *)&c->info_lock);
}

void kvc_get_server_info(const struct kvc_client *c, struct kvd_server_info *ret_info)
{
	lock_info(c);
	*ret_info = c->server;
	unlock_info(c);
}

void client_max_arenas(const struct kvc_client *c, uint64_t *ret_in, uint64_t *ret_out)
{
	struct kvd_server_info server;
	const uint64_t most = KVD_MAX_ARENA_BYTES;

	kvc_get_server_info(c, &server);
	*ret_in = (server.max_in_bytes < most ? server.max_in_bytes : most) & ~4095ull;
	*ret_out = (server.max_out_bytes < most ? server.max_out_bytes : most) & ~4095ull;
}

int kvc_get_model_info(const struct kvc_client *c, struct kvd_model_info *ret_info)
{
	struct kvd_model_info info;

	lock_info(c);
	info = c->model;
	unlock_info(c);
	if (!info.arch[0])
		return kvc_fail_status(KVD_E_MODEL_NONE, 0);
	*ret_info = info;
	return 0;
}

void ring_bind(struct kvc_ring *r)
{
	const struct kvc_client *c = r->client;

	r->epoch = c->epoch;
	r->n_vocab = c->model.n_vocab;
	memcpy(r->fingerprint, c->model.fingerprint, sizeof(r->fingerprint));
}
