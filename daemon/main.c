/* SPDX-License-Identifier: MIT */
/*
 * The program: arguments, configuration, then the daemon until it is told to stop.
 *
 * Exit status: 0 stopped as asked; 1 could not start or failed; 2 wrong usage.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "daemon/config.h"
#include "daemon/config_file.h"
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/msgid.h"

enum {
	EXIT_USAGE = 2,
	OPT_CHECK = 256,
	OPT_HELP_CONFIG,
	OPT_VERSION,
};

struct arguments {
	const char *file;     /* --config */
	const char **options; /* -o, in order */
	size_t n_options;
	bool check;
};

static const char usage[] =
	"Usage: kvd [OPTION]...\n"
	"Serve one model and one KV cache to the programs of this machine.\n"
	"\n"
	"  -c, --config FILE       read FILE and FILE.d/*.conf instead of /etc/kvd/kvd.conf\n"
	"  -o SECTION.KEY=VALUE    set one key; wins over every file; may be repeated\n"
	"      --check-config      read the configuration, say what is wrong, and exit\n"
	"      --help-config       list every key with its default, and exit\n"
	"  -h, --help              this text\n"
	"      --version           version\n"
	"\n"
	"Example: kvd -o model.path=/srv/models/model.gguf -o daemon.socket=/tmp/kvd.sock\n"
	"See kvd(8) and kvd.conf(5).\n";

static void report_line(struct config_report *report, const char *text)
{
	(void)report;
	log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_CONFIG_BAD), "%s", text);
}

/* Return: -1 to go on, else the exit status. */
static int parse_arguments(int argc, char **argv, struct arguments *args)
{
	static const struct option longs[] = {
		{"config", required_argument, NULL, 'c'},
		{"check-config", no_argument, NULL, OPT_CHECK},
		{"help-config", no_argument, NULL, OPT_HELP_CONFIG},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, OPT_VERSION},
		{0},
	};

	for (int c; (c = getopt_long(argc, argv, "c:o:h", longs, NULL)) != -1;) {
		switch (c) {
		case 'c':
			args->file = optarg;
			break;
		case 'o':
			args->options[args->n_options++] = optarg;
			break;
		case OPT_CHECK:
			args->check = true;
			break;
		case OPT_HELP_CONFIG:
			config_print_help(stdout);
			return EXIT_SUCCESS;
		case 'h':
			fputs(usage, stdout);
			return EXIT_SUCCESS;
		case OPT_VERSION:
			puts("kvd " KVD_VERSION);
			return EXIT_SUCCESS;
		default:
			fputs("Try 'kvd --help'.\n", stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvd: unexpected argument '%s'\nTry 'kvd --help'.\n",
			argv[optind]);
		return EXIT_USAGE;
	}
	return -1;
}

/* Return: 0; 1 when mistakes were reported; -errno. */
static int load_config(struct config *config, const struct arguments *args)
{
	struct config_report report = {.fn = report_line};
	int r;

	r = config_load(config, "", args->file, &report);
	if (r < 0)
		return r;
	for (size_t i = 0; i < args->n_options; i++) {
		r = config_set_option(config, args->options[i], &report);
		if (r < 0)
			return r;
	}
	if (!report.n_errors)
		config_check(config, &report);
	return report.n_errors ? 1 : 0;
}

static int recheck(void *ctx)
{
	struct config config;
	int r;

	r = config_init(&config);
	if (!r)
		r = load_config(&config, ctx);
	if (r < 0)
		log_errno(LOG_ERR, r, "cannot read the configuration");
	config_deinit(&config);
	return r;
}

static int run(const struct config *config, struct arguments *args)
{
	struct daemon *daemon;
	int r;

	r = daemon_new(&daemon, config, recheck, args);
	if (r)
		return EXIT_FAILURE; /* daemon_new() has said why */
	r = daemon_run(daemon);
	daemon_free(daemon);
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct arguments args = {0};
	struct config config;
	int r;

	/* Prompts pass through this process: no core dumps, no ptrace by the same uid. */
	prctl(PR_SET_DUMPABLE, 0);
	signal(SIGPIPE, SIG_IGN);

	args.options = calloc((size_t)argc, sizeof(*args.options));
	if (!args.options || config_init(&config) < 0) {
		fputs("kvd: out of memory\n", stderr);
		return EXIT_FAILURE;
	}
	r = parse_arguments(argc, argv, &args);
	if (r < 0) {
		r = load_config(&config, &args);
		if (r < 0)
			log_errno(LOG_ERR, r, "cannot read the configuration");
		if (r)
			r = EXIT_FAILURE;
		else if (args.check)
			puts("kvd: the configuration is fine");
		else {
			log_open((enum log_target)config.daemon.log_target,
				 config.daemon.log_level);
			log_set_rate_limit(config.daemon.log_rate_interval_ns,
					   config.daemon.log_rate_burst);
			r = run(&config, &args);
		}
	}
	log_close();
	config_deinit(&config);
	free(args.options);
	return r;
}
