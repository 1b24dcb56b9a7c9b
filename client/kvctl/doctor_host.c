/* SPDX-License-Identifier: MIT */
/* The socket, and what the machine grants the daemon. See doctor.h. */
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "client/kvctl/doctor.h"

#define TEXT_BYTES 65536

/* The start of a file, as text. Return: false when it cannot be read. */
__attribute__((format(printf, 4, 5))) static bool
read_text(const struct doctor *doctor, char *text, size_t size, const char *fmt, ...)
{
	char path[512];
	va_list args;
	FILE *f;
	size_t n, at;

	at = (size_t)snprintf(path, sizeof(path), "%s", doctor->root);
	if (at >= sizeof(path))
		return false;
	va_start(args, fmt);
	vsnprintf(path + at, sizeof(path) - at, fmt, args);
	va_end(args);
	f = fopen(path, "re");
	if (!f)
		return false;
	n = fread(text, 1, size - 1, f);
	fclose(f);
	text[n] = '\0';
	return n > 0;
}

/* What follows "NAME:" at the start of a line, or NULL. */
static const char *field(const char *text, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = text; at; at = strchr(at, '\n')) {
		at += *at == '\n';
		if (!strncmp(at, name, len))
			return at + len + strspn(at + len, ": \t");
	}
	return NULL;
}

void doctor_look_at_socket(struct doctor *doctor)
{
	const struct group *gr;
	struct stat st;
	char gid[16];
	const char *group = gid;

	if (stat(doctor->path, &st) < 0) {
		doctor_add(doctor, "socket", DOCTOR_FAIL, "%s: %s", doctor->path,
			   strerror(errno));
		doctor_fix(doctor, errno == EACCES
					   ? "the folders above it have to be open to "
					     "those who use it"
					   : "systemctl enable --now kvd.socket, or "
					     "name another by --socket");
		return;
	}
	snprintf(gid, sizeof(gid), "%u", st.st_gid);
	gr = getgrgid(st.st_gid);
	if (gr)
		group = gr->gr_name;
	if (!S_ISSOCK(st.st_mode)) {
		doctor_add(doctor, "socket", DOCTOR_FAIL, "%s is no socket",
			   doctor->path);
		doctor_fix(doctor, "remove it, then systemctl restart kvd.socket");
	} else if (access(doctor->path, R_OK | W_OK) < 0) {
		doctor_add(doctor, "socket", DOCTOR_FAIL,
			   "%s may not be opened: it is of group %s", doctor->path,
			   group);
		doctor_fix(doctor, "sudo usermod -aG %s $USER, then log in again", group);
	} else if (st.st_mode & S_IWOTH) {
		doctor_add(doctor, "socket", DOCTOR_WARN, "%s is open to every user",
			   doctor->path);
		doctor_fix(doctor, "SocketMode=0660 by 'systemctl edit kvd.socket'");
	} else {
		doctor_add(doctor, "socket", DOCTOR_OK, "%s, mode %04o, group %s",
			   doctor->path, (unsigned)st.st_mode & 07777, group);
	}
}

static bool is_kvd(const struct doctor *doctor, pid_t pid)
{
	char comm[32];

	return read_text(doctor, comm, sizeof(comm), "/proc/%d/comm", (int)pid) &&
	       !strcmp(comm, "kvd\n");
}

/* Who listens, as the kernel noted it: the daemon, or the service manager. */
static pid_t listener_pid(const struct doctor *doctor)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	int fd;

	if (strlen(doctor->path) >= sizeof(address.sun_path))
		return 0;
	strcpy(address.sun_path, doctor->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		cred.pid = 0;
	close(fd);
	return cred.pid;
}

void doctor_find_daemon(struct doctor *doctor)
{
	pid_t pid = listener_pid(doctor);
	struct dirent *entry;
	unsigned n = 0;
	DIR *dir;

	doctor->pid = 0;
	if (pid <= 0) /* nobody listens: a kvd elsewhere is not the one asked for */
		return;
	if (is_kvd(doctor, pid)) {
		doctor->pid = pid;
		return;
	}
	/* The service manager made the socket. One kvd alone is the one behind it. */
	dir = opendir("/proc");
	pid = 0;
	while (dir && (entry = readdir(dir))) {
		pid_t other = (pid_t)atoi(entry->d_name);

		if (other > 0 && is_kvd(doctor, other)) {
			pid = other;
			n++;
		}
	}
	if (dir)
		closedir(dir);
	doctor->pid = n == 1 ? pid : 0;
}

