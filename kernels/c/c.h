/* SPDX-License-Identifier: MIT */
/*
 * The reference kernels: one definition of each row of struct kv_cpu_ops, in plain C, written
 * to be read. Declared by the function types of the table, so that prototypes cannot drift.
 *
 * The formulas at each kernel name every float operation and its order. "fma(a, b, c)" is
 * a * b + c rounded once; a sum "in 16 lanes" adds element 16 i + j to lane j in order of i,
 * from 0, then the lanes by kv_tree_sum_c(). Integer sums are exact.
 */
#ifndef KVD_KERNELS_C_C_H
#define KVD_KERNELS_C_C_H

#include "kernels/cpu/ops.h"

kv_act_fn kv_act_c;
kv_gemm_fn kv_gemm_nib_sym_c, kv_gemm_nib_min_c, kv_gemm_nib_min32_c;
kv_gemm_fn kv_gemm_byte_sym_c, kv_gemm_byte_min_c, kv_gemm_byte_min32_c;
kv_gemm_fn kv_gemm_byte_half_c;
kv_gemm_fn kv_gemm_f32_c, kv_gemm_f16_c, kv_gemm_bf16_c;
kv_query_fn kv_query_c;
kv_span_fn kv_scores_fp16_c, kv_scores_int8_c, kv_scores_int4_c, kv_scores_fp8_c;
kv_span_fn kv_sums_fp16_c, kv_sums_int8_c, kv_sums_int4_c, kv_sums_fp8_c;
kv_span_fn kv_scores_own_c, kv_softmax_c, kv_sums_own_c;
kv_merge_fn kv_merge_c;
kv_rms_norm_fn kv_rms_norm_c;
kv_silu_mul_fn kv_silu_mul_c;
kv_logits_fn kv_logits_c;
kv_rope_fn kv_rope_c;
kv_rotate_fn kv_rotate_c;
kv_store_fn kv_store_k_fp16_c, kv_store_v_fp16_c;
kv_store_fn kv_store_k_int8_c, kv_store_v_int8_c;
kv_store_fn kv_store_k_fp8_c, kv_store_v_fp8_c;
kv_pack_fn kv_pack_k4_c, kv_pack_v4_c;

/* Sum of 16 lanes: 8 apart, 4, 2, 1. */
float kv_tree_sum_c(const float lanes[16]);

#endif
