/* SPDX-License-Identifier: MIT */
/*
 * Many requests in flight on one thread: every argument is a prompt, all of them
 * run side by side, and each answer is printed when it is complete. Shows the
 * loop that an event-driven program would have: poll, acknowledge, take what came.
 */
#include <kvclient.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct answer {
	const char *prompt;
	char text[1024];
	size_t len;
};

/* Counts the answers that are complete. */
static int on_cqe(void *userdata, const struct kvd_cqe *cqe)
{
	struct answer *a = kvc_cqe_get_data(cqe);
	int *done = userdata;
	size_t n;

	if (cqe->flags & KVD_CQE_MORE) {
		n = cqe->u.token.n_bytes;
		if (n > sizeof(a->text) - a->len)
			n = sizeof(a->text) - a->len;
		memcpy(a->text + a->len, cqe->u.token.bytes, n);
		a->len += n;
		return 0;
	}
	if (cqe->res < 0)
		printf("%s: %s\n", a->prompt, kvc_strerror(cqe->res));
	else
		printf("%s|%.*s  (%d tokens, %u of the prompt's %u cached)\n", a->prompt,
		       (int)a->len, a->text, cqe->res, cqe->u.usage.cached_tokens,
		       cqe->u.usage.prompt_tokens);
	(*done)++;
	return 0;
}

static int run(struct kvc_ring *ring, struct answer *answers, int n)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct pollfd p = {.events = POLLIN};
	struct kvc_input input;
	struct kvc_sqe *sqe;
	int next = 0, done = 0, rc;

	opts.max_tokens = 32;
	p.fd = kvc_ring_event_fd(ring);
	if (p.fd < 0)
		return p.fd;
	while (done < n) {
		while (next < n && (sqe = kvc_ring_get_sqe(ring))) {
			input = kvc_text(answers[next].prompt,
					 strlen(answers[next].prompt));
			kvc_prep_generate(sqe, &input, &opts);
			kvc_sqe_set_data(sqe, &answers[next++]);
		}
		/* What finds no room now goes out when completions made some. */
		kvc_ring_submit(ring);
		if (poll(&p, 1, -1) < 0)
			return -1;
		kvc_ring_event_ack(ring);
		rc = kvc_ring_for_each_cqe(ring, on_cqe, &done);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct kvc_client *client = NULL;
	struct kvc_ring *ring = NULL;
	struct answer *answers;
	int i, rc;

	answers = calloc((size_t)argc, sizeof(*answers));
	if (!answers)
		return 1;
	for (i = 1; i < argc; i++)
		answers[i - 1].prompt = argv[i];
	rc = kvc_connect(&client, NULL);
	if (rc == 0)
		rc = kvc_ring_open(client, &ring, NULL);
	if (rc == 0)
		rc = run(ring, answers, argc - 1);
	if (rc < 0)
		fprintf(stderr, "ring: %s\n", kvc_errmsg());
	kvc_ring_close(ring);
	kvc_close(client);
	free(answers);
	return rc < 0;
}
