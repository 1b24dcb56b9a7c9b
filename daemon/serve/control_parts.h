/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_CONTROL_PARTS_H
#define KVD_DAEMON_SERVE_CONTROL_PARTS_H

/* Handlers of control_request() with a file of their own, control_*.c. Thread: loop. */

struct proto_request;
struct session;

void control_stats(struct session *session, const struct proto_request *request);
void control_drain(struct session *session, const struct proto_request *request);
void control_quota(struct session *session, const struct proto_request *request);
void control_flush(struct session *session, const struct proto_request *request);
void control_prefix(struct session *session, const struct proto_request *request);
void control_cache_list(struct session *session, const struct proto_request *request);

#endif
