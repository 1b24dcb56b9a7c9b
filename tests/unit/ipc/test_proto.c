/* SPDX-License-Identifier: MIT */
/* Messages and SQEs: what is accepted, what is answered, what ends the session. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <kvd/proto_admin.h>

#include "ipc/base.h"
#include "ipc/proto.h"
#include "ipc/sqe.h"
#include "ipc/status.h"
#include "ipc/utf8.h"
#include "tests/unit/suite.h"

static struct kvd_msg_hello hello_ok(void)
{
	struct kvd_msg_hello h = {.magic = KVD_HELLO_MAGIC, .version = KVD_ABI_VERSION};

	proto_hdr_init(&h.hdr, KVD_MSG_HELLO, sizeof(h), 5, 0);
	strcpy(h.name, "größe");
	return h;
}

START_TEST(hello)
{
	struct kvd_msg_hello h = hello_ok();
	struct {
		struct kvd_msg_hello h;
		uint64_t more;
	} longer = {.h = h};
	struct proto_request req;
	size_t len;

	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_OK);
	ck_assert_str_eq(req.u.hello.name, "größe");
	ck_assert_uint_eq(req.hdr.tag, 5);
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), true, &req), PROTO_END);
	for (len = 0; len < sizeof(h); len++) {
		h.hdr.len = (uint32_t)len;
		ck_assert_int_eq(proto_parse_request(&h, len, false, &req), PROTO_END);
	}

	h = hello_ok();
	h.version = 2;
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_ERROR);
	ck_assert_int_eq(req.status, KVD_E_VERSION);
	h = hello_ok();
	h.magic++;
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_ERROR);
	ck_assert_int_eq(req.status, KVD_E_PROTO);

	/* A newer client may say more, as long as it says nothing. */
	longer.h.hdr.len = sizeof(longer);
	ck_assert_int_eq(proto_parse_request(&longer, sizeof(longer), false, &req),
			 PROTO_OK);
	longer.more = 1;
	ck_assert_int_eq(proto_parse_request(&longer, sizeof(longer), false, &req),
			 PROTO_ERROR);
	ck_assert_int_eq(req.status, -E2BIG);
}
END_TEST

START_TEST(headers)
{
	struct kvd_msg_hello h;
	struct proto_request req;
	struct kvd_msg_hdr stats;

	h = hello_ok();
	h.hdr.tag = 0;
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_END);
	h = hello_ok();
	h.hdr.flags = 1;
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_END);
	h = hello_ok();
	h.hdr.status = -1;
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_END);
	h = hello_ok();
	h.hdr.len++;
	ck_assert_int_eq(proto_parse_request(&h, sizeof(h), false, &req), PROTO_END);

	proto_hdr_init(&stats, KVD_MSG_STATS, sizeof(stats), 1, 0);
	ck_assert_int_eq(proto_parse_request(&stats, sizeof(stats), true, &req),
			 PROTO_OK);
	ck_assert_int_eq(proto_parse_request(&stats, sizeof(stats), false, &req),
			 PROTO_END);
	stats.type = 999;
	ck_assert_int_eq(proto_parse_request(&stats, sizeof(stats), true, &req),
			 PROTO_ERROR);
	ck_assert_int_eq(req.status, KVD_E_UNSUPPORTED);
	stats.type = KVD_MSG_WELCOME;
	ck_assert_int_eq(proto_parse_request(&stats, sizeof(stats), true, &req),
			 PROTO_ERROR);
}
END_TEST

