/* SPDX-License-Identifier: MIT */
#include "client/kvctl/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ipc/utf8.h"

static void put_string(FILE *f, const char *str, size_t len)
{
	putc('"', f);
	for (size_t i = 0; i < len;) {
		unsigned char c = (unsigned char)str[i];
		size_t n = utf8_char_len(str + i, len - i);

		if (n == 0) {
			fputs("\\ufffd", f);
			i++;
			continue;
		}
		if (n > 1)
			fwrite(str + i, 1, n, f);
		else if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c == '\n')
			fputs("\\n", f);
		else if (c == '\t')
			fputs("\\t", f);
		else if (c < 0x20 || c == 0x7f)
			fprintf(f, "\\u%04x", c);
		else
			putc(c, f);
		i += n;
	}
	putc('"', f);
}

static void begin_value(struct json *json, const char *key)
{
	bool *nonempty = &json->nonempty[json->depth];

	if (*nonempty)
		fputs(json->depth ? ", " : "\n", json->f);
	*nonempty = true;
	if (key) {
		put_string(json->f, key, strlen(key));
		fputs(": ", json->f);
	}
}

static void open_nested(struct json *json, const char *key, char bracket)
{
	begin_value(json, key);
	putc(bracket, json->f);
	assert(json->depth + 1 < JSON_MAX_DEPTH);
	json->nonempty[++json->depth] = false;
}

static void close_nested(struct json *json, char bracket)
{
	assert(json->depth > 0);
	json->depth--;
	putc(bracket, json->f);
}

void json_init(struct json *json, FILE *f)
{
	*json = (struct json){.f = f};
}

void json_end(struct json *json)
{
	assert(json->depth == 0);
	putc('\n', json->f);
}

void json_open_object(struct json *json, const char *key)
{
	open_nested(json, key, '{');
}

void json_close_object(struct json *json)
{
	close_nested(json, '}');
}

void json_open_array(struct json *json, const char *key)
{
	open_nested(json, key, '[');
}

void json_close_array(struct json *json)
{
	close_nested(json, ']');
}

void json_str_n(struct json *json, const char *key, const char *str, size_t len)
{
	begin_value(json, key);
	put_string(json->f, str, len);
}

void json_str(struct json *json, const char *key, const char *str)
{
	json_str_n(json, key, str, strlen(str));
}

void json_u64(struct json *json, const char *key, uint64_t value)
{
	begin_value(json, key);
	fprintf(json->f, "%" PRIu64, value);
}

void json_i64(struct json *json, const char *key, int64_t value)
{
	begin_value(json, key);
	fprintf(json->f, "%" PRId64, value);
}

void json_f64(struct json *json, const char *key, double value, int digits)
{
	begin_value(json, key);
	if (isfinite(value))
		fprintf(json->f, "%.*g", digits, value);
	else
		fputs("null", json->f);
}

void json_bool(struct json *json, const char *key, bool value)
{
	begin_value(json, key);
	fputs(value ? "true" : "false", json->f);
}
