/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_LENT_H
#define KVD_DAEMON_SERVE_LENT_H

/*
 * Memory that clients may still hold: the file of each ring that its client reads (D2C), charged
 * to its user until the client has let go of descriptor and mapping, however long after the ring's
 * end. So is the ring itself, which bounds the number of such files. Owns the charges, and an
 * inotify descriptor. Thread: loop.
 *
 * Relies on region_lend(): the client's description is the only one that reads alone, and no other
 * user can open the file. Who can, root and the daemon's own uid, may end a charge too early.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/user.h"

struct lent;

#define LENT_BUCKETS 256

/* @fd: -1: the kernel tells nothing; @warned: of that */
struct lent_files {
	struct loop *loop;
	struct loop_io io;
	int fd;
	struct lent *buckets[LENT_BUCKETS];
	struct log_last warned;
};

void lent_files_init(struct lent_files *files, struct loop *loop);

/* Forgets all, of users that end next. Idempotent. */
void lent_files_deinit(struct lent_files *files);

/* Charges one ring and @bytes to @user. Looks first for what was let go, if it is too much. Return:
 * 0, -EDQUOT, -ENOMEM. */
int lent_new(struct lent_files *files, struct user *user, uint64_t bytes,
	     struct lent **ret_lent);

/* Before the client gets the descriptor. Where the file cannot be watched its bytes stay charged
 * until the daemon ends, and the log says so. Without a call nothing outlives lent_end(). */
void lent_watch(struct lent *lent, int fd);

/* The ring has ended: the charge goes when the client lets go. @lent is no longer the caller's. */
void lent_end(struct lent *lent);

uint64_t lent_bytes(const struct lent *lent);

#endif
