/* SPDX-License-Identifier: MIT */
#include "tests/unit/ipc/fake_daemon.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/barrier.h"
#include "ipc/base.h"
#include "ipc/doorbell.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"
#include "ipc/ring.h"
#include "ipc/sqe.h"

#define MAX_CONNS 128
#define MAX_RINGS 16
#define MAX_JOBS  1024

/* One GENERATE under way. */
struct job {
	uint64_t user_data;
	uint8_t *text;
	uint32_t len;
	uint32_t pos;
	uint32_t n_tokens;
	uint32_t max_tokens;
	uint32_t pieces_from;
	uint32_t timeout_ms;
	uint32_t hang_at;
	uint64_t next_ns;
	bool cancelled;
	bool hang, slow, die, big, vary, text_varies;
};

struct fake_ring {
	uint32_t id;
	bool armed;
	struct ring_daemon ring;
	struct job *jobs;
	uint32_t n_jobs;
	struct kvd_cqe held;
	bool has_held;
};

struct conn {
	int sock;
	bool greeted;
	uint32_t hello_tag;
	bool kick, wipe;
	uint32_t next_ring;
	struct fake_ring rings[MAX_RINGS];
	uint32_t n_rings;
};

static uint64_t generation = 7;
static volatile sig_atomic_t restarting;
static enum fake_restart how;
static const struct fake_daemon *options;
static bool away;

static struct conn conns[MAX_CONNS];
static uint32_t n_conns;
static uint8_t packet[KVD_MSG_MAX];

static void die(const char *what)
{
	perror(what);
	_exit(3);
}

static void send_msg(struct conn *c, void *msg, size_t len, uint16_t type, uint32_t tag)
{
	struct kvd_msg_hdr h;

	proto_hdr_init(&h, type, len, tag, 0);
	memcpy(msg, &h, sizeof(h));
	(void)fdpass_send(c->sock, msg, len, NULL, 0);
}

static void send_error(struct conn *c, uint16_t type, uint32_t tag, int status)
{
	struct kvd_msg_error e;

	proto_error_init(&e, type, tag, status, 0, NULL);
	(void)fdpass_send(c->sock, &e, sizeof(e), NULL, 0);
}

static void send_welcome(const struct fake_daemon *d, struct conn *c, uint32_t tag)
{
	struct kvd_msg_welcome w = {0};

	w.server.version = KVD_ABI_VERSION;
	w.server.max_rings = d->max_rings;
	w.server.max_sq_entries = KVD_MAX_SQ_ENTRIES;
	w.server.max_cq_entries = KVD_MAX_CQ_ENTRIES;
	w.server.max_in_flight = MAX_JOBS;
	w.server.max_msg = KVD_MSG_MAX;
	w.server.generation = generation;
	w.server.max_in_bytes = d->max_arena;
	w.server.max_out_bytes = d->max_arena;
	proto_set_string(w.server.release, sizeof(w.server.release), "fake");
	proto_set_string(w.model.name, sizeof(w.model.name), "echo");
	proto_set_string(w.model.arch, sizeof(w.model.arch), "bytes");
	w.model.n_vocab = 256;
	w.model.context_length = 4096;
	w.model.fingerprint[0] = d->new_model ? (uint8_t)generation : 0;
	send_msg(c, &w, sizeof(w), KVD_MSG_WELCOME, tag);
}

