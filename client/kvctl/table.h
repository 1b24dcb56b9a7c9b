/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_TABLE_H
#define KVD_CLIENT_KVCTL_TABLE_H

/* A small text table, each column as wide as its widest cell. Owns copies of its cells. Control
 * characters are not shown. */
#include <stdio.h>

enum { TABLE_MAX_COLUMNS = 16 };

struct table {
	unsigned n_columns;
	size_t n_cells;
	size_t cells_cap;
	char **cells;
};

/* @headings: n_columns words; a heading that starts with '>' aligns right, without it. */
int table_init(struct table *table, unsigned n_columns, const char *const *headings);
void table_deinit(struct table *table);

/* The next cell, row by row. Return: 0 or -ENOMEM. */
int table_add(struct table *table, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

void table_print(const struct table *table, FILE *f);

#endif
