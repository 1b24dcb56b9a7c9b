/* SPDX-License-Identifier: MIT */
/* kvctl top: the daemon and its clients on a terminal, or one text after the other. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/screen.h"
#include "client/kvctl/table.h"
#include "client/kvctl/top_rows.h"
#include "client/kvctl/utf8.h"
#include "ipc/utf8.h"

#define MODEL_WIDTH 14

#define STR(field) (int)strnlen((field), sizeof(field)), (field)

/* Options of the command line, some of which keys change. */
struct top_args {
	bool batch;
	uint64_t n; /* 0: until it is ended */
	double delay_s;
	enum top_sort by;
	bool reverse;
};

static void put_name(FILE *f, const char *name, size_t size)
{
	utf8_put_name(f, name, strnlen(name, size));
}

static void print_head(const struct top *top, FILE *f)
{
	const struct kvd_stats *s = &top->stats;
	char age[32];

	fputs("kvd ", f);
	put_name(f, s->release, sizeof(s->release));
	fprintf(f, " up %s, ", kvctl_age(s->uptime_ns, age));
	if (s->model.arch[0])
		put_name(f, s->model.name, sizeof(s->model.name));
	else
		fputs("no model", f);
	fputs(", ", f);
	put_name(f, s->backend, sizeof(s->backend));
	fputs(", KV ", f);
	put_name(f, s->cache_format, sizeof(s->cache_format));
	fputs(top->own ? "; of you only\n" : "\n", f);
	fprintf(f,
		"blocks    %" PRIu64 " of %" PRIu64 " free, %" PRIu64 " cached, %" PRIu64
		" active, %" PRIu64 " pinned, %" PRIu64 " evicted\n",
		s->blocks_free, s->blocks_total, s->blocks_cached, s->blocks_active,
		s->blocks_pinned, s->evicted_blocks);
	fprintf(f,
		"requests  %" PRIu64 " running, %" PRIu64 " waiting, %" PRIu64
		" done, %" PRIu64 " failed\n",
		s->requests_running, s->requests_waiting, s->requests_completed,
		s->requests_failed);
	fprintf(f, "tokens/s  %.1f generated, %.1f prompt", top->tokens_per_s,
		top->prompt_per_s);
	if (top->hit_percent >= 0)
		fprintf(f, ", %.1f %% of looked up ones found", top->hit_percent);
	fputs("\n\n", f);
}

/* Bytes of a name's first characters: the model's must not push all else to the right. */
static int shortened(const char *name, size_t size)
{
	size_t len = strnlen(name, size), at = 0;

	for (unsigned i = 0; at < len && i < MODEL_WIDTH; i++) {
		size_t n = utf8_char_len(name + at, len - at);

		at += n ? n : 1;
	}
	return (int)at;
}

static int add_row(struct table *table, const struct kvd_stats *stats,
		   const struct top_row *row)
{
	const struct kvd_client_info *c = &row->info;
	int r = 0;

	r |= table_add(table, "%" PRIu64, c->id);
	r |= table_add(table, "%.*s", STR(c->name));
	r |= table_add(table, "%d", c->pid);
	r |= table_add(table, "%s", row->user);
	r |= table_add(table, "%.*s",
		       shortened(stats->model.name, sizeof(stats->model.name)),
		       stats->model.name);
	r |= table_add(table, "%c", row->state);
	r |= table_add(table, "%.1f", row->tokens_per_s);
	if (c->ttft_ns)
		r |= table_add(table, "%.0fms", (double)c->ttft_ns * 1e-6);
	else
		r |= table_add(table, "-");
	if (row->hit_percent >= 0)
		r |= table_add(table, "%.1f", row->hit_percent);
	else
		r |= table_add(table, "-");
	r |= table_add(table, "%" PRIu64, c->blocks);
	r |= table_add(table, "%u", c->requests_waiting);
	r |= table_add(table, "%" PRIu64, c->requests_failed);
	return r ? -ENOMEM : 0;
}

static int print_text(const struct top *top, FILE *f)
{
	static const char *const headings[] = {">ID",   "CLIENT",  ">PID",   "USER",
					       "MODEL", "STATE",   ">TOK/s", ">TTFT",
					       ">HIT%", ">BLOCKS", ">WAIT",  ">ERR"};
	struct table table;
	int r = table_init(&table, sizeof(headings) / sizeof(headings[0]), headings);

	if (r < 0)
		return r;
	print_head(top, f);
	for (size_t i = 0; i < top->n_rows && r == 0; i++)
		r = add_row(&table, &top->stats, &top->rows[i]);
	if (r == 0)
		table_print(&table, f);
	table_deinit(&table);
	return r;
}

static void json_row(struct json *json, const struct top_row *row)
{
	const struct kvd_client_info *c = &row->info;

	json_open_object(json, NULL);
	json_u64(json, "id", c->id);
	json_str_n(json, "name", c->name, strnlen(c->name, sizeof(c->name)));
	json_i64(json, "pid", c->pid);
	json_u64(json, "uid", c->uid);
	json_str(json, "user", row->user);
	json_str_n(json, "state", &row->state, 1);
	json_f64(json, "tokens_per_s", row->tokens_per_s, 9);
	json_f64(json, "ttft_ms", (double)c->ttft_ns * 1e-6, 6);
	json_u64(json, "prompt_tokens", c->tokens_prompt);
	json_u64(json, "cached_tokens", c->tokens_cached);
	json_u64(json, "generated_tokens", c->tokens_generated);
	json_u64(json, "blocks", c->blocks);
	json_u64(json, "running", c->requests_running);
	json_u64(json, "waiting", c->requests_waiting);
	json_u64(json, "failed", c->requests_failed);
	json_f64(json, "connected_s", (double)c->connected_ns * 1e-9, 12);
	json_close_object(json);
}

