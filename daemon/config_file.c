/* SPDX-License-Identifier: MIT */
/*
 * inih cuts lines at 200 bytes in silence and knows no line numbers. So it is fed line by line:
 * this reader counts lines and refuses long ones, NUL bytes, and lines that are neither a
 * section, a key nor a comment.
 */
#include "daemon/config_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config_keys.h"
#include "ipc/base.h"

/* First one wins for files of one name. */
static const char *const folders[] = {"/etc/kvd", "/run/kvd", "/usr/local/lib/kvd",
				      "/usr/lib/kvd"};

#define N_FOLDERS KVD_ARRAY_LEN(folders)

/* Parsing one file. inih pulls lines and pushes keys; `line` ties the two together. */
struct parse {
	struct config *config;
	struct config_report *report;
	const char *name;
	const char *text;
	size_t len, pos;
	unsigned int line;
	bool in_unknown_section; /* reported once, not again for each key */
	bool any_section;
	bool mistakes;
	int error;
};

/* "NAME:LINE"; cut, if need be, at the front, which tells less. */
static const char *parse_where(const struct parse *parse, char *buf, size_t size)
{
	size_t len = strlen(parse->name), room = size - 16;

	(void)snprintf(buf, size, "%s%s:%u", len > room ? "..." : "",
		       len > room ? parse->name + len - room + 3 : parse->name,
		       parse->line);
	return buf;
}

