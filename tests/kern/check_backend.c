/* SPDX-License-Identifier: MIT */
/*
 * The backend as the model uses it. A small model's layer runs over several sequences: all at
 * once, and in every other cutting into steps, tiles and threads; each row must have the same
 * bits. Values are compared with attention in double over the rows that went in.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/memfd.h>
#include <linux/seccomp.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu_features.h"
#include "kernels/half.h"
#include "tests/kern/dequant.h"
#include "tests/kern/world.h"

/*
 * Run all rows in steps of at most step rows, taking turns between sequences. qkv holds the
 * rows of sequence 0, then 1, ..; out likewise.
 */
static void run_steps(struct world *w, const struct shape *s, const float *qkv,
		      float *out, uint32_t step, float *ret_rotated)
{
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, orow = s->n_heads * s->hd;
	uint32_t done[MAX_SEQS] = {0}, base[MAX_SEQS] = {0}, blocks[256], n_blocks = 0;
	uint32_t off[MAX_SEQS];

	for (uint32_t i = 0; i < s->n_seqs; i++) {
		uint32_t n = (s->len[i] + s->bt - 1) / s->bt;

		base[i] = i ? base[i - 1] + s->len[i - 1] : 0;
		off[i] = n_blocks;
		for (uint32_t b = 0; b < n; b++, n_blocks++)
			blocks[n_blocks] = block_id(n_blocks);
	}
	for (uint32_t turn = 0;; turn++) {
		struct kv_batch_entry e[MAX_SEQS];
		struct kv_batch b = {
			.entries = e, .blocks = blocks, .n_blocks = n_blocks};
		float *x, *y;

		for (uint32_t k = 0; k < s->n_seqs; k++) {
			uint32_t i = (k + turn) % s->n_seqs, n = s->len[i] - done[i];

			n = n < step ? n : step;
			if (n == 0)
				continue;
			e[b.n_entries++] =
				(struct kv_batch_entry){b.n_rows,
							n,
							done[i],
							off[i],
							(s->len[i] + s->bt - 1) / s->bt,
							N_TAILS - 1 - 2 * i};
			b.n_rows += n;
		}
		if (b.n_rows == 0)
			return;
		x = malloc((size_t)b.n_rows * row * 4);
		y = malloc((size_t)b.n_rows * orow * 4);
		for (uint32_t k = 0; k < b.n_entries; k++) {
			uint32_t i = 0;

			while (off[i] != e[k].block_off)
				i++;
			memcpy(x + (size_t)e[k].row0 * row,
			       qkv + (size_t)(base[i] + done[i]) * row,
			       (size_t)e[k].n_rows * row * 4);
		}
		struct kv_qkv q = {x,
				   row,
				   0,
				   s->n_heads * s->hd,
				   (s->n_heads + s->n_kv) * s->hd,
				   s->n_heads};
		struct kv_attention a = {x,    y,          row,
					 orow, s->n_heads, 1 / sqrtf((float)s->hd)};

		CK(w->be->batch_load(w->st, &b) == 0);
		CK(w->be->rope_kv_write(w->st, w->rope, w->pool, LAYER, &q) == 0);
		CK(w->be->attention(w->st, w->pool, LAYER, &a) == 0);
		for (uint32_t k = 0; k < b.n_entries; k++) {
			uint32_t i = 0;

			while (off[i] != e[k].block_off)
				i++;
			memcpy(out + (size_t)(base[i] + done[i]) * orow,
			       y + (size_t)e[k].row0 * orow,
			       (size_t)e[k].n_rows * orow * 4);
			if (ret_rotated)
				memcpy(ret_rotated + (size_t)(base[i] + done[i]) * row,
				       x + (size_t)e[k].row0 * row,
				       (size_t)e[k].n_rows * row * 4);
			done[i] += e[k].n_rows;
		}
		free(x);
		free(y);
	}
}