START_TEST(names)
{
	static const struct {
		char name[8];
		bool ok;
	} cases[] = {
		{"", true},
		{"plain", true},
		{"a\nb", false},
		{"\x1b[2J", false},
		{"\x7f", false},
		{"\xff", false},
		{"\xc0\x80", false},         /* overlong 0 */
		{"\xed\xa0\x80", false},     /* surrogate */
		{"\xf4\x90\x80\x80", false}, /* above U+10FFFF */
		{"\xe2\x82", false},         /* cut */
		{"€", true},
		/* what hides, joins or turns the text around it */
		{"a\u00adb", false},
		{"a\u061cb", false},
		{"a\u200bb", false},
		{"a\u200eb", false},
		{"a\u200fb", false},
		{"a\u2028b", false},
		{"a\u202ab", false},
		{"a\u202eb", false},
		{"a\u2066b", false},
		{"a\u2069b", false},
		{"\ufeffb", false},
		{"\U000e0041", false},
		{"\xc2\x9b"
		 "2J",
		 false}, /* CSI */
		{"e\u0301", true},
		{"\U0001f4a9", true},
		{"\u2027\u202f", true}, /* beside the range */
		{"a\0b", false},        /* something behind the end */
		{"12345678", false},    /* see below: not terminated */
	};
	struct kvd_msg_hello h;
	struct proto_request req;
	char out[8];
	size_t i;

	for (i = 0; i < KVD_ARRAY_LEN(cases); i++) {
		h = hello_ok();
		memset(h.name, i + 1 == KVD_ARRAY_LEN(cases) ? 'x' : 0, sizeof(h.name));
		memcpy(h.name, cases[i].name, 8);
		ck_assert_msg((proto_parse_request(&h, sizeof(h), false, &req) ==
			       PROTO_OK) == cases[i].ok,
			      "case %zu", i);
		ck_assert(cases[i].ok || req.status == -EINVAL);
	}
	proto_set_string(out, sizeof(out), "a\nb\xff€€");
	ck_assert_str_eq(out, "a?b?€");
	proto_set_string(out, sizeof(out), "\xc2\x9b\xc2\xa0z"); /* CSI, no-break space */
	ck_assert_str_eq(out, "?\xc2\xa0z");
	proto_set_string(out, sizeof(out), "a\u202eb\u2069");
	ck_assert_str_eq(out, "a?b?");
	proto_set_string(out, sizeof(out), "1234567890");
	ck_assert_str_eq(out, "1234567");
	ck_assert_uint_eq(utf8_valid_len("ab\xc3\xa9\xc3", 5), 4);
}
END_TEST

START_TEST(reserved_fields)
{
	struct kvd_msg_ring_open o = {.sq_entries = 4, .cq_entries = 8};
	struct kvd_msg_cache_flush f = {0};
	struct proto_request req;

	proto_hdr_init(&o.hdr, KVD_MSG_RING_OPEN, sizeof(o), 1, 0);
	ck_assert_int_eq(proto_parse_request(&o, sizeof(o), true, &req), PROTO_OK);
	ck_assert_uint_eq(req.u.ring_open.cq_entries, 8);
	o.flags = 1;
	ck_assert_int_eq(proto_parse_request(&o, sizeof(o), true, &req), PROTO_ERROR);
	ck_assert_int_eq(req.status, -EINVAL);
	o.flags = 0;
	o.reserved = 1;
	ck_assert_int_eq(proto_parse_request(&o, sizeof(o), true, &req), PROTO_ERROR);

	proto_hdr_init(&f.hdr, KVD_MSG_CACHE_FLUSH, sizeof(f), 1, 0);
	ck_assert_int_eq(proto_parse_request(&f, sizeof(f), true, &req), PROTO_OK);
	memset(f.domain, 'x', sizeof(f.domain));
	ck_assert_int_eq(proto_parse_request(&f, sizeof(f), true, &req), PROTO_ERROR);
}
END_TEST

