/* SPDX-License-Identifier: MIT */
#include "client/kvctl/doctor.h"

#include <stdarg.h>
#include <stdio.h>

void doctor_add(struct doctor *doctor, const char *name, enum doctor_state state,
		const char *fmt, ...)
{
	struct doctor_check *check = &doctor->checks[doctor->n_checks];
	va_list args;

	if (doctor->n_checks == DOCTOR_MAX_CHECKS)
		return;
	doctor->n_checks++;
	check->name = name;
	check->state = state;
	va_start(args, fmt);
	vsnprintf(check->text, sizeof(check->text), fmt, args);
	va_end(args);
}

void doctor_fix(struct doctor *doctor, const char *fmt, ...)
{
	struct doctor_check *check;
	va_list args;

	if (!doctor->n_checks)
		return;
	check = &doctor->checks[doctor->n_checks - 1];
	va_start(args, fmt);
	vsnprintf(check->fix, sizeof(check->fix), fmt, args);
	va_end(args);
}