static void open_ring(const struct fake_daemon *d, struct conn *c,
		      const struct proto_request *req)
{
	const struct kvd_msg_ring_open *o = &req->u.ring_open;
	struct fake_ring *r = &c->rings[c->n_rings];
	struct kvd_msg_ring_opened reply = {0};
	int fds[KVD_RING_N_FDS], rc;

	if (d->stop_at_open && generation > 7)
		(void)raise(SIGSTOP);
	if (c->n_rings >= d->max_rings || c->n_rings >= MAX_RINGS ||
	    o->in_bytes > d->max_arena || o->out_bytes > d->max_arena) {
		send_error(c, KVD_MSG_ERROR, req->hdr.tag, KVD_E_QUOTA);
		return;
	}
	memset(r, 0, sizeof(*r));
	rc = ring_daemon_init(&r->ring, o->sq_entries, o->cq_entries, o->in_bytes,
			      d->other_size && generation > 7 ? 2 * o->out_bytes
							      : o->out_bytes);
	if (rc < 0) {
		send_error(c, KVD_MSG_ERROR, req->hdr.tag, rc);
		return;
	}
	r->jobs = calloc(MAX_JOBS, sizeof(*r->jobs));
	r->id = ++c->next_ring;
	r->armed = true;
	c->n_rings++;
	proto_hdr_init(&reply.hdr, KVD_MSG_RING_OPENED, sizeof(reply), req->hdr.tag, 0);
	reply.ring_id = r->id;
	reply.geometry = r->ring.geometry;
	ring_daemon_get_fds(&r->ring, fds);
	if (fdpass_send(c->sock, &reply, sizeof(reply), fds, KVD_RING_N_FDS) < 0)
		die("send ring");
	ring_daemon_close_files(&r->ring);
}

static void close_ring(struct conn *c, uint32_t i)
{
	struct fake_ring *r = &c->rings[i];
	uint32_t j;

	for (j = 0; j < r->n_jobs; j++)
		free(r->jobs[j].text);
	free(r->jobs);
	ring_daemon_deinit(&r->ring);
	c->rings[i] = c->rings[--c->n_rings];
}

static void send_stats(struct conn *c, uint32_t tag)
{
	struct kvd_msg_stats_reply s = {0};

	s.stats.size = sizeof(s.stats);
	s.stats.generation = generation;
	s.stats.clients = n_conns;
	s.stats.blocks_total = 100;
	s.stats.sessions_faulty = 42;
	send_msg(c, &s, sizeof(s), KVD_MSG_STATS_REPLY, tag);
}

/* 300 clients, ids 1..300, to make it three pages. */
static void send_clients(struct conn *c, const struct proto_request *req)
{
	struct kvd_msg_clients_reply *r = (void *)packet;
	struct kvd_client_info *e = (void *)(packet + sizeof(*r));
	uint64_t id = req->u.clients.after_id;

	memset(packet, 0, sizeof(packet));
	r->entry_size = sizeof(*e);
	for (; r->n < KVD_CLIENTS_PAGE && id < 300; r->n++)
		e[r->n].id = ++id;
	r->next_id = id < 300 ? id : 0;
	send_msg(c, packet, sizeof(*r) + r->n * sizeof(*e), KVD_MSG_CLIENTS_REPLY,
		 req->hdr.tag);
}

