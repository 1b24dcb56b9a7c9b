/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_UNIT_ENGINE_TINY_FILE_H
#define KVD_TESTS_UNIT_ENGINE_TINY_FILE_H

/* tiny-model.h as a file, for tests that load it as the daemon does. */

#define TINY_FILE_VOCAB 96

/* @path: a template as of mkstemp(). Failures end the program. */
void tiny_file(char *path);

#endif
