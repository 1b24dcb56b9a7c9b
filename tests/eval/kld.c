/* SPDX-License-Identifier: MIT */
/*
 * How far the answers of several daemons are from those of the first one: KL divergence
 * over the whole vocabulary, perplexity and agreement, position by position. An ordinary
 * client: SCORE with KVD_TOP_ALL gives it the distributions.
 *
 * usage: kld TOKENS WINDOW NAME=SOCKET...
 * TOKENS is a file of u32 ids, cut into windows of WINDOW tokens. Prints a line of JSON
 * for each window and daemon, the first one among them.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <kvclient.h>

#include "tests/eval/kl.h"

/* Bytes of rows per request; the arena holds 64 MiB, and the scores stand beside them. */
#define ROW_BYTES (48u << 20)

struct peer {
	const char *name;
	struct kvc_client *client;
	struct kl_window window;
};

static void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void die(const char *fmt, ...)
{
	va_list args;

	fputs("kld: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	putc('\n', stderr);
	exit(EXIT_FAILURE);
}

static void *alloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		die("out of memory");
	return p;
}

static uint32_t *read_tokens(const char *path, size_t *ret_n)
{
	FILE *f = fopen(path, "re");
	uint32_t *ids;
	long len;

	if (!f || fseek(f, 0, SEEK_END) || (len = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
		die("cannot read %s: %s", path, strerror(errno));
	*ret_n = (size_t)len / sizeof(*ids);
	ids = alloc(*ret_n, sizeof(*ids));
	if (fread(ids, sizeof(*ids), *ret_n, f) != *ret_n)
		die("cannot read %s", path);
	fclose(f);
	return ids;
}

static uint32_t open_peer(struct peer *peer, char *arg, size_t n)
{
	struct kvc_connect_opts opts = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvd_model_info model;
	char *eq = strrchr(arg, '='); /* a format's name may hold one */

	if (!eq)
		die("'%s' is not NAME=SOCKET", arg);
	*eq = '\0';
	peer->name = arg;
	opts.socket_path = eq + 1;
	opts.client_name = "kld";
	if (kvc_connect(&peer->client, &opts) || kvc_get_model_info(peer->client, &model))
		die("%s: %s", eq + 1, kvc_errmsg());
	peer->window = (struct kl_window){n, alloc(n, sizeof(double)),
					  alloc(n, sizeof(double)), alloc(n, 1)};
	return model.n_vocab;
}

/* Rows of positions first .. last - 1 into @rows; their scores must stand in them. */
static void get_rows(struct peer *peer, const uint32_t *ids, size_t first, size_t last,
		     uint32_t n_vocab, float *rows, float *scores)
{
	struct kvc_input in = kvc_tokens(ids, last);
	const struct kvc_score_opts o = {
		.size = sizeof(o),
		.top = KVD_TOP_ALL,
		.first = (uint32_t)first,
		.logprobs = scores,
		.cap = last,
		.top_logprobs = rows,
		.top_cap = (last - first) * n_vocab,
	};
	int rc;

	rc = kvc_score_top(peer->client, &in, &o, NULL);
	if (rc < 0)
		die("%s: %s", peer->name, kvc_errmsg());
	for (size_t i = first; i + 1 < last; i++)
		if (rows[(i - first) * n_vocab + ids[i + 1]] != scores[i + 1])
			die("%s: position %zu has two logprobs", peer->name, i + 1);
}

int main(int argc, char **argv)
{
	size_t n_peers = argc > 3 ? (size_t)argc - 3 : 0, n_ids, n, chunk;
	float *ref, *rows, *scores, *p;
	struct peer *peers;
	uint32_t *ids, n_vocab;

	if (!n_peers || (n = strtoul(argv[2], NULL, 10)) < 2)
		die("usage: kld TOKENS WINDOW NAME=SOCKET...");
	ids = read_tokens(argv[1], &n_ids);
	peers = alloc(n_peers, sizeof(*peers));
	n_vocab = open_peer(&peers[0], argv[3], n);
	for (size_t i = 1; i < n_peers; i++)
		if (open_peer(&peers[i], argv[3 + i], n) != n_vocab)
			die("%s has another vocabulary", peers[i].name);
	chunk = ROW_BYTES / sizeof(float) / n_vocab;
	if (!chunk)
		die("a vocabulary of %u is too large", n_vocab);
	ref = alloc(chunk * n_vocab, sizeof(float));
	rows = alloc(chunk * n_vocab, sizeof(float));
	p = alloc(n_vocab, sizeof(float));
	scores = alloc(n, sizeof(float));
	for (size_t w = 0; (w + 1) * n <= n_ids; w++) {
		const uint32_t *window = ids + w * n;

		for (size_t first = 0; first < n; first += chunk) {
			size_t last = first + chunk < n ? first + chunk : n;

			for (size_t i = 0; i < n_peers; i++) {
				get_rows(&peers[i], window, first, last, n_vocab,
					 i ? rows : ref, scores);
				kl_fill(&peers[i].window, window, first, last - first,
					ref, i ? rows : ref, n_vocab, p);
			}
		}
		for (size_t i = 0; i < n_peers; i++)
			kl_print(&peers[i].window, w, peers[i].name);
	}
	return EXIT_SUCCESS;
}
