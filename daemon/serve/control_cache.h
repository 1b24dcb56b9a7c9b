/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_CONTROL_CACHE_H
#define KVD_DAEMON_SERVE_CONTROL_CACHE_H

/* Flushes, for control_prefix.c, which judges who may ask for which. Thread: loop. */

#include <stdint.h>

struct cache_flush_what;
struct kvd_msg_hdr;
struct session;

/* Replies to @request when done. @tokens: of the prefix that is flushed, for the reply */
void control_cache_flush(struct session *session, const struct kvd_msg_hdr *request,
			 const struct cache_flush_what *what, uint64_t tokens);

#endif