START_TEST(event_pages)
{
	/* A daemon that knows more of an event than this side does. */
	struct entry {
		struct kvd_event known;
		uint64_t more;
	};
	struct {
		struct kvd_msg_events_reply r;
		struct entry e[2];
	} m = {.r = {.n = 2, .entry_size = sizeof(struct entry), .lost = 7}};
	struct kvd_event events[2];
	struct kvd_msg_hdr ask;
	struct proto_request req;
	uint64_t lost;

	proto_hdr_init(&ask, KVD_MSG_EVENTS, sizeof(ask), 1, 0);
	ck_assert_int_eq(proto_parse_request(&ask, sizeof(ask), true, &req), PROTO_OK);
	proto_hdr_init(&m.r.hdr, KVD_MSG_EVENTS_REPLY, sizeof(m), 1, 0);
	m.e[0].more = m.e[1].more = UINT64_MAX;
	m.e[1].known.kind = KVD_EVENT_FLUSH;
	m.e[1].known.blocks = 5;
	ck_assert_int_eq(proto_parse_page(&m, sizeof(m), KVD_MSG_EVENTS_REPLY, events,
					  sizeof(events[0]), 2, &lost),
			 2);
	ck_assert_uint_eq(lost, 7);
	ck_assert_uint_eq(events[1].kind, KVD_EVENT_FLUSH);
	ck_assert_uint_eq(events[1].blocks, 5);
	m.r.n = 3;
	ck_assert_int_eq(proto_parse_page(&m, sizeof(m), KVD_MSG_EVENTS_REPLY, events,
					  sizeof(events[0]), 2, &lost),
			 KVD_E_PROTO);
	m.r.n = KVD_EVENTS_PAGE + 1;
	m.r.entry_size = 0;
	ck_assert_int_eq(proto_parse_page(&m, sizeof(m), KVD_MSG_EVENTS_REPLY, events,
					  sizeof(events[0]), 2, &lost),
			 KVD_E_PROTO);
}
END_TEST

/* Entries of every list may be shorter or longer than this side knows them. */
START_TEST(entries_of_other_sizes)
{
	static const struct {
		uint16_t type;
		uint32_t size;
	} lists[] = {
		{KVD_MSG_CLIENTS_REPLY, sizeof(struct kvd_client_info)},
		{KVD_MSG_QUOTA_REPLY, sizeof(struct kvd_quota_info)},
		{KVD_MSG_CACHE_LIST_REPLY, sizeof(struct kvd_prefix_info)},
		{KVD_MSG_EVENTS_REPLY, sizeof(struct kvd_event)},
	};
	uint8_t packet[2048], entries[2][512];
	struct kvd_msg_cache_list_reply r;
	uint64_t next;

	for (size_t i = 0; i < KVD_ARRAY_LEN(lists); i++) {
		uint32_t known = lists[i].size, size = known + 16, len;

		for (uint32_t sent = known - 8; sent <= size + 16; sent += 8) {
			len = (uint32_t)sizeof(r) + 2 * sent;
			memset(packet, 0x5a, sizeof(packet));
			r = (struct kvd_msg_cache_list_reply){.n = 2, .entry_size = sent};
			proto_hdr_init(&r.hdr, lists[i].type, len, 1, 0);
			memcpy(packet, &r, sizeof(r));
			memset(packet + sizeof(r), 1, sent);
			memset(packet + sizeof(r) + sent, 2, sent);
			memset(entries, 0xff, sizeof(entries));
			int n = proto_parse_page(packet, len, lists[i].type, entries,
						 size, 2, &next);

			/* Shorter than in the first form is no list of kvd's. */
			if (sent < known) {
				ck_assert_int_eq(n, KVD_E_PROTO);
				continue;
			}
			ck_assert_int_eq(n, 2);
			for (uint32_t at = 0; at < size; at++) {
				const uint8_t *all = entries[0];

				ck_assert_uint_eq(all[at], at < sent ? 1 : 0);
				ck_assert_uint_eq(all[size + at], at < sent ? 2 : 0);
			}
			ck_assert_uint_eq(entries[0][2 * size], 0xff);
		}
	}
}
END_TEST

static int parse_clients(const void *m, size_t len, struct kvd_client_info *infos,
			 size_t cap, uint64_t *next)
{
	return proto_parse_page(m, len, KVD_MSG_CLIENTS_REPLY, infos, sizeof(*infos), cap,
				next);
}

