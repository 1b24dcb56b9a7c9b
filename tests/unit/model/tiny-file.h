/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_UNIT_MODEL_TINY_FILE_H
#define KVD_TESTS_UNIT_MODEL_TINY_FILE_H

#include <stdint.h>

/* Write tiny_model() to a new file; @path: a template of mkstemp(). Failures print and exit. */
void tiny_file_make(char *path, uint32_t type, uint64_t seed);

#endif
