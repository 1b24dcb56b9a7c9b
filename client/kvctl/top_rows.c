/* SPDX-License-Identifier: MIT */
#include "client/kvctl/top_rows.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const sort_names[TOP_N_SORTS] = {
	[TOP_ID] = "id",     [TOP_CLIENT] = "client", [TOP_PID] = "pid",
	[TOP_USER] = "user", [TOP_STATE] = "state",   [TOP_TOKENS] = "tok",
	[TOP_TTFT] = "ttft", [TOP_HIT] = "hit",       [TOP_BLOCKS] = "blocks",
	[TOP_WAIT] = "wait", [TOP_ERRORS] = "err",
};

bool top_sort_parse(const char *name, enum top_sort *ret_by)
{
	for (unsigned i = 0; i < TOP_N_SORTS; i++)
		if (!strcmp(name, sort_names[i])) {
			*ret_by = i;
			return true;
		}
	return false;
}

static double rate(uint64_t now, uint64_t before, uint64_t ns)
{
	return ns && now > before ? (double)(now - before) * 1e9 / (double)ns : 0.0;
}

static void fill_row(struct top_row *row, const struct kvd_client_info *info,
		     const struct kvd_client_info *before)
{
	const struct passwd *pw = getpwuid(info->uid);
	uint64_t ns = info->connected_ns;

	*row = (struct top_row){.info = *info, .hit_percent = -1};
	if (pw)
		snprintf(row->user, sizeof(row->user), "%s", pw->pw_name);
	else
		snprintf(row->user, sizeof(row->user), "%u", info->uid);
	row->state = info->requests_running ? 'R' : info->requests_waiting ? 'W' : 'I';
	if (before && before->connected_ns < ns)
		ns -= before->connected_ns;
	row->tokens_per_s =
		rate(info->tokens_generated, before ? before->tokens_generated : 0, ns);
	if (info->tokens_prompt)
		row->hit_percent =
			100.0 * (double)info->tokens_cached / (double)info->tokens_prompt;
}

int top_sample(struct top *top, struct kvc_client *client)
{
	struct kvd_server_info server = {0};
	struct kvd_stats old = top->stats;
	struct list swap = top->before;
	const struct kvd_client_info *infos, *before;
	uint64_t ns, queried;
	struct top_row *rows;
	size_t b = 0;
	int r;

	/* What was the last sample becomes the one before. */
	top->before = top->list;
	top->list = swap;
	top->stats = (struct kvd_stats){.size = sizeof(top->stats)};
	r = kvc_stats(client, &top->stats);
	if (r == 0)
		r = list_clients(&top->list, client);
	if (r < 0)
		return r;
	kvc_get_server_info(client, &server);
	top->own = !(server.features & KVD_FEATURE_ADMIN);
	rows = reallocarray(top->rows, top->list.n + 1, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	top->rows = rows;
	top->n_rows = top->list.n;
	infos = top->list.items;
	before = top->before.items;
	/* Both lists are by rising id. */
	for (size_t i = 0; i < top->n_rows; i++) {
		while (b < top->before.n && before[b].id < infos[i].id)
			b++;
		fill_row(&rows[i], &infos[i],
			 b < top->before.n && before[b].id == infos[i].id ? &before[b]
									  : NULL);
	}
	if (!top->has_before)
		old = (struct kvd_stats){0};
	top->has_before = true;
	ns = top->stats.uptime_ns - old.uptime_ns;
	top->tokens_per_s = rate(top->stats.tokens_generated, old.tokens_generated, ns);
	top->prompt_per_s = rate(top->stats.tokens_prompt, old.tokens_prompt, ns);
	queried = top->stats.queried_tokens - old.queried_tokens;
	top->hit_percent =
		queried ? 100.0 * (double)(top->stats.hit_tokens - old.hit_tokens) /
				  (double)queried
			: -1;
	return 0;
}

static int compare_f64(double a, double b)
{
	return (a > b) - (a < b);
}

static int compare_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

struct order {
	enum top_sort by;
	bool reverse;
};

static int compare(const void *x, const void *y, void *arg)
{
	const struct top_row *a = x, *b = y;
	const struct order *order = arg;
	int c = 0;

	switch (order->by) {
	case TOP_CLIENT:
		c = strncmp(a->info.name, b->info.name, sizeof(a->info.name));
		break;
	case TOP_PID:
		c = (a->info.pid > b->info.pid) - (a->info.pid < b->info.pid);
		break;
	case TOP_USER:
		c = strcmp(a->user, b->user);
		break;
	case TOP_STATE:
		/* R, W, I */
		c = (a->state == 'I') - (b->state == 'I');
		c = c ? c : a->state - b->state;
		break;
	case TOP_TOKENS:
		c = compare_f64(b->tokens_per_s, a->tokens_per_s);
		break;
	case TOP_TTFT:
		c = compare_u64(b->info.ttft_ns, a->info.ttft_ns);
		break;
	case TOP_HIT:
		c = compare_f64(b->hit_percent, a->hit_percent);
		break;
	case TOP_BLOCKS:
		c = compare_u64(b->info.blocks, a->info.blocks);
		break;
	case TOP_WAIT:
		c = compare_u64(b->info.requests_waiting, a->info.requests_waiting);
		break;
	case TOP_ERRORS:
		c = compare_u64(b->info.requests_failed, a->info.requests_failed);
		break;
	default:
		break;
	}
	if (!c)
		c = compare_u64(a->info.id, b->info.id);
	return order->reverse ? -c : c;
}

void top_sort(struct top *top, enum top_sort by, bool reverse)
{
	struct order order = {by, reverse};

	qsort_r(top->rows, top->n_rows, sizeof(*top->rows), compare, &order);
}

void top_deinit(struct top *top)
{
	free(top->rows);
	list_deinit(&top->list);
	list_deinit(&top->before);
	*top = (struct top){0};
}
