/* SPDX-License-Identifier: MIT */
/* kvctl generate: one prompt, its answer as it comes, several, or one JSON object. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/kvctl/choices.h"
#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/utf8.h"

enum {
	OPT_RAW = 256,
	OPT_SYSTEM,
	OPT_SYSTEM_FILE,
	OPT_MAX_TOKENS,
	OPT_TEMPERATURE,
	OPT_TOP_K,
	OPT_TOP_P,
	OPT_MIN_P,
	OPT_SEED,
	OPT_STOP,
	OPT_LOGPROBS,
	OPT_IGNORE_EOS,
	OPT_REPORT,
	OPT_PRIORITY,
	OPT_SALT,
};

static const struct option options[] = {
	{"choices", required_argument, NULL, 'n'},
	{"raw", no_argument, NULL, OPT_RAW},
	{"system", required_argument, NULL, OPT_SYSTEM},
	{"system-file", required_argument, NULL, OPT_SYSTEM_FILE},
	{"max-tokens", required_argument, NULL, OPT_MAX_TOKENS},
	{"temperature", required_argument, NULL, OPT_TEMPERATURE},
	{"top-k", required_argument, NULL, OPT_TOP_K},
	{"top-p", required_argument, NULL, OPT_TOP_P},
	{"min-p", required_argument, NULL, OPT_MIN_P},
	{"seed", required_argument, NULL, OPT_SEED},
	{"stop", required_argument, NULL, OPT_STOP},
	{"logprobs", no_argument, NULL, OPT_LOGPROBS},
	{"ignore-eos", no_argument, NULL, OPT_IGNORE_EOS},
	{"report", required_argument, NULL, OPT_REPORT},
	{"priority", required_argument, NULL, OPT_PRIORITY},
	{"salt", required_argument, NULL, OPT_SALT},
	KVCTL_COMMON_OPTIONS,
};

/* Where --report writes; @made: the file was not there before. */
struct report {
	const char *path;
	FILE *f;
	bool made;
};

struct generate {
	struct kvc_gen_opts opts;
	const char *stop[KVD_MAX_STOP];
	const char *system;
	const char *system_file;
	struct report report;
	bool raw;
};

static void add_stop(struct generate *gen, const char *text)
{
	size_t len = strlen(text);

	if (len == 0 || len > KVD_MAX_STOP_LEN)
		kvctl_usage_error("--stop: a text of 1 to %u bytes is needed",
				  KVD_MAX_STOP_LEN);
	if (gen->opts.n_stop == KVD_MAX_STOP)
		kvctl_usage_error("--stop: not more than %u times", KVD_MAX_STOP);
	gen->stop[gen->opts.n_stop++] = text;
}

static int32_t parse_priority(const char *text)
{
	double value =
		kvctl_parse_f64("--priority", text, -KVD_MAX_PRIORITY, KVD_MAX_PRIORITY);

	if (value != (int32_t)value)
		kvctl_usage_error("--priority: '%s' is not a whole number", text);
	return (int32_t)value;
}

/* Short enough to be typed, and exact in each reader of JSON. */
static uint32_t random_seed(void)
{
	uint32_t seed;

	if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
		kvctl_usage_error("no random numbers to be had: give a --seed");
	return seed;
}

