/* SPDX-License-Identifier: MIT */
/* Text to values and back, by the type of a key. Pure. */
#include "daemon/config_keys.h"
#include "daemon/escape.h"
#include "ipc/base.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
	const char *suffix;
	uint64_t factor;
};

static const struct unit sizes[] = {
	{"", 1},
	{"B", 1},
	{"K", UINT64_C(1) << 10},
	{"M", UINT64_C(1) << 20},
	{"G", UINT64_C(1) << 30},
	{"T", UINT64_C(1) << 40},
	{"KiB", UINT64_C(1) << 10},
	{"MiB", UINT64_C(1) << 20},
	{"GiB", UINT64_C(1) << 30},
	{"TiB", UINT64_C(1) << 40},
	{NULL, 0},
};

static const struct unit durations[] = {
	{"h", UINT64_C(3600000000000)}, {"min", UINT64_C(60000000000)},
	{"s", UINT64_C(1000000000)},    {"ms", UINT64_C(1000000)},
	{"us", UINT64_C(1000)},         {"ns", UINT64_C(1)},
	{"", UINT64_C(1000000000)},     {NULL, 0},
};

static __attribute__((format(printf, 3, 4))) int problem_set(char *problem, size_t size,
							     const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(problem, size, format, args);
	va_end(args);
	return 1;
}

static int problem_quote(char *problem, size_t size, const char *text, const char *rest)
{
	char quoted[64];

	escape_bytes(quoted, sizeof(quoted), text, strlen(text));
	return problem_set(problem, size, "\"%s\" %s", quoted, rest);
}

static int problem_range(const struct config_key *key, char *problem, size_t size,
			 const char *text)
{
	char quoted[64], *range = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&range, &len);

	if (!out)
		return -ENOMEM;
	config_value_describe(key, out);
	if (fclose(out) != 0) {
		free(range);
		return -ENOMEM;
	}
	escape_bytes(quoted, sizeof(quoted), text, strlen(text));
	problem_set(problem, size, "%s is out of range (%s)%s%s", quoted, range,
		    key->range_note ? ": " : "", key->range_note ? key->range_note : "");
	free(range);
	return 1;
}

/*
 * Digits, then one of the suffixes. Return: 0, 1 if @text is no such thing, 2 if the
 * value does not fit 64 bits.
 */
static int number_parse(const char *text, const struct unit *units, uint64_t *ret_value)
{
	const char *p = text;
	uint64_t value = 0;
	bool too_big = false;

	if (*p < '0' || *p > '9')
		return 1;
	for (; *p >= '0' && *p <= '9'; p++)
		if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
			too_big = true;
	while (*p == ' ')
		p++;
	for (; units->suffix; units++)
		if (strcasecmp(p, units->suffix) == 0)
			break;
	if (!units->suffix)
		return 1;
	if (too_big || __builtin_mul_overflow(value, units->factor, &value))
		return 2;
	*ret_value = value;
	return 0;
}

static int uint_parse(const struct config_key *key, const char *text, void *field,
		      char *problem, size_t size)
{
	static const struct unit plain[] = {{"", 1}, {NULL, 0}};
	const struct unit *units = plain;
	const char *what = "is not a number";
	uint64_t value = 0;
	int r;

	if (key->type == CONFIG_SIZE) {
		units = sizes;
		what = "is not a size such as 4096, 64K, 512M or 2G";
	} else if (key->type == CONFIG_DURATION) {
		units = durations;
		what = "is not a time such as 250ms, 30s or 5min";
	}
	r = number_parse(text, units, &value);
	if (r == 1)
		return problem_quote(problem, size, text, what);
	if (r == 2 || value < key->min || value > key->max)
		return problem_range(key, problem, size, text);
	if (key->type == CONFIG_UINT)
		*(uint32_t *)field = (uint32_t)value;
	else
		*(uint64_t *)field = value;
	return 0;
}

