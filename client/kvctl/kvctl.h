/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_KVCTL_H
#define KVD_CLIENT_KVCTL_KVCTL_H

/*
 * What the verbs of kvctl share: common options, connecting, messages and exit codes, numbers
 * and text from the command line. Usage errors end the process here. Data goes to stdout,
 * messages to stderr. Uses nothing of kvd but the installed headers.
 */
#include <getopt.h>
#include <kvclient.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvctl/exits.h"

struct kvctl;

/* A row of the verb table in main.c. @args: after the name in usage lines; @summary: for the
 * list of verbs; @help: options and examples. */
struct verb {
	const char *name;
	int (*run)(struct kvctl *ctl, int argc, char **argv);
	const char *args;
	const char *summary;
	const char *help;
};

/**
 * struct kvctl - one run
 * @socket_path: NULL: the library's default
 * @shorts: short options of the verb alone, as for getopt()
 * @timeout_s: for the whole command; 0: none
 */
struct kvctl {
	const struct verb *verb;
	const char *socket_path;
	const char *shorts;
	double timeout_s;
	bool json;
};

/* Ends the option array of each verb. */
#define KVCTL_COMMON_OPTIONS                                                             \
	{"socket", required_argument, NULL, 's'},                                        \
		{"timeout", required_argument, NULL, 't'},                               \
		{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'},      \
		{"version", no_argument, NULL, 'V'},                                     \
	{                                                                                \
		NULL, 0, NULL, 0                                                         \
	}

/* getopt_long() that handles the common options itself and ends the process with EXIT_USAGE for
 * unknown ones. Return: an option of the verb, or -1 after the last. */
int kvctl_next_option(struct kvctl *ctl, int argc, char **argv,
		      const struct option *options);

/* After the options: exactly one argument, @name in messages; none. */
const char *kvctl_one_argument(int argc, char **argv, const char *name);
void kvctl_no_arguments(int argc, char **argv);

/* "kvctl: " and one line, then exit with EXIT_USAGE. */
void kvctl_usage_error(const char *fmt, ...)
	__attribute__((noreturn, format(printf, 1, 2)));

/* Anything but a number in range is a usage error. */
uint64_t kvctl_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max);
double kvctl_parse_f64(const char *what, const char *text, double min, double max);

/* The text of an argument, or all of stdin for "-"; a file. To be freed, with a 0 behind it that
 * does not count. Return: NULL after a message. */
char *kvctl_read_text(const char *argument, size_t *ret_len);
char *kvctl_read_file(const char *path, size_t *ret_len);

const char *kvctl_default_socket(void);

/* Return: 0, or the exit code after a message. */
int kvctl_connect(const struct kvctl *ctl, struct kvc_client **ret_client);

/* A message that @what failed, with advice. Return: the exit code. */
int kvctl_fail(const char *what, int error);

/* @error: of the library or the daemon. */
int kvctl_exit_code(int error);

/* Flushes stdout. Return: @status, or EXIT_FAILED when that fails. */
int kvctl_finish(int status);

/* "42s", "3h 5min" */
const char *kvctl_age(uint64_t ns, char buf[static 32]);

int cmd_status(struct kvctl *ctl, int argc, char **argv);
int cmd_stats(struct kvctl *ctl, int argc, char **argv);
int cmd_top(struct kvctl *ctl, int argc, char **argv);
int cmd_doctor(struct kvctl *ctl, int argc, char **argv);
int cmd_drain(struct kvctl *ctl, int argc, char **argv);
int cmd_monitor(struct kvctl *ctl, int argc, char **argv);
int cmd_clients(struct kvctl *ctl, int argc, char **argv);
int cmd_cache(struct kvctl *ctl, int argc, char **argv);
int cmd_generate(struct kvctl *ctl, int argc, char **argv);
int cmd_tokenize(struct kvctl *ctl, int argc, char **argv);
int cmd_score(struct kvctl *ctl, int argc, char **argv);
int cmd_latency(struct kvctl *ctl, int argc, char **argv);
int cmd_model(struct kvctl *ctl, int argc, char **argv);
int cmd_complete(struct kvctl *ctl, int argc, char **argv);
int cmd_plan(struct kvctl *ctl, int argc, char **argv);

#endif