START_TEST(replies)
{
	struct {
		struct kvd_msg_clients_reply r;
		struct kvd_client_info e[2];
	} m = {.r = {.n = 2, .entry_size = sizeof(struct kvd_client_info)}};
	struct kvd_msg_welcome w = {0}, got;
	struct kvd_client_info infos[2];
	struct kvd_msg_error err;
	uint64_t next;

	proto_hdr_init(&w.hdr, KVD_MSG_WELCOME, sizeof(w), 1, 0);
	w.model.n_layers = 30;
	ck_assert_int_eq(proto_parse_reply(&w, sizeof(w), KVD_MSG_WELCOME, sizeof(w),
					   &got, sizeof(got)),
			 0);
	ck_assert_uint_eq(got.model.n_layers, 30);
	ck_assert_int_eq(proto_parse_reply(&w, sizeof(w), KVD_MSG_REJECT, sizeof(w), &got,
					   sizeof(got)),
			 KVD_E_PROTO);
	/* From an older daemon: what is missing is 0. */
	w.hdr.len = 136;
	memset(&got, 0xff, sizeof(got));
	ck_assert_int_eq(
		proto_parse_reply(&w, 136, KVD_MSG_WELCOME, 136, &got, sizeof(got)), 0);
	ck_assert_uint_eq(got.model.n_layers, 0);
	ck_assert_int_eq(
		proto_parse_reply(&w, 136, KVD_MSG_WELCOME, 137, &got, sizeof(got)),
		KVD_E_PROTO);

	proto_hdr_init(&m.r.hdr, KVD_MSG_CLIENTS_REPLY, sizeof(m), 1, 0);
	m.e[1].id = 9;
	memset(m.e[1].name, 'n', sizeof(m.e[1].name));
	ck_assert_int_eq(parse_clients(&m, sizeof(m), infos, 2, &next), 2);
	ck_assert_uint_eq(infos[1].id, 9);
	ck_assert_int_eq(parse_clients(&m, sizeof(m), NULL, 0, &next), 2);
	m.r.n = 3;
	ck_assert_int_eq(parse_clients(&m, sizeof(m), infos, 2, &next), KVD_E_PROTO);
	m.r.n = 2;
	m.r.entry_size = 8;
	ck_assert_int_eq(parse_clients(&m, sizeof(m), infos, 2, &next), KVD_E_PROTO);
	m.r.entry_size = UINT32_MAX;
	ck_assert_int_eq(parse_clients(&m, sizeof(m), infos, 2, &next), KVD_E_PROTO);

	proto_error_init(&err, KVD_MSG_ERROR, 3, KVD_E_QUOTA, 16, NULL);
	ck_assert_str_eq(err.text, status_text(KVD_E_QUOTA));
	ck_assert_uint_eq(err.detail, 16);
}
END_TEST

START_TEST(notices)
{
	struct kvd_msg_notice n =
				      {
					      .hdr = {.len = sizeof(n),
						      .type = KVD_MSG_NOTICE},
					      .kind = KVD_NOTICE_RESTARTED,
					      .hello_tag = 5,
					      .generation = 9,
				      },
			      got = {0}, bad;
	struct {
		struct kvd_msg_notice n;
		uint64_t more;
	} longer = {.n = n, .more = 1};

	ck_assert(proto_parse_notice(&n, sizeof(n), &got));
	ck_assert_uint_eq(got.hello_tag, 5);
	ck_assert_uint_eq(got.generation, 9);
	longer.n.hdr.len = sizeof(longer);
	ck_assert(proto_parse_notice(&longer, sizeof(longer), &got));
	ck_assert(!proto_parse_notice(&n, sizeof(n) - 1, &got));
	ck_assert(!proto_parse_notice(&n, 0, &got));
	bad = n;
	bad.kind = 2;
	ck_assert(!proto_parse_notice(&bad, sizeof(bad), &got));
	bad = n;
	bad.hello_tag = 0;
	ck_assert(!proto_parse_notice(&bad, sizeof(bad), &got));
	bad = n;
	bad.hdr.tag = 5;
	ck_assert(!proto_parse_notice(&bad, sizeof(bad), &got));
	bad = n;
	bad.hdr.type = KVD_MSG_ERROR;
	ck_assert(!proto_parse_notice(&bad, sizeof(bad), &got));
}
END_TEST

