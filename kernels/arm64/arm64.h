/* SPDX-License-Identifier: MIT */
/*
 * The arm64 kernels, declared by the function types of the table. What is not here is the
 * reference's: queries, attention and rows, in plain C for the baseline, which has vectors.
 */
#ifndef KVD_KERNELS_ARM64_ARM64_H
#define KVD_KERNELS_ARM64_ARM64_H

#include "kernels/cpu/ops.h"

kv_act_fn kv_act_dotprod;
kv_gemm_fn kv_gemm_nib_sym_dotprod, kv_gemm_nib_min_dotprod, kv_gemm_nib_min32_dotprod;
kv_gemm_fn kv_gemm_byte_sym_dotprod, kv_gemm_byte_min_dotprod;
kv_gemm_fn kv_gemm_byte_min32_dotprod, kv_gemm_byte_half_dotprod;

#endif