/* Rotation and causal attention in double; K and V rounded to halves as the pool does. */
static void in_double(const struct shape *s, const float *qkv, const float *rotated,
		      const float *out)
{
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, orow = s->n_heads * s->hd,
		 base = 0;
	double score[1024];

	for (uint32_t i = 0; i < s->n_seqs; base += s->len[i++]) {
		for (uint32_t pos = 0; pos < s->len[i]; pos += 1 + s->len[i] / 7) {
			const float *x = qkv + (size_t)(base + pos) * row;
			const float *r = rotated + (size_t)(base + pos) * row;
			uint32_t h = ck_below(s->n_heads),
				 kh = h / (s->n_heads / s->n_kv), n;

			n = s->rope_dims / 2;
			for (uint32_t d = 0; d < n; d++) {
				uint32_t a = s->mode == KV_ROPE_NEOX ? d : 2 * d;
				uint32_t b = s->mode == KV_ROPE_NEOX ? d + n : 2 * d + 1;
				double t = pos * pow(10000, -2.0 * d / s->rope_dims);

				a += h * s->hd;
				b += h * s->hd;
				ck_near("rotated a", r[a], x[a] * cos(t) - x[b] * sin(t),
					1e-5, 0);
				ck_near("rotated b", r[b], x[a] * sin(t) + x[b] * cos(t),
					1e-5, 0);
			}
			double max = -INFINITY, sum = 0;

			for (uint32_t t = 0; t <= pos; t++) {
				const float *k = rotated + (size_t)(base + t) * row +
						 (s->n_heads + kh) * s->hd;

				score[t] = 0;
				for (uint32_t d = 0; d < s->hd; d++)
					score[t] += (double)r[h * s->hd + d] *
						    kv_half_to_float(
							    kv_half_from_float(k[d]));
				score[t] /= sqrt(s->hd);
				max = ck_max(max, score[t]);
			}
			for (uint32_t t = 0; t <= pos; t++)
				sum += score[t] = exp(score[t] - max);
			for (uint32_t d = 0; d < s->hd; d++) {
				double o = 0;

				for (uint32_t t = 0; t <= pos; t++)
					o += score[t] / sum *
					     kv_half_to_float(kv_half_from_float(
						     qkv[(size_t)(base + t) * row +
							 (s->n_heads + s->n_kv + kh) *
								 s->hd +
							 d]));
				ck_near("attention",
					out[(size_t)(base + pos) * orow + h * s->hd + d],
					o, 2e-5, 1e-5);
			}
		}
	}
}

/* K and V of position t as a row at position pos sees them, in double, unrotated. */
static void row_seen(const struct world *w, const struct shape *s, const float *qkv,
		     const float *rotated, uint32_t base, uint32_t block0, uint32_t kh,
		     uint32_t t, uint32_t pos, double *k, double *v)
{
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, hd = s->hd;
	const float *kf = rotated + (size_t)(base + t) * row + (s->n_heads + kh) * hd;
	const float *vf =
		qkv + (size_t)(base + t) * row + (s->n_heads + s->n_kv + kh) * hd;
	const struct kv_layout *l = &w->layout;
	double x[KV_HEAD_DIM_MAX], k_top = 0, v_top = 0;
	struct dq_planes p;

	if (kv_layout_needs_tail(l) && t / s->bt == pos / s->bt) {
		for (uint32_t d = 0; d < hd; d++) {
			k[d] = kf[d];
			v[d] = vf[d];
		}
		return;
	}
	p = dq_planes(l,
		      (uint8_t *)w->be->pool_base(w->pool) +
			      block_id(block0 + t / s->bt) * l->block_bytes,
		      LAYER, kh);
	dq_k(l, &p, t % s->bt, x);
	memcpy(k, x, hd * sizeof(*x));
	if (kv_layout_k_rotated(l))
		dq_rotate(x, k, hd, 1);
	dq_v(l, &p, t % s->bt, x);
	memcpy(v, x, hd * sizeof(*x));
	if (kv_layout_v_rotated(l))
		dq_rotate(x, v, hd, 1);
	/* What was written is what went in. A rotated vector's largest is below its length. */
	for (uint32_t d = 0; d < hd; d++) {
		k_top += (double)kf[d] * kf[d];
		v_top += (double)vf[d] * vf[d];
	}
	for (uint32_t d = 0; d < hd; d++) {
		ck_near("k in the pool", k[d], kf[d], dq_tolerance(s->k, sqrt(k_top)), 0);
		ck_near("v in the pool", v[d], vf[d], dq_tolerance(s->v, sqrt(v_top)), 0);
	}
}

/* Attention in double over what the pool holds. Rounding of queries and weights to 15 bits, and
 * of partial blocks to halves, stays far below the tolerance, a code in a wrong place does not; for
 * int4 K the 8 bits of a query in a block's units are rounded to 1/254 of the largest. */
