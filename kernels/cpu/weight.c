/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/weight.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/threads.h"

/* elem_bytes: of the float forms, else 0. */
struct form_info {
	enum kv_form form;
	uint8_t zero_shift;
	uint8_t nibbles, scale_bytes, n_scales, has_min;
	uint8_t elem_bytes;
};

static const struct form_info forms[KV_WTYPE_N] = {
	[KV_WTYPE_F32] = {.form = KV_FORM_F32, .elem_bytes = 4},
	[KV_WTYPE_F16] = {.form = KV_FORM_F16, .elem_bytes = 2},
	[KV_WTYPE_BF16] = {.form = KV_FORM_BF16, .elem_bytes = 2},
	[KV_WTYPE_Q4_0] = {KV_FORM_NIB_SYM, 3, 1, 2, 1, 0},
	[KV_WTYPE_Q4_1] = {KV_FORM_NIB_MIN, 0, 1, 2, 1, 1},
	[KV_WTYPE_Q5_0] = {KV_FORM_BYTE_SYM, 4, 0, 2, 1, 0},
	[KV_WTYPE_Q5_1] = {KV_FORM_BYTE_MIN, 0, 0, 2, 1, 1},
	[KV_WTYPE_Q8_0] = {KV_FORM_BYTE_SYM, 7, 0, 2, 1, 0},
	[KV_WTYPE_Q4_K] = {KV_FORM_NIB_MIN32, 0, 1, 4, 1, 1},
	[KV_WTYPE_Q5_K] = {KV_FORM_BYTE_MIN32, 0, 0, 4, 1, 1},
	[KV_WTYPE_Q6_K] = {KV_FORM_BYTE_HALF, 5, 0, 4, 2, 0},
};

static size_t codes_bytes(const struct form_info *f)
{
	return f->nibbles ? KV_PANEL * KV_GROUP / 2 : KV_PANEL * KV_GROUP;
}

static size_t record_bytes(const struct form_info *f)
{
	return codes_bytes(f) +
	       (size_t)KV_PANEL * f->scale_bytes * (f->n_scales + f->has_min);
}

/* Put the codes of one group of one column into its record. */
static void put_codes(const struct form_info *f, uint8_t *rec, uint32_t col,
		      const uint8_t q[KV_GROUP])
{
	/* four codes at a time: below 16, none of them reaches into its neighbour */
	for (uint32_t e = 0; e < KV_GROUP; e += f->nibbles ? 8 : 4, rec += 128) {
		uint32_t word, high;

		memcpy(&word, q + e, 4);
		if (f->nibbles) {
			memcpy(&high, q + e + 4, 4);
			word |= high << 4;
		}
		memcpy(rec + col * 4, &word, 4);
	}
}

/*
 * The same from a group of Q4_0 or Q4_1, whose byte i holds the codes i and i + 16: a word takes
 * the nibbles of eight bytes, the low ones for the first half of the group, the high ones for
 * the second.
 */
static void put_nibbles(uint8_t *rec, uint32_t col, const uint8_t codes[16])
{
	const uint32_t low = 0x0f0f0f0f;

	for (uint32_t half = 0; half < 2; half++, rec += 128) {
		uint32_t a, b, first, second;

		memcpy(&a, codes + half * 8, 4);
		memcpy(&b, codes + half * 8 + 4, 4);
		first = (a & low) | (b & low) << 4;
		second = (a >> 4 & low) | (b & ~low);
		memcpy(rec + col * 4, &first, 4);
		memcpy(rec + 256 + col * 4, &second, 4);
	}
}

static void pack_group_row(const struct form_info *f, const struct kv_weight_part *part,
			   const uint8_t *src, uint8_t *panel, uint32_t col)
{
	size_t codes = codes_bytes(f), record = record_bytes(f);
	size_t bytes = (size_t)kv_wtype_row_bytes(part->type, KV_GROUP);
	uint8_t q[KV_GROUP];

	for (uint32_t g = 0; g < part->k / KV_GROUP; g++) {
		uint8_t *rec = panel + g * record;
		uint16_t d, m;

		if (f->nibbles) {
			memcpy(&d, src + g * bytes, 2);
			memcpy(&m, src + g * bytes + 2, 2);
			put_nibbles(rec, col, src + (g + 1) * bytes - 16);
		} else {
			kv_wgroup_unpack(part->type, src + g * bytes, q, &d, &m);
			put_codes(f, rec, col, q);
		}
		memcpy(rec + codes + col * 2, &d, 2);
		if (f->has_min)
			memcpy(rec + codes + 2 * KV_PANEL + col * 2, &m, 2);
	}
}

static void pack_super_row(const struct form_info *f, const struct kv_weight_part *part,
			   const uint8_t *src, uint8_t *panel, uint32_t col)
{
	size_t codes = codes_bytes(f), record = record_bytes(f);
	size_t bytes = (size_t)kv_wtype_row_bytes(part->type, 256);
	uint8_t q[256];
	float d[16], m[16];

	for (uint32_t s = 0; s < part->k / 256; s++) {
		kv_wsuper_unpack(part->type, src + s * bytes, q, d, m);
		for (uint32_t g = 0; g < 8; g++) {
			uint8_t *rec = panel + (s * 8 + g) * record;
			float *scale = (float *)(rec + codes);

			put_codes(f, rec, col, q + g * KV_GROUP);
			for (uint32_t h = 0; h < f->n_scales; h++)
				scale[h * KV_PANEL + col] = d[g * f->n_scales + h];
			if (f->has_min)
				scale[KV_PANEL + col] = m[g];
		}
	}
}

