/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_TOP_ROWS_H
#define KVD_CLIENT_KVCTL_TOP_ROWS_H

/* What kvctl top shows: the daemon and a row for each client, with rates between two samples, which
 * it owns. Knows no terminal; one thread. */
#include <kvclient.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvctl/lists.h"

enum top_sort {
	TOP_ID,
	TOP_CLIENT,
	TOP_PID,
	TOP_USER,
	TOP_STATE,
	TOP_TOKENS,
	TOP_TTFT,
	TOP_HIT,
	TOP_BLOCKS,
	TOP_WAIT,
	TOP_ERRORS,
	TOP_N_SORTS,
};

/**
 * struct top_row - one client
 * @user: name, or else the number
 * @state: 'R': a request runs, 'W': all wait, 'I': there is none
 * @tokens_per_s: since the sample before; for a new client, since it connected
 * @hit_percent: prompt tokens found in the cache, since it connected; below 0: none yet
 */
struct top_row {
	struct kvd_client_info info;
	char user[33];
	char state;
	double tokens_per_s;
	double hit_percent;
};

/* The last sample: rates since the one before, at first since the daemon's start; hit_percent is
 * below 0 when nothing was looked up. @own: all of it is of the caller's user only */
struct top {
	struct kvd_stats stats;
	bool own;
	double tokens_per_s;
	double prompt_per_s;
	double hit_percent;
	struct top_row *rows;
	size_t n_rows;
	struct list list, before;
	bool has_before;
};

/* Rows come by rising id. Return: 0 or the library's error, -ENOMEM. */
int top_sample(struct top *top, struct kvc_client *client);

/* Numbers other than ids and PIDs largest first, all else smallest first. */
void top_sort(struct top *top, enum top_sort by, bool reverse);

/* As --sort names it. Return: false when there is none. */
bool top_sort_parse(const char *name, enum top_sort *ret_by);

void top_deinit(struct top *top);

#endif