/* False ends the session. */
static bool on_packet(const struct fake_daemon *d, struct conn *c)
{
	struct kvd_msg_cache_flush_reply flush = {0};
	struct proto_request req;
	struct kvd_msg_hdr ok;
	enum proto_verdict v;
	ssize_t n;
	uint32_t i;

	n = fdpass_recv(c->sock, packet, sizeof(packet));
	if (n == -EAGAIN)
		return true;
	if (n <= 0)
		return false;
	if (away)
		return true;
	memcpy(&ok, packet, sizeof(ok));
	if (c->hello_tag && !c->greeted && ok.type != KVD_MSG_HELLO) {
		send_error(c, KVD_MSG_ERROR, ok.tag, KVD_E_RESTARTED);
		return true;
	}
	if (c->hello_tag && !c->greeted && ok.tag != c->hello_tag)
		return true;
	v = proto_parse_request(packet, (size_t)n, c->greeted, &req);
	if (v == PROTO_END)
		return false;
	if (d->no_reply)
		return true;
	if (v == PROTO_ERROR || (d->reject && !c->greeted)) {
		send_error(c, c->greeted ? KVD_MSG_ERROR : KVD_MSG_REJECT, req.hdr.tag,
			   v == PROTO_ERROR ? req.status : d->reject);
		return c->greeted;
	}
	switch (req.hdr.type) {
	case KVD_MSG_HELLO:
		c->greeted = true;
		send_welcome(d, c, req.hdr.tag);
		break;
	case KVD_MSG_RING_OPEN:
		open_ring(d, c, &req);
		break;
	case KVD_MSG_RING_CLOSE:
		for (i = 0; i < c->n_rings; i++)
			if (c->rings[i].id == req.u.ring_close.ring_id)
				close_ring(c, i);
		send_msg(c, &ok, sizeof(ok), KVD_MSG_RING_CLOSED, req.hdr.tag);
		break;
	case KVD_MSG_STATS:
		if (d->mute && generation == 7)
			break;
		send_stats(c, req.hdr.tag);
		break;
	case KVD_MSG_CLIENTS:
		send_clients(c, &req);
		break;
	case KVD_MSG_CACHE_FLUSH:
		if (strcmp(req.u.flush.domain, "uid:0") == 0) {
			send_error(c, KVD_MSG_ERROR, req.hdr.tag, -EPERM);
			break;
		}
		flush.counts.flushed_blocks = 12;
		flush.counts.remaining = req.u.flush.model[0] ? 3 : 0;
		send_msg(c, &flush, sizeof(flush), KVD_MSG_CACHE_FLUSH_REPLY,
			 req.hdr.tag);
		break;
	}
	return true;
}

static bool starts(const struct job *j, const char *word)
{
	return j->len >= strlen(word) && memcmp(j->text, word, strlen(word)) == 0;
}

/* Post, or hold the one CQE that found no room. */
static void post(struct fake_ring *r, const struct kvd_cqe *cqe)
{
	if (ring_daemon_post(&r->ring, cqe) == RING_FULL) {
		r->held = *cqe;
		r->has_held = true;
	}
}

static void finish(struct fake_ring *r, uint64_t user_data, int res, uint64_t detail,
		   uint32_t reason, uint32_t prompt)
{
	struct kvd_cqe cqe = {.user_data = user_data, .res = res};

	cqe.u.usage.finish_reason = reason;
	cqe.u.usage.detail = detail;
	cqe.u.usage.prompt_tokens = prompt;
	cqe.u.usage.generated_tokens = res > 0 ? (uint32_t)res : 0;
	post(r, &cqe);
}

static void end_job(struct fake_ring *r, struct job *j, int res, uint64_t detail,
		    uint32_t reason)
{
	finish(r, j->user_data, res, detail, reason, j->len);
	free(j->text);
	*j = r->jobs[--r->n_jobs];
}

/* Is there no place for one more? */
static bool is_refused(const struct fake_ring *r)
{
	uint32_t i, n = 0;

	for (i = 0; i < r->n_jobs; i++)
		n += r->jobs[i].n_tokens == 0;
	return (options->refuses && generation > 7) ||
	       (options->max_waiting && n >= options->max_waiting);
}

