/* SPDX-License-Identifier: MIT */
#include "ipc/proto.h"

#include <errno.h>
#include <string.h>

#include "ipc/abi_assert.h"
#include "ipc/base.h"
#include "ipc/status.h"
#include "ipc/utf8.h"

/* A fixed field from the wire: terminated, printable, nothing behind the end. */
static bool string_ok(const char *s, size_t size)
{
	size_t len = strnlen(s, size), i = 0;
	uint32_t code;
	int n;

	if (len == size)
		return false;
	for (; i < len; i += (size_t)n) {
		n = utf8_next(s + i, len - i, &code);
		if (n <= 0 || utf8_is_hidden(code))
			return false;
	}
	for (; i < size; i++)
		if (s[i] != 0)
			return false;
	return true;
}

void proto_set_string(char *dst, size_t size, const char *src)
{
	size_t len = strlen(src), at = 0, n;
	uint32_t code = 0;
	int r;

	memset(dst, 0, size);
	while (len > 0) {
		r = utf8_next(src, len, &code);
		n = r > 0 ? (size_t)r : 1;
		if (at + n > size - 1)
			break;
		if (r <= 0 || utf8_is_hidden(code)) {
			dst[at++] = '?';
		} else {
			memcpy(dst + at, src, n);
			at += n;
		}
		src += n;
		len -= n;
	}
}

void proto_hdr_init(struct kvd_msg_hdr *hdr, uint16_t type, size_t len, uint32_t tag,
		    int status)
{
	*hdr = (struct kvd_msg_hdr){
		.len = (uint32_t)len,
		.type = type,
		.tag = tag,
		.status = status,
	};
}

void proto_error_init(struct kvd_msg_error *msg, uint16_t type, uint32_t tag, int status,
		      uint64_t detail, const char *text)
{
	proto_hdr_init(&msg->hdr, type, sizeof(*msg), tag, status);
	msg->detail = detail;
	proto_set_string(msg->text, sizeof(msg->text), text ? text : status_text(status));
}

/* Copy [len] into [size], zero what is missing; false if a lost tail is not 0. */
static bool copy_grown(void *dst, size_t size, const uint8_t *src, size_t len)
{
	size_t n = len < size ? len : size;

	memset(dst, 0, size);
	memcpy(dst, src, n);
	for (; n < len; n++)
		if (src[n] != 0)
			return false;
	return true;
}

/* Sizes of the requests in their first form, which are their least sizes. */
static size_t request_size(uint16_t type)
{
	switch (type) {
	case KVD_MSG_HELLO:
		return sizeof(struct kvd_msg_hello);
	case KVD_MSG_RING_OPEN:
		return sizeof(struct kvd_msg_ring_open);
	case KVD_MSG_RING_CLOSE:
		return sizeof(struct kvd_msg_ring_close);
	case KVD_MSG_STATS:
	case KVD_MSG_EVENTS:
		return sizeof(struct kvd_msg_hdr);
	case KVD_MSG_CLIENTS:
		return sizeof(struct kvd_msg_clients);
	case KVD_MSG_CACHE_FLUSH:
		return sizeof(struct kvd_msg_cache_flush);
	case KVD_MSG_QUOTA:
		return sizeof(struct kvd_msg_quota);
	case KVD_MSG_CACHE_LIST:
		return sizeof(struct kvd_msg_cache_list);
	case KVD_MSG_PREFIX_CONTROL:
		return sizeof(struct kvd_msg_prefix_control);
	case KVD_MSG_DRAIN:
		return sizeof(struct kvd_msg_drain);
	default:
		return 0;
	}
}

/* Each action knows its flag. */
static bool prefix_ok(const struct kvd_msg_prefix_control *prefix)
{
	switch (prefix->action) {
	case KVD_PREFIX_PIN:
		return !(prefix->flags & ~KVD_PREFIX_PUBLIC);
	case KVD_PREFIX_UNPIN:
		return !prefix->flags;
	case KVD_PREFIX_FLUSH:
		return !(prefix->flags & ~KVD_PREFIX_TREE);
	default:
		return false;
	}
}

