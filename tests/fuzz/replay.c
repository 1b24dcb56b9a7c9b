/* SPDX-License-Identifier: MIT */
/*
 * Runs a fuzz target over the files and folders named on the command line, for compilers
 * without libFuzzer: the corpus then is a regression test of any build. Each input is
 * copied to an allocation of its own size, so that a sanitizer sees a read beyond it.
 */
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static unsigned n_inputs;

static int replay_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	size_t len = (size_t)st->st_size;
	uint8_t *data;
	FILE *f;

	if (type != FTW_F)
		return 0;
	f = fopen(path, "rb");
	if (!f) {
		perror(path);
		return -1;
	}
	data = malloc(len ? len : 1);
	if (!data || fread(data, 1, len, f) != len) {
		fprintf(stderr, "%s: cannot read\n", path);
		fclose(f);
		free(data);
		return -1;
	}
	fclose(f);
	LLVMFuzzerTestOneInput(data, len);
	free(data);
	n_inputs++;
	return 0;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (nftw(argv[i], replay_file, 8, FTW_PHYS) != 0) {
			fprintf(stderr, "%s: not replayed\n", argv[i]);
			return 1;
		}
	}
	printf("%u inputs\n", n_inputs);
	return n_inputs ? 0 : 1;
}
