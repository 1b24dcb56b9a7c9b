/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_CONTROL_H
#define KVD_DAEMON_SERVE_CONTROL_H

/* What a message on the socket does; rights go by the uid that the kernel attests. Thread: loop. */

struct proto_request;
struct session;

/* @request: checked by ipc/proto.h. The session may be closing afterwards. */
void control_request(struct session *session, const struct proto_request *request);

#endif
