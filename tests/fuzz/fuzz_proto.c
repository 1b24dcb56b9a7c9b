/* SPDX-License-Identifier: MIT */
/*
 * Everything that reads a peer's bytes in ipc/: packets in both directions, SQEs,
 * GENERATE parameters, chat records. Beyond not crashing, what is accepted must
 * keep the promises of the headers.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"
#include "ipc/proto.h"
#include "ipc/ring.h"
#include "ipc/sqe.h"
#include "ipc/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(int ok)
{
	if (!ok)
		abort();
}

static void check_name(const char *s, size_t size)
{
	size_t len = strnlen(s, size), i;

	check(len < size);
	check(utf8_valid_len(s, len) == len);
	for (i = 0; i < len; i++)
		check((uint8_t)s[i] >= 0x20 && s[i] != 0x7f);
}

static void requests(const uint8_t *data, size_t len)
{
	struct proto_request req;
	enum proto_verdict v;
	int greeted;

	for (greeted = 0; greeted < 2; greeted++) {
		v = proto_parse_request(data, len, greeted, &req);
		if (v == PROTO_ERROR)
			check(req.status < 0 && req.hdr.tag != 0);
		if (v != PROTO_OK)
			continue;
		check(req.hdr.len == len && req.hdr.tag != 0);
		check((req.hdr.type == KVD_MSG_HELLO) == !greeted);
		if (req.hdr.type == KVD_MSG_HELLO)
			check_name(req.u.hello.name, sizeof(req.u.hello.name));
		if (req.hdr.type == KVD_MSG_CACHE_FLUSH) {
			check_name(req.u.flush.domain, sizeof(req.u.flush.domain));
			check_name(req.u.flush.model, sizeof(req.u.flush.model));
		}
	}
}

static void replies(const uint8_t *data, size_t len)
{
	struct kvd_client_info infos[4];
	struct kvd_msg_ring_opened opened;
	struct kvd_ring_geometry *g = &opened.geometry;
	struct kvd_msg_welcome welcome;
	struct kvd_msg_notice notice;
	uint64_t next;
	int n;

	if (proto_parse_notice(data, len, &notice))
		check(notice.hdr.len == len && !notice.hdr.tag && notice.hello_tag);

	(void)proto_parse_reply(data, len, KVD_MSG_WELCOME, 16, &welcome,
				sizeof(welcome));
	n = proto_parse_page(data, len, KVD_MSG_CLIENTS_REPLY, infos, sizeof(infos[0]),
			     KVD_ARRAY_LEN(infos), &next);
	check(n <= (int)KVD_EVENTS_PAGE);
	if (proto_parse_reply(data, len, KVD_MSG_RING_OPENED, sizeof(opened), &opened,
			      sizeof(opened)) == 0 &&
	    ring_geometry_ok(g)) {
		check(range_ok(g->sq_off, g->sq_entries * 64ull, g->c2d_bytes));
		check(range_ok(g->out_off, g->out_bytes, g->d2c_bytes));
	}
}

static void sqe(const uint8_t *data, size_t len)
{
	const uint64_t in = 10000, out = 5000;
	struct kvd_sqe s;

	if (len < sizeof(s))
		return;
	memcpy(&s, data, sizeof(s));
	if (sqe_check(&s, in, out) != 0)
		return;
	check(s.opcode <= KVD_OP_PREFIX_LOOKUP && s.input <= KVD_INPUT_CHAT);
	check(range_ok(s.in_off, s.in_len, in));
	check(range_ok(s.params_off, s.params_len, in));
	check(range_ok(s.out_off, s.out_len, out));
}

static void params(const uint8_t *data, size_t len)
{
	struct sqe_span stops[KVD_MAX_STOP];
	struct kvd_gen_params p;
	uint32_t i;

	if (sqe_parse_gen_params(data, len, &p, stops) != 0)
		return;
	check(p.temperature >= 0 && p.top_p <= 1 && p.min_p >= 0);
	check(p.n_stop <= KVD_MAX_STOP);
	for (i = 0; i < p.n_stop; i++) {
		check(stops[i].len >= 1 && stops[i].len <= KVD_MAX_STOP_LEN);
		check(range_ok((uint64_t)(stops[i].bytes - data), stops[i].len, len));
	}
}

static void chat(const uint8_t *data, size_t len)
{
	struct sqe_span role, content;
	size_t pos = 0, before = 0;

	while (sqe_next_message(data, len, &pos, &role, &content) == 1) {
		check(pos > before && pos <= len);
		check(range_ok((uint64_t)(content.bytes - data), content.len, len));
		before = pos;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	char text[KVD_NAME_MAX];
	char *copy;

	requests(data, len);
	replies(data, len);
	sqe(data, len);
	params(data, len);
	chat(data, len);

	copy = malloc(len + 1);
	if (!copy)
		abort();
	memcpy(copy, data, len);
	copy[len] = 0;
	proto_set_string(text, sizeof(text), copy);
	check_name(text, sizeof(text));
	free(copy);
	return 0;
}
