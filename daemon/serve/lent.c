/* SPDX-License-Identifier: MIT */
/*
 * See lent.h. The event comes with the last close, which a mapping delays; a descriptor in flight
 * is one, too. IN_ONESHOT: the mark, which keeps the inode and its pages, goes with the event.
 * IN_CLOSE_NOWRITE: the daemon's own description, which its mapping keeps, can write.
 */
#include "daemon/serve/lent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "ipc/base.h"

/* @wd: -1: not watched; @let_go: by the client; @ended: the ring has */
struct lent {
	struct lent *next;
	struct lent_files *files;
	int wd;
	bool unwatched;
	bool let_go;
	bool ended;
	struct user_charge charge;
};

static struct lent **bucket_of(struct lent_files *files, int wd)
{
	return &files->buckets[(unsigned int)wd % LENT_BUCKETS];
}

static void lent_unlink(struct lent *lent)
{
	struct lent **at = bucket_of(lent->files, lent->wd);

	while (*at != lent)
		at = &(*at)->next;
	*at = lent->next;
}

static void lent_free(struct lent *lent)
{
	lent_unlink(lent);
	user_charge_deinit(&lent->charge);
	free(lent);
}

static void lent_closed(struct lent_files *files, int wd)
{
	struct lent *lent = *bucket_of(files, wd);

	while (lent && lent->wd != wd)
		lent = lent->next;
	if (!lent)
		return;
	lent->let_go = true;
	if (lent->ended)
		lent_free(lent);
}

static struct lent *next_of(struct lent_files *files, unsigned int *bucket,
			    struct lent *at)
{
	if (at)
		at = at->next;
	while (!at && *bucket < LENT_BUCKETS)
		at = files->buckets[(*bucket)++];
	return at;
}

/* Events were lost: what the kernel does not list any more has had its one. */
static void lent_recount(struct lent_files *files)
{
	struct lent *lent = NULL, *next;
	unsigned int bucket = 0, wd;
	char path[64], line[256];
	FILE *info;

	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", files->fd);
	info = fopen(path, "re");
	if (!info)
		return;
	while ((lent = next_of(files, &bucket, lent)))
		lent->let_go |= lent->wd >= 0;
	while (fgets(line, sizeof(line), info)) {
		if (sscanf(line, "inotify wd:%x", &wd) != 1)
			continue;
		for (lent = *bucket_of(files, (int)wd); lent; lent = lent->next)
			if (lent->wd == (int)wd)
				lent->let_go = false;
	}
	fclose(info);
	bucket = 0;
	for (lent = next_of(files, &bucket, NULL); lent; lent = next) {
		next = next_of(files, &bucket, lent);
		if (lent->ended && lent->let_go)
			lent_free(lent);
	}
}

static void lent_read(struct lent_files *files)
{
	char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
	const struct inotify_event *e;
	ssize_t n;

	while (files->fd >= 0 && (n = read(files->fd, events, sizeof(events))) > 0)
		for (const char *at = events; at < events + n;
		     at += sizeof(*e) + e->len) {
			e = (const void *)at;
			if (e->mask & IN_Q_OVERFLOW)
				lent_recount(files);
			else if (e->mask & IN_CLOSE_NOWRITE)
				lent_closed(files, e->wd);
		}
}

static void lent_event(struct loop_io *io, uint32_t events)
{
	lent_read(container_of(io, struct lent_files, io));
}

void lent_files_init(struct lent_files *files, struct loop *loop)
{
	*files = (struct lent_files){.loop = loop};
	files->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (files->fd >= 0 &&
	    loop_io_add(loop, &files->io, files->fd, LOOP_READ, lent_event))
		files->fd = fd_close(files->fd);
}

void lent_files_deinit(struct lent_files *files)
{
	struct lent *lent, *next;
	unsigned int bucket = 0;

	if (!files->loop)
		return;
	for (lent = next_of(files, &bucket, NULL); lent; lent = next) {
		next = next_of(files, &bucket, lent);
		lent_free(lent);
	}
	loop_io_remove(&files->io);
	fd_close(files->fd);
	files->loop = NULL;
}

static int lent_charge(struct lent *lent, struct user *user, uint64_t bytes)
{
	int r = user_charge(&lent->charge, user, USER_RINGS, 1);

	if (!r)
		r = user_charge(&lent->charge, user, USER_BYTES, bytes);
	if (r)
		user_charge_deinit(&lent->charge);
	return r;
}

int lent_new(struct lent_files *files, struct user *user, uint64_t bytes,
	     struct lent **ret_lent)
{
	struct lent *lent = calloc(1, sizeof(*lent)), **at;
	int r;

	if (!lent)
		return error_origin(-ENOMEM);
	r = lent_charge(lent, user, bytes);
	if (r == -EDQUOT) {
		lent_read(files);
		r = lent_charge(lent, user, bytes);
	}
	if (r) {
		free(lent);
		return r;
	}
	lent->files = files;
	lent->wd = -1;
	at = bucket_of(files, -1);
	lent->next = *at;
	*at = lent;
	*ret_lent = lent;
	return 0;
}

void lent_watch(struct lent *lent, int fd)
{
	struct lent_files *files = lent->files;
	struct lent **at;
	char path[64];
	int wd = -1;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	errno = ENOSYS;
	if (files->fd >= 0)
		wd = inotify_add_watch(files->fd, path, IN_CLOSE_NOWRITE | IN_ONESHOT);
	if (wd < 0) {
		lent->unwatched = true;
		if (log_due(&files->warned, -errno, loop_now(files->loop)))
			log_errno(LOG_WARNING, -errno,
				  "cannot tell when clients let go of a ring's memory; "
				  "it stays charged to its user until kvd ends");
		return;
	}
	lent_unlink(lent);
	lent->wd = wd;
	at = bucket_of(files, wd);
	lent->next = *at;
	*at = lent;
}

void lent_end(struct lent *lent)
{
	lent->ended = true;
	if (lent->unwatched)
		/* Rings are few for each user, and this one's watch is not there. */
		user_charge_shrink(&lent->charge, USER_RINGS, 0);
	else if (lent->wd < 0 || lent->let_go)
		lent_free(lent);
}

uint64_t lent_bytes(const struct lent *lent)
{
	return lent->charge.amount[USER_BYTES];
}
