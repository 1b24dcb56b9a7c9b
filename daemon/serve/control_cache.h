/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_CONTROL_CACHE_H
#define KVD_DAEMON_SERVE_CONTROL_CACHE_H

/* Flushes, for control_prefix.c, which judges who may ask for which. Thread: loop. */

#include <stdint.h>

struct cache_flush_what;
struct kvd_msg_hdr;
struct session;

/* Flushes, and answers @request in the end. @tokens: of the prefix that it is of. */
void control_cache_flush(struct session *session, const struct kvd_msg_hdr *request,
			 const struct cache_flush_what *what, uint64_t tokens);

#endif