/* strtod() obeys the locale and takes hex, inf and nan; this takes 12, 0.25 and .5. */
static int fraction_parse(const struct config_key *key, const char *text, void *field,
			  char *problem, size_t size)
{
	double value = 0, weight = 1;
	const char *p = text;
	bool digits = false;

	for (; *p >= '0' && *p <= '9'; p++, digits = true)
		value = value * 10 + (*p - '0');
	if (*p == '.')
		for (p++; *p >= '0' && *p <= '9'; p++, digits = true)
			value += (*p - '0') * (weight /= 10);
	if (*p == '%') {
		value /= 100;
		p++;
	}
	if (!digits || *p)
		return problem_quote(problem, size, text,
				     "is not a share such as 0.9 or 90%");
	if (!(value * 100 >= (double)key->min && value * 100 <= (double)key->max))
		return problem_range(key, problem, size, text);
	*(double *)field = value;
	return 0;
}

static int bool_parse(const char *text, void *field, char *problem, size_t size)
{
	static const char *const words[] = {"no",  "false", "off", "0",
					    "yes", "true",  "on",  "1"};

	for (size_t i = 0; i < KVD_ARRAY_LEN(words); i++)
		if (strcasecmp(text, words[i]) == 0) {
			*(bool *)field = i >= 4;
			return 0;
		}
	return problem_quote(problem, size, text, "is neither yes nor no");
}

/* @ret_value gets the value of the choice that @text names. */
static int choice_parse(const struct config_key *key, const char *text, int *ret_value,
			char *problem, size_t size)
{
	char quoted[64], list[256] = "";
	size_t used = 0;

	for (const struct config_choice *c = key->choices; c->text; c++) {
		if (strcmp(text, c->text) == 0 && c->refusal)
			return problem_set(problem, size, "%s is not available: %s",
					   c->text, c->refusal);
		if (strcmp(text, c->text) == 0) {
			*ret_value = c->value;
			return 0;
		}
		if (!c->refusal && used < sizeof(list))
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
						 used ? ", " : "", c->text);
	}
	escape_bytes(quoted, sizeof(quoted), text, strlen(text));
	return problem_set(problem, size, "\"%s\" is not one of %s", quoted, list);
}

/* The part of "k=int8,v=int4" that begins at @p, as far as its comma; blanks are cut off.
 * Return: behind it, or NULL when it is no such part or too long for @ret. */
static const char *kv_part(const char *p, char *ret_letter, char *ret, size_t size)
{
	size_t len = strcspn(p, ",");
	const char *end = p + len;

	while (*p == ' ')
		p++;
	*ret_letter = *p;
	if (*p != 'k' && *p != 'v')
		return NULL;
	for (p++; *p == ' '; p++)
		;
	if (*p != '=')
		return NULL;
	for (p++; *p == ' '; p++)
		;
	for (len = (size_t)(end - p); len && p[len - 1] == ' '; len--)
		;
	if (p >= end || !len || len >= size)
		return NULL;
	memcpy(ret, p, len);
	ret[len] = '\0';
	return end;
}

static int kv_dtype_parse(const struct config_key *key, const char *text, void *field,
			  char *problem, size_t size)
{
	struct config_kv_dtype dtype = {-1, -1};
	char name[32], letter;
	const char *p = text;
	int *half, r;

	if (!strchr(text, '=')) {
		r = choice_parse(key, text, &dtype.k, problem, size);
		dtype.v = dtype.k;
		goto out;
	}
	for (int i = 0; i < 2; i++) {
		p = kv_part(p, &letter, name, sizeof(name));
		half = letter == 'k' ? &dtype.k : &dtype.v;
		if (!p || *half >= 0 || *p != (i ? '\0' : ','))
			return problem_quote(problem, size, text,
					     "is not of the form k=int8,v=int4");
		r = choice_parse(key, name, half, problem, size);
		if (r)
			return r;
		p++;
	}
out:
	if (!r)
		memcpy(field, &dtype, sizeof(dtype));
	return r;
}

static int string_parse(const char *text, void *field, char *problem, size_t size)
{
	size_t len = strlen(text);
	char *copy;

	for (const char *p = text; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return problem_quote(problem, size, text,
					     "has control characters");
		/* Only an option can say this; no file could say it again. */
		if (p[0] == ' ' && p[1] == ';')
			return problem_quote(
				problem, size, text,
				"has a semicolon after a blank, which begins "
				"a comment in a file");
	}
	if (len >= 2 && text[0] == '"' && text[len - 1] == '"') {
		text++;
		len -= 2;
	}
	copy = strndup(text, len);
	if (!copy)
		return -ENOMEM;
	free(*(char **)field);
	*(char **)field = copy;
	return 0;
}