static void pack_float_row(const struct form_info *f, const struct kv_weight_part *part,
			   const uint8_t *src, uint8_t *panel, uint32_t col)
{
	size_t b = f->elem_bytes;

	for (uint32_t i = 0; i < part->k; i++)
		memcpy(panel + ((size_t)i * KV_PANEL + col) * b, src + i * b, b);
}

struct pack_job {
	const struct weight_segment *seg;
	const struct kv_weight_part *part;
	size_t row_stride, skip; /* bytes of a row of the file, and in front of col0 */
};

static void pack_panel(void *arg, uint32_t unit, uint32_t thread)
{
	const struct pack_job *job = arg;
	const struct kv_weight_part *part = job->part;
	const struct form_info *f = &forms[part->type];
	uint8_t *panel = job->seg->panels + unit * job->seg->panel_bytes;
	uint32_t end = (unit + 1) * KV_PANEL;

	for (uint32_t r = unit * KV_PANEL; r < end && r < part->n; r++) {
		const uint8_t *src =
			(const uint8_t *)part->data + r * job->row_stride + job->skip;

		if (f->elem_bytes)
			pack_float_row(f, part, src, panel, r % KV_PANEL);
		else if (kv_wtype_group(part->type) == 256)
			pack_super_row(f, part, src, panel, r % KV_PANEL);
		else
			pack_group_row(f, part, src, panel, r % KV_PANEL);
	}
}

static int segment_pack(struct threads *threads, struct memory_arena *arena,
			struct weight_segment *seg, const struct kv_weight_part *part)
{
	const struct form_info *f = &forms[part->type];
	struct pack_job job = {
		.seg = seg,
		.part = part,
		.row_stride = part->row_stride,
	};
	bool filled = false;

	if (!job.row_stride)
		job.row_stride = (size_t)kv_wtype_row_bytes(part->type, part->k);
	if (part->col0)
		job.skip = (size_t)kv_wtype_row_bytes(part->type, part->col0);
	seg->form = f->form;
	seg->zero_shift = f->zero_shift;
	seg->n = part->n;
	seg->n_panels = (part->n + KV_PANEL - 1) / KV_PANEL;
	if (f->elem_bytes)
		seg->panel_bytes = (size_t)part->k * KV_PANEL * f->elem_bytes;
	else
		seg->panel_bytes = part->k / KV_GROUP * record_bytes(f);
	if (__builtin_mul_overflow(seg->panel_bytes, (size_t)seg->n_panels,
				   &seg->alloc_bytes))
		return -ENOMEM;
	seg->panels = arena ? memory_cut(arena, seg->alloc_bytes, &seg->chunk, &filled)
			    : memory_alloc(seg->alloc_bytes);
	if (!seg->panels)
		return -ENOMEM;
	if (filled)
		return 0;
	if (threads)
		threads_run(threads, pack_panel, &job, seg->n_panels);
	else
		for (uint32_t i = 0; i < seg->n_panels; i++)
			pack_panel(&job, i, 0);
	return 0;
}

/* Whole groups of each row, which end before the next row begins. */
static bool columns_fit(const struct kv_weight_part *part)
{
	uint64_t end = (uint64_t)part->col0 + part->k;
	int64_t bytes = kv_wtype_row_bytes(part->type, end);

	if (kv_wtype_row_bytes(part->type, part->k) < 0 || bytes < 0)
		return false;
	return part->row_stride ? (size_t)bytes <= part->row_stride : part->col0 == 0;
}

int weight_pack(struct threads *threads, struct memory_arena *arena,
		const struct kv_weight_part *parts, uint32_t n_parts,
		struct kv_weight **ret_w)
{
	struct kv_weight *w;

	if (n_parts == 0 || n_parts > KV_MAX_PARTS)
		return -EINVAL;
	for (uint32_t i = 0; i < n_parts; i++) {
		if (parts[i].k != parts[0].k || parts[i].n == 0 ||
		    parts[i].n > KV_MAX_ROWS)
			return -EINVAL;
		if (!columns_fit(&parts[i]))
			return -EINVAL;
	}
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->k = parts[0].k;
	for (uint32_t i = 0; i < n_parts; i++) {
		struct weight_segment *seg = &w->segments[i];
		int r;

		seg->col0 = w->n;
		seg->panel0 = w->n_panels;
		r = segment_pack(threads, arena, seg, &parts[i]);
		if (r < 0) {
			weight_free(w);
			return r;
		}
		w->n_segments++;
		w->n += seg->n;
		w->n_panels += seg->n_panels;
		if (seg->form < KV_FORM_N_INT)
			w->any_int = true;
	}
	*ret_w = w;
	return 0;
}

void weight_free(struct kv_weight *w)
{
	if (!w)
		return;
	for (uint32_t i = 0; i < w->n_segments; i++) {
		struct weight_segment *seg = &w->segments[i];

		if (seg->chunk)
			memory_unref(seg->chunk);
		else
			memory_free(seg->panels, seg->alloc_bytes);
	}
	free(w);
}

size_t weight_bytes(const struct kv_weight *w)
{
	size_t n = sizeof(*w);

	for (uint32_t i = 0; i < w->n_segments; i++)
		n += w->segments[i].alloc_bytes;
	return n;
}