static void print_json(const struct top *top)
{
	const struct kvd_stats *s = &top->stats;
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_f64(&json, "uptime_s", (double)s->uptime_ns * 1e-9, 12);
	json_f64(&json, "generated_per_s", top->tokens_per_s, 6);
	json_f64(&json, "prompt_per_s", top->prompt_per_s, 6);
	json_u64(&json, "running", s->requests_running);
	json_u64(&json, "waiting", s->requests_waiting);
	json_u64(&json, "blocks_total", s->blocks_total);
	json_u64(&json, "blocks_free", s->blocks_free);
	json_u64(&json, "blocks_cached", s->blocks_cached);
	json_u64(&json, "blocks_active", s->blocks_active);
	json_u64(&json, "blocks_pinned", s->blocks_pinned);
	json_str(&json, "of", top->own ? "own" : "all");
	json_open_array(&json, "clients");
	for (size_t i = 0; i < top->n_rows; i++)
		json_row(&json, &top->rows[i]);
	json_close_array(&json);
	json_close_object(&json);
	json_end(&json);
}

static int show(struct kvctl *ctl, const struct top *top, const struct top_args *args)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f;
	int r;

	if (ctl->json) {
		print_json(top);
		return fflush(stdout) == EOF ? -errno : 0;
	}
	if (args->batch) {
		r = print_text(top, stdout);
		if (r == 0)
			putchar('\n');
		return r < 0 ? r : fflush(stdout) == EOF ? -errno : 0;
	}
	f = open_memstream(&text, &len);
	if (!f)
		return -ENOMEM;
	r = print_text(top, f);
	if (fclose(f) == EOF && r == 0)
		r = -ENOMEM;
	if (r == 0)
		screen_show(text);
	free(text);
	return r;
}

/* Return: whether to go on. */
static bool on_key(struct top_args *args, int key)
{
	static const char sort_keys[] = "icpustfhbwe"; /* in the order of enum top_sort */
	const char *at = strchr(sort_keys, key);

	if (key == 'q' || key == 'Q')
		return false;
	if (key == 'r') {
		args->reverse = !args->reverse;
	} else if (at) {
		args->by = (enum top_sort)(at - sort_keys);
		args->reverse = false;
	}
	return true;
}

/* Return: an exit code, or below 0 an error. */
static int watch(struct kvctl *ctl, struct kvc_client *client, struct top_args *args)
{
	struct top top = {0};
	uint64_t left = args->n;
	int r;

	for (;;) {
		int event;

		r = top_sample(&top, client);
		if (r < 0)
			break;
		do {
			top_sort(&top, args->by, args->reverse);
			r = show(ctl, &top, args);
			if (r < 0 || (left == 1 && args->n))
				goto out;
			event = screen_wait(args->delay_s);
			if (event > 0 && !on_key(args, event))
				event = SCREEN_END;
		} while (event == SCREEN_RESIZED || (event > 0 && event != ' '));
		r = event == SCREEN_TIMEOUT ? EXIT_TIMED_OUT : EXIT_OK;
		if (event == SCREEN_END || event == SCREEN_TIMEOUT)
			break;
		if (left)
			left--;
	}
out:
	top_deinit(&top);
	return r;
}

int cmd_top(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"batch", no_argument, NULL, 'b'},
		{"iterations", required_argument, NULL, 'n'},
		{"delay", required_argument, NULL, 'd'},
		{"sort", required_argument, NULL, 'o'},
		KVCTL_COMMON_OPTIONS};
	struct top_args args = {.delay_s = 2, .by = TOP_TOKENS};
	struct kvc_client *client;
	int c, r;

	ctl->shorts = "bn:d:o:";
	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		if (c == 'b')
			args.batch = true;
		else if (c == 'n')
			args.n = kvctl_parse_u64("--iterations", optarg, 1, UINT32_MAX);
		else if (c == 'd')
			args.delay_s = kvctl_parse_f64("--delay", optarg, 0.05, 86400);
		else if (!top_sort_parse(optarg, &args.by))
			kvctl_usage_error("--sort: '%s' is no key; see 'kvctl top "
					  "--help'",
					  optarg);
	}
	kvctl_no_arguments(argc, argv);
	if (ctl->json)
		args.batch = true;
	if (!args.batch && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
		kvctl_usage_error("there is no terminal; -b writes to a pipe or file");
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	if (!args.batch)
		screen_open();
	r = watch(ctl, client, &args);
	screen_close();
	if (r == EXIT_TIMED_OUT)
		fputs("kvctl: no result within --timeout\n", stderr);
	else if (r < 0 && !ferror(stdout))
		r = kvctl_fail("cannot read the clients", r);
	else if (r < 0)
		r = EXIT_FAILED;
	kvc_close(client);
	return r;
}
