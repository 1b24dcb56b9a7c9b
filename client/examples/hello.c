/* SPDX-License-Identifier: MIT */
/* The shortest useful program: continue a text, printed as it comes. */
#include <kvclient.h>
#include <stdio.h>

static int print(void *userdata, const struct kvc_piece *piece)
{
	(void)userdata;
	fwrite(piece->text, 1, piece->text_len, stdout);
	fflush(stdout);
	return 0; /* anything else would cancel */
}

int main(int argc, char **argv)
{
	const char *prompt = argc > 1 ? argv[1] : "The capital of France is";
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_client *client = NULL;
	int rc;

	opts.max_tokens = 32;
	rc = kvc_connect(&client, NULL);
	if (rc == 0)
		rc = kvc_generate_stream(client, prompt, &opts, print, NULL, NULL);
	puts("");
	if (rc < 0)
		fprintf(stderr, "hello: %s\n", kvc_errmsg());
	kvc_close(client);
	return rc < 0;
}
