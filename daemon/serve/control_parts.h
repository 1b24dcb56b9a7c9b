/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_CONTROL_PARTS_H
#define KVD_DAEMON_SERVE_CONTROL_PARTS_H

/*
 * Messages that have a file of their own: control_drain.c, control_quota.c, control_prefix.c,
 * control_cache.c.
 * Each answers one request of control_request(). Thread: loop.
 */

struct proto_request;
struct session;

void control_drain(struct session *session, const struct proto_request *request);
void control_quota(struct session *session, const struct proto_request *request);
void control_flush(struct session *session, const struct proto_request *request);
void control_prefix(struct session *session, const struct proto_request *request);
void control_cache_list(struct session *session, const struct proto_request *request);

#endif
