/* SPDX-License-Identifier: MIT */
/*
 * kvctl plan: what each KV format takes. kvd computes it, by the code that lays out its
 * blocks, so this checks the arguments and becomes `kvd --plan`. No daemon has to run.
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvctl/kvctl.h"

/*
 * The kvd to ask: $KVD_PROGRAM; of a build folder, its own; else the installed one.
 * Return: 0 or -errno.
 */
static int find_kvd(char path[static PATH_MAX])
{
	static const char here[] = "/client/kvctl/kvctl", there[] = "/daemon/kvd";
	const char *named = getenv("KVD_PROGRAM");
	ssize_t n;

	if (named && *named) {
		if (strlen(named) >= PATH_MAX)
			return -ENAMETOOLONG;
		strcpy(path, named);
		return 0;
	}
	n = readlink("/proc/self/exe", path, PATH_MAX - 1);
	if (n > (ssize_t)strlen(here)) {
		path[n] = '\0';
		n -= (ssize_t)strlen(here);
		if (!strcmp(path + n, here)) {
			strcpy(path + n, there);
			if (access(path, X_OK) == 0)
				return 0;
		}
	}
	strcpy(path, KVD_INSTALLED);
	return 0;
}

int cmd_plan(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"model", required_argument, NULL, 'm'},
		{"layers", required_argument, NULL, 'l'},
		{"heads", required_argument, NULL, 'n'},
		{"kv-heads", required_argument, NULL, 'k'},
		{"head-dim", required_argument, NULL, 'd'},
		{"batch", required_argument, NULL, 'b'},
		{"context", required_argument, NULL, 'c'},
		{"block-size", required_argument, NULL, 'S'},
		{"tensor-parallel-size", required_argument, NULL, 'P'},
		{"memory", required_argument, NULL, 'M'},
		KVCTL_COMMON_OPTIONS,
	};
	char path[PATH_MAX], **args;
	size_t n = 0;
	int c, r;

	/* Each option is two words at most. */
	args = calloc(2 * (size_t)argc + 4, sizeof(*args));
	if (!args)
		return kvctl_fail("cannot plan", -ENOMEM);
	args[n++] = path;
	args[n++] = (char *)"--plan";
	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1)
		for (const struct option *o = options; o->name; o++)
			if (o->val == c) {
				/* As one word, so that a value is never an option. */
				if (asprintf(&args[n], "--%s=%s", o->name, optarg) < 0)
					return kvctl_fail("cannot plan", -ENOMEM);
				n++;
			}
	kvctl_no_arguments(argc, argv);
	if (ctl->json)
		args[n++] = (char *)"--json";
	r = find_kvd(path);
	if (!r) {
		fflush(stdout);
		execv(path, args);
		r = -errno;
	}
	fprintf(stderr,
		"kvctl: cannot run %s, which computes the plan: %s; KVD_PROGRAM names "
		"another kvd\n",
		path, strerror(-r));
	return EXIT_FAILED;
}
