/* SPDX-License-Identifier: MIT */
/* Mistakes of a configuration, each as one line, with the name that was perhaps meant. */
#include <stdarg.h>
#include <string.h>

#include "daemon/config_keys.h"
#include "daemon/escape.h"

void config_report_error(struct config_report *report, const char *where,
			 const char *format, ...)
{
	char text[1024];
	size_t used = 0;
	va_list args;

	if (where) {
		/* File names are shown as they are given, but on one line. */
		used = escape_bytes(text, sizeof(text) / 2, where, strlen(where));
		text[used++] = ':';
		text[used++] = ' ';
	}
	va_start(args, format);
	(void)vsnprintf(text + used, sizeof(text) - used, format, args);
	va_end(args);
	report->n_errors++;
	report->fn(report, text);
}

/* Levenshtein's distance, cut off at names longer than any of ours. */
static size_t edit_distance(const char *a, const char *b)
{
	size_t row[CONFIG_NAME_SHOWN], n = strlen(b), diagonal, above, best;

	if (n >= CONFIG_NAME_SHOWN || strlen(a) >= CONFIG_NAME_SHOWN)
		return SIZE_MAX;
	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		diagonal = row[0];
		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			above = row[j];
			best = diagonal + (a[i - 1] != b[j - 1]);
			if (above + 1 < best)
				best = above + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
			diagonal = above;
		}
	}
	return row[n];
}

/* Close enough to be a slip: one edit for each three bytes, and at least one. */
static bool is_near(const char *wrong, const char *right, size_t *best)
{
	size_t distance = edit_distance(wrong, right), limit = strlen(right) / 3;

	if (distance > (limit ? limit : 1) || distance >= *best)
		return false;
	*best = distance;
	return true;
}

void config_report_section(struct config_report *report, const char *where,
			   const char *section)
{
	char shown[CONFIG_NAME_SHOWN];
	const char *hint = NULL;
	size_t best = SIZE_MAX;

	escape_bytes(shown, sizeof(shown), section, strlen(section));
	for (size_t i = 0; i < config_n_keys; i++)
		if (is_near(section, config_keys[i].section, &best))
			hint = config_keys[i].section;
	if (hint)
		config_report_error(report, where,
				    "[%s]: unknown section; did you mean [%s]?", shown,
				    hint);
	else
		config_report_error(report, where, "[%s]: unknown section", shown);
}

void config_report_key(struct config_report *report, const char *where,
		       const char *section, const char *name)
{
	char shown[CONFIG_NAME_SHOWN];
	const char *hint = NULL;
	size_t best = SIZE_MAX;

	escape_bytes(shown, sizeof(shown), name, strlen(name));
	for (size_t i = 0; i < config_n_keys; i++) {
		if (strcmp(config_keys[i].name, name) == 0) {
			config_report_error(report, where,
					    "[%s] %s: unknown key; it belongs to [%s]",
					    section, shown, config_keys[i].section);
			return;
		}
		if (strcmp(config_keys[i].section, section) == 0 &&
		    is_near(name, config_keys[i].name, &best))
			hint = config_keys[i].name;
	}
	if (hint)
		config_report_error(report, where,
				    "[%s] %s: unknown key; did you mean %s?", section,
				    shown, hint);
	else
		config_report_error(report, where, "[%s] %s: unknown key", section,
				    shown);
}
