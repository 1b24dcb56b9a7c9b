/* SPDX-License-Identifier: MIT */
/*
 * test_pretokenize CUTS: random strings are cut where two other implementations cut them.
 * mkcuts.py, which makes the file, says how and by which.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/pretokenize.h"
#include "tests/unit/model/harness.h"

#define MAX_TEXT     256
#define MAX_FAMILIES 16

struct family {
	char *name;
	struct pretokenizer *pre;
	unsigned n_texts;
};

struct cuts {
	struct family families[MAX_FAMILIES];
	unsigned n_families, n_failed;
	uint8_t text[MAX_TEXT];
	size_t len;
};

/* Lengths as the file has them: " 1 2". */
struct lengths {
	char text[4 * MAX_TEXT];
	size_t len;
};

static int add_length(void *arg, const uint8_t *piece, size_t len)
{
	struct lengths *got = arg;

	got->len += (size_t)snprintf(got->text + got->len, sizeof(got->text) - got->len,
				     " %zu", len);
	return 0;
}

static void read_text(struct cuts *cuts, const char *hex)
{
	cuts->len = 0;
	for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2) {
		if (cuts->len == MAX_TEXT)
			die("a text is too long");
		cuts->text[cuts->len++] = (uint8_t)byte;
	}
}

static struct family *find_family(struct cuts *cuts, const char *name)
{
	struct family *family;

	for (unsigned i = 0; i < cuts->n_families; i++)
		if (!strcmp(cuts->families[i].name, name))
			return &cuts->families[i];
	if (cuts->n_families == MAX_FAMILIES)
		die("too many families");
	family = &cuts->families[cuts->n_families++];
	family->name = strdup(name);
	if (!family->name || pretokenizer_new(&family->pre, name, strlen(name)))
		die("no pre-tokenizer %s", name);
	return family;
}

static void check(struct cuts *cuts, const char *name, const char *want)
{
	struct family *family = find_family(cuts, name);
	struct lengths got = {.text = ""};

	family->n_texts++;
	if (!pretokenize(family->pre, cuts->text, cuts->len, add_length, &got) &&
	    !strcmp(got.text, want))
		return;
	printf("FAIL: %s cuts", name);
	for (size_t i = 0; i < cuts->len; i++)
		printf("%s%02x", i ? "" : " ", cuts->text[i]);
	printf(" into%s, not%s\n", got.text, want);
	cuts->n_failed++;
}

/* "cut NAME,NAME 1 2 3" */
static void check_line(struct cuts *cuts, char *names)
{
	char *want = strchr(names, ' '), *rest = NULL;
	char lengths[4 * MAX_TEXT];

	if (!want)
		die("a line without lengths");
	snprintf(lengths, sizeof(lengths), "%s", want);
	*want = 0;
	for (char *name = strtok_r(names, ",", &rest); name;
	     name = strtok_r(NULL, ",", &rest))
		check(cuts, name, lengths);
}

/* Each family that the daemon knows must have been compared, on a few hundred strings. */
static void check_families(struct cuts *cuts)
{
	char names[512], *rest = NULL;

	pretokenizer_list(names, sizeof(names));
	for (char *name = strtok_r(names, " ", &rest); name;
	     name = strtok_r(NULL, " ", &rest)) {
		unsigned n = find_family(cuts, name)->n_texts;

		printf("%s: %u strings\n", name, n);
		if (n < 100) {
			printf("FAIL: these are too few\n");
			cuts->n_failed++;
		}
	}
}

int main(int argc, char **argv)
{
	static struct cuts cuts;
	char *line = NULL;
	size_t cap = 0;
	FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;

	if (!f)
		die("usage: test_pretokenize CUTS");
	while (getline(&line, &cap, f) > 0) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "text ", 5))
			read_text(&cuts, line + 5);
		else if (!strncmp(line, "cut ", 4))
			check_line(&cuts, line + 4);
	}
	free(line);
	fclose(f);
	check_families(&cuts);
	for (unsigned i = 0; i < cuts.n_families; i++) {
		pretokenizer_free(cuts.families[i].pre);
		free(cuts.families[i].name);
	}
	return cuts.n_failed != 0;
}
