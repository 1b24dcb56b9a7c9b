/* SPDX-License-Identifier: MIT */
/*
 * The program: arguments, configuration, then the daemon until it is asked to stop.
 *
 * Exit status: 0 stopped as asked; 1 could not start or failed; 2 wrong usage; 78
 * (EX_CONFIG) mistakes in the configuration, where another try is in vain.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/config_file.h"
#include "daemon/daemon.h"
#include "daemon/lockdown.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/planner.h"
#include "daemon/sandbox.h"
#include "daemon/user.h"
#include "daemon/user_limits.h"
#include "ipc/base.h"

/* Longer than StartLimitIntervalSec= divided by StartLimitBurst= in kvd.service. */
#define RETRY_PAUSE_S 4

enum {
	EXIT_USAGE = 2,
	OPT_CHECK = 256,
	OPT_HELP_CONFIG,
	OPT_LIMITS,
	OPT_RELOAD,
	OPT_SELFTEST,
	OPT_VERSION,
};

struct arguments {
	const char *file;     /* --config */
	const char **options; /* -o, in order */
	size_t n_options;
	bool check;
	bool limits;
	bool selftest;
	pid_t reload; /* the daemon to be reloaded; 0: none */
};

/*
 * Signals that would end the daemon by default and that are caused by others: a peer that has
 * gone, a limit of file sizes (the memory of a ring counts, and so does a log file), which makes
 * the call fail with EPIPE or EFBIG for the one that it concerns; and those that people send to
 * daemons to have logs rotated or printed, which mean nothing here. SIGTERM, SIGINT and SIGHUP
 * have their handlers (daemon.c). SIGBUS is a file that got shorter under a mapping.
 */
static const int ignored_signals[] = {SIGPIPE,   SIGXFSZ, SIGUSR1, SIGUSR2, SIGALRM,
				      SIGVTALRM, SIGPROF, SIGIO,   SIGPWR,  SIGSTKFLT};

static const char usage[] =
	"Usage: kvd [OPTION]...\n"
	"Serve one model and one KV cache to the programs of this machine.\n"
	"\n"
	"  -c, --config FILE       read FILE and FILE.d/*.conf instead of /etc/kvd/kvd.conf\n"
	"  -o SECTION.KEY=VALUE    set one key; wins over every file; may be repeated\n"
	"      --check-config      read the configuration, say what is wrong, and exit\n"
	"      --limits            what one user can hold at most, and exit\n"
	"      --plan OPTIONS      what each KV format takes; see 'kvctl plan --help'\n"
	"      --help-config       list every key with its default, and exit\n"
	"      --reload PID        check the configuration, then have daemon PID reload it\n"
	"      --selftest-sandbox  try what kvd.service forbids, and exit\n"
	"  -h, --help              this text\n"
	"      --version           version\n"
	"\n"
	"Example: kvd -o model.path=/srv/models/model.gguf -o daemon.socket=/tmp/kvd.sock\n"
	"See kvd(8) and kvd.conf(5).\n";

static void report_line(struct config_report *report, const char *text)
{
	log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_CONFIG_BAD), "%s", text);
}

/* Return: 0 for what is no process id. */
static pid_t parse_pid(const char *text)
{
	char *end;
	long pid;

	errno = 0;
	pid = strtol(text, &end, 10);
	return errno || *end || end == text || pid <= 1 || pid > INT_MAX ? 0 : (pid_t)pid;
}