static void begin_job(struct fake_ring *r, const struct kvd_sqe *sqe)
{
	struct job *j = &r->jobs[r->n_jobs];
	struct sqe_span stops[KVD_MAX_STOP];
	struct kvd_gen_params p;
	uint8_t params[8192];
	uint32_t i;

	if (r->n_jobs >= MAX_JOBS || sqe->params_len > sizeof(params)) {
		finish(r, sqe->user_data, KVD_E_BUSY, MAX_JOBS, KVD_FINISH_ERROR, 0);
		return;
	}
	if (sqe->params_len)
		memcpy(params, ring_daemon_in(&r->ring, sqe->params_off, sqe->params_len),
		       sqe->params_len);
	if (sqe_parse_gen_params(params, sqe->params_len, &p, stops) < 0) {
		finish(r, sqe->user_data, -EINVAL, 0, KVD_FINISH_ERROR, 0);
		return;
	}
	if (is_refused(r)) {
		finish(r, sqe->user_data, KVD_E_QUOTA, options->max_waiting,
		       KVD_FINISH_ERROR, 0);
		return;
	}
	memset(j, 0, sizeof(*j));
	j->user_data = sqe->user_data;
	j->max_tokens = p.max_tokens;
	j->timeout_ms = p.timeout_ms;
	j->len = sqe->in_len;
	j->text = malloc(j->len + 1u);
	memcpy(j->text, ring_daemon_in(&r->ring, sqe->in_off, sqe->in_len), sqe->in_len);
	if (starts(j, "fail") || starts(j, "bad")) {
		finish(r, starts(j, "bad") ? ~0ull : j->user_data, KVD_E_CONTEXT, 77,
		       KVD_FINISH_ERROR, 0);
		free(j->text);
		return;
	}
	j->hang = starts(j, "hang");
	j->slow = starts(j, "slow");
	j->die = starts(j, "die");
	j->big = starts(j, "big");
	j->vary = starts(j, "vary") || starts(j, "wild");
	j->text_varies = starts(j, "text");
	j->slow |= j->vary | starts(j, "less") | starts(j, "once") | starts(j, "text");
	if (generation > 7)
		j->hang_at = starts(j, "wild") ? 1 : starts(j, "once") ? 2 : 0;
	else
		j->hang_at = options->first_tokens;
	if (starts(j, "less"))
		j->len -= 3 * (uint32_t)(generation - 7);
	restarting |= starts(j, "poison");
	for (i = 0; i < n_conns; i++) {
		if (r < conns[i].rings || r >= conns[i].rings + MAX_RINGS)
			continue;
		conns[i].kick |= starts(j, "kick");
		conns[i].wipe |= starts(j, "wipe");
	}
	r->n_jobs++;
}

static void step_job(struct fake_ring *r, struct job *j)
{
	struct kvd_cqe cqe = {.user_data = j->user_data, .flags = KVD_CQE_MORE};
	struct kvd_cqe_token *t = &cqe.u.token;
	uint32_t i, n;

	if (j->cancelled) {
		end_job(r, j, -ECANCELED, 0, KVD_FINISH_CANCELLED);
		return;
	}
	j->hang |= j->hang_at && j->n_tokens == j->hang_at;
	if (j->hang || (j->slow && clock_ns() < j->next_ns))
		return;
	if (j->slow)
		j->next_ns = clock_ns() + 10000000;
	if (j->die && j->n_tokens == 3) {
		if (how == FAKE_DIES)
			_exit(1);
		if (generation == 7) {
			restarting = 1;
			return;
		}
	}
	if (j->big) {
		t->token = 'b';
		t->n_bytes = KVD_CQE_BYTES;
		memset(t->bytes, 'b', t->n_bytes);
		if (j->pos > 0)
			cqe.flags |= KVD_CQE_PIECE;
		else
			j->n_tokens++;
		if (j->pos == 84)
			t->n_bytes = 16;
		j->pos += t->n_bytes;
		post(r, &cqe);
		j->big = j->pos < 100;
		j->len = j->pos;
		return;
	}
	if (j->pos == j->len || (j->max_tokens && j->n_tokens == j->max_tokens)) {
		end_job(r, j, (int)j->n_tokens, j->timeout_ms,
			j->pos == j->len ? KVD_FINISH_STOP : KVD_FINISH_LENGTH);
		return;
	}
	n = j->len - j->pos < 3 ? j->len - j->pos : 3;
	/* kvd sends whole characters */
	while (j->pos + n < j->len && (j->text[j->pos + n] & 0xc0) == 0x80 &&
	       n < KVD_CQE_BYTES)
		n++;
	t->token = j->text[j->pos];
	if (j->vary)
		t->token += (int32_t)generation;
	t->logprob = -0.5f;
	t->n_bytes = (uint8_t)n;
	for (i = 0; i < n; i++)
		t->bytes[i] = (uint8_t)(j->text[j->pos + i] +
					(j->text_varies ? generation - 7 : 0));
	cqe.flags |= KVD_CQE_LOGPROB;
	j->pos += n;
	j->n_tokens++;
	post(r, &cqe);
}

