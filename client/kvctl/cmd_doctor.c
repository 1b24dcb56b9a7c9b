/* SPDX-License-Identifier: MIT */
/* kvctl doctor: whether kvd is well, and what to do where it is not. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/doctor.h"
#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/utf8.h"

static const char *const state_names[] = {
	[DOCTOR_OK] = "ok",
	[DOCTOR_SKIP] = "skip",
	[DOCTOR_WARN] = "warn",
	[DOCTOR_FAIL] = "FAIL",
};

static const char *const state_keys[] = {
	[DOCTOR_OK] = "ok",
	[DOCTOR_SKIP] = "skip",
	[DOCTOR_WARN] = "warn",
	[DOCTOR_FAIL] = "fail",
};

/* Return: the exit code as far as connecting decides it. */
static int ask(struct doctor *doctor)
{
	struct kvc_connect_opts opts = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *client;
	int r;

	opts.socket_path = doctor->path;
	opts.client_name = "kvctl";
	r = kvc_connect(&client, &opts);
	if (r < 0) {
		bool denied = r == -EACCES || r == -EPERM;

		doctor_add(doctor, "daemon", DOCTOR_FAIL, "%s",
			   *kvc_errmsg() ? kvc_errmsg() : kvc_strerror(r));
		if (!denied)
			doctor_fix(doctor,
				   "systemctl start kvd; 'journalctl -u kvd -e' says "
				   "why it ended");
		if (denied)
			return EXIT_PERMISSION;
		return r == -ECONNREFUSED || r == -ENOENT || r == -ECONNRESET
			       ? EXIT_NOT_RUNNING
			       : EXIT_FAILED;
	}
	doctor_add(doctor, "daemon", DOCTOR_OK, "answers");
	doctor_ask_daemon(doctor, client);
	kvc_close(client);
	return EXIT_OK;
}

static void print_json(const struct doctor *doctor, enum doctor_state worst)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_str(&json, "worst", state_keys[worst]);
	json_i64(&json, "pid", doctor->pid);
	json_open_array(&json, "checks");
	for (unsigned i = 0; i < doctor->n_checks; i++) {
		const struct doctor_check *check = &doctor->checks[i];

		json_open_object(&json, NULL);
		json_str(&json, "name", check->name);
		json_str(&json, "state", state_keys[check->state]);
		json_str(&json, "text", check->text);
		json_str(&json, "fix", check->fix);
		json_close_object(&json);
	}
	json_close_array(&json);
	json_close_object(&json);
	json_end(&json);
}

static void print_text(const struct doctor *doctor)
{
	for (unsigned i = 0; i < doctor->n_checks; i++) {
		const struct doctor_check *check = &doctor->checks[i];

		printf("%-4s  %-10s  ", state_names[check->state], check->name);
		utf8_put_name(stdout, check->text, strlen(check->text));
		putchar('\n');
		if (!*check->fix)
			continue;
		fputs("                  fix: ", stdout);
		utf8_put_name(stdout, check->fix, strlen(check->fix));
		putchar('\n');
	}
}

int cmd_doctor(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {KVCTL_COMMON_OPTIONS};
	const char *env = getenv(KVD_SOCKET_ENV), *root;
	enum doctor_state worst = DOCTOR_OK;
	struct doctor *doctor;
	int r;

	(void)kvctl_next_option(ctl, argc, argv, options);
	kvctl_no_arguments(argc, argv);
	doctor = calloc(1, sizeof(*doctor));
	if (!doctor) {
		fputs("kvctl: out of memory\n", stderr);
		return EXIT_FAILED;
	}
	root = getenv("KVCTL_DOCTOR_ROOT");
	doctor->root = root ? root : "";
	doctor->path = ctl->socket_path ? ctl->socket_path : kvctl_default_socket();
	if (!doctor->path)
		doctor->path = env && *env ? env : KVD_SOCKET_DEFAULT;
	doctor_look_at_socket(doctor);
	r = ask(doctor);
	doctor_find_daemon(doctor);
	doctor_look_at_host(doctor);
	for (unsigned i = 0; i < doctor->n_checks; i++)
		if (doctor->checks[i].state > worst)
			worst = doctor->checks[i].state;
	if (ctl->json)
		print_json(doctor, worst);
	else
		print_text(doctor);
	free(doctor);
	return r ? r : worst == DOCTOR_FAIL ? EXIT_FAILED : EXIT_OK;
}