static void parse_options(struct kvctl *ctl, int argc, char **argv, struct generate *gen)
{
	bool has_seed = false;
	int c;

	*gen = (struct generate){.opts = KVC_OPTS_INIT(struct kvc_gen_opts)};
	gen->opts.max_tokens = 512;
	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		switch (c) {
		case 'n':
			gen->opts.n =
				(uint32_t)kvctl_parse_u64("-n", optarg, 1, KVD_MAX_N);
			break;
		case OPT_RAW:
			gen->raw = true;
			break;
		case OPT_SYSTEM:
			gen->system = optarg;
			break;
		case OPT_SYSTEM_FILE:
			gen->system_file = optarg;
			break;
		case OPT_MAX_TOKENS:
			gen->opts.max_tokens = (uint32_t)kvctl_parse_u64(
				"--max-tokens", optarg, 0, UINT32_MAX);
			break;
		case OPT_TEMPERATURE:
			gen->opts.temperature =
				(float)kvctl_parse_f64("--temperature", optarg, 0, 100);
			break;
		case OPT_TOP_K:
			gen->opts.top_k = (uint32_t)kvctl_parse_u64("--top-k", optarg, 0,
								    UINT32_MAX);
			break;
		case OPT_TOP_P:
			gen->opts.top_p = (float)kvctl_parse_f64("--top-p", optarg, 0, 1);
			break;
		case OPT_MIN_P:
			gen->opts.min_p = (float)kvctl_parse_f64("--min-p", optarg, 0, 1);
			break;
		case OPT_SEED:
			gen->opts.seed = kvctl_parse_u64("--seed", optarg, 0, UINT64_MAX);
			has_seed = true;
			break;
		case OPT_STOP:
			add_stop(gen, optarg);
			break;
		case OPT_LOGPROBS:
			gen->opts.gen_flags |= KVD_GEN_LOGPROBS;
			break;
		case OPT_IGNORE_EOS:
			gen->opts.gen_flags |= KVD_GEN_IGNORE_EOS;
			break;
		case OPT_REPORT:
			gen->report.path = optarg;
			break;
		case OPT_PRIORITY:
			gen->opts.priority = parse_priority(optarg);
			break;
		case OPT_SALT:
			gen->opts.salt = kvctl_parse_u64("--salt", optarg, 0, UINT64_MAX);
			break;
		}
	}
	gen->opts.stop = gen->stop;
	/* Without it each call would draw the same. */
	if (!has_seed && gen->opts.temperature > 0)
		gen->opts.seed = random_seed();
	/* the daemon need not go on with what nobody waits for */
	if (ctl->timeout_s > 0 && ctl->timeout_s < UINT32_MAX / 1000.0)
		gen->opts.timeout_ms = (uint32_t)(ctl->timeout_s * 1000) + 1;
	if (gen->system && gen->system_file)
		kvctl_usage_error("--system and --system-file exclude each other");
	if (gen->raw && (gen->system || gen->system_file))
		kvctl_usage_error(
			"--raw has no system prompt; put the text before the prompt");
}

/* Non-zero cancels the request: nobody can read the answer any more. */
static int show_piece(void *userdata, const struct kvc_piece *piece)
{
	const bool *terminal = userdata;

	if (*terminal)
		utf8_put_shown(stdout, piece->text, piece->text_len);
	else
		fwrite(piece->text, 1, piece->text_len, stdout);
	return fflush(stdout) == EOF;
}

static void print_result(const struct kvc_result *result, uint64_t seed, FILE *f)
{
	struct json json;

	json_init(&json, f);
	json_open_object(&json, NULL);
	choice_print_keys(&json, result);
	json_u64(&json, "seed", seed);
	json_close_object(&json);
	json_end(&json);
}

static int report_fail(const struct report *report)
{
	fprintf(stderr, "kvctl: cannot write %s: %s\n", report->path, strerror(errno));
	return EXIT_FAILED;
}