/*
 * Alternatives of position i: place j holds token (i + j) mod 256 with logprob -j. @out
 * is behind the scores of @n tokens; with @top all, place j belongs to token j.
 */
static void alternatives(uint8_t *out, uint32_t n, uint32_t top, uint32_t first)
{
	bool all = top == KVD_TOP_ALL;
	uint32_t each = all ? 256 : top, i, j, id;
	float logprob;

	for (i = first; i < n; i++) {
		for (j = 0; j < each; j++) {
			id = (i + j) % 256;
			logprob = -(float)j;
			if (!all)
				memcpy(out + 4 * ((i - first) * each + j), &id, 4);
			memcpy(out + 4 * ((all ? 0 : (n - first) * each) +
					  (i - first) * each + j),
			       &logprob, 4);
		}
	}
}

/* SCORE, TOKENIZE, DETOKENIZE over bytes. */
static void convert(struct fake_ring *r, const struct kvd_sqe *sqe)
{
	const uint8_t *in = ring_daemon_in(&r->ring, sqe->in_off, sqe->in_len);
	bool ids = sqe->input == KVD_INPUT_TOKENS;
	uint32_t n = ids ? sqe->in_len / 4 : sqe->in_len, i, id, each;
	uint32_t top = (uint32_t)sqe->arg, first = (uint32_t)(sqe->arg >> 32);
	uint64_t need;
	float logprob;
	uint8_t *out;

	each = sqe->opcode == KVD_OP_SCORE ? 8 : sqe->opcode == KVD_OP_TOKENIZE ? 4 : 1;
	need = (uint64_t)n * each;
	if (top && first >= n) {
		finish(r, sqe->user_data, -EINVAL, 0, 0, n);
		return;
	}
	if (top)
		need += (uint64_t)(n - first) * (top == KVD_TOP_ALL ? 1024 : 8 * top);
	if (sqe->out_len < need) {
		finish(r, sqe->user_data, -ENOBUFS, need, 0, n);
		return;
	}
	out = ring_daemon_out(&r->ring, sqe->out_off, sqe->out_len);
	for (i = 0; i < n; i++) {
		if (ids)
			memcpy(&id, in + 4 * i, 4);
		else
			id = in[i];
		if (sqe->opcode == KVD_OP_DETOKENIZE) {
			out[i] = (uint8_t)id;
			continue;
		}
		memcpy(out + 4 * i, &id, 4);
		logprob = i ? -(float)id / 256.0f : 0.0f;
		if (sqe->opcode == KVD_OP_SCORE)
			memcpy(out + 4 * (n + i), &logprob, 4);
	}
	if (top)
		alternatives(out + 8 * (size_t)n, n, top, first);
	finish(r, sqe->user_data, (int)n, 0, 0, n);
}

static void on_sqe(struct fake_ring *r, const struct kvd_sqe *sqe)
{
	const struct kvd_ring_geometry *g = &r->ring.geometry;
	uint32_t i, n = 0;
	int rc;

	rc = sqe_check(sqe, g->in_bytes, g->out_bytes);
	if (rc < 0) {
		finish(r, sqe->user_data, rc, 0, KVD_FINISH_ERROR, 0);
		return;
	}
	switch (sqe->opcode) {
	case KVD_OP_GENERATE:
		begin_job(r, sqe);
		break;
	case KVD_OP_CANCEL:
		for (i = 0; i < r->n_jobs; i++) {
			if (r->jobs[i].user_data != sqe->arg || r->jobs[i].cancelled)
				continue;
			r->jobs[i].cancelled = true;
			n++;
		}
		finish(r, sqe->user_data, n ? (int)n : -ENOENT, 0, 0, 0);
		break;
	case KVD_OP_NOP:
		finish(r, sqe->user_data, 0, 0, 0, 0);
		break;
	case KVD_OP_PREFIX_LOOKUP:
		finish(r, sqe->user_data, (int)(sqe->in_len & ~3u),
		       *(const uint8_t *)ring_daemon_in(&r->ring, sqe->in_off, 1), 0,
		       sqe->in_len);
		break;
	default:
		convert(r, sqe);
		break;
	}
}