START_TEST(sqes)
{
	static const struct {
		struct kvd_sqe sqe;
		int rc;
	} cases[] = {
		{{.opcode = KVD_OP_NOP}, 0},
		{{.opcode = KVD_OP_NOP, .user_data = 7, .seq = 3}, 0},
		{{.opcode = KVD_OP_NOP, .arg = 1}, -EINVAL},
		{{.opcode = KVD_OP_NOP, .flags = 1}, -EINVAL},
		{{.opcode = KVD_OP_NOP, .input = 1}, -EINVAL},
		{{.opcode = KVD_OP_NOP, .in_len = 1}, -EINVAL},
		{{.opcode = KVD_OP_NOP, .in_off = 1}, -EINVAL},
		{{.opcode = KVD_OP_NOP, .out_len = 4}, -EINVAL},
		{{.opcode = KVD_OP_NOP, .params_len = 64}, -EINVAL},
		{{.opcode = 6}, -EINVAL},
		{{.opcode = 16}, -EINVAL},
		{{.opcode = 255}, -EINVAL},
		{{.opcode = KVD_OP_CANCEL, .arg = 5}, 0},
		{{.opcode = KVD_OP_CANCEL, .arg = 5, .in_len = 4}, -EINVAL},
		{{.opcode = KVD_OP_GENERATE, .input = 2, .in_len = 1000}, 0},
		{{.opcode = KVD_OP_GENERATE, .input = 2, .in_len = 1001}, -EFAULT},
		{{.opcode = KVD_OP_GENERATE, .input = 2, .in_len = 1, .in_off = 1000},
		 -EFAULT},
		{{.opcode = KVD_OP_GENERATE, .input = 2, .in_len = 2, .in_off = ~0ull},
		 -EFAULT},
		{{.opcode = KVD_OP_GENERATE, .input = 0, .in_len = 4}, -EINVAL},
		{{.opcode = KVD_OP_GENERATE, .input = 4, .in_len = 4}, -EINVAL},
		{{.opcode = KVD_OP_GENERATE, .input = 33, .in_len = 4}, -EINVAL},
		{{.opcode = KVD_OP_GENERATE, .input = 1, .in_len = 6}, -EINVAL},
		{{.opcode = KVD_OP_GENERATE, .input = 1, .in_len = 8, .flags = 4},
		 -EINVAL},
		{{.opcode = KVD_OP_GENERATE, .input = 1, .in_len = 8, .flags = 3}, 0},
		{{.opcode = KVD_OP_GENERATE, .input = 1, .in_len = 8, .out_len = 4},
		 -EINVAL},
		{{.opcode = KVD_OP_GENERATE,
		  .input = 1,
		  .in_len = 8,
		  .params_len = 64,
		  .params_off = 937},
		 -EFAULT},
		{{.opcode = KVD_OP_SCORE,
		  .input = 3,
		  .in_len = 8,
		  .out_len = 8,
		  .out_off = 492},
		 0},
		{{.opcode = KVD_OP_SCORE,
		  .input = 3,
		  .in_len = 8,
		  .out_len = 9,
		  .out_off = 492},
		 -EFAULT},
		{{.opcode = KVD_OP_SCORE,
		  .input = 3,
		  .in_len = 8,
		  .out_len = 8,
		  .out_off = 2},
		 -EINVAL},
		{{.opcode = KVD_OP_SCORE,
		  .input = 1,
		  .in_len = 8,
		  .arg = KVD_MAX_TOP | 1ull << 32},
		 0},
		{{.opcode = KVD_OP_SCORE, .input = 1, .in_len = 8, .arg = KVD_TOP_ALL},
		 0},
		{{.opcode = KVD_OP_SCORE,
		  .input = 1,
		  .in_len = 8,
		  .arg = KVD_MAX_TOP + 1},
		 -EINVAL},
		{{.opcode = KVD_OP_SCORE, .input = 1, .in_len = 8, .arg = 1ull << 32},
		 -EINVAL},
		{{.opcode = KVD_OP_TOKENIZE, .input = 2, .in_len = 8, .arg = 1}, -EINVAL},
		{{.opcode = KVD_OP_TOKENIZE, .input = 1, .in_len = 8}, -EINVAL},
		{{.opcode = KVD_OP_TOKENIZE, .input = 2, .in_len = 8, .out_len = 4}, 0},
		{{.opcode = KVD_OP_DETOKENIZE, .input = 1, .in_len = 8, .flags = 4}, 0},
		{{.opcode = KVD_OP_DETOKENIZE, .input = 2, .in_len = 8}, -EINVAL},
	};
	size_t i;

	for (i = 0; i < KVD_ARRAY_LEN(cases); i++)
		ck_assert_msg(sqe_check(&cases[i].sqe, 1000, 500) == cases[i].rc,
			      "case %zu: %d", i, sqe_check(&cases[i].sqe, 1000, 500));
}
END_TEST

