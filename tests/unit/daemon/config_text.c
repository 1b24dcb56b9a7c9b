/* SPDX-License-Identifier: MIT */
#include "tests/unit/daemon/config_text.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "daemon/config_keys.h"

static void cpus_text(const cpu_set_t *set, FILE *out)
{
	const char *comma = "";
	int last;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu = last + 1) {
		last = cpu;
		if (!CPU_ISSET(cpu, set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
			last++;
		fprintf(out, last > cpu ? "%s%d-%d" : "%s%d", comma, cpu, last);
		comma = ",";
	}
}

static const char *choice_text(const struct config_key *key, int value)
{
	const struct config_choice *c = key->choices;

	while (c->text && (c->value != value || c->refusal))
		c++;
	return c->text ? c->text : "?";
}

/* Quoted where a reader would take something off, take a comment for it, or take nothing
 * for the default. */
static void string_text(const struct config_key *key, const char *text, FILE *out)
{
	size_t len = strlen(text);
	bool quote = len ? strchr(" \";", text[0]) || text[len - 1] == ' '
			 : *key->default_text != '\0';

	fprintf(out, quote ? "\"%s\"" : "%s", text);
}

static void value_text(const struct config_key *key, const void *field, FILE *out)
{
	const struct config_kv_dtype *dtype = field;

	switch (key->type) {
	case CONFIG_STRING:
		string_text(key, *(char *const *)field, out);
		break;
	case CONFIG_BOOL:
		fputs(*(const bool *)field ? "yes" : "no", out);
		break;
	case CONFIG_UINT:
		fprintf(out, "%" PRIu32, *(const uint32_t *)field);
		break;
	case CONFIG_SIZE:
		fprintf(out, "%" PRIu64, *(const uint64_t *)field);
		break;
	case CONFIG_DURATION:
		fprintf(out, "%" PRIu64 "ns", *(const uint64_t *)field);
		break;
	case CONFIG_FRACTION:
		fprintf(out, "%.6g", *(const double *)field);
		break;
	case CONFIG_CHOICE:
		fputs(choice_text(key, *(const int *)field), out);
		break;
	case CONFIG_KV_DTYPE:
		if (dtype->k == dtype->v)
			fputs(choice_text(key, dtype->k), out);
		else
			fprintf(out, "k=%s,v=%s", choice_text(key, dtype->k),
				choice_text(key, dtype->v));
		break;
	case CONFIG_CPUS:
		cpus_text(field, out);
		break;
	}
}

void config_text(const struct config *config, FILE *out)
{
	const char *section = "";

	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *key = &config_keys[i];

		if (strcmp(section, key->section) != 0) {
			fprintf(out, "%s[%s]\n", i ? "\n" : "", key->section);
			section = key->section;
		}
		fprintf(out, "%s = ", key->name);
		value_text(key, (const char *)config + key->offset, out);
		fputc('\n', out);
	}
}
