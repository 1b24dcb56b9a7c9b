/* SPDX-License-Identifier: MIT */
/* Any bytes as a configuration file: every mistake is one clean line, and what was taken
 * is the same when it is printed and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config_file.h"
#include "tests/unit/daemon/config_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_line(struct config_report *report, const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
			abort();
}

static void print(const struct config *config, char **text, size_t *len)
{
	FILE *out = open_memstream(text, len);

	if (!out)
		abort();
	config_text(config, out);
	if (fclose(out) != 0)
		abort();
}

/* A value that fills its line, or an option, may not fit the line it is printed on. */
static bool lines_fit(const char *text)
{
	for (size_t len; *text; text += len + 1) {
		len = strcspn(text, "\n");
		if (len > CONFIG_LINE_MAX)
			return false;
	}
	return true;
}

/* What is printed, read and printed again is the same. */
static void check_round_trip(const struct config *first, struct config_report *report)
{
	struct config second;
	char *text, *again;
	size_t len, again_len;

	print(first, &text, &len);
	if (!lines_fit(text)) {
		free(text);
		return;
	}
	if (config_init(&second) != 0)
		abort();
	if (config_load_text(&second, "again", text, len, report) != 0)
		abort();
	print(&second, &again, &again_len);
	if (strcmp(text, again) != 0)
		abort();
	free(text);
	free(again);
	config_deinit(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct config_report report = {.fn = check_line};
	struct config first, second;
	char *option;
	int r;

	if (config_init(&first) != 0 || config_init(&second) != 0)
		abort();
	r = config_load_text(&first, "fuzz", (const char *)data, len, &report);
	if (r != (report.n_errors != 0))
		abort();
	check_round_trip(&first, &report);
	option = malloc(len + 1);
	if (!option)
		abort();
	memcpy(option, data, len);
	option[len] = '\0';
	(void)config_set_option(&second, option, &report);
	check_round_trip(&second, &report);
	(void)config_check(&second, &report);
	free(option);
	config_deinit(&first);
	config_deinit(&second);
	return 0;
}