/* By kvd-abi(7), FORK: not what was refused, or failed before its first token. */
START_TEST(kept)
{
	static const struct {
		int32_t res;
		uint32_t n_tokens;
		bool kept;
	} cases[] = {
		{0, 0, true},
		{5, 5, true},
		{-ECANCELED, 0, true},
		{-ECANCELED, 5, true},
		{KVD_E_BUSY, 0, false},
		{KVD_E_QUOTA, 0, false},
		{KVD_E_DEVICE, 3, true},
		{-ENOMEM, 0, false},
	};
	size_t i;

	for (i = 0; i < KVD_ARRAY_LEN(cases); i++) {
		struct kvd_cqe cqe = {.res = cases[i].res};

		cqe.u.usage.generated_tokens = cases[i].n_tokens;
		ck_assert_msg(sqe_was_kept(&cqe) == cases[i].kept, "case %zu", i);
	}
}
END_TEST

START_TEST(gen_params)
{
	struct {
		struct kvd_gen_params p;
		uint8_t tail[64];
	} m;
	struct kvd_gen_params p;
	struct sqe_span stops[KVD_MAX_STOP];
	size_t len;

	ck_assert_int_eq(sqe_parse_gen_params(NULL, 0, &p, stops), 0);
	ck_assert_uint_eq(p.max_tokens, 0);

	memset(&m, 0, sizeof(m));
	m.p.size = 64;
	for (len = 1; len < 64; len++)
		ck_assert_int_eq(sqe_parse_gen_params(&m, len, &p, stops), -EINVAL);
	ck_assert_int_eq(sqe_parse_gen_params(&m, 64, &p, stops), 0);
	ck_assert_int_eq(sqe_parse_gen_params(&m, 65, &p, stops), -EINVAL);
	m.p.size = 63;
	ck_assert_int_eq(sqe_parse_gen_params(&m, 64, &p, stops), -EINVAL);
	/* A newer caller: fine while the new fields are 0. */
	m.p.size = 72;
	ck_assert_int_eq(sqe_parse_gen_params(&m, 72, &p, stops), 0);
	m.tail[7] = 1;
	ck_assert_int_eq(sqe_parse_gen_params(&m, 72, &p, stops), -EINVAL);

	m.p.size = 64;
	m.p.n_stop = 2;
	memcpy(m.tail, "\2\0\0\0ab\1\0\0\0c", 11);
	ck_assert_int_eq(sqe_parse_gen_params(&m, 75, &p, stops), 0);
	ck_assert_uint_eq(stops[0].len, 2);
	ck_assert_mem_eq(stops[1].bytes, "c", 1);
	/* What is no text can never be found in one. */
	m.tail[5] = 0xc3;
	ck_assert_int_eq(sqe_parse_gen_params(&m, 75, &p, stops), -EINVAL);
	m.tail[5] = 'b';
	for (len = 64; len < 75; len++)
		ck_assert_int_eq(sqe_parse_gen_params(&m, len, &p, stops), -EINVAL);
	ck_assert_int_eq(sqe_parse_gen_params(&m, 76, &p, stops), -EINVAL);
	memset(m.tail, 0xff, 4);
	ck_assert_int_eq(sqe_parse_gen_params(&m, 75, &p, stops), -EINVAL);
	memset(m.tail, 0, 4);
	ck_assert_int_eq(sqe_parse_gen_params(&m, 75, &p, stops), -EINVAL);
	m.p.n_stop = UINT32_MAX;
	ck_assert_int_eq(sqe_parse_gen_params(&m, 75, &p, stops), -EINVAL);

	m.p.n_stop = 0;
#define BAD(field, value)                                                                \
	do {                                                                             \
		struct kvd_gen_params q = m.p;                                           \
		q.field = (value);                                                       \
		ck_assert_int_eq(sqe_parse_gen_params(&q, 64, &p, stops), -EINVAL);      \
	} while (0)
	BAD(temperature, NAN);
	BAD(temperature, -0.1f);
	BAD(temperature, INFINITY);
	BAD(top_p, 1.1f);
	BAD(min_p, NAN);
	BAD(n, KVD_MAX_N + 1);
	BAD(priority, KVD_MAX_PRIORITY + 1);
	BAD(priority, -KVD_MAX_PRIORITY - 1);
	BAD(flags, 4);
	BAD(flags, 1u << 31);
}
END_TEST

