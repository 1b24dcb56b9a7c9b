/* SPDX-License-Identifier: MIT */
/*
 * A client that asks the same questions again and again, learns the answers first, and
 * then holds each later one against them, whatever happens to the daemon meanwhile.
 *
 *   survive stream|score|nop|calls
 *
 *   stream  two rings in an event loop, four streamed answers in each
 *   score   a ring that is waited on, three SCOREs in flight
 *   nop     a ring that is peeked, one NOP after another, timed
 *   calls   blocking calls: TOKENIZE, DETOKENIZE, statistics, a short answer
 *
 * Prints "ready" when it has learnt, and at SIGTERM, with nothing in flight any more, one
 * line of JSON: answers, those that were wrong, that ended with an error (lost), that came
 * twice, and of those that took above 20 ms (gaps) when they began and how long they took.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvclient.h>

#define MAX_SLOTS  4
#define MAX_TOKENS 64
#define MAX_TEXT   2048
#define MAX_GAPS   65536
#define GAP_NS     20000000u
#define PATIENCE   (300 * 1000000000ll)

static const char *const prompts[] = {
	"The lighthouse keeper wrote in his diary that",
	"A list of ten rivers and the seas into which they flow:",
	"Once upon a time in a village without a name",
	"Dear Sir, I write to complain about",
	"The first law of thermodynamics says",
	"In the kitchen there were three cats, and",
	"def fibonacci(n):",
	"Question: why is the sky blue? Answer:",
};

static volatile sig_atomic_t stopping;
static struct kvc_client *client;
static unsigned long n_answers, n_wrong, n_lost, n_twice, n_gaps;
static int last_error;
static struct gap {
	uint64_t begun_ns, took_ns; /* CLOCK_MONOTONIC */
} gaps[MAX_GAPS];

struct answer {
	uint32_t tokens[MAX_TOKENS];
	float logprobs[MAX_TOKENS];
	uint32_t n_tokens;
	char text[MAX_TEXT];
	uint32_t len;
};

/* One question of a ring; its answers carry a number that is used once. */
struct slot {
	struct answer want, got;
	uint64_t data;
	uint64_t begun_ns;
	bool busy, learnt;
};

struct asker {
	struct kvc_ring *ring;
	unsigned first; /* prompt of its first slot */
	unsigned n_slots;
	struct slot slots[MAX_SLOTS];
	uint64_t next;
};

static void on_term(int signo)
{
	stopping = 1;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void die(const char *what, int rc)
{
	fprintf(stderr, "survive: %s: %s (%s)\n", what, kvc_errname(rc), kvc_errmsg());
	exit(1);
}

static void timed(uint64_t begun_ns)
{
	uint64_t took = now_ns() - begun_ns;

	if (took > GAP_NS && n_gaps < MAX_GAPS)
		gaps[n_gaps++] = (struct gap){begun_ns, took};
}

static void lost(int res)
{
	n_lost++;
	last_error = res;
}

static void say_ready(void)
{
	puts("ready");
	fflush(stdout);
}

static void ask(struct asker *a, unsigned i, uint8_t opcode)
{
	struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts);
	const char *prompt = prompts[(a->first + i) % 8];
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct slot *s = &a->slots[i];
	struct kvc_sqe *sqe = kvc_ring_get_sqe(a->ring);
	int rc;

	if (!sqe)
		die("get_sqe", -EAGAIN);
	memset(&s->got, 0, sizeof(s->got));
	s->data = ++a->next * MAX_SLOTS + i;
	s->begun_ns = now_ns();
	s->busy = true;
	kvc_sqe_set_data64(sqe, s->data);
	o.max_tokens = 4 + 6 * (i % 3);
	o.gen_flags = KVD_GEN_LOGPROBS;
	/* Every other one draws. */
	if (i % 2) {
		o.temperature = 0.9f;
		o.seed = 100 + i;
	}
	if (opcode == KVD_OP_GENERATE)
		kvc_prep_generate(sqe, &in, &o);
	else if (opcode == KVD_OP_SCORE)
		kvc_prep_score(sqe, &in, 0, s->got.tokens, s->got.logprobs, MAX_TOKENS);
	else
		kvc_prep_nop(sqe);
	rc = kvc_ring_submit(a->ring);
	if (rc < 0 && rc != -EAGAIN && rc != -ENOBUFS)
		die("submit", rc);
}

