/* SPDX-License-Identifier: MIT */
#include "tests/kern/dequant.h"

#include <math.h>
#include <string.h>

struct dq_planes dq_planes(const struct kv_layout *l, const uint8_t *block,
			   uint32_t layer, uint32_t head)
{
	const uint8_t *at = block + kv_layout_head_off(l, layer, head);

	return (struct dq_planes){
		.k = at,
		.v = at + l->v_at,
		.k_params = at + l->k_params_at,
		.v_params = at + l->v_params_at,
		.k_pair = (const uint16_t *)(block + kv_layout_pair_off(l, layer, head)),
	};
}

static double half(const void *at, size_t index)
{
	_Float16 h;

	memcpy(&h, (const uint8_t *)at + 2 * index, 2);
	return (double)h;
}

static double e4m3(uint8_t c)
{
	int exp = c >> 3 & 15, man = c & 7;
	double x = exp == 0 ? ldexp(man, -9) : ldexp(8 + man, exp - 10);

	return c & 0x80 ? -x : x;
}

static double nibble(const uint8_t *codes, size_t index)
{
	return codes[index / 2] >> (index % 2 * 4) & 15;
}

static double asymmetric(const void *params, uint32_t bt, uint32_t t, double c)
{
	return (c - half(params, bt + t)) * half(params, t);
}

void dq_k(const struct kv_layout *l, const struct dq_planes *p, uint32_t t, double *x)
{
	uint32_t bt = l->block_tokens, hd = l->head_dim;

	for (uint32_t d = 0; d < hd; d++) {
		switch (l->k_format) {
		case KV_FORMAT_FP16:
			x[d] = half(p->k, d * bt + t);
			break;
		case KV_FORMAT_INT8:
			x[d] = asymmetric(p->k_params, bt, t,
					  p->k[(d / 4 * bt + t) * 4 + d % 4]);
			break;
		case KV_FORMAT_INT4:
			x[d] = (nibble(p->k, kv_int4_k_index(l, t, d)) - 7.5) *
				       half(p->k_pair, 0) * p->k_params[d] +
			       half(p->k_pair, 1) * (p->k_params[hd + d] - 128.0);
			break;
		default:
			x[d] = e4m3(p->k[d * bt + t]) * half(p->k_params, t);
			break;
		}
	}
}

void dq_v(const struct kv_layout *l, const struct dq_planes *p, uint32_t t, double *x)
{
	uint32_t bt = l->block_tokens, hd = l->head_dim;

	for (uint32_t d = 0; d < hd; d++) {
		switch (l->v_format) {
		case KV_FORMAT_FP16:
			x[d] = half(p->v, t * hd + d);
			break;
		case KV_FORMAT_INT8:
			x[d] = asymmetric(p->v_params, bt, t,
					  p->v[(t / 4 * hd + d) * 4 + t % 4]);
			break;
		case KV_FORMAT_INT4:
			x[d] = asymmetric(p->v_params, bt, t,
					  nibble(p->v, kv_int4_v_index(l, t, d)));
			break;
		default:
			x[d] = e4m3(p->v[t * hd + d]) * half(p->v_params, t);
			break;
		}
	}
}

double dq_tolerance(enum kv_format format, double amax)
{
	switch (format) {
	case KV_FORMAT_FP16:
		return amax * 0x1p-11 + 0x1p-24;
	case KV_FORMAT_INT8: /* range at most 2 amax; clipping by a scale rounded down */
		return amax * (1.0 / 255 + 0x1p-9) + 1e-4;
	case KV_FORMAT_INT4: /* K: the same, and half a step of the minimum */
		return amax * (1.0 / 15 + 0x1p-5) + 1e-4;
	default:
		return amax * (0x1p-4 + 0x1p-10) + 1e-4;
	}
}

void dq_rotate(const double *x, double *y, uint32_t head_dim, int back)
{
	uint32_t base = 0;

	for (uint32_t n = 256; n > 0; n /= 2) {
		if (!(head_dim & n))
			continue;
		for (uint32_t i = 0; i < n; i++) {
			double sum = 0;

			for (uint32_t j = 0; j < n; j++) {
				double v = x[base + j];

				if (!back && kv_rotation_flips(base + j))
					v = -v;
				sum += __builtin_parity(i & j) ? -v : v;
			}
			y[base + i] = sum / sqrt(n);
			if (back && kv_rotation_flips(base + i))
				y[base + i] = -y[base + i];
		}
		base += n;
	}
}
