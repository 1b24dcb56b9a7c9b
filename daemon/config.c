/* SPDX-License-Identifier: MIT */
#include "daemon/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/config_keys.h"
#include "daemon/escape.h"

/* A key without a default text starts as all-zero bytes, which is what "" stands for. */
static int key_reset(struct config *config, const struct config_key *key)
{
	char problem[256];

	if (key->type == CONFIG_CPUS && !*key->default_text) {
		CPU_ZERO((cpu_set_t *)config_field(config, key));
		return 0;
	}
	return config_value_parse(key, key->default_text, config_field(config, key),
				  problem, sizeof(problem));
}

int config_init(struct config *config)
{
	int r;

	memset(config, 0, sizeof(*config));
	for (size_t i = 0; i < config_n_keys; i++) {
		r = key_reset(config, &config_keys[i]);
		if (r != 0)
			return r < 0 ? r : -EINVAL;
	}
	return 0;
}

void config_deinit(struct config *config)
{
	for (size_t i = 0; i < config_n_keys; i++) {
		if (config_keys[i].type == CONFIG_STRING) {
			char **field = config_field(config, &config_keys[i]);

			free(*field);
			*field = NULL;
		}
	}
	config_domain_deinit(config);
}

bool config_section_known(const char *section)
{
	const char *name;

	if (config_domain_section(section, &name))
		return true;
	for (size_t i = 0; i < config_n_keys; i++)
		if (strcmp(config_keys[i].section, section) == 0)
			return true;
	return false;
}

int config_set(struct config *config, const char *where, const char *section,
	       const char *name, const char *value, struct config_report *report)
{
	const struct config_key *key = NULL;
	const char *domain;
	char problem[512];
	int r;

	if (!config_section_known(section)) {
		config_report_section(report, where, section);
		return 1;
	}
	if (config_domain_section(section, &domain))
		return config_domain_set(config, where, domain, name, value, report);
	for (size_t i = 0; i < config_n_keys && !key; i++)
		if (strcmp(config_keys[i].section, section) == 0 &&
		    strcmp(config_keys[i].name, name) == 0)
			key = &config_keys[i];
	if (!key) {
		config_report_key(report, where, section, name);
		return 1;
	}
	if (!*value)
		return key_reset(config, key);
	r = config_value_parse(key, value, config_field(config, key), problem,
			       sizeof(problem));
	if (r > 0)
		config_report_error(report, where, "[%s] %s: %s", section, name, problem);
	return r;
}

int config_set_option(struct config *config, const char *option,
		      struct config_report *report)
{
	const char *dot = strchr(option, '.'), *equals = strchr(option, '=');
	char shown[CONFIG_NAME_SHOWN], *section, *name;
	int r;

	if (!dot || !equals || dot > equals || dot == option || dot + 1 == equals) {
		escape_bytes(shown, sizeof(shown), option, strlen(option));
		config_report_error(report, "-o",
				    "\"%s\" is not of the form section.key=value", shown);
		return 1;
	}
	section = strndup(option, (size_t)(dot - option));
	name = strndup(dot + 1, (size_t)(equals - dot - 1));
	r = section && name ? config_set(config, "-o", section, name, equals + 1, report)
			    : -ENOMEM;
	free(section);
	free(name);
	return r;
}

int config_check(const struct config *config, struct config_report *report)
{
	unsigned int before = report->n_errors;
	struct sockaddr_un addr;

	if (config->daemon.socket[0] != '/')
		config_report_error(report, NULL,
				    "[daemon] socket: not an absolute path");
	if (strlen(config->daemon.socket) >= sizeof(addr.sun_path))
		config_report_error(
			report, NULL,
			"[daemon] socket: longer than %zu bytes, which is all "
			"that an address holds",
			sizeof(addr.sun_path) - 1);
	if (config->scheduler.max_num_batched_tokens < config->scheduler.max_num_seqs)
		config_report_error(report, NULL,
				    "[scheduler] max_num_batched_tokens: %u is less than "
				    "max_num_seqs (%u), so that not every sequence could "
				    "get its next token",
				    config->scheduler.max_num_batched_tokens,
				    config->scheduler.max_num_seqs);
	return report->n_errors != before;
}

static void help_print_lines(const char *help, FILE *out)
{
	size_t len;

	for (; *help; help += len + (help[len] == '\n')) {
		len = strcspn(help, "\n");
		fprintf(out, "# %.*s\n", (int)len, help);
	}
}

void config_print_help(FILE *out)
{
	const char *section = "";

	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *key = &config_keys[i];

		if (strcmp(section, key->section) != 0) {
			fprintf(out, "%s[%s]\n", i ? "\n" : "", key->section);
			section = key->section;
		}
		fputc('\n', out);
		help_print_lines(key->help, out);
		if (key->type != CONFIG_STRING && key->type != CONFIG_CPUS) {
			fputs("# Values: ", out);
			config_value_describe(key, out);
			fputs(".\n", out);
		}
		fprintf(out, "#%s =%s%s\n", key->name, *key->default_text ? " " : "",
			key->default_text);
	}
}