static void take_piece(struct slot *s, const struct kvd_cqe *cqe)
{
	const struct kvd_cqe_token *t = &cqe->u.token;

	if (!(cqe->flags & KVD_CQE_PIECE) && s->got.n_tokens < MAX_TOKENS) {
		s->got.tokens[s->got.n_tokens] = (uint32_t)t->token;
		s->got.logprobs[s->got.n_tokens++] = t->logprob;
	}
	if (s->got.len + t->n_bytes <= MAX_TEXT) {
		memcpy(s->got.text + s->got.len, t->bytes, t->n_bytes);
		s->got.len += t->n_bytes;
	}
}

static void take_final(struct slot *s, const struct kvd_cqe *cqe, uint8_t opcode)
{
	s->busy = false;
	n_answers++;
	timed(s->begun_ns);
	if (cqe->res < 0) {
		lost(cqe->res);
		return;
	}
	if (opcode == KVD_OP_SCORE)
		s->got.n_tokens = (uint32_t)cqe->res;
	if ((uint32_t)cqe->res != s->got.n_tokens)
		n_wrong++;
	else if (!s->learnt)
		s->want = s->got;
	else if (memcmp(&s->want, &s->got, sizeof(s->want)) != 0)
		n_wrong++;
	s->learnt = true;
}

static void take(struct asker *a, const struct kvd_cqe *cqe, uint8_t opcode)
{
	unsigned i = (unsigned)(cqe->user_data % MAX_SLOTS);
	struct slot *s = &a->slots[i];

	if (i >= a->n_slots || !s->busy || s->data != cqe->user_data) {
		n_twice++;
		return;
	}
	if (cqe->flags & KVD_CQE_MORE) {
		take_piece(s, cqe);
		return;
	}
	take_final(s, cqe, opcode);
	if (!stopping)
		ask(a, i, opcode);
}

/* All that is there. Return: of kvc_ring_peek_cqe(). */
static int take_all(struct asker *a, uint8_t opcode)
{
	const struct kvd_cqe *cqe;
	struct kvd_cqe copy;
	int rc;

	while ((rc = kvc_ring_peek_cqe(a->ring, &cqe)) == 0) {
		copy = *cqe;
		kvc_ring_cqe_seen(a->ring);
		take(a, &copy, opcode);
	}
	if (rc != -EAGAIN)
		die("peek", rc);
	return rc;
}

static struct asker *asker_new(unsigned first, unsigned n, uint8_t opcode)
{
	struct asker *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		die("calloc", -ENOMEM);
	a->first = first;
	a->n_slots = n;
	rc = kvc_ring_open(client, &a->ring, NULL);
	if (rc < 0)
		die("ring_open", rc);
	for (unsigned i = 0; i < n; i++)
		ask(a, i, opcode);
	return a;
}

static bool all_learnt(const struct asker *a)
{
	for (unsigned i = 0; i < a->n_slots; i++)
		if (!a->slots[i].learnt)
			return false;
	return true;
}

static void play_stream(void)
{
	struct asker *a[2] = {asker_new(0, 4, KVD_OP_GENERATE),
			      asker_new(4, 4, KVD_OP_GENERATE)};
	struct pollfd p[2];
	bool ready = false;

	for (int i = 0; i < 2; i++)
		p[i] = (struct pollfd){.fd = kvc_ring_event_fd(a[i]->ring),
				       .events = POLLIN};
	while (!stopping || kvc_ring_in_flight(a[0]->ring) ||
	       kvc_ring_in_flight(a[1]->ring)) {
		int n = poll(p, 2, (int)(PATIENCE / 1000000));

		if (n == 0)
			die("poll", -ETIME);
		for (int i = 0; n > 0 && i < 2; i++) {
			if (!p[i].revents)
				continue;
			kvc_ring_event_ack(a[i]->ring);
			take_all(a[i], KVD_OP_GENERATE);
		}
		if (!ready && all_learnt(a[0]) && all_learnt(a[1])) {
			say_ready();
			ready = true;
		}
	}
	free(a[0]);
	free(a[1]);
}

