/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_MODEL_H
#define KVD_DAEMON_MODEL_MODEL_H

/*
 * The weights of a transformer on a device: every packed matrix, norm vector and table made from a
 * file, which may be closed when model_load() has returned. The graph that uses them is in
 * runner.c. Knows no sequences, pool or sessions. Thread: the loading thread, then read-only on the
 * worker.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/families.h"
#include "daemon/model/gguf.h"
#include "daemon/model/shape.h"
#include "kernels/backend.h"

/* One layer: norms are [d]; q, k and v are one matrix, gate and up another. */
struct model_layer {
	float *attn_norm KV_DEV;
	float *ffn_norm KV_DEV;
	struct kv_weight *qkv;
	struct kv_weight *output;
	struct kv_weight *gate_up;
	struct kv_weight *down;
};

/* Which part of a model a device has: every n_ranks-th part of the heads, of the KV heads and of
 * the feed-forward part; the head of the model is the first rank's alone. */
struct model_shard {
	uint32_t rank, n_ranks;
};

/* A loaded model, or one rank's part of it. @params: n_heads, n_kv_heads and d_ff are those of the
 * rank. @head: NULL for ranks that are not the first. @fingerprint: SHA-256 over the whole file.
 * @weight_bytes: what the packed weights and the table take */
struct model {
	const struct model_family *family;
	const struct kv_backend *backend;
	struct kv_device *dev;
	struct model_shard shard;
	struct model_params params;
	struct model_layer *layers;
	struct kv_table *embedding;
	float *output_norm KV_DEV;
	struct kv_weight *head;
	struct kv_rope *rope;
	uint8_t fingerprint[32];
	size_t weight_bytes;
};

/* Checks, packs and uploads every tensor. @dev: outlives the model. @shard: NULL: all of it.
 * @fingerprint: [32] of a file that was loaded before; NULL: hash the file, and check that its
 * values are finite. Return: 0; -ENOTSUP, -EINVAL with @err naming the tensor, or what cannot be
 * divided; -EIO as gguf_check_read(); -ENOMEM. */
int model_load(struct model *ret, const struct gguf *gguf,
	       const struct kv_backend *backend, struct kv_device *dev,
	       const struct model_shard *shard, const uint8_t *fingerprint,
	       struct load_error *err);

/* Idempotent, and fine on a zeroed struct. */
void model_unload(struct model *model);

#endif
