/* SPDX-License-Identifier: MIT */
#include "client/kvctl/table.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/utf8.h"
#include "ipc/utf8.h"

/* Characters, near enough to columns for names and numbers. */
static size_t shown_width(const char *str)
{
	size_t width = 0, len = strlen(str);

	for (size_t i = 0; i < len; width++) {
		size_t n = utf8_char_len(str + i, len - i);

		i += n ? n : 1;
	}
	return width;
}

int table_init(struct table *table, unsigned n_columns, const char *const *headings)
{
	assert(n_columns > 0 && n_columns <= TABLE_MAX_COLUMNS);
	*table = (struct table){.n_columns = n_columns};
	for (unsigned i = 0; i < n_columns; i++) {
		int r = table_add(table, "%s", headings[i]);

		if (r < 0) {
			table_deinit(table);
			return r;
		}
	}
	return 0;
}

void table_deinit(struct table *table)
{
	for (size_t i = 0; i < table->n_cells; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct table){0};
}

int table_add(struct table *table, const char *fmt, ...)
{
	va_list args;
	char *cell;
	int r;

	if (table->n_cells == table->cells_cap) {
		size_t cap = table->cells_cap ? 2 * table->cells_cap : 64;
		char **cells = reallocarray(table->cells, cap, sizeof(*cells));

		if (!cells)
			return -ENOMEM;
		table->cells = cells;
		table->cells_cap = cap;
	}
	va_start(args, fmt);
	r = vasprintf(&cell, fmt, args);
	va_end(args);
	if (r < 0)
		return -ENOMEM;
	table->cells[table->n_cells++] = cell;
	return 0;
}

void table_print(const struct table *table, FILE *f)
{
	size_t widths[TABLE_MAX_COLUMNS] = {0};

	for (size_t i = 0; i < table->n_cells; i++) {
		size_t column = i % table->n_columns;
		const char *cell = table->cells[i];
		size_t width = shown_width(i < table->n_columns && *cell == '>' ? cell + 1
										: cell);

		if (width > widths[column])
			widths[column] = width;
	}
	for (size_t i = 0; i < table->n_cells; i++) {
		size_t column = i % table->n_columns;
		int right = *table->cells[column] == '>';
		const char *cell = table->cells[i] + (i < table->n_columns && right);
		int pad = (int)(widths[column] - shown_width(cell));
		int last = column + 1 == table->n_columns;

		if (right)
			fprintf(f, "%*s", pad, "");
		utf8_put_name(f, cell, strlen(cell));
		if (!right && !last)
			fprintf(f, "%*s", pad, "");
		fputs(last ? "\n" : "  ", f);
	}
}
