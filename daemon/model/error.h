/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_ERROR_H
#define KVD_DAEMON_MODEL_ERROR_H

/* Why a model cannot be loaded: one line, no newline, that names the file, what is wrong
 * and where. Filled by every loader that returns -errno; empty on success. */
struct load_error {
	char text[320];
};

#endif
