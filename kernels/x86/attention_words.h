/* SPDX-License-Identifier: MIT */
/*
 * The part of attention_int.h's primitives that bundles without VNNI share: 16-bit products, two
 * added at a time. The includer has lanes8.h or lanes16.h before, and defines code_load() and
 * split(), which are declared here.
 */
#ifndef KVD_KERNELS_X86_ATTENTION_WORDS_H
#define KVD_KERNELS_X86_ATTENTION_WORDS_H

/* Of each lane's four codes 0 and 2, and 1 and 3, as 16-bit numbers. */
struct codes {
	vint even, odd;
};

INLINE struct codes code_load(const uint8_t *p, uint32_t n);
INLINE void split(vint c, uint8_t *p, uint8_t *q);

INLINE struct codes code_bytes(struct codes c)
{
	return (struct codes){V_BITS(and)(c.even, V(set1_epi16)(255)),
			      V(srli_epi16)(c.even, 8)};
}

INLINE struct codes code_low(struct codes c)
{
	const vint low = V(set1_epi16)(15);

	return (struct codes){V_BITS(and)(c.even, low),
			      V_BITS(and)(V(srli_epi16)(c.even, 8), low)};
}

INLINE struct codes code_high(struct codes c)
{
	const vint low = V(set1_epi16)(15);

	return (struct codes){V_BITS(and)(V(srli_epi16)(c.even, 4), low),
			      V(srli_epi16)(c.even, 12)};
}

/* Added here and now: else the compiler keeps the products for later, on the stack. */
INLINE vsum sum_now(vsum a)
{
	__asm__("" : "+v"(a));
	return a;
}

enum { ONE_SUM = true };

INLINE vsum dot_p(vsum a, struct codes c, const uint8_t *p)
{
	return sum_now(a + (vsum)V(madd_epi16)(c.even, dword(p)));
}

INLINE vsum dot_q(vsum b, struct codes c, const uint8_t *q)
{
	return sum_now(b + (vsum)V(madd_epi16)(c.odd, dword(q)));
}

INLINE vint dot_sum(vsum a, vsum b)
{
	return (vint)a;
}

INLINE void split_64(const vint *c, uint8_t *p, uint8_t *q)
{
#pragma GCC unroll 8
	for (uint32_t i = 0; i < 64 / LANES; i++)
		split(c[i], p + i * LANES, q + i * LANES);
}

INLINE void query_words(const uint8_t *p, const uint8_t *q, int16_t *x)
{
	__m128i even = _mm_loadl_epi64((const void *)p);
	__m128i odd = _mm_loadl_epi64((const void *)q);

	_mm_storeu_si128((void *)x, _mm_unpacklo_epi16(even, odd));
}

/* Words of two products, of at most 15 * 127 each: of eight dwords, no more, they fit. */
INLINE vsum dot_u(vsum a, vint v, vint u)
{
	return sum_now((vsum)V(add_epi16)((vint)a, V(maddubs_epi16)(v, u)));
}

enum { DOT_DWORDS = 8 };

INLINE vint dot_wide(vsum a)
{
	return V(madd_epi16)((vint)a, V(set1_epi16)(1));
}

INLINE vsum dot_dword(vsum a, vint v, const uint8_t *u)
{
	return dot_u(a, v, dword(u));
}

/* 16 times as much would not fit. */
INLINE vint nibbles_high(vint v)
{
	return bytes_low(V(srli_epi16)(v, 4));
}

INLINE vint score_add(vint sum, vint a, vint b)
{
	return add_i(sum, times_16(add_i(a, b)));
}

#endif
