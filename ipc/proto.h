/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_PROTO_H
#define KVD_IPC_PROTO_H

/*
 * Messages of <kvd/proto.h> and <kvd/proto_admin.h> between bytes and structs: every size,
 * tail, string and reserved field is checked here, before any handler sees a message. Pure
 * functions over memory, no I/O, no state, any thread; fuzzed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/proto_admin.h>

/* What to do with a packet from a client. */
enum proto_verdict {
	PROTO_OK = 0,
	PROTO_ERROR = 1, /* answer with request.status; REJECT if it was HELLO */
	PROTO_END = 2,   /* end the session, answer nothing */
};

/**
 * struct proto_request - a request, copied and checked
 * @hdr:    valid unless the verdict is PROTO_END
 * @status: why, with PROTO_ERROR
 * @u:      the message of hdr.type
 */
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
 * @buf:     [len] the packet
 * @greeted: HELLO was accepted before
 *
 * After PROTO_OK strings are terminated, valid UTF-8 without control characters,
 * reserved fields are 0, magic and version fit. Whether sizes are within limits
 * and whether the sender may do it is for the handler.
 */
enum proto_verdict proto_parse_request(const void *buf, size_t len, bool greeted,
				       struct proto_request *ret);

/**
 * proto_parse_reply() - client: a packet from the daemon
 * @type: the reply that is expected
 * @ret:  [size] struct of that reply; what the packet lacks is 0, what it has
 *        beyond @size is dropped
 * @min:  bytes the packet must have at least
 *
 * Return: 0; KVD_E_PROTO if it is not such a reply. REJECT and ERROR are
 * different types; ask for them by name.
 */
int proto_parse_reply(const void *buf, size_t len, uint16_t type, size_t min, void *ret,
		      size_t size);

/* Is this packet a notice that kvd restarted? Others are of no interest. */
bool proto_parse_notice(const void *buf, size_t len, struct kvd_msg_notice *ret);

/**
 * proto_parse_page() - entries of a CLIENTS_, QUOTA_, CACHE_LIST_ or EVENTS_REPLY
 * @type: which
 * @ret: [cap] entries of @size bytes as this side knows them; what an older daemon's lack
 *       is 0, what a newer one's have beyond is dropped
 * @ret_next: names the next page, 0 after the last; EVENTS: how many were lost
 *
 * Return: entries of the page, perhaps more than @cap; KVD_E_PROTO.
 */
int proto_parse_page(const void *buf, size_t len, uint16_t type, void *ret, size_t size,
		     size_t cap, uint64_t *ret_next);

/* Fill a header. */
void proto_hdr_init(struct kvd_msg_hdr *hdr, uint16_t type, size_t len, uint32_t tag,
		    int status);

/* Fill a REJECT or ERROR; NULL for the status's own text. */
void proto_error_init(struct kvd_msg_error *msg, uint16_t type, uint32_t tag, int status,
		      uint64_t detail, const char *text);

/*
 * Copy a string into a fixed field: cut at a character, terminated, rest zeroed.
 * Control characters and bytes that are not UTF-8 become '?'.
 */
void proto_set_string(char *dst, size_t size, const char *src);

#endif