static void codes_in_double(const struct world *w, const struct shape *s,
			    const float *qkv, const float *rotated, const float *out)
{
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, orow = s->n_heads * s->hd;
	static double k[1024][KV_HEAD_DIM_MAX], v[1024][KV_HEAD_DIM_MAX];
	uint32_t base = 0, block0 = 0;
	double score[1024], tol = s->k == KV_FORMAT_INT4 ? 1.5e-2 : 3e-3;

	for (uint32_t i = 0; i < s->n_seqs; i++) {
		for (uint32_t pos = 0; pos < s->len[i]; pos += 1 + s->len[i] / 7) {
			const float *r = rotated + (size_t)(base + pos) * row;
			uint32_t h = ck_below(s->n_heads),
				 kh = h / (s->n_heads / s->n_kv);
			double max = -INFINITY, sum = 0;

			for (uint32_t t = 0; t <= pos; t++) {
				row_seen(w, s, qkv, rotated, base, block0, kh, t, pos,
					 k[t], v[t]);
				score[t] = 0;
				for (uint32_t d = 0; d < s->hd; d++)
					score[t] += (double)r[h * s->hd + d] * k[t][d] /
						    sqrt(s->hd);
				max = ck_max(max, score[t]);
			}
			for (uint32_t t = 0; t <= pos; t++)
				sum += score[t] = exp(score[t] - max);
			for (uint32_t d = 0; d < s->hd; d++) {
				double o = 0;

				for (uint32_t t = 0; t <= pos; t++)
					o += score[t] / sum * v[t][d];
				ck_near("attention",
					out[(size_t)(base + pos) * orow + h * s->hd + d],
					o, tol, 1e-3);
			}
		}
		base += s->len[i];
		block0 += (s->len[i] + s->bt - 1) / s->bt;
	}
}

static void check_steps(const struct ck *ck, const struct shape *s)
{
	static const uint32_t steps[] = {1000, 1, 7, 64, 250};
	uint32_t row = (s->n_heads + 2 * s->n_kv) * s->hd, orow = s->n_heads * s->hd,
		 n = 0;
	float *qkv, *want, *got, *rotated;

	for (uint32_t i = 0; i < s->n_seqs; i++)
		n += s->len[i];
	qkv = ck_alloc((size_t)n * row * 4);
	rotated = ck_alloc((size_t)n * row * 4);
	want = ck_alloc((size_t)n * orow * 4);
	got = ck_alloc((size_t)n * orow * 4);
	ck_fill(qkv, (size_t)n * row, CK_NORMAL);
	for (uint32_t threads = 1; threads <= 3; threads++) {
		for (size_t i = 0; i < KVD_ARRAY_LEN(steps); i++) {
			bool first = threads == 1 && i == 0;
			struct world w;

			ck_context("k=%s,v=%s head_dim %u heads %u/%u block_tokens %u "
				   "rope %u/%d: %u threads, steps of %u",
				   kv_format_name(s->k), kv_format_name(s->v), s->hd,
				   s->n_heads, s->n_kv, s->bt, s->rope_dims, s->mode,
				   threads, steps[i]);
			/* One cutting on one number of threads, for the formats beyond fp16:
			 * what threads share is the same code for all. */
			if (s->k + s->v > 0 && !first && i % 2 != threads - 1)
				continue;
			if (ck->quick && (threads == 3 || (steps[i] == 1 && n > 100)))
				continue;
			if (!world_open(&w, ck, s, threads, -1)) {
				ck_fail("open");
				return;
			}
			run_steps(&w, s, qkv, first ? want : got, steps[i],
				  first ? rotated : NULL);
			if (first && s->k == KV_FORMAT_FP16 && s->v == KV_FORMAT_FP16)
				in_double(s, qkv, rotated, want);
			else if (first)
				codes_in_double(&w, s, qkv, rotated, want);
			world_close(&w);
			if (!first)
				ck_same("out", got, want, (size_t)n * orow);
		}
	}
	ck_release_all();
}

