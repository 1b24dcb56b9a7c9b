/* SPDX-License-Identifier: MIT */
#include "tests/unit/model/tiny-file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/model/tiny-model.h"

void tiny_file_make(char *path, uint32_t type, uint64_t seed)
{
	struct image im = tiny_model(type, 0, seed);
	int fd = mkstemp(path);

	if (fd < 0 || write(fd, im.data, im.len) != (ssize_t)im.len) {
		perror(path);
		exit(1);
	}
	close(fd);
	image_free(&im);
}