/* Bundles of kernels, the best one last; each wants what those before it want, too. */
struct rung {
	const char *name;
	const char *features;
};

static const struct rung x86_ladder[] = {
	{"c", ""},
	{"avx2", "avx2 fma f16c bmi2"},
	{"avx512", "avx512f avx512bw avx512vl avx512dq"},
	{"avx512vnni", "avx512_vnni"},
	{"amx", "amx_tile amx_bf16"},
};

static const struct rung arm64_ladder[] = {
	{"c", ""},
	{"dotprod", "asimddp"},
};

/* Whether each word of @wanted is one of @list, which begins and ends with a blank. */
static bool has_all(const char *list, const char *wanted)
{
	char word[32];
	int n;

	while (sscanf(wanted, " %29[^ ]%n", word + 1, &n) == 1) {
		word[0] = ' ';
		strcat(word, " ");
		if (!strstr(list, word))
			return false;
		wanted += n;
	}
	return true;
}

static void check_cpu(struct doctor *doctor, char *text)
{
	const struct rung *ladder = x86_ladder;
	const struct kvd_stats *s = &doctor->stats;
	const char *backend = s->size ? s->backend : "", *flags = NULL, *end;
	char list[4096];
	int n = sizeof(x86_ladder) / sizeof(x86_ladder[0]), best = 0, used = -1;

	if (read_text(doctor, text, TEXT_BYTES, "/proc/cpuinfo")) {
		flags = field(text, "flags");
		if (!flags) {
			flags = field(text, "Features");
			ladder = arm64_ladder;
			n = sizeof(arm64_ladder) / sizeof(arm64_ladder[0]);
		}
	}
	if (!flags) {
		doctor_add(doctor, "cpu", DOCTOR_SKIP, "its features cannot be read");
		return;
	}
	end = strchr(flags, '\n');
	snprintf(list, sizeof(list), " %.*s ", (int)(end ? end - flags : 0), flags);
	while (best + 1 < n && has_all(list, ladder[best + 1].features))
		best++;
	if (!strncmp(backend, "cpu-", 4))
		for (int i = 0; i < n; i++)
			if (!strncmp(backend + 4, ladder[i].name, sizeof(s->backend) - 4))
				used = i;
	if (used >= 0 && used < best) {
		doctor_add(doctor, "cpu", DOCTOR_WARN, "has %s, kvd uses %s",
			   ladder[best].name, ladder[used].name);
		doctor_fix(doctor, "isa = auto below [cpu] in kvd.conf%s",
			   !strcmp(ladder[best].name, "amx")
				   ? ", and arch_prctl among SystemCallFilter="
				   : "");
	} else if (best == 0) {
		doctor_add(doctor, "cpu", DOCTOR_WARN, "has no %s: answers come slowly",
			   ladder == x86_ladder ? "AVX2" : "dot product of bytes");
	} else {
		doctor_add(doctor, "cpu", DOCTOR_OK, "has %s%s%.*s", ladder[best].name,
			   *backend ? ", kvd uses " : "",
			   (int)strnlen(backend, sizeof(s->backend)), backend);
	}
}

static void check_huge_pages(struct doctor *doctor, char *text)
{
	const char *own = NULL;

	if (doctor->pid &&
	    read_text(doctor, text, TEXT_BYTES, "/proc/%d/status", (int)doctor->pid))
		own = field(text, "THP_enabled");
	if (own && *own == '0') {
		doctor_add(doctor, "thp", DOCTOR_WARN,
			   "huge pages are switched off for kvd");
		doctor_fix(doctor, "huge_pages = auto below [cpu] in kvd.conf");
		return;
	}
	if (!read_text(doctor, text, TEXT_BYTES,
		       "/sys/kernel/mm/transparent_hugepage/enabled")) {
		doctor_add(
			doctor, "thp", DOCTOR_WARN,
			"this kernel has no transparent huge pages: kvd works, slower");
		return;
	}
	if (strstr(text, "[never]")) {
		doctor_add(doctor, "thp", DOCTOR_WARN,
			   "transparent huge pages are off: kvd works, slower");
		doctor_fix(doctor, "echo madvise > "
				   "/sys/kernel/mm/transparent_hugepage/enabled");
		return;
	}
	doctor_add(doctor, "thp", DOCTOR_OK, "transparent huge pages: %s",
		   strstr(text, "[always]") ? "always" : "on request");
}