/* linear() of mixed parts: rows alone and together, on 1 to 3 threads. */
static void check_linear_rows(const struct ck *ck)
{
	enum { K = 512, M = 150 };
	static const enum kv_wtype types[] = {KV_WTYPE_Q4_1, KV_WTYPE_Q6_K, KV_WTYPE_F16,
					      KV_WTYPE_Q8_0, KV_WTYPE_F32};
	static const uint32_t ns[] = {96, 40, 33, 7, 1};
	const struct kv_backend *be = kv_backend_cpu();
	struct kv_weight_part parts[5];
	uint32_t n = 0, m_max = ck->quick ? 20 : M;
	float *x = ck_alloc(M * K * 4), *want, *got, *row = ck_alloc(K * 4);

	ck_context("linear of mixed parts");
	for (int i = 0; i < 5; i++) {
		size_t bytes = ns[i] * (size_t)kv_wtype_row_bytes(types[i], K);
		uint8_t *data = ck_alloc(bytes);

		for (size_t b = 0; b < bytes; b++)
			data[b] = (uint8_t)(ck_u64() & 0x3f); /* finite in every type */
		parts[i] = (struct kv_weight_part){types[i], ns[i], K, data};
		n += ns[i];
	}
	ck_fill(x, M * K, CK_NORMAL);
	want = ck_alloc((size_t)M * n * 4);
	got = ck_alloc((size_t)M * n * 4);
	for (uint32_t threads = 1; threads <= 3; threads++) {
		struct kv_cpu_options cpu = {.n_threads = threads,
					     .cpu_mask = ck->features};
		struct kv_options opt = {.cpu = &cpu};
		struct kv_device *dev;
		struct kv_stream *st;
		struct kv_weight *w;
		struct kv_linear a = {.x = x, .ldx = K, .ldy = n};
		uint32_t step[] = {m_max, 1, 5, 32};

		CK(be->open(&opt, NULL, 0, &dev) == 0 && be->stream_open(dev, &st) == 0);
		CK(be->weight_pack(dev, parts, 5, &w) == 0);
		a.w = w;
		for (int i = 0; i < 4; i++) {
			float *y = threads == 1 && i == 0 ? want : got;

			ck_context("linear of mixed parts, %u threads, %u rows at once",
				   threads, step[i]);
			for (uint32_t m = 0; m < m_max; m += step[i]) {
				a.x = x + (size_t)m * K;
				a.y = y + (size_t)m * n;
				a.m = m + step[i] < m_max ? step[i] : m_max - m;
				CK(be->linear(st, &a) == 0);
			}
			if (y == got)
				ck_same("y", got, want, (size_t)m_max * n);
		}
		for (uint32_t c = 0, p = 0, in = 0; c < n && threads == 1; c++, in++) {
			double sum = 0, size = 0;

			if (in == ns[p]) {
				in = 0;
				p++;
			}
			kv_row_dequantize(types[p], K,
					  (const uint8_t *)parts[p].data +
						  in * kv_wtype_row_bytes(types[p], K),
					  row);
			for (uint32_t i = 0; i < K; i++) {
				sum += (double)row[i] * x[i];
				size += fabs((double)row[i]) * 6;
			}
			ck_near("y", want[c], sum, 1e-4 * size, 1e-5);
		}
		a.ldx = K - 1;
		CK(be->linear(st, &a) == -EINVAL);
		be->weight_free(w);
		be->stream_close(st);
		be->close(dev);
	}
	ck_release_all();
}