/* One round over a ring. 1: did something; 0: nothing; -1: a fault. */
static int ring_round(struct fake_ring *r)
{
	enum ring_status st = RING_OK;
	struct kvd_sqe sqe;
	int busy = 0, i;
	uint32_t j;

	if (r->has_held) {
		st = ring_daemon_post(&r->ring, &r->held);
		if (st == RING_FAULT)
			return -1;
		if (st == RING_FULL)
			return 0;
		r->has_held = false;
		busy = 1;
	}
	for (i = 0; i < 64 && !r->has_held; i++) {
		st = ring_daemon_take(&r->ring, &sqe);
		if (st != RING_OK)
			break;
		on_sqe(r, &sqe);
		busy = 1;
	}
	if (st == RING_FAULT)
		return -1;
	for (j = 0; j < r->n_jobs && !r->has_held; j++) {
		step_job(r, &r->jobs[j]);
		busy |= !r->jobs[j].hang && !r->jobs[j].slow;
	}
	ring_daemon_notify(&r->ring);
	return busy;
}

static void on_usr1(int signo)
{
	(void)signo;
	restarting = 1;
}

/* As if this process had died, and another found the connections or did not. */
static void restart(const struct fake_daemon *d)
{
	struct kvd_msg_notice notice = {.kind = KVD_NOTICE_RESTARTED};
	uint32_t i, k, j;

	restarting = 0;
	away = d->restart == FAKE_SILENT && !away;
	generation += !away;
	for (i = 0; i < n_conns; i++) {
		for (k = 0; k < conns[i].n_rings; k++) {
			struct fake_ring *r = &conns[i].rings[k];

			for (j = 0; j < r->n_jobs; j++)
				free(r->jobs[j].text);
			free(r->jobs);
			ring_daemon_leave(&r->ring);
		}
		conns[i].n_rings = 0;
		conns[i].greeted = false;
		conns[i].hello_tag = (uint32_t)generation;
		notice.hello_tag = (uint32_t)generation;
		notice.generation = generation;
		if (away)
			continue;
		if (d->restart >= FAKE_KEEPS)
			send_msg(&conns[i], &notice, sizeof(notice), KVD_MSG_NOTICE, 0);
		else
			close(conns[i].sock);
	}
	if (d->restart < FAKE_KEEPS)
		n_conns = 0;
}

static void drop_conn(uint32_t i)
{
	while (conns[i].n_rings)
		close_ring(&conns[i], 0);
	close(conns[i].sock);
	conns[i] = conns[--n_conns];
}

/* Look at every descriptor, waiting @timeout_ms. */
static void poll_all(const struct fake_daemon *d, int listener, int timeout_ms)
{
	struct pollfd p[1 + MAX_CONNS + MAX_CONNS * 2] = {{listener, POLLIN, 0}};
	struct fake_ring *rings[MAX_CONNS * 2];
	uint32_t i, k, n_rings = 0, base, old = n_conns;
	int fd;

	for (i = 0; i < n_conns; i++)
		p[1 + i] = (struct pollfd){conns[i].sock, POLLIN, 0};
	base = 1 + n_conns;
	for (i = 0; i < n_conns; i++) {
		for (k = 0; k < conns[i].n_rings && n_rings < MAX_CONNS * 2; k++) {
			rings[n_rings] = &conns[i].rings[k];
			p[base + n_rings++] = (struct pollfd){
				ring_daemon_doorbell(&conns[i].rings[k].ring), POLLIN, 0};
		}
	}
	if (poll(p, base + n_rings, timeout_ms) <= 0)
		return;
	for (k = 0; k < n_rings; k++) {
		if (p[base + k].revents) {
			doorbell_clear_submit(p[base + k].fd);
			ring_daemon_disarm(&rings[k]->ring);
			rings[k]->armed = false;
		}
	}
	for (i = old; i-- > 0;)
		if (p[1 + i].revents && !on_packet(d, &conns[i]))
			drop_conn(i);
	if (p[0].revents && n_conns < MAX_CONNS) {
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			conns[n_conns++] = (struct conn){.sock = fd};
	}
}

