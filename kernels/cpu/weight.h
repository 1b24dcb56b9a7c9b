/* SPDX-License-Identifier: MIT */
/* Weights in the packed forms of kernels/cpu/ops.h. Owns the packed memory; made and freed on
 * the device's thread, read-only in between, so any compute thread may read it. */
#ifndef KVD_KERNELS_CPU_WEIGHT_H
#define KVD_KERNELS_CPU_WEIGHT_H

#include "kernels/backend.h"
#include "kernels/cpu/ops.h"

struct memory_arena;
struct memory_chunk;
struct threads;

/* One part: n_panels panels of panel_bytes, outputs col0 .. col0 + n - 1 of the weight. */
struct weight_segment {
	enum kv_form form;
	uint32_t n, col0, panel0, n_panels, zero_shift;
	size_t panel_bytes;
	uint8_t *panels;
	size_t alloc_bytes;
	struct memory_chunk *chunk; /* that panels lie in; NULL: memory_alloc() */
};

/* Panels are numbered through all segments. */
struct kv_weight {
	uint32_t n, k, n_panels, n_segments;
	bool any_int;
	struct weight_segment segments[KV_MAX_PARTS];
};

/* As weight_pack() of backend.h. threads may be NULL, and arena, from which weights are cut. */
int weight_pack(struct threads *threads, struct memory_arena *arena,
		const struct kv_weight_part *parts, uint32_t n_parts,
		struct kv_weight **ret_w);
void weight_free(struct kv_weight *w);
size_t weight_bytes(const struct kv_weight *w);

#endif