static void check_small_ops(const struct ck *ck)
{
	const struct shape s = {64, 2, 1, 16, 64, KV_ROPE_NORMAL, 1, {1}};
	const uint32_t blocks[] = {3, 255, 7, 256}, tokens[] = {4, 0, 4};
	struct kv_batch_entry e[] = {{0, 2, 0, 0, 1}, {2, 1, 16, 1, 2}};
	struct kv_batch b = {3, 2, 3, tokens, e, blocks};
	uint8_t rows[5 * 34], *base;
	float *y = ck_alloc(3 * 32 * 4), *x = ck_alloc(5 * 32 * 4), want[32];
	struct kv_weight_part part = {KV_WTYPE_Q8_0, 5, 32, rows};
	struct kv_block_copy copy = {0, 255}, bad = {256, 0};
	struct kv_qkv q = {y, 256, 0, 128, 192, 2};
	struct kv_table *table;
	struct kv_weight *weight;
	uint32_t index[] = {4, 0, 4};
	int fd = memfd_create("pool", MFD_CLOEXEC);
	uint64_t free_bytes, total;
	struct kv_props props;
	struct world w;

	ck_context("small ops");
	CK(fd >= 0 && ftruncate(fd, 256 * 8192) == 0);
	if (!world_open(&w, ck, &s, 2, fd)) {
		ck_fail("open");
		return;
	}
	w.be->get_props(w.dev, &props);
	CK(strcmp(props.isa, ck->bundle) == 0 && strcmp(props.name, "cpu") == 0);
	CK(props.n_threads == 2 && props.host_memory && props.act_bytes == 4);
	CK(w.be->mem_info(w.dev, &free_bytes, &total) == 0);
	CK(free_bytes > 0 && free_bytes <= total);

	/* Nothing loaded, then batches that break the rules. */
	CK(w.be->rope_kv_write(w.st, w.rope, w.pool, 0, &q) == -EINVAL);
	CK(w.be->batch_load(w.st, &b) == 0);
	e[1].row0 = 1;
	CK(w.be->batch_load(w.st, &b) == -EINVAL);
	e[1].row0 = 2;
	e[1].n_rows = 2;
	CK(w.be->batch_load(w.st, &b) == -EINVAL);
	e[1].n_rows = 1;
	e[1].n_blocks = 3;
	CK(w.be->batch_load(w.st, &b) == -EINVAL);
	e[1].n_blocks = UINT32_MAX;
	CK(w.be->batch_load(w.st, &b) == -EINVAL);
	e[1].n_blocks = 1;
	CK(w.be->batch_load(w.st, &b) == 0);
	CK(w.be->rope_kv_write(w.st, w.rope, w.pool, 0, &q) == -EINVAL); /* one too few */
	b.n_blocks = 4;
	e[1].n_blocks = 3; /* reaches block 256 */
	CK(w.be->batch_load(w.st, &b) == 0);
	CK(w.be->rope_kv_write(w.st, w.rope, w.pool, 0, &q) == -EINVAL);
	e[1].n_blocks = 2;
	CK(w.be->batch_load(w.st, &b) == 0);

	for (size_t i = 0; i < sizeof(rows); i++)
		rows[i] = (uint8_t)(ck_u64() & 0x3f);
	CK(w.be->table_new(w.dev, &part, &table) == 0);
	CK(w.be->embed(w.st, table, y, 32) == 0);
	for (int i = 0; i < 3; i++) {
		kv_row_dequantize(KV_WTYPE_Q8_0, 32, rows + tokens[i] * 34, want);
		ck_same("embed", y + i * 32, want, 32);
	}
	w.be->table_free(table);
	part.n = 4; /* now token 4 is out of range */
	CK(w.be->table_new(w.dev, &part, &table) == 0);
	CK(w.be->embed(w.st, table, y, 32) == -EINVAL);
	w.be->table_free(table);
	part.k = 33;
	CK(w.be->table_new(w.dev, &part, &table) == -EINVAL);
	CK(w.be->weight_pack(w.dev, &part, 1, &weight) == -EINVAL);
	CK(w.be->weight_pack(w.dev, &part, 0, &weight) == -EINVAL);

	ck_fill(x, 5 * 32, CK_NORMAL);
	CK(w.be->gather_rows(w.st, x, 32, index, y, 32, 3, 32) == 0);
	for (int i = 0; i < 3; i++)
		ck_same("gather", y + i * 32, x + index[i] * 32, 32);

	base = w.be->pool_base(w.pool);
	for (size_t i = 0; i < 8192; i++)
		base[i] = (uint8_t)ck_u64();
	CK(w.be->copy_blocks(w.st, w.pool, &copy, 1) == 0);
	CK(memcmp(base, base + 255 * w.layout.block_bytes, 8192) == 0);
	CK(w.be->copy_blocks(w.st, w.pool, &bad, 1) == -EINVAL);
	CK(w.be->zero_blocks(w.st, w.pool, blocks + 1, 1) == 0);
	for (size_t i = 0; i < w.layout.block_bytes; i++)
		CK(base[255 * w.layout.block_bytes + i] == 0);
	CK(w.be->zero_blocks(w.st, w.pool, &bad.src, 1) == -EINVAL);
	/* The file has what the pool has. */
	CK(pread(fd, rows, 16, 0) == 16 && memcmp(rows, base, 16) == 0);
	world_close(&w);
	close(fd);
	ck_release_all();
}

enum { N_PIECES = 70 };

struct pieces {
	struct memory_chunk *chunks[N_PIECES];
	uint8_t *mem[N_PIECES];
	bool filled;
};

static size_t piece_size(uint32_t i)
{
	static const size_t sizes[] = {1, 64, 4097, 3 << 20, 20 << 20, 15 << 20, 100};

	return sizes[i % 7];
}

