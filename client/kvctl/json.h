/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_JSON_H
#define KVD_CLIENT_KVCTL_JSON_H

/*
 * Writer of one JSON document to a stdio stream. The output is valid JSON in UTF-8 for any input:
 * bytes outside a valid sequence become U+FFFD, infinity and NaN become null. Allocates nothing.
 * Errors of the stream are left to ferror(). A key is NULL inside an array and for the document.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_MAX_DEPTH = 16 };

struct json {
	FILE *f;
	unsigned depth;
	bool nonempty[JSON_MAX_DEPTH];
};

void json_init(struct json *json, FILE *f);

/* Adds a newline; every object and array must be closed. */
void json_end(struct json *json);

void json_open_object(struct json *json, const char *key);
void json_close_object(struct json *json);
void json_open_array(struct json *json, const char *key);
void json_close_array(struct json *json);

/* @len bytes, not NUL-terminated. */
void json_str_n(struct json *json, const char *key, const char *str, size_t len);
void json_str(struct json *json, const char *key, const char *str);
void json_u64(struct json *json, const char *key, uint64_t value);
void json_i64(struct json *json, const char *key, int64_t value);
/* @digits: significant ones. */
void json_f64(struct json *json, const char *key, double value, int digits);
void json_bool(struct json *json, const char *key, bool value);

#endif