/* All that is left of a session that ends, for some time. */
static void wipe_conn(struct conn *c)
{
	struct ring_daemon *r;
	uint32_t i;

	for (i = 0; i < c->n_rings; i++) {
		r = &c->rings[i].ring;
		region_scrub(&r->c2d, 0, r->c2d.size);
		region_scrub(&r->d2c, 0, r->d2c.size);
	}
	usleep(50000);
	c->wipe = false;
	c->kick = how == FAKE_DIES;
	restarting = !c->kick;
}

static void serve(const struct fake_daemon *d, int listener)
{
	uint64_t idle_ns = 0;
	uint32_t rounds = 0, i, k;
	bool busy, armed, held;
	int rc;

	for (;;) {
		busy = false;
		held = false;
		if (restarting)
			restart(d);
		for (i = 0; i < n_conns; i++) {
			if (conns[i].wipe)
				wipe_conn(&conns[i]);
			if (conns[i].kick) {
				drop_conn(i--);
				continue;
			}
			for (k = 0; k < conns[i].n_rings; k++) {
				struct fake_ring *r = &conns[i].rings[k];

				if (r->armed && !r->n_jobs)
					continue;
				rc = ring_round(r);
				if (rc < 0) {
					drop_conn(i--);
					busy = true;
					break;
				}
				busy |= rc > 0;
				held |= r->n_jobs > 0;
			}
		}
		if (++rounds % 256 == 0)
			poll_all(d, listener, 0);
		if (busy) {
			idle_ns = 0;
			continue;
		}
		if (idle_ns == 0)
			idle_ns = clock_ns();
		if (d->spin_ns && clock_ns() - idle_ns < d->spin_ns)
			continue;
		armed = true;
		for (i = 0; i < n_conns; i++) {
			for (k = 0; k < conns[i].n_rings; k++) {
				struct fake_ring *r = &conns[i].rings[k];

				if (r->armed)
					continue;
				r->armed = ring_daemon_arm(&r->ring) == RING_OK;
				armed &= r->armed;
			}
		}
		if (armed)
			poll_all(d, listener, held ? 1 : d->restart ? 20 : -1);
		idle_ns = 0;
	}
}

void fake_daemon_start(struct fake_daemon *d)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int listener;

	snprintf(d->dir, sizeof(d->dir), "/tmp/kvd-fake-XXXXXX");
	if (!mkdtemp(d->dir))
		die("mkdtemp");
	snprintf(d->path, sizeof(d->path), "%s/kvd.sock", d->dir);
	if (!d->max_rings)
		d->max_rings = MAX_RINGS;
	if (!d->max_arena)
		d->max_arena = KVD_MAX_ARENA_BYTES;
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	memcpy(addr.sun_path, d->path, sizeof(addr.sun_path));
	if (listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(listener, 128) < 0)
		die("listen");
	d->pid = fork();
	if (d->pid < 0)
		die("fork");
	if (d->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		n_conns = 0;
		how = d->restart;
		options = d;
		signal(SIGUSR1, on_usr1);
		serve(d, listener);
		_exit(0);
	}
	close(listener);
}

int fake_daemon_stop(struct fake_daemon *d)
{
	int status = 0;

	kill(d->pid, SIGKILL);
	waitpid(d->pid, &status, 0);
	unlink(d->path);
	rmdir(d->dir);
	return status;
}
