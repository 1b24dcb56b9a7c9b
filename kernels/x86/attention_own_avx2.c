/* SPDX-License-Identifier: MIT */
/* Open blocks and fp8 planes with 8 lanes. */
#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

#include "kernels/x86/attention_own.h"

ATTENTION_OWN(avx2)
