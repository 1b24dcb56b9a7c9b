/* SPDX-License-Identifier: MIT */
#include "client/kvctl/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "client/kvctl/utf8.h"
#include "ipc/utf8.h"

/* What a terminal would not show as a character of its own, or obey. */
static void put_escaped(FILE *f, uint32_t code)
{
	if (code > 0xffff) {
		code -= 0x10000;
		fprintf(f, "\\u%04x", 0xd800 + (code >> 10));
		code = 0xdc00 + (code & 0x3ff);
	}
	fprintf(f, "\\u%04x", code);
}

static void put_string(FILE *f, const char *str, size_t len)
{
	putc('"', f);
	for (size_t i = 0; i < len;) {
		uint32_t code = 0xfffd;
		int n = utf8_next(str + i, len - i, &code);

		if (n > 0 && (code == '"' || code == '\\'))
			fprintf(f, "\\%c", (int)code);
		else if (n > 0 && code == '\n')
			fputs("\\n", f);
		else if (n > 0 && code == '\t')
			fputs("\\t", f);
		else if (n > 0 && !utf8_is_hidden(code))
			fwrite(str + i, 1, (size_t)n, f);
		else
			put_escaped(f, n > 0 ? code : 0xfffd);
		i += n > 0 ? (size_t)n : 1;
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