/* Return: -1 to go on, else the exit status. */
static int parse_arguments(int argc, char **argv, struct arguments *args)
{
	static const struct option longs[] = {
		{"config", required_argument, NULL, 'c'},
		{"check-config", no_argument, NULL, OPT_CHECK},
		{"help-config", no_argument, NULL, OPT_HELP_CONFIG},
		{"limits", no_argument, NULL, OPT_LIMITS},
		{"reload", required_argument, NULL, OPT_RELOAD},
		{"selftest-sandbox", no_argument, NULL, OPT_SELFTEST},
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
		case OPT_LIMITS:
			args->limits = true;
			break;
		case OPT_RELOAD:
			args->reload = parse_pid(optarg);
			if (args->reload <= 0) {
				fprintf(stderr, "kvd: --reload: '%s' is no process id\n",
					optarg);
				return EXIT_USAGE;
			}
			break;
		case OPT_SELFTEST:
			args->selftest = true;
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

/* Return: 0; when mistakes were reported, or files could not be read that may be all right,
 * which was reported, too: DAEMON_RELOAD_*; -errno. */
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
	return report.unread     ? DAEMON_RELOAD_UNREAD
	       : report.n_errors ? DAEMON_RELOAD_MISTAKES
				 : 0;
}

/* What the start does with the names of users and groups, but that each one is a mistake: who
 * asks is there to mend it. */
static int check_names(const struct config *config)
{
	struct config_report report = {.fn = report_line};
	struct users users;
	int r = users_init(&users, config, &report);

	users_deinit(&users);
	return r < 0 ? r : report.n_errors ? DAEMON_RELOAD_MISTAKES : 0;
}

static int reload(void *ctx, struct config *fresh)
{
	int r;

	r = config_init(fresh);
	if (!r)
		r = load_config(fresh, ctx);
	if (r < 0)
		log_errno(LOG_ERR, r, "cannot read the configuration");
	return r;
}

/* Each act on a line of its own. Exit status: 1 when any was permitted. */
static int selftest_sandbox(void)
{
	static const char *const words[] = {
		[SANDBOX_REFUSED] = "refused",
		[SANDBOX_PERMITTED] = "PERMITTED",
		[SANDBOX_SKIPPED] = "skipped",
	};
	struct sandbox_row rows[SANDBOX_MAX_ROWS];
	unsigned int n_permitted;
	int n;

	/* As the daemon does before it serves; what this leaves open is a row. */
	(void)lockdown_io_uring(true);
	n = sandbox_probe(sandbox_expected(), rows, &n_permitted);
	if (n < 0) {
		fprintf(stderr, "kvd: cannot probe the sandbox: %s\n", strerror(-n));
		return EXIT_FAILURE;
	}
	for (int i = 0; i < n; i++)
		printf("%-9s  %-32s  %s\n", words[rows[i].result], rows[i].act,
		       rows[i].setting);
	return n_permitted ? EXIT_FAILURE : EXIT_SUCCESS;
}

/*
 * Under a service manager a daemon that cannot start is started again at once, as it has
 * to be after a crash. What it lacks, a device or a file system that comes late, will take
 * longer: with this pause the manager's limit of attempts is never reached. A request to
 * stop ends it.
 */
static void pause_before_retry(void)
{
	const struct timespec pause = {.tv_sec = RETRY_PAUSE_S};
	sigset_t stop;

	if (!getenv("NOTIFY_SOCKET"))
		return;
	sigemptyset(&stop);
	sigaddset(&stop, SIGTERM);
	sigaddset(&stop, SIGINT);
	sigprocmask(SIG_BLOCK, &stop, NULL);
	(void)sigtimedwait(&stop, NULL, &pause);
}

static int run(struct config *config, struct arguments *args)
{
	struct daemon *daemon;
	int r;

	r = daemon_new(&daemon, config, reload, args);
	/* daemon_new() has said why. */
	if (r == DAEMON_BAD_CONFIG)
		return EX_CONFIG;
	if (r) {
		pause_before_retry();
		return EXIT_FAILURE;
	}
	r = daemon_run(daemon);
	daemon_free(daemon);
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* With a configuration in hand that may have mistakes: what was asked for. */
static int act(struct config *config, struct arguments *args)
{
	int r = load_config(config, args);

	if (!r && (args->check || args->reload))
		r = check_names(config);
	if (r < 0)
		log_errno(LOG_ERR, r, "cannot read the configuration");
	if (r == DAEMON_RELOAD_MISTAKES)
		return EX_CONFIG;
	if (r) {
		if (!args->check && !args->limits && !args->reload)
			pause_before_retry();
		return EXIT_FAILURE;
	}
	if (args->check) {
		puts("kvd: the configuration is fine");
		return EXIT_SUCCESS;
	}
	if (args->limits) {
		user_limits_print(config, stdout);
		return EXIT_SUCCESS;
	}
	if (!args->reload)
		return run(config, args);
	if (kill(args->reload, SIGHUP) < 0) {
		log_errno(LOG_ERR, errno, "cannot signal process %d", (int)args->reload);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct arguments args = {0};
	struct config config;
	int r;

	if (argc > 1 && !strcmp(argv[1], "--plan"))
		return planner_main(argc, argv);

	/* Prompts pass through this process: no core dumps, no ptrace by the same uid. */
	prctl(PR_SET_DUMPABLE, 0);
	for (size_t i = 0; i < KVD_ARRAY_LEN(ignored_signals); i++)
		signal(ignored_signals[i], SIG_IGN);
	/* So that mistakes in the configuration are entries with fields, too. */
	log_open(LOG_TARGET_AUTO, LOG_INFO);

	args.options = calloc((size_t)argc, sizeof(*args.options));
	/* config_deinit() is safe after failure. */
	r = config_init(&config);
	if (!args.options || r < 0) {
		log_error("out of memory");
		log_close();
		config_deinit(&config);
		free(args.options);
		return EXIT_FAILURE;
	}
	r = parse_arguments(argc, argv, &args);
	if (r < 0)
		r = args.selftest ? selftest_sandbox() : act(&config, &args);
	/* The journal learns the unit of a sender by looking at its process, which must not
	 * be gone by then: or journalctl -u would not show why it failed. */
	if (r != EXIT_SUCCESS && getenv("JOURNAL_STREAM"))
		usleep(100000);
	log_close();
	config_deinit(&config);
	free(args.options);
	return r;
}
