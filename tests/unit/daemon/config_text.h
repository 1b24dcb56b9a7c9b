/* SPDX-License-Identifier: MIT */
/*
 * A configuration as a file that sets it, so that tests and fuzzers can compare what they
 * read with what they read back. Domains are left out. Any thread.
 */
#ifndef TESTS_UNIT_DAEMON_CONFIG_TEXT_H
#define TESTS_UNIT_DAEMON_CONFIG_TEXT_H

#include <stdio.h>

#include "daemon/config.h"

void config_text(const struct config *config, FILE *out);

#endif
