/* SPDX-License-Identifier: MIT */
/*
 * Connecting, the handshake, closing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/internal.h"
#include "client/opts.h"
#include "ipc/base.h"
#include "ipc/proto.h"

#define TIMEOUT_DEFAULT_NS 5000000000ll
#define SPIN_DEFAULT_NS    100000ll
/* A service that restarts on failure is given up after 20 starts in a minute: doubled
 * twice, this leaves room for several requests that kill it. */
#define PAUSE_NS 1000000000u

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
