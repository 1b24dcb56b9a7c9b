/* SPDX-License-Identifier: MIT */
/* kvctl model: bringing a model. The work is done by the script model-fetch beside it,
 * which uses Python's package installer; the daemon plays no part. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvctl/kvctl.h"

enum { OPT_FROM = 256, OPT_FOLDER, OPT_NO_CONFIG };

int cmd_model(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"from", required_argument, NULL, OPT_FROM},
		{"folder", required_argument, NULL, OPT_FOLDER},
		{"no-config", no_argument, NULL, OPT_NO_CONFIG},
		KVCTL_COMMON_OPTIONS,
	};
	const char *args[8] = {KVCTL_MODEL_FETCH};
	size_t n = 1;
	int c;

	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		if (n + 3 > sizeof(args) / sizeof(args[0]))
			kvctl_usage_error("give each option once");
		switch (c) {
		case OPT_FROM:
			args[n++] = "--from";
			args[n++] = optarg;
			break;
		case OPT_FOLDER:
			args[n++] = "--folder";
			args[n++] = optarg;
			break;
		case OPT_NO_CONFIG:
			args[n++] = "--no-config";
			break;
		}
	}
	if (optind >= argc || strcmp(argv[optind], "fetch") != 0)
		kvctl_usage_error("what about the model? There is 'kvctl model fetch'");
	optind++;
	kvctl_no_arguments(argc, argv);
	if (ctl->json)
		kvctl_usage_error("'model fetch' has no --json");
	fflush(stdout);
	execv(args[0], (char *const *)args);
	fprintf(stderr, "kvctl: cannot run %s: %s; is python3 installed?\n", args[0],
		strerror(errno));
	return EXIT_FAILED;
}