static bool pieces_cut(struct memory_arena *arena, struct pieces *ret)
{
	ret->filled = true;
	for (uint32_t i = 0; i < N_PIECES; i++) {
		bool filled;

		ret->mem[i] = memory_cut(arena, piece_size(i), &ret->chunks[i], &filled);
		if (!ret->mem[i]) {
			ck_fail("no memory for %zu bytes", piece_size(i));
			return false;
		}
		CK((uintptr_t)ret->mem[i] % 64 == 0);
		ret->filled = ret->filled && filled;
	}
	return true;
}

static void pieces_check(const struct pieces *p, bool marked)
{
	for (uint32_t i = 0; i < N_PIECES; i++) {
		const uint8_t *mem = p->mem[i];
		size_t size = piece_size(i);
		uint8_t mark = marked ? (uint8_t)(i + 1) : 0;

		CK(mem[0] == mark && mem[size / 2] == mark && mem[size - 1] == mark);
	}
}

static void pieces_mark(struct pieces *p)
{
	for (uint32_t i = 0; i < N_PIECES; i++) {
		uint8_t *mem = p->mem[i];
		size_t size = piece_size(i);

		mem[0] = mem[size / 2] = mem[size - 1] = (uint8_t)(i + 1);
	}
}

static void pieces_free(struct pieces *p)
{
	for (uint32_t j = 0, i = 0; j < N_PIECES; j++, i = (i + 27) % N_PIECES)
		memory_unref(p->chunks[i]);
}

/* Pieces of chunks: zeroed, apart from each other, and gone in any order. */
static void check_memory(void)
{
	struct memory_chunk *none;
	struct memory_arena arena;
	struct pieces p;
	bool filled;

	memory_arena_init(&arena);
	if (!pieces_cut(&arena, &p))
		return;
	CK(!p.filled);
	pieces_check(&p, false);
	pieces_mark(&p);
	CK(memory_cut(&arena, 0, &none, &filled) == NULL);
	CK(memory_cut(&arena, SIZE_MAX - 5, &none, &filled) == NULL);
	memory_arena_deinit(&arena);
	pieces_check(&p, true);
	pieces_free(&p);
	memory_unref(NULL);
}

/*
 * In a file: what one arena filled another one finds. Beyond the file's end there is private
 * memory.
 */
