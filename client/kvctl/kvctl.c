/* SPDX-License-Identifier: MIT */
#include "client/kvctl/kvctl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "client/kvctl/utf8.h"

/* More text than any context holds; a pipe that never ends must not fill the memory. */
#define TEXT_MAX (64u << 20)

void kvctl_usage_error(const char *fmt, ...)
{
	va_list args;

	fflush(stdout);
	fputs("kvctl: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	putc('\n', stderr);
	exit(EXIT_USAGE);
}

static void on_alarm(int sig)
{
	static const char text[] = "kvctl: no result within --timeout\n";

	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(EXIT_TIMED_OUT);
	_exit(EXIT_TIMED_OUT);
}

static void set_timeout(struct kvctl *ctl, double seconds)
{
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval timer = {0};

	ctl->timeout_s = seconds;
	timer.it_value.tv_sec = (time_t)seconds;
	timer.it_value.tv_usec = (suseconds_t)((seconds - floor(seconds)) * 1e6);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void print_help(const struct kvctl *ctl)
{
	printf("usage: kvctl %s%s%s\n\n%s.\n%s", ctl->verb->name,
	       *ctl->verb->args ? " " : "", ctl->verb->args, ctl->verb->summary,
	       ctl->verb->help);
	printf("\nCommon options:\n"
	       "  -s, --socket PATH    the daemon's socket (default: $KVD_SOCKET, then %s)\n"
	       "      --timeout SEC    give up after that long, with exit code %d\n"
	       "      --json           one JSON document on stdout\n"
	       "  -h, --help           this text\n"
	       "      --version        version of kvctl\n",
	       KVD_SOCKET_DEFAULT, EXIT_TIMED_OUT);
	exit(kvctl_finish(EXIT_OK));
}

int kvctl_next_option(struct kvctl *ctl, int argc, char **argv,
		      const struct option *options)
{
	char shorts[32];

	snprintf(shorts, sizeof(shorts), ":s:h%s", ctl->shorts ? ctl->shorts : "");
	for (;;) {
		int c = getopt_long(argc, argv, shorts, options, NULL);

		switch (c) {
		case 's':
			ctl->socket_path = optarg;
			break;
		case 't':
			set_timeout(ctl,
				    kvctl_parse_f64("--timeout", optarg, 0.001, 1e6));
			break;
		case 'j':
			ctl->json = true;
			break;
		case 'h':
			print_help(ctl);
			break;
		case 'V':
			printf("kvctl %d.%d.%d\n", KVC_VERSION_MAJOR, KVC_VERSION_MINOR,
			       KVC_VERSION_PATCH);
			exit(kvctl_finish(EXIT_OK));
		case ':':
			kvctl_usage_error("%s needs a value; see 'kvctl %s --help'",
					  argv[optind - 1], ctl->verb->name);
		case '?':
			kvctl_usage_error("unknown option %s; see 'kvctl %s --help'",
					  argv[optind - 1], ctl->verb->name);
		default:
			return c;
		}
	}
}

const char *kvctl_one_argument(int argc, char **argv, const char *name)
{
	if (optind == argc)
		kvctl_usage_error(
			"%s is missing; give it as one argument, or '-' to read it "
			"from stdin",
			name);
	if (optind + 1 < argc)
		kvctl_usage_error(
			"one %s only, but '%s' follows it; put quotes around text "
			"with spaces",
			name, argv[optind + 1]);
	return argv[optind];
}

void kvctl_no_arguments(int argc, char **argv)
{
	if (optind < argc)
		kvctl_usage_error("unexpected argument '%s'", argv[optind]);
}

uint64_t kvctl_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max)
{
	const char *digits = *text == '-' ? text + 1 : text;
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(digits, &end, 10);
	if (*digits < '0' || *digits > '9' || *end)
		kvctl_usage_error("%s: '%s' is not a whole number", what, text);
	if (errno || (digits != text && value) || value < min || value > max)
		kvctl_usage_error("%s: %s is not between %" PRIu64 " and %" PRIu64, what,
				  text, min, max);
	return value;
}

double kvctl_parse_f64(const char *what, const char *text, double min, double max)
{
	double value;
	char *end;

	value = strtod(text, &end);
	if (end == text || *end || isnan(value) || *text == ' ')
		kvctl_usage_error("%s: '%s' is not a number", what, text);
	if (value < min || value > max)
		kvctl_usage_error("%s: %s is not between %g and %g", what, text, min,
				  max);
	return value;
}

static char *read_stream(FILE *f, const char *name, size_t *ret_len)
{
	size_t len = 0, cap = 0;
	char *text = NULL;

	for (;;) {
		size_t n;

		if (cap - len < 4096) {
			char *grown = realloc(text, cap ? 2 * cap : 65536);

			if (!grown) {
				fprintf(stderr, "kvctl: %s: out of memory\n", name);
				break;
			}
			text = grown;
			cap = cap ? 2 * cap : 65536;
		}
		n = fread(text + len, 1, cap - len - 1, f);
		len += n;
		if (ferror(f)) {
			fprintf(stderr, "kvctl: cannot read %s: %s\n", name,
				strerror(errno));
			break;
		}
		if (len > TEXT_MAX) {
			fprintf(stderr, "kvctl: %s is longer than %u MiB\n", name,
				TEXT_MAX >> 20);
			break;
		}
		if (n == 0) {
			text[len] = '\0';
			*ret_len = len;
			return text;
		}
	}
	free(text);
	return NULL;
}

char *kvctl_read_file(const char *path, size_t *ret_len)
{
	FILE *f = fopen(path, "re");
	char *text;

	if (!f) {
		fprintf(stderr, "kvctl: cannot open %s: %s\n", path, strerror(errno));
		return NULL;
	}
	text = read_stream(f, path, ret_len);
	fclose(f);
	return text;
}

char *kvctl_read_text(const char *argument, size_t *ret_len)
{
	char *text;

	if (!strcmp(argument, "-"))
		return read_stream(stdin, "stdin", ret_len);
	text = strdup(argument);
	if (!text)
		fprintf(stderr, "kvctl: out of memory\n");
	else
		*ret_len = strlen(text);
	return text;
}

int kvctl_exit_code(int error)
{
	switch (error) {
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EPIPE:
	case KVD_E_RESTARTED:
		return EXIT_NOT_RUNNING;
	case -EACCES:
	case -EPERM:
		return EXIT_PERMISSION;
	case -ENOENT:
	case KVD_E_MODEL_NONE:
	case KVD_E_UNSUPPORTED:
		return EXIT_NOT_FOUND;
	case -ETIME:
	case -ETIMEDOUT:
	case KVD_E_DEADLINE:
		return EXIT_TIMED_OUT;
	case -EAGAIN:
	case -EDQUOT:
	case KVD_E_QUOTA:
	case KVD_E_BUSY:
	case KVD_E_DRAINING:
		return EXIT_BUSY;
	default:
		return EXIT_FAILED;
	}
}

int kvctl_fail(const char *what, int error)
{
	const char *detail = kvc_errmsg();

	fflush(stdout);
	fprintf(stderr, "kvctl: %s: ", what);
	if (!*detail)
		detail = kvc_strerror(error);
	/* the daemon's words may name a client or a model */
	utf8_put_name(stderr, detail, strlen(detail));
	putc('\n', stderr);
	return kvctl_exit_code(error);
}

/* A user who may open the administrators' socket wants its rights. */
const char *kvctl_default_socket(void)
{
	const char *env = getenv(KVD_SOCKET_ENV);

	if (env && *env)
		return NULL;
	return access(KVD_SOCKET_ADMIN, R_OK | W_OK) == 0 ? KVD_SOCKET_ADMIN : NULL;
}

int kvctl_connect(const struct kvctl *ctl, struct kvc_client **ret_client)
{
	struct kvc_connect_opts opts = KVC_OPTS_INIT(struct kvc_connect_opts);
	int r;

	opts.socket_path = ctl->socket_path ? ctl->socket_path : kvctl_default_socket();
	opts.client_name = "kvctl";
	r = kvc_connect(ret_client, &opts);
	if (r < 0) {
		int status = kvctl_fail("cannot connect", r);

		/* A socket that is not there means the same to a script as one that
		 * nobody listens to. */
		return r == -ENOENT ? EXIT_NOT_RUNNING : status;
	}
	return 0;
}

int kvctl_finish(int status)
{
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fprintf(stderr, "kvctl: cannot write the output: %s\n", strerror(errno));
		return status == EXIT_OK ? EXIT_FAILED : status;
	}
	return status;
}

const char *kvctl_age(uint64_t ns, char buf[static 32])
{
	uint64_t s = ns / 1000000000u;

	if (s < 60)
		snprintf(buf, 32, "%" PRIu64 "s", s);
	else if (s < 3600)
		snprintf(buf, 32, "%" PRIu64 "min %" PRIu64 "s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(buf, 32, "%" PRIu64 "h %" PRIu64 "min", s / 3600, s / 60 % 60);
	else
		snprintf(buf, 32, "%" PRIu64 "d %" PRIu64 "h", s / 86400, s / 3600 % 24);
	return buf;
}
