/* SPDX-License-Identifier: MIT */
/*
 * Connecting, the handshake, closing.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "ipc/proto.h"
#include "ipc/status.h"

#define TIMEOUT_DEFAULT_NS 5000000000ll
#define SPIN_DEFAULT_NS    50000ll

/* Options of an older or newer caller into ours. Return: 0, -EINVAL, -E2BIG. */
static int read_opts(struct kvc_connect_opts *dst, const struct kvc_connect_opts *src)
{
	const uint8_t *bytes = (const uint8_t *)src;
	size_t i;

	*dst = (struct kvc_connect_opts){.size = sizeof(*dst)};
	if (!src)
		return 0;
	if (src->size < sizeof(src->size))
		return -EINVAL;
	for (i = sizeof(*dst); i < src->size; i++)
		if (bytes[i] != 0)
			return -E2BIG;
	memcpy(dst, src, src->size < sizeof(*dst) ? src->size : sizeof(*dst));
	return 0;
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

static int open_socket(const char *path, int64_t timeout_ns, int *ret_sock)
{
	_cleanup_(closep) int sock = -1;
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct timeval tv = {0};

	if (strlen(path) >= sizeof(addr.sun_path))
		return kvc_fail(-ENAMETOOLONG,
				"socket path %s is too long (%zu bytes at most)", path,
				sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path) + 1);

	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return kvc_fail(-errno, "cannot make a socket: %s", status_text(-errno));
	if (timeout_ns >= 0) {
		/* Bounds connect() while the daemon's backlog is full. */
		tv.tv_sec = timeout_ns / 1000000000;
		tv.tv_usec = timeout_ns % 1000000000 / 1000 + 1;
		(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	}
	while (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		if (errno != EINTR)
			return fail_connect(errno, path);
	*ret_sock = fd_steal(&sock);
	return 0;
}

static int handshake(struct kvc_client *c, const char *name, const char *path)
{
	struct kvd_msg_hello hello = {
		.magic = KVD_HELLO_MAGIC,
		.version = KVD_ABI_VERSION,
	};
	struct kvd_msg_welcome welcome;
	int rc;

	proto_set_string(hello.name, sizeof(hello.name),
			 name ? name : program_invocation_short_name);
	rc = ctl_call(c, &hello, sizeof(hello), KVD_MSG_HELLO, KVD_MSG_WELCOME,
		      offsetof(struct kvd_msg_welcome, model), &welcome, sizeof(welcome),
		      NULL);
	if (rc == KVD_E_PROTO)
		return kvc_fail(rc, "what answers at %s is not kvd", path);
	if (rc < 0)
		return rc;
	if (welcome.server.version != KVD_ABI_VERSION)
		return kvc_fail_status(KVD_E_VERSION, 0);

	c->server = welcome.server;
	c->server.release[sizeof(c->server.release) - 1] = 0;
	c->model = welcome.model;
	c->model.name[sizeof(c->model.name) - 1] = 0;
	c->model.arch[sizeof(c->model.arch) - 1] = 0;
	return 0;
}

static int init_guard(struct kvc_client *c)
{
	uint32_t *page;

	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		    0);
	if (page == MAP_FAILED)
		return -errno;
	*page = 1;
	c->guard = page;
	return madvise(page, 4096, MADV_WIPEONFORK) < 0 ? -errno : 0;
}

int kvc_connect(struct kvc_client **ret_client, const struct kvc_connect_opts *opts)
{
	struct kvc_connect_opts o;
	struct kvc_client *c;
	const char *path;
	int rc;

	rc = read_opts(&o, opts);
	if (rc < 0)
		return kvc_fail(rc, "kvc_connect_opts of a version that this library "
				    "does not know");
	path = o.socket_path ? o.socket_path : secure_getenv(KVD_SOCKET_ENV);
	if (!path || !path[0])
		path = KVD_SOCKET_DEFAULT;

	c = calloc(1, sizeof(*c));
	if (!c)
		return kvc_fail_status(-ENOMEM, 0);
	c->sock = -1;
	c->timeout_ns = o.timeout_ns ? o.timeout_ns : TIMEOUT_DEFAULT_NS;
	c->spin_ns = o.spin_ns ? o.spin_ns : SPIN_DEFAULT_NS;
	if (c->spin_ns < 0 || sysconf(_SC_NPROCESSORS_ONLN) < 2)
		c->spin_ns = 0;
	pthread_mutex_init(&c->ctl_lock, NULL);
	pthread_mutex_init(&c->pool_lock, NULL);
	pthread_cond_init(&c->pool_cond, NULL);
	c->buf = malloc(KVD_MSG_MAX);
	rc = c->buf ? init_guard(c) : -ENOMEM;
	if (rc < 0)
		kvc_fail_status(rc, 0);
	if (rc >= 0)
		rc = open_socket(path, c->timeout_ns, &c->sock);
	if (rc >= 0)
		rc = handshake(c, o.client_name, path);
	if (rc < 0) {
		kvc_close(c);
		return rc;
	}
	*ret_client = c;
	return 0;
}

void kvc_close(struct kvc_client *c)
{
	bool forked;

	if (!c)
		return;
	/* The socket's end tells the daemon all; no ring needs a word of its own. */
	forked = c->guard && client_forked(c);
	while (c->rings)
		ring_free(c->rings, forked);
	if (c->guard)
		munmap((void *)(uintptr_t)c->guard, 4096);
	fd_close(c->sock);
	pthread_cond_destroy(&c->pool_cond);
	pthread_mutex_destroy(&c->pool_lock);
	pthread_mutex_destroy(&c->ctl_lock);
	free(c->buf);
	free(c);
}

int client_check(struct kvc_client *c)
{
	if (client_forked(c))
		return kvc_fail_status(-EOWNERDEAD, 0);
	if (client_dead(c))
		return kvc_fail_status(-ECONNRESET, 0);
	return 0;
}

bool client_poll_dead(struct kvc_client *c)
{
	struct pollfd p = {.fd = c->sock, .events = POLLRDHUP};

	if (!client_dead(c) && poll(&p, 1, 0) > 0 &&
	    (p.revents & (POLLRDHUP | POLLHUP | POLLERR)))
		client_set_dead(c);
	return client_dead(c);
}

void kvc_get_server_info(const struct kvc_client *c, struct kvd_server_info *ret_info)
{
	*ret_info = c->server;
}

int kvc_get_model_info(const struct kvc_client *c, struct kvd_model_info *ret_info)
{
	if (!c->model.arch[0])
		return kvc_fail_status(KVD_E_MODEL_NONE, 0);
	*ret_info = c->model;
	return 0;
}