START_TEST(chat_records)
{
	static const char ok[] = "\4\0\0\0\2\0\0\0userhi\6\0\0\0\0\0\0\0system";
	struct sqe_span role, content;
	size_t pos = 0, len;
	int rc;

	ck_assert_int_eq(sqe_next_message(ok, 28, &pos, &role, &content), 1);
	ck_assert_mem_eq(role.bytes, "user", 4);
	ck_assert_uint_eq(content.len, 2);
	ck_assert_int_eq(sqe_next_message(ok, 28, &pos, &role, &content), 1);
	ck_assert_uint_eq(content.len, 0);
	ck_assert_int_eq(sqe_next_message(ok, 28, &pos, &role, &content), 0);

	/* Cut anywhere but between records it is malformed. */
	for (len = 1; len < 28; len++) {
		pos = 0;
		while ((rc = sqe_next_message(ok, len, &pos, &role, &content)) == 1)
			;
		ck_assert_int_eq(rc, len == 14 ? 0 : -EINVAL);
	}
	pos = 0;
	ck_assert_int_eq(
		sqe_next_message("\0\0\0\0\2\0\0\0hi", 10, &pos, &role, &content),
		-EINVAL);
	ck_assert_int_eq(sqe_next_message("\1\0\0\0\377\377\377\377xhi", 11, &pos, &role,
					  &content),
			 -EINVAL);
}
END_TEST

START_TEST(statuses)
{
	int s;

	/* Every number of the header has a name and a text of its own. */
	for (s = KVD_E_BASE; s >= KVD_E_UNSUPPORTED; s--) {
		ck_assert_int_eq(strncmp(status_name(s), "KVD_E_", 6), 0);
		ck_assert_str_ne(status_text(s), "Unknown status");
	}
	ck_assert_str_eq(status_name(KVD_E_NUMERIC - 1), "UNKNOWN");
	ck_assert_str_eq(status_name(-EINVAL), "EINVAL");
	ck_assert_str_eq(status_name(-4095), "UNKNOWN");
	ck_assert_str_eq(status_name(INT32_MIN), "UNKNOWN");
	ck_assert_str_eq(status_name(3), "OK");
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		hello,       headers,
		names,       reserved_fields,
		replies,     entries_of_other_sizes,
		event_pages, notices,
		sqes,        kept,
		gen_params,  chat_records,
		statuses,
	};

	return run_suite("proto", tests, KVD_ARRAY_LEN(tests));
}
