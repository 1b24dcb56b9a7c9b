/* SPDX-License-Identifier: MIT */
/* See tiny-file.h. */
#include "tests/unit/engine/tiny-file.h"

#include <stdlib.h>
#include <unistd.h>

#include "daemon/model/gguf.h"
#include "tests/unit/model/tiny-model.h"

_Static_assert(TINY_FILE_VOCAB == TINY_VOCAB, "the same model");

void tiny_file(char *path)
{
	struct image keys = {0}, image;
	int fd = mkstemp(path);

	/* one that kvd does not know: the model serves token ids */
	image_kv_str(&keys, "tokenizer.ggml.model", "none");
	image = tiny_model_with(GGUF_TENSOR_F32, 0, 1, &keys, 1);
	if (fd < 0 || write(fd, image.data, image.len) != (ssize_t)image.len)
		abort();
	close(fd);
	free(keys.data);
	free(image.data);
}