/* Descriptors that are open, and whether an io_uring is among them. Return: false when
 * they may not be seen. */
static bool look_at_files(const struct doctor *doctor, unsigned *ret_n, bool *ret_uring)
{
	char path[512], link[256];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/proc/%d/fd", doctor->root, (int)doctor->pid);
	dir = opendir(path);
	if (!dir)
		return false;
	*ret_n = 0;
	*ret_uring = false;
	while ((entry = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link) - 1);

		if (n < 0)
			continue;
		link[n] = '\0';
		++*ret_n;
		if (strstr(link, "[io_uring]"))
			*ret_uring = true;
	}
	closedir(dir);
	return true;
}

static void check_io_uring(struct doctor *doctor, bool known, bool used, char *text)
{
	int disabled = 0;

	if (known && used) {
		doctor_add(doctor, "io_uring", DOCTOR_OK, "in use");
		return;
	}
	if (read_text(doctor, text, TEXT_BYTES, "/proc/sys/kernel/io_uring_disabled"))
		disabled = atoi(text);
	if (disabled == 2) {
		doctor_add(doctor, "io_uring", DOCTOR_WARN,
			   "switched off in this kernel: kvd waits by epoll, which takes "
			   "more of the CPU");
		doctor_fix(doctor, "sysctl kernel.io_uring_disabled=0");
	} else if (known) {
		doctor_add(doctor, "io_uring", DOCTOR_WARN,
			   "not in use: kvd waits by epoll");
		doctor_fix(doctor, "io_backend = auto below [daemon] in kvd.conf, no "
				   "KVD_IO_BACKEND; the log of the start says why");
	} else {
		doctor_add(doctor, "io_uring", DOCTOR_OK, "this kernel %s",
			   disabled == 1 ? "permits it to a group only" : "permits it");
	}
}

/* Soft limit @name in /proc/PID/limits; UINT64_MAX: unlimited or not known. */
static uint64_t soft_limit(const char *text, const char *name)
{
	const char *at = field(text, name);

	return at && *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UINT64_MAX;
}

static void check_rlimits(struct doctor *doctor, bool known, unsigned n_files, char *text)
{
	uint64_t files, locked;
	struct utsname kernel;
	unsigned major = 0, minor = 0;

	if (!read_text(doctor, text, TEXT_BYTES, "/proc/%d/limits", (int)doctor->pid)) {
		doctor_add(doctor, "files", DOCTOR_SKIP, "its limits cannot be read");
		return;
	}
	files = soft_limit(text, "Max open files");
	locked = soft_limit(text, "Max locked memory");
	if (known && files != UINT64_MAX && n_files > files - files / 5) {
		doctor_add(doctor, "files", DOCTOR_WARN,
			   "%u of %" PRIu64 " descriptors are in use", n_files, files);
		doctor_fix(doctor, "raise LimitNOFILE= by 'systemctl edit kvd'");
	} else if (files < 1024) {
		doctor_add(doctor, "files", DOCTOR_WARN,
			   "%" PRIu64 " descriptors are permitted: a client takes up to "
			   "four",
			   files);
		doctor_fix(doctor, "raise LimitNOFILE= by 'systemctl edit kvd'");
	} else if (files == UINT64_MAX) {
		doctor_add(doctor, "files", DOCTOR_OK, "no limit of descriptors");
	} else {
		doctor_add(doctor, "files", DOCTOR_OK,
			   "%" PRIu64 " descriptors are permitted", files);
	}
	if (uname(&kernel) == 0)
		sscanf(kernel.release, "%u.%u", &major, &minor);
	if (locked == UINT64_MAX) {
		doctor_add(doctor, "memlock", DOCTOR_OK, "no limit");
	} else if (locked < 8u << 20 && (major < 5 || (major == 5 && minor < 12))) {
		/* Since 5.12 rings of io_uring are charged to the control group. */
		doctor_add(doctor, "memlock", DOCTOR_WARN,
			   "%" PRIu64 " KiB may be locked: io_uring may be refused",
			   locked >> 10);
		doctor_fix(doctor, "LimitMEMLOCK=64M by 'systemctl edit kvd'");
	} else {
		doctor_add(doctor, "memlock", DOCTOR_OK, "%" PRIu64 " KiB may be locked",
			   locked >> 10);
	}
}

