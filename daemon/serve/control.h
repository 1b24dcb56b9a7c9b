/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_CONTROL_H
#define KVD_DAEMON_SERVE_CONTROL_H

/*
 * What messages on the socket do: the handshake, opening rings, statistics and
 * administration. Messages come checked by ipc/proto.h; whether the sender may ask is
 * decided here, by the uid that the kernel attests and nothing else.
 *
 * Thread: loop.
 */

struct proto_request;
struct session;

/* Answer one request; the session may be closing afterwards. */
void control_request(struct session *session, const struct proto_request *request);

#endif
