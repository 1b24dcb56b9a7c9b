/* SPDX-License-Identifier: MIT */
/*
 * Sums of the lanes of 16 vectors of 16 at once: a transposition that adds on its way; and the
 * largest of their words likewise.
 * Included after attention_int.h by files compiled for AVX-512.
 */
#ifndef KVD_KERNELS_X86_SUMS_OF16_H
#define KVD_KERNELS_X86_SUMS_OF16_H

_Static_assert(KV_SPAN_BLOCKS == 16, "as many sums as lanes");

/* Lane i of a plus lane i of b in what is left of four: the pairs of each 128 bits. */
INLINE __m512i pairs_32(__m512i a, __m512i b)
{
	return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

INLINE __m512i pairs_64(__m512i a, __m512i b)
{
	return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Of each four vectors one, whose lane 4 k + i belongs to vector i. */
INLINE __m512i sums_of_4(const __m512i *v)
{
	return pairs_64(pairs_32(v[0], v[1]), pairs_32(v[2], v[3]));
}

INLINE void sums_of(const vint *v, int32_t *ret)
{
	__m512i r[4], a, b;

#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		r[i] = sums_of_4(v + 4 * i);
	a = _mm512_add_epi32(_mm512_shuffle_i32x4(r[0], r[1], 0x88),
			     _mm512_shuffle_i32x4(r[0], r[1], 0xdd));
	b = _mm512_add_epi32(_mm512_shuffle_i32x4(r[2], r[3], 0x88),
			     _mm512_shuffle_i32x4(r[2], r[3], 0xdd));
	_mm512_store_si512(ret, _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88),
						 _mm512_shuffle_i32x4(a, b, 0xdd)));
}

INLINE __m512i top_32(__m512i a, __m512i b)
{
	return max_w(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

INLINE __m512i top_64(__m512i a, __m512i b)
{
	return max_w(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

INLINE __m512i top_128(__m512i a, __m512i b)
{
	return max_w(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* The largest word of each vector. */
INLINE void tops_of(const vint *v, int32_t *ret)
{
	__m512i r[4], top;

#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		r[i] = top_64(top_32(v[4 * i], v[4 * i + 1]),
			      top_32(v[4 * i + 2], v[4 * i + 3]));
	top = top_128(top_128(r[0], r[1]), top_128(r[2], r[3]));
	top = max_w(top, _mm512_srli_epi32(top, 16));
	_mm512_store_si512(ret, _mm512_and_si512(top, _mm512_set1_epi32(0xffff)));
}

#endif