/* Before the request, whose answer would be lost. What is in the file stays till then. */
static int report_open(struct report *report)
{
	int fd;

	if (!report->path)
		return EXIT_OK;
	fd = open(report->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	report->made = fd >= 0;
	if (fd < 0)
		fd = open(report->path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return report_fail(report);
	report->f = fdopen(fd, "w");
	if (report->f)
		return EXIT_OK;
	close(fd);
	return report_fail(report);
}

/* One answer, or several where @choices is not NULL. */
static int report_write(struct report *report, const struct generate *gen,
			const struct kvc_result *result, const struct choices *choices)
{
	FILE *f = report->f;
	int bad;

	if (!f)
		return EXIT_OK;
	report->f = NULL;
	/* fails for what is no file, which needs none */
	(void)!ftruncate(fileno(f), 0);
	if (choices)
		choices_print_json(choices, f);
	else
		print_result(result, gen->opts.seed, f);
	bad = ferror(f);
	return (fclose(f) == EOF) | bad ? report_fail(report) : EXIT_OK;
}

/* There was nothing to report. */
static void report_drop(struct report *report)
{
	if (!report->f)
		return;
	fclose(report->f);
	report->f = NULL;
	if (report->made)
		unlink(report->path);
}

static int ask_one(const struct kvctl *ctl, struct kvc_client *client,
		   struct generate *gen, const struct kvc_input *input)
{
	bool terminal = isatty(STDOUT_FILENO);
	struct kvc_result result = {0};
	int r = kvc_generate_input(client, input, &gen->opts,
				   ctl->json ? NULL : show_piece, &terminal, &result);

	if (!ctl->json && result.n_tokens)
		putchar('\n');
	if (r < 0 && ferror(stdout)) {
		r = EXIT_FAILED; /* kvctl_finish() says it */
	} else if (r < 0) {
		r = kvctl_fail("cannot generate", r);
	} else {
		if (ctl->json)
			print_result(&result, gen->opts.seed, stdout);
		r = report_write(&gen->report, gen, &result, NULL);
	}
	kvc_result_clear(&result);
	return r;
}

static int fail_several(const struct choices *choices, int error)
{
	const struct kvd_cqe_usage *usage = &choices->list[0].result.usage;
	uint64_t detail = usage->detail;

	/* what the library refused itself it has told; of others it has not seen what their
	 * completion says */
	if (!detail || choices->list[0].res != error || error == -EINVAL ||
	    error == -E2BIG)
		return kvctl_fail("cannot generate", error);
	fflush(stdout);
	if (usage->prompt_tokens && (error == KVD_E_CONTEXT || error == KVD_E_POOL))
		fprintf(stderr,
			"kvctl: cannot generate: %s (%u tokens; %llu is the limit)\n",
			kvc_strerror(error), usage->prompt_tokens,
			(unsigned long long)detail);
	else
		fprintf(stderr, "kvctl: cannot generate: %s (%llu)\n",
			kvc_strerror(error), (unsigned long long)detail);
	return kvctl_exit_code(error);
}

/* Answers that came are shown also when another one ended with an error. */
static int ask_several(const struct kvctl *ctl, struct kvc_client *client,
		       struct generate *gen, const struct kvc_input *input)
{
	struct choices choices;
	int r = choices_run(&choices, client, input, &gen->opts, !ctl->json), failed;

	if (r < 0) {
		r = fail_several(&choices, r);
	} else {
		failed = choices_error(&choices);
		if (ctl->json)
			choices_print_json(&choices, stdout);
		r = report_write(&gen->report, gen, NULL, &choices);
		if (failed) {
			fflush(stdout);
			fprintf(stderr, "kvctl: cannot generate: %s\n",
				kvc_strerror(failed));
			r = kvctl_exit_code(failed);
		}
	}
	choices_deinit(&choices);
	return r;
}

static int ask(const struct kvctl *ctl, struct generate *gen,
	       const struct kvc_input *input)
{
	struct kvc_client *client;
	int r = kvctl_connect(ctl, &client);

	if (r)
		return r;
	r = report_open(&gen->report);
	if (r) {
		kvc_close(client);
		return r;
	}
	r = gen->opts.n > 1 ? ask_several(ctl, client, gen, input)
			    : ask_one(ctl, client, gen, input);
	report_drop(&gen->report);
	kvc_close(client);
	return r;
}

int cmd_generate(struct kvctl *ctl, int argc, char **argv)
{
	struct kvc_message messages[2];
	char *prompt, *from_file = NULL;
	size_t len, system_len = 0, n = 0;
	struct kvc_input input;
	struct generate gen;
	int r;

	ctl->shorts = "n:";
	parse_options(ctl, argc, argv, &gen);
	prompt = kvctl_read_text(kvctl_one_argument(argc, argv, "PROMPT"), &len);
	if (!prompt)
		return EXIT_FAILED;
	if (gen.system_file) {
		from_file = kvctl_read_file(gen.system_file, &system_len);
		if (!from_file) {
			free(prompt);
			return EXIT_FAILED;
		}
		gen.system = from_file;
	}
	if (!gen.raw &&
	    (strlen(prompt) != len || (from_file && strlen(from_file) != system_len)))
		kvctl_usage_error(
			"a conversation holds no NUL bytes; use --raw for such text");
	if (gen.system)
		messages[n++] =
			(struct kvc_message){.role = "system", .content = gen.system};
	messages[n++] = (struct kvc_message){.role = "user", .content = prompt};
	input = gen.raw ? kvc_text(prompt, len) : kvc_messages(messages, n);
	r = ask(ctl, &gen, &input);
	free(from_file);
	free(prompt);
	return r;
}
