/* SPDX-License-Identifier: MIT */
/* Partial blocks and fp8 planes with 16 lanes. */
#include "kernels/x86/lanes16.h"
#include "kernels/x86/x86.h"

INLINE void fp8_widen(const uint8_t *src, uint16_t *dst, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 32) {
		__m512i h =
			_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(src + i)));

		h = _mm512_and_si512(_mm512_slli_epi16(h, 7),
				     _mm512_set1_epi16((short)0xbfff));
		_mm512_store_si512((void *)(dst + i), h);
	}
}

#include "kernels/x86/attention_own.h"

ATTENTION_OWN(avx512)