/* The contents of a request whose size is right. Return: 0 or the status. */
static int check_fields(const struct proto_request *req)
{
	const struct kvd_msg_hello *hello = &req->u.hello;
	const struct kvd_msg_cache_flush *flush = &req->u.flush;

	switch (req->hdr.type) {
	case KVD_MSG_HELLO:
		if (hello->magic != KVD_HELLO_MAGIC)
			return KVD_E_PROTO;
		if (hello->version != KVD_ABI_VERSION)
			return KVD_E_VERSION;
		return string_ok(hello->name, sizeof(hello->name)) ? 0 : -EINVAL;
	case KVD_MSG_RING_OPEN:
		return req->u.ring_open.flags || req->u.ring_open.reserved ? -EINVAL : 0;
	case KVD_MSG_RING_CLOSE:
		return req->u.ring_close.reserved ? -EINVAL : 0;
	case KVD_MSG_CLIENTS:
		return req->u.clients.reserved ? -EINVAL : 0;
	case KVD_MSG_QUOTA:
		return req->u.quota.set & ~KVD_QUOTA_ALL || req->u.quota.reserved ||
				       req->u.quota.quota.reserved
			       ? -EINVAL
			       : 0;
	case KVD_MSG_DRAIN:
		return req->u.drain.action > KVD_DRAIN_OFF || req->u.drain.reserved
			       ? -EINVAL
			       : 0;
	case KVD_MSG_PREFIX_CONTROL:
		return prefix_ok(&req->u.prefix) ? 0 : -EINVAL;
	case KVD_MSG_CACHE_FLUSH:
		return flush->flags == 0 && flush->reserved == 0 &&
				       string_ok(flush->domain, sizeof(flush->domain)) &&
				       string_ok(flush->model, sizeof(flush->model))
			       ? 0
			       : -EINVAL;
	default:
		return 0;
	}
}

enum proto_verdict proto_parse_request(const void *buf, size_t len, bool greeted,
				       struct proto_request *ret)
{
	struct proto_request req;
	struct kvd_msg_hdr *h = &req.hdr;
	size_t min;

	if (len < sizeof(*h) || len > KVD_MSG_MAX)
		return PROTO_END;
	memset(&req, 0, sizeof(req));
	memcpy(h, buf, sizeof(*h));
	if (h->len != len || h->flags != 0 || h->tag == 0 || h->status != 0)
		return PROTO_END;
	if ((h->type == KVD_MSG_HELLO) == greeted)
		return PROTO_END;

	min = request_size(h->type);
	if (min == 0)
		req.status = KVD_E_UNSUPPORTED;
	else if (len < min)
		return PROTO_END;
	else if (!copy_grown(&req.u, min, buf, len))
		req.status = -E2BIG;
	else
		req.status = check_fields(&req);
	*ret = req;
	return req.status == 0 ? PROTO_OK : PROTO_ERROR;
}

int proto_parse_reply(const void *buf, size_t len, uint16_t type, size_t min, void *ret,
		      size_t size)
{
	struct kvd_msg_hdr h;

	if (len < sizeof(h) || len > KVD_MSG_MAX || len < min)
		return KVD_E_PROTO;
	memcpy(&h, buf, sizeof(h));
	if (h.len != len || h.type != type)
		return KVD_E_PROTO;
	(void)copy_grown(ret, size, buf, len);
	return 0;
}

bool proto_parse_notice(const void *buf, size_t len, struct kvd_msg_notice *ret)
{
	struct kvd_msg_notice notice;

	if (proto_parse_reply(buf, len, KVD_MSG_NOTICE, sizeof(notice), &notice,
			      sizeof(notice)) < 0)
		return false;
	if (notice.hdr.tag || notice.kind != KVD_NOTICE_RESTARTED || !notice.hello_tag)
		return false;
	*ret = notice;
	return true;
}

/* Sizes of list entries in their first form; 0: not a list. */
static size_t entry_size_1(uint16_t type)
{
	switch (type) {
	case KVD_MSG_CLIENTS_REPLY:
		return KVD_CLIENT_INFO_SIZE_1;
	case KVD_MSG_QUOTA_REPLY:
		return KVD_QUOTA_INFO_SIZE_1;
	case KVD_MSG_CACHE_LIST_REPLY:
		return KVD_PREFIX_INFO_SIZE_1;
	case KVD_MSG_EVENTS_REPLY:
		return KVD_EVENT_SIZE_1;
	default:
		return 0;
	}
}

int proto_parse_page(const void *buf, size_t len, uint16_t type, void *ret, size_t size,
		     size_t cap, uint64_t *ret_next)
{
	/* the replies differ in the width of what names the next page only */
	struct kvd_msg_cache_list_reply r;
	const size_t min = entry_size_1(type);
	const uint8_t *entry;
	uint32_t i;

	if (proto_parse_reply(buf, len, type, sizeof(r), &r, sizeof(r)) < 0)
		return KVD_E_PROTO;
	if (!min || r.n > KVD_EVENTS_PAGE || r.entry_size < min ||
	    r.entry_size > KVD_MSG_MAX ||
	    !range_ok(sizeof(r), (uint64_t)r.n * r.entry_size, len))
		return KVD_E_PROTO;
	entry = (const uint8_t *)buf + sizeof(r);
	for (i = 0; i < r.n && i < cap; i++, entry += r.entry_size)
		(void)copy_grown((uint8_t *)ret + i * size, size, entry, r.entry_size);
	*ret_next = r.next;
	return (int)r.n;
}