/* The sandbox, as far as it shows from outside. */
static void check_sandbox(struct doctor *doctor, char *text)
{
	const char *rights, *seccomp, *caps;
	bool service, confined;

	service = read_text(doctor, text, TEXT_BYTES, "/proc/%d/cgroup",
			    (int)doctor->pid) &&
		  strstr(text, "/kvd.service");
	if (!read_text(doctor, text, TEXT_BYTES, "/proc/%d/status", (int)doctor->pid)) {
		doctor_add(doctor, "sandbox", DOCTOR_SKIP, "cannot be seen");
		return;
	}
	rights = field(text, "NoNewPrivs");
	seccomp = field(text, "Seccomp:");
	caps = field(text, "CapBnd");
	confined = seccomp && *seccomp == '2' && rights && *rights == '1' && caps &&
		   strtoull(caps, NULL, 16) == 0;
	if (confined) {
		doctor_add(doctor, "sandbox", DOCTOR_OK,
			   "no new rights, no capabilities, system calls are filtered");
	} else if (service) {
		doctor_add(doctor, "sandbox", DOCTOR_WARN,
			   "kvd.service runs with more rights than its unit says");
		doctor_fix(doctor,
			   "kvd --selftest-sandbox in the unit, and systemd-analyze "
			   "security kvd, name them");
	} else {
		doctor_add(doctor, "sandbox", DOCTOR_OK,
			   "none: kvd runs outside of kvd.service");
	}
}

/* In a user namespace that leaves uids out all those look like one to the daemon. */
static void check_users(struct doctor *doctor, char *text)
{
	unsigned long inside, outside, count;
	uint64_t n = 0;
	int used;

	if (!read_text(doctor, text, TEXT_BYTES, "/proc/%d/uid_map", (int)doctor->pid))
		return;
	for (const char *at = text;
	     sscanf(at, "%lu %lu %lu%n", &inside, &outside, &count, &used) == 3;
	     at += used)
		n += count;
	if (n >= UINT32_MAX)
		return;
	doctor_add(doctor, "users", DOCTOR_WARN,
		   "kvd runs in a user namespace with %" PRIu64
		   " uids and turns away users without one",
		   n);
	doctor_fix(doctor, "map the uids of its clients into the container, or run kvd "
			   "outside of it");
}

/* The control group that is nearest to its limit. */
static void check_memory(struct doctor *doctor, char *text)
{
	char group[512], *slash;
	const char *own;
	size_t len;

	if (!read_text(doctor, text, TEXT_BYTES, "/proc/%d/cgroup", (int)doctor->pid) ||
	    !(own = field(text, "0::")) || (len = strcspn(own, "\n")) >= sizeof(group)) {
		doctor_add(doctor, "memory", DOCTOR_SKIP, "its limits cannot be read");
		return;
	}
	snprintf(group, sizeof(group), "%.*s", (int)len, own);
	for (;;) {
		uint64_t max = 0, now = 0;

		if (read_text(doctor, text, TEXT_BYTES, "/sys/fs/cgroup%.400s/memory.max",
			      group))
			max = strtoull(text, NULL, 10);
		if (read_text(doctor, text, TEXT_BYTES,
			      "/sys/fs/cgroup%.400s/memory.current", group))
			now = strtoull(text, NULL, 10);
		if (max && now > max - max / 20) {
			doctor_add(doctor, "memory", DOCTOR_WARN,
				   "%s takes %" PRIu64 " of %" PRIu64 " MiB",
				   *group ? group : "/", now >> 20, max >> 20);
			doctor_fix(doctor,
				   "systemctl set-property kvd.slice MemoryMax=, or "
				   "lower [cache] kv_cache_memory");
			return;
		}
		slash = strrchr(group, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	doctor_add(doctor, "memory", DOCTOR_OK, "no control group is near its limit");
}

void doctor_look_at_host(struct doctor *doctor)
{
	char *text = malloc(TEXT_BYTES);
	bool known = false, uring = false;
	unsigned n_files = 0;

	if (!text) {
		doctor_add(doctor, "machine", DOCTOR_SKIP, "out of memory");
		return;
	}
	check_cpu(doctor, text);
	check_huge_pages(doctor, text);
	if (doctor->pid) {
		known = look_at_files(doctor, &n_files, &uring);
		check_sandbox(doctor, text);
		check_users(doctor, text);
		check_rlimits(doctor, known, n_files, text);
		check_memory(doctor, text);
	} else {
		doctor_add(doctor, "process", DOCTOR_SKIP,
			   "the daemon's process is not known: its limits are not looked "
			   "at");
	}
	check_io_uring(doctor, known, uring, text);
	free(text);
}