static void parse_mistake(struct parse *parse, const char *text)
{
	char where[512];

	config_report_error(parse->report, parse_where(parse, where, sizeof(where)), "%s",
			    text);
	parse->mistakes = true;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* A section line: "[name]", then nothing or a comment. */
static bool section_check(struct parse *parse, const char *line, size_t len)
{
	const char *end = memchr(line, ']', len);
	char section[CONFIG_LINE_MAX + 1], where[512];
	size_t n;

	if (!end) {
		parse_mistake(parse, "section without ]");
		return false;
	}
	n = (size_t)(end - line) - 1;
	for (const char *p = end + 1; p < line + len && *p != ';' && *p != '#'; p++)
		if (!is_blank(*p)) {
			parse_mistake(parse, "text after the section's ]");
			return false;
		}
	memcpy(section, line + 1, n);
	section[n] = '\0';
	parse->any_section = true;
	parse->in_unknown_section = !config_section_known(section);
	if (parse->in_unknown_section) {
		config_report_section(parse->report,
				      parse_where(parse, where, sizeof(where)), section);
		parse->mistakes = true;
	}
	return true;
}

/* Return: whether inih may see the line, which has no leading or trailing blanks. */
static bool line_check(struct parse *parse, const char *line, size_t len)
{
	const char *equals;

	if (len == 0 || *line == ';' || *line == '#')
		return true;
	if (*line == '[')
		return section_check(parse, line, len);
	equals = memchr(line, '=', len);
	if (!equals) {
		parse_mistake(parse, "neither a [section] nor a key = value");
		return false;
	}
	if (equals == line) {
		parse_mistake(parse, "no key before the =");
		return false;
	}
	/* inih would end the name at the colon, the line at the semicolon. */
	if (memchr(line, ':', (size_t)(equals - line)) ||
	    memchr(line, ';', (size_t)(equals - line))) {
		parse_mistake(parse, "a colon or semicolon in the name of a key");
		return false;
	}
	if (!parse->any_section) {
		parse_mistake(parse, "key before the first [section]");
		return false;
	}
	return true;
}

/* The reader that inih calls like fgets(). Lines that were refused become empty ones, so
 * that all mistakes of a file are found and no half line is ever used. */
static char *parse_read_line(char *buf, int size, void *userdata)
{
	struct parse *parse = userdata;
	const char *line, *end;
	size_t len;

	if (parse->pos >= parse->len || size < CONFIG_LINE_MAX + 2)
		return NULL;
	line = parse->text + parse->pos;
	end = memchr(line, '\n', parse->len - parse->pos);
	len = end ? (size_t)(end - line) : parse->len - parse->pos;
	parse->pos += len + (end != NULL);
	parse->line++;
	if (len > CONFIG_LINE_MAX) {
		parse_mistake(parse, "line is longer than 198 bytes");
		len = 0;
	} else if (memchr(line, '\0', len)) {
		parse_mistake(parse, "line has a NUL byte");
		len = 0;
	}
	/* An indented line would continue the value of the one before. */
	while (len && is_blank(*line)) {
		line++;
		len--;
	}
	while (len && is_blank(line[len - 1]))
		len--;
	if (!line_check(parse, line, len))
		len = 0;
	memcpy(buf, line, len);
	buf[len] = '\n';
	buf[len + 1] = '\0';
	return buf;
}

static int parse_key(void *userdata, const char *section, const char *name,
		     const char *value)
{
	struct parse *parse = userdata;
	char where[512];
	int r;

	if (parse->in_unknown_section || parse->error)
		return 1;
	r = config_set(parse->config, parse_where(parse, where, sizeof(where)), section,
		       name, value, parse->report);
	if (r > 0)
		parse->mistakes = true;
	else if (r < 0)
		parse->error = r;
	return 1;
}

int config_load_text(struct config *config, const char *name, const char *text,
		     size_t len, struct config_report *report)
{
	struct parse parse = {
		.config = config,
		.report = report,
		.name = name,
		.text = text,
		.len = len,
	};
	int r;

	if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		parse.pos = 3;
	r = ini_parse_stream(parse_read_line, &parse, parse_key, &parse);
	if (parse.error)
		return parse.error;
	if (r == -2)
		return -ENOMEM;
	/* Every line was checked before inih saw it, so this means that the two disagree: a
	 * mistake nevertheless, not a setting that is silently lost. */
	if (r > 0) {
		parse.line = (unsigned int)r;
		parse_mistake(&parse, "cannot be understood");
	}
	return parse.mistakes;
}

/* Return: 0, -ENOENT, or another -errno; an empty file gives NULL and 0. */
static int file_read(const char *path, char **ret_text, size_t *ret_len)
{
	char *text = NULL;
	size_t len = 0;
	struct stat st;
	ssize_t n;
	int fd, r;

	/* NONBLOCK: a FIFO must not hold up the start. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	r = fstat(fd, &st) < 0 ? -errno : 0;
	if (r == 0 && S_ISDIR(st.st_mode))
		r = -EISDIR;
	else if (r == 0 && S_ISREG(st.st_mode) && st.st_size > CONFIG_FILE_MAX)
		r = -EFBIG;
	else if (r == 0 && !S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))
		r = -EINVAL;
	if (r == 0 && S_ISREG(st.st_mode)) {
		text = malloc(CONFIG_FILE_MAX);
		r = text ? 0 : -ENOMEM;
	}
	while (r == 0 && text && len < CONFIG_FILE_MAX) {
		n = read(fd, text + len, CONFIG_FILE_MAX - len);
		if (n == 0)
			break;
		if (n > 0)
			len += (size_t)n;
		else if (errno != EINTR)
			r = -errno;
	}
	close(fd);
	if (r < 0) {
		free(text);
		return r;
	}
	*ret_text = text;
	*ret_len = len;
	return 0;
}

/* @error: -errno. What is short may be there at the next attempt; the rest stays so. */
static int report_unreadable(struct config_report *report, const char *path, int error)
{
	if (error == -EIO || error == -EMFILE || error == -ENFILE || error == -EINTR ||
	    error == -ENOMEM)
		report->unread = true;
	config_report_error(report, path, "cannot be read: %s", strerror(-error));
	return 1;
}

/* Return: 0, 1 for mistakes, -ENOENT without a report, -ENOMEM. */
static int file_load(struct config *config, const char *path,
		     struct config_report *report)
{
	char *text = NULL;
	size_t len = 0;
	int r;

	r = file_read(path, &text, &len);
	if (r == -ENOENT)
		return r;
	if (r < 0)
		return report_unreadable(report, path, r);
	r = config_load_text(config, path, text ? text : "", len, report);
	free(text);
	return r;
}

int config_load_file(struct config *config, const char *path,
		     struct config_report *report)
{
	int r = file_load(config, path, report);

	return r == -ENOENT ? report_unreadable(report, path, r) : r;
}

/* Drop-ins: full paths, at most one for each name, sorted by name. */
struct dropins {
	char **paths;
	size_t n;
};

static const char *path_base(const char *path)
{
	return strrchr(path, '/') + 1;
}

static int dropins_add(struct dropins *dropins, const char *folder, const char *name)
{
	char **paths, *path;

	for (size_t i = 0; i < dropins->n; i++)
		if (strcmp(path_base(dropins->paths[i]), name) == 0)
			return 0;
	paths = reallocarray(dropins->paths, dropins->n + 1, sizeof(*paths));
	if (!paths)
		return -ENOMEM;
	dropins->paths = paths;
	if (asprintf(&path, "%s/%s", folder, name) < 0)
		return -ENOMEM;
	paths[dropins->n++] = path;
	return 0;
}

static int dropins_scan(struct dropins *dropins, const char *folder,
			struct config_report *report)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	size_t len;
	int r = 0;

	if (!dir && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	if (!dir)
		return report_unreadable(report, folder, -errno);
	while (r == 0 && (errno = 0, entry = readdir(dir))) {
		len = strlen(entry->d_name);
		if (entry->d_name[0] != '.' && len > 5 &&
		    strcmp(entry->d_name + len - 5, ".conf") == 0)
			r = dropins_add(dropins, folder, entry->d_name);
	}
	/* Half a folder is no configuration. */
	if (r == 0 && errno)
		r = report_unreadable(report, folder, -errno);
	closedir(dir);
	return r;
}

static int dropins_compare(const void *a, const void *b)
{
	return strcmp(path_base(*(char *const *)a), path_base(*(char *const *)b));
}

static int dropins_load(struct dropins *dropins, struct config *config,
			struct config_report *report)
{
	int mistakes = 0, r;

	if (dropins->n)
		qsort(dropins->paths, dropins->n, sizeof(*dropins->paths),
		      dropins_compare);
	for (size_t i = 0; i < dropins->n; i++) {
		r = config_load_file(config, dropins->paths[i], report);
		if (r < 0)
			return r;
		mistakes |= r;
	}
	return mistakes;
}

static void dropins_deinit(struct dropins *dropins)
{
	for (size_t i = 0; i < dropins->n; i++)
		free(dropins->paths[i]);
	free(dropins->paths);
}

/* The main file: @file, or the first one that exists. */
static int main_load(struct config *config, const char *root, const char *file,
		     struct config_report *report)
{
	char *path;
	int r = -ENOENT;

	if (file)
		return config_load_file(config, file, report);
	for (size_t i = 0; i < N_FOLDERS && r == -ENOENT; i++) {
		if (asprintf(&path, "%s%s/kvd.conf", root, folders[i]) < 0)
			return -ENOMEM;
		r = file_load(config, path, report);
		free(path);
	}
	return r == -ENOENT ? 0 : r;
}

int config_load(struct config *config, const char *root, const char *file,
		struct config_report *report)
{
	struct dropins dropins = {0};
	size_t n_folders = file ? 1 : N_FOLDERS;
	int mistakes, r;
	char *folder;

	r = main_load(config, root, file, report);
	mistakes = r > 0;
	for (size_t i = 0; i < n_folders && r >= 0; i++) {
		if ((file ? asprintf(&folder, "%s.d", file)
			  : asprintf(&folder, "%s%s/kvd.conf.d", root, folders[i])) < 0) {
			r = -ENOMEM;
			break;
		}
		r = dropins_scan(&dropins, folder, report);
		free(folder);
		mistakes |= r > 0;
	}
	if (r >= 0)
		r = dropins_load(&dropins, config, report);
	dropins_deinit(&dropins);
	return r < 0 ? r : mistakes || r > 0;
}
