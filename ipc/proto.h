/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_PROTO_H
#define KVD_IPC_PROTO_H

/* Messages of <kvd/proto.h> and <kvd/proto_admin.h> between bytes and structs. Sizes, tails,
 * strings and reserved fields are checked here. Pure functions over memory, any thread; fuzzed. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

/* ERROR: answer with request.status, by REJECT to HELLO; END: end the session without an answer. */
enum proto_verdict {
	PROTO_OK = 0,
	PROTO_ERROR = 1,
	PROTO_END = 2,
};

/* @hdr: valid unless the verdict is PROTO_END; @status: with PROTO_ERROR; @u: by hdr.type. */
struct proto_request {
	struct kvd_msg_hdr hdr;
	int status;
	union {
		struct kvd_msg_hello hello;
		struct kvd_msg_ring_open ring_open;
		struct kvd_msg_ring_close ring_close;
		struct kvd_msg_clients clients;
		struct kvd_msg_cache_flush flush;
		struct kvd_msg_quota quota;
		struct kvd_msg_cache_list cache_list;
		struct kvd_msg_prefix_control prefix;
		struct kvd_msg_drain drain;
	} u;
};

/**
 * proto_parse_request() - daemon: a packet from a client
 * @greeted: HELLO was accepted before
 *
 * After PROTO_OK strings are terminated, valid UTF-8 without hidden characters, reserved fields
 * are 0, magic and version fit. Limits and rights are left to the handler.
 */
enum proto_verdict proto_parse_request(const void *buf, size_t len, bool greeted,
				       struct proto_request *ret);

/**
 * proto_parse_reply() - client: a packet from the daemon
 * @type: the reply that is expected; REJECT and ERROR are types of their own
 * @min: bytes the packet must have
 * @ret: [size]; what the packet lacks is 0, what it has beyond is dropped
 *
 * Return: 0; KVD_E_PROTO.
 */
int proto_parse_reply(const void *buf, size_t len, uint16_t type, size_t min, void *ret,
		      size_t size);

/* Is this a notice that kvd restarted? */
bool proto_parse_notice(const void *buf, size_t len, struct kvd_msg_notice *ret);

/**
 * proto_parse_page() - entries of a CLIENTS_, QUOTA_, CACHE_LIST_ or EVENTS_REPLY
 * @ret: [cap] entries of @size bytes, longer and shorter ones as in proto_parse_reply()
 * @ret_next: names the next page, 0 after the last; EVENTS: how many were lost
 *
 * Return: entries of the page, perhaps more than @cap; KVD_E_PROTO.
 */
int proto_parse_page(const void *buf, size_t len, uint16_t type, void *ret, size_t size,
		     size_t cap, uint64_t *ret_next);

void proto_hdr_init(struct kvd_msg_hdr *hdr, uint16_t type, size_t len, uint32_t tag,
		    int status);

/* A REJECT or ERROR; @text NULL: the status's own. */
void proto_error_init(struct kvd_msg_error *msg, uint16_t type, uint32_t tag, int status,
		      uint64_t detail, const char *text);

/* Into a fixed field: cut at a character, terminated, rest zeroed. Control characters and bytes
 * that are not UTF-8 become '?'. */
void proto_set_string(char *dst, size_t size, const char *src);

#endif
