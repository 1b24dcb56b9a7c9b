/* SPDX-License-Identifier: MIT */
/*
 * Connecting, the handshake, closing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/internal.h"
#include "client/opts.h"
#include "ipc/base.h"
#include "ipc/proto.h"
#include "ipc/status.h"

#define TIMEOUT_DEFAULT_NS 5000000000ll
#define SPIN_DEFAULT_NS    50000ll
/* A service that restarts on failure is given up after 20 starts in a minute: doubled
 * twice, this leaves room for several requests that kill it. */
#define PAUSE_NS 1000000000u

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

/* The first one. Return: 0; KVD_E_RESTARTED: lost in the middle of it; -errno. */
static int handshake(struct kvc_client *c, uint64_t deadline_ns)
{
	struct kvd_msg_welcome welcome;
	struct kvd_msg_hello hello;
	int rc;

	client_hello_init(c, &hello);
	client_lock(c);
	rc = ctl_call_locked(c, &hello, sizeof(hello), KVD_MSG_HELLO, KVD_MSG_WELCOME,
			     deadline_ns, NULL);
	if (rc >= 0)
		rc = proto_parse_reply(c->buf, (size_t)rc, KVD_MSG_WELCOME,
				       offsetof(struct kvd_msg_welcome, model), &welcome,
				       sizeof(welcome));
	if (rc == KVD_E_PROTO)
		kvc_fail(rc, "what answers at %s is not kvd", c->path);
	if (rc >= 0) {
		rc = client_welcome(c, &welcome);
		if (rc < 0)
			kvc_fail_status(rc, 0);
	}
	client_unlock(c);
	return rc;
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

/* Deadlines are of the clock that nobody sets. */
static void init_pool_cond(struct kvc_client *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->pool_cond, &attr);
	pthread_condattr_destroy(&attr);
}

int kvc_connect(struct kvc_client **ret_client, const struct kvc_connect_opts *opts)
{
	struct kvc_connect_opts o;
	struct kvc_client *c;
	uint64_t deadline_ns;
	const char *path;
	int rc;

	rc = opts_read(&o, sizeof(o), opts, "kvc_connect_opts");
	if (rc < 0)
		return rc;
	path = o.socket_path ? o.socket_path : secure_getenv(KVD_SOCKET_ENV);
	if (!path || !path[0])
		path = KVD_SOCKET_DEFAULT;

	c = calloc(1, sizeof(*c));
	if (!c)
		return kvc_fail_status(-ENOMEM, 0);
	c->sock = -1;
	c->timer_fd = -1;
	c->pause_ns = PAUSE_NS;
	c->epoch = 1;
	c->timeout_ns = o.timeout_ns ? o.timeout_ns : TIMEOUT_DEFAULT_NS;
	deadline_ns = deadline_after(c->timeout_ns);
	c->reconnect = o.reconnect_ns >= 0;
	c->reconnect_ns = o.reconnect_ns > 0 ? o.reconnect_ns : c->timeout_ns;
	c->spin_ns = o.spin_ns ? o.spin_ns : SPIN_DEFAULT_NS;
	if (c->spin_ns < 0 || sysconf(_SC_NPROCESSORS_ONLN) < 2)
		c->spin_ns = 0;
	pthread_mutex_init(&c->ctl_lock, NULL);
	pthread_mutex_init(&c->info_lock, NULL);
	pthread_mutex_init(&c->pool_lock, NULL);
	init_pool_cond(c);
	proto_set_string(c->name, sizeof(c->name),
			 o.client_name ? o.client_name : program_invocation_short_name);
	c->path = strdup(path);
	c->buf = malloc(KVD_MSG_MAX);
	rc = c->path && c->buf ? init_guard(c) : -ENOMEM;
	if (rc < 0)
		kvc_fail_status(rc, 0);
	if (rc >= 0)
		rc = client_open_socket(c, true, deadline_ns, &c->sock);
	if (rc >= 0)
		rc = handshake(c, deadline_ns);
	/* The daemon died between accepting and answering. */
	if (rc == KVD_E_RESTARTED)
		rc = client_recover(c, 0);
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
	fd_close(c->timer_fd);
	pthread_cond_destroy(&c->pool_cond);
	pthread_mutex_destroy(&c->pool_lock);
	pthread_mutex_destroy(&c->info_lock);
	pthread_mutex_destroy(&c->ctl_lock);
	free(c->path);
	free(c->buf);
	free(c);
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