static void play_score(void)
{
	struct asker *a = asker_new(0, 3, KVD_OP_SCORE);
	const struct kvd_cqe *cqe;
	struct kvd_cqe copy;
	bool ready = false;
	int rc;

	while (!stopping || kvc_ring_in_flight(a->ring)) {
		rc = kvc_ring_wait_cqe(a->ring, &cqe, PATIENCE);
		if (rc == -EINTR)
			continue;
		if (rc < 0)
			die("wait", rc);
		copy = *cqe;
		kvc_ring_cqe_seen(a->ring);
		take(a, &copy, KVD_OP_SCORE);
		if (!ready && all_learnt(a)) {
			say_ready();
			ready = true;
		}
	}
	free(a);
}

static void play_nop(void)
{
	struct asker *a = asker_new(0, 1, KVD_OP_NOP);
	struct timespec pause = {.tv_nsec = 500000};

	say_ready();
	while (!stopping || kvc_ring_in_flight(a->ring)) {
		take_all(a, KVD_OP_NOP);
		nanosleep(&pause, NULL);
		if (now_ns() - a->slots[0].begun_ns > PATIENCE)
			die("nop", -ETIME);
	}
	free(a);
}

static void play_calls(void)
{
	struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_input in = kvc_text(prompts[1], strlen(prompts[1]));
	uint32_t want[MAX_TOKENS], ids[MAX_TOKENS];
	struct kvd_stats stats = {.size = sizeof(stats)};
	struct kvc_result first = {0}, res;
	char text[MAX_TEXT];
	uint64_t begun;
	int n, rc;

	o.max_tokens = 6;
	n = kvc_tokenize(client, &in, KVD_SQE_NO_BOS, want, MAX_TOKENS);
	rc = n < 0 ? n : kvc_generate(client, prompts[2], &o, &first);
	if (rc < 0)
		die("learning", rc);
	say_ready();
	while (!stopping) {
		begun = now_ns();
		memset(ids, 0, sizeof(ids));
		rc = kvc_tokenize(client, &in, KVD_SQE_NO_BOS, ids, MAX_TOKENS);
		if (rc < 0)
			lost(rc);
		else if (rc != n || memcmp(ids, want, (size_t)n * sizeof(ids[0])) != 0)
			n_wrong++;
		rc = kvc_detokenize(client, want, (size_t)n, 0, text, sizeof(text));
		if (rc < 0)
			lost(rc);
		else if ((size_t)rc != in.n || memcmp(text, in.data, in.n) != 0)
			n_wrong++;
		rc = kvc_stats(client, &stats);
		if (rc < 0)
			lost(rc);
		rc = kvc_generate(client, prompts[2], &o, &res);
		if (rc < 0)
			lost(rc);
		else if (res.n_tokens != first.n_tokens ||
			 strcmp(res.text, first.text) != 0)
			n_wrong++;
		kvc_result_clear(&res);
		n_answers += 4;
		timed(begun);
	}
	kvc_result_clear(&first);
}

int main(int argc, char **argv)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct sigaction term = {.sa_handler = on_term};
	int rc;

	if (argc != 2) {
		fprintf(stderr, "usage: survive stream|score|nop|calls\n");
		return 2;
	}
	sigaction(SIGTERM, &term, NULL);
	o.reconnect_ns = PATIENCE;
	o.timeout_ns = PATIENCE;
	rc = kvc_connect(&client, &o);
	if (rc < 0)
		die("connect", rc);
	if (!strcmp(argv[1], "stream"))
		play_stream();
	else if (!strcmp(argv[1], "score"))
		play_score();
	else if (!strcmp(argv[1], "nop"))
		play_nop();
	else if (!strcmp(argv[1], "calls"))
		play_calls();
	else
		return 2;
	printf("{\"answers\": %lu, \"wrong\": %lu, \"lost\": %lu, \"twice\": %lu, "
	       "\"error\": \"%s\", \"gaps_ns\": [",
	       n_answers, n_wrong, n_lost, n_twice,
	       last_error ? kvc_errname(last_error) : "");
	for (unsigned long i = 0; i < n_gaps; i++)
		printf("%s[%" PRIu64 ", %" PRIu64 "]", i ? ", " : "", gaps[i].begun_ns,
		       gaps[i].took_ns);
	puts("]}");
	kvc_close(client);
	return 0;
}