/* Return: whether a number below CPU_SETSIZE was read; @ret_p is behind it. */
static bool cpu_parse(const char *p, unsigned int *ret_cpu, const char **ret_p)
{
	unsigned int cpu = 0;

	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		cpu = cpu * 10 + (unsigned int)(*p - '0');
		if (cpu >= CPU_SETSIZE)
			return false;
	}
	*ret_cpu = cpu;
	*ret_p = p;
	return true;
}

static int cpus_parse(const char *text, void *field, char *problem, size_t size)
{
	const char *p = text;
	unsigned int first, last;
	cpu_set_t set;

	CPU_ZERO(&set);
	while (*p) {
		if (!cpu_parse(p, &first, &p))
			goto bad;
		last = first;
		if (*p == '-' && (!cpu_parse(p + 1, &last, &p) || last < first))
			goto bad;
		for (unsigned int cpu = first; cpu <= last; cpu++)
			CPU_SET(cpu, &set);
		if (*p == ',' && p[1])
			p++;
		else if (*p)
			goto bad;
		while (*p == ' ')
			p++;
	}
	*(cpu_set_t *)field = set;
	return 0;
bad:
	return problem_quote(problem, size, text, "is not a list of CPUs such as 0-3,6");
}

int config_value_parse(const struct config_key *key, const char *text, void *field,
		       char *problem, size_t size)
{
	switch (key->type) {
	case CONFIG_STRING:
		return string_parse(text, field, problem, size);
	case CONFIG_BOOL:
		return bool_parse(text, field, problem, size);
	case CONFIG_UINT:
	case CONFIG_SIZE:
	case CONFIG_DURATION:
		return uint_parse(key, text, field, problem, size);
	case CONFIG_FRACTION:
		return fraction_parse(key, text, field, problem, size);
	case CONFIG_CHOICE:
		return choice_parse(key, text, field, problem, size);
	case CONFIG_KV_DTYPE:
		return kv_dtype_parse(key, text, field, problem, size);
	case CONFIG_CPUS:
		return cpus_parse(text, field, problem, size);
	}
	return problem_set(problem, size, "has no parser");
}

/* The largest unit that divides @value, so that 512M stays 512M. */
static void number_print(uint64_t value, const struct unit *units, FILE *out)
{
	const struct unit *best = NULL;

	for (; units->suffix; units++)
		if (value % units->factor == 0 && (!best || units->factor > best->factor))
			best = units;
	fprintf(out, "%" PRIu64 "%s", value / best->factor, value ? best->suffix : "");
}

void config_value_describe(const struct config_key *key, FILE *out)
{
	const char *comma = "";

	switch (key->type) {
	case CONFIG_STRING:
		fputs("text", out);
		break;
	case CONFIG_BOOL:
		fputs("yes, no", out);
		break;
	case CONFIG_UINT:
		if (key->min == key->max)
			fprintf(out, "only %" PRIu64, key->min);
		else
			fprintf(out, "%" PRIu64 " to %" PRIu64, key->min, key->max);
		break;
	case CONFIG_SIZE:
	case CONFIG_DURATION:
		number_print(key->min, key->type == CONFIG_SIZE ? sizes : durations, out);
		fputs(" to ", out);
		number_print(key->max, key->type == CONFIG_SIZE ? sizes : durations, out);
		break;
	case CONFIG_FRACTION:
		if (key->min == key->max)
			fprintf(out, "only %" PRIu64, key->min);
		else
			fprintf(out, "%" PRIu64 "%% to %" PRIu64 "%%", key->min,
				key->max);
		break;
	case CONFIG_CHOICE:
	case CONFIG_KV_DTYPE:
		for (const struct config_choice *c = key->choices; c->text; c++) {
			if (c->refusal)
				continue;
			fprintf(out, "%s%s", comma, c->text);
			comma = ", ";
		}
		if (key->type == CONFIG_KV_DTYPE)
			fputs("; or such as k=int8,v=int4", out);
		break;
	case CONFIG_CPUS:
		fputs("list of CPUs", out);
		break;
	}
}