static void check_memory_of_file(void)
{
	const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	int fd = memfd_create("pieces", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;
	const uint64_t off = KV_WEIGHTS_ALIGN;
	struct memory_chunk *more[3];
	struct memory_arena arena;
	struct pieces first, second;
	bool filled;

	memory_arena_init(&arena);
	memory_arena_use(&arena, fd, off, false);
	if (!pieces_cut(&arena, &first))
		return;
	CK(!first.filled);
	pieces_check(&first, false);
	pieces_mark(&first);
	r = memory_arena_freeze(&arena);
	pieces_check(&first, true);
	/* under qemu, say, there are no huge pages for files */
	CK(r == 0 || r == 1);
	if (r == 0) {
		CK(fcntl(fd, F_ADD_SEALS, seals) == 0);
		memory_arena_use(&arena, fd, off, true);
		if (!pieces_cut(&arena, &second))
			return;
		CK(second.filled);
		for (int i = 0; i < 3; i++) {
			uint8_t *mem = memory_cut(&arena, 65 << 20, &more[i], &filled);

			CK(mem && !filled && mem[0] == 0);
		}
		CK(memory_arena_freeze(&arena) == 1);
		for (int i = 0; i < 3; i++)
			memory_unref(more[i]);
		pieces_free(&first);
		pieces_check(&second, true);
		first = second;
	}
	pieces_free(&first);
	close(fd);
	/* no file, a place that is none, and a file that cannot grow */
	memory_arena_use(&arena, -1, off, false);
	CK(memory_cut(&arena, 100, &more[0], &filled) && !filled);
	CK(memory_arena_freeze(&arena) == 1);
	memory_unref(more[0]);
	fd = memfd_create("pieces", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	memory_arena_use(&arena, fd, 4096, false);
	CK(memory_arena_freeze(&arena) == 1);
	CK(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0);
	memory_arena_use(&arena, fd, off, false);
	CK(memory_cut(&arena, 20 << 20, &more[0], &filled) && !filled);
	CK(memory_arena_freeze(&arena) == 1);
	memory_unref(more[0]);
	close(fd);
}

#ifdef __x86_64__
/* With a filter that refuses arch_prctl there are no tiles, and nothing else is missing. */
static void check_refusal(void)
{
	struct sock_filter refuse[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {KVD_ARRAY_LEN(refuse), refuse};
	uint32_t want = kv_cpu_features() & ~(uint32_t)KV_CPU_AMX;
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		/* Where there are no filters, there is nothing to see. */
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
			_exit(0);
		_exit(kv_cpu_features() == want ? 0 : 1);
	}
	CK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}
#endif

static void check_features(const struct ck *ck)
{
	ck_context("features");
	CK(kv_cpu_mask_parse("c") == KV_CPU_C);
	CK(kv_cpu_mask_parse("avx2") == (KV_CPU_C | KV_CPU_AVX2));
	CK(kv_cpu_mask_parse("avx512vnni") ==
	   (KV_CPU_C | KV_CPU_AVX2 | KV_CPU_AVX512 | KV_CPU_AVX512VNNI));
	CK(kv_cpu_mask_parse("amx") == (KV_CPU_ALL & ~KV_CPU_DOTPROD));
	CK(kv_cpu_mask_parse("dotprod") == (KV_CPU_C | KV_CPU_DOTPROD));
	CK(kv_cpu_mask_parse("0x3") == 3 && kv_cpu_mask_parse("7") == 7);
	CK(kv_cpu_mask_parse("sse9") == -EINVAL && kv_cpu_mask_parse("99") == -EINVAL);
	/* A gap ends the ladder. */
	CK(kv_cpu_features_masked(KV_CPU_C | KV_CPU_AVX512) == KV_CPU_C);
	CK(kv_cpu_features_masked((uint32_t)kv_cpu_mask_parse("c")) == KV_CPU_C);
	CK(strcmp(kv_cpu_bundle_name(ck->features), ck->bundle) == 0);
	CK(!(kv_cpu_features_masked(KV_CPU_ALL & ~KV_CPU_AMX) & KV_CPU_AMX));
#ifdef __x86_64__
	check_refusal();
#endif
}

void check_backend(const struct ck *ck)
{
	static const struct shape shapes[] = {
		{64, 9, 3, 16, 64, KV_ROPE_NORMAL, 3, {530, 17, 256}},
		{128, 4, 4, 32, 128, KV_ROPE_NEOX, 2, {300, 33}},
		{80, 15, 1, 16, 20, KV_ROPE_NEOX, 2, {270, 1}},
		{8, 2, 2, 32, 8, KV_ROPE_NORMAL, 1, {900}},
		{256, 3, 1, 16, 256, KV_ROPE_NORMAL, 1, {70}},
	};

	static const struct shape coded[] = {
		{64, 9, 3, 16, 64, KV_ROPE_NORMAL, 3, {530, 17, 256}},
		{128, 4, 2, 32, 128, KV_ROPE_NEOX, 2, {300, 33}},
		{80, 15, 1, 16, 80, KV_ROPE_NORMAL, 2, {290, 1}},
		{96, 2, 2, 16, 96, KV_ROPE_NORMAL, 1, {60}},
		{112, 2, 1, 32, 112, KV_ROPE_NORMAL, 1, {97}},
		{192, 2, 2, 16, 192, KV_ROPE_NORMAL, 1, {60}},
		{256, 3, 1, 16, 256, KV_ROPE_NORMAL, 1, {70}},
	};
	check_features(ck);
	check_memory();
	check_memory_of_file();
	check_small_ops(ck);
	check_linear_rows(ck);
	if (ck->quick) {
		struct shape small = {16, 2, 1, 16, 16, KV_ROPE_NORMAL, 2, {40, 20}};

		for (int f = 0; f < KV_FORMAT_N; f++) {
			small.k = small.v = f;
			check_steps(ck, &small);
			small.n_seqs = 2;
		}
		return;
	}
	for (size_t i = 0; i < KVD_ARRAY_LEN(coded); i++) {
		/* The small shapes with all pairs, the others with one format for both. */
		for (int pair = 1; pair < KV_FORMAT_N * KV_FORMAT_N; pair++) {
			struct shape s = coded[i];

			s.k = pair / KV_FORMAT_N;
			s.v = pair % KV_FORMAT_N;
			if (s.k == s.v || s.len[0] < 100)
				check_steps(ck, &s);
		}
	}
	for (size_t i = 0; i < KVD_ARRAY_LEN(shapes); i++)
		check_steps(ck, &shapes[i]);
}
