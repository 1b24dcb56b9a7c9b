/* SPDX-License-Identifier: MIT */
/*
 * The x86 kernels, declared by the function types of the table. A file ends in the name of
 * its bundle, is compiled for that bundle only, and is entered only through the table.
 */
#ifndef KVD_KERNELS_X86_X86_H
#define KVD_KERNELS_X86_X86_H

#include "kernels/cpu/ops.h"

#define KV_DECLARE_GEMM_INT(isa)                                                         \
	kv_act_fn kv_act_##isa;                                                          \
	kv_gemm_fn kv_gemm_nib_sym_##isa, kv_gemm_nib_min_##isa,                         \
		kv_gemm_nib_min32_##isa;                                                 \
	kv_gemm_fn kv_gemm_byte_sym_##isa, kv_gemm_byte_min_##isa;                       \
	kv_gemm_fn kv_gemm_byte_min32_##isa, kv_gemm_byte_half_##isa

#define KV_DECLARE_ATTENTION_INT(isa)                                                    \
	kv_query_fn kv_query_##isa;                                                      \
	kv_span_fn kv_scores_int8_##isa, kv_scores_int4_##isa;                           \
	kv_span_fn kv_sums_int8_##isa, kv_sums_int4_##isa

#define KV_DECLARE_FLOAT(isa)                                                            \
	kv_gemm_fn kv_gemm_f32_##isa, kv_gemm_f16_##isa, kv_gemm_bf16_##isa;             \
	kv_span_fn kv_scores_fp16_##isa, kv_softmax_##isa, kv_sums_fp16_##isa;           \
	kv_merge_fn kv_merge_##isa;                                                      \
	kv_rms_norm_fn kv_rms_norm_##isa;                                                \
	kv_silu_mul_fn kv_silu_mul_##isa;                                                \
	kv_logits_fn kv_logits_##isa;                                                    \
	kv_rope_fn kv_rope_##isa;                                                        \
	kv_store_fn kv_store_k_fp16_##isa, kv_store_v_fp16_##isa;                        \
	kv_span_fn kv_scores_fp8_##isa, kv_sums_fp8_##isa;                               \
	kv_span_fn kv_scores_own_##isa, kv_sums_own_##isa;                               \
	kv_rotate_fn kv_rotate_##isa;                                                    \
	kv_store_fn kv_store_k_int8_##isa, kv_store_v_int8_##isa;                        \
	kv_store_fn kv_store_k_fp8_##isa, kv_store_v_fp8_##isa;                          \
	kv_pack_fn kv_pack_k4_##isa, kv_pack_v4_##isa

/* For many rows. */
kv_act_fn kv_act_many_amx;
kv_gemm_fn kv_gemm_many_nib_sym_amx, kv_gemm_many_nib_min_amx, kv_gemm_many_nib_min32_amx;
kv_gemm_fn kv_gemm_many_byte_sym_amx, kv_gemm_many_byte_min_amx;
kv_gemm_fn kv_gemm_many_byte_min32_amx, kv_gemm_many_byte_half_amx;

KV_DECLARE_GEMM_INT(avx2);
KV_DECLARE_GEMM_INT(avx512);
KV_DECLARE_GEMM_INT(avx512vnni);
KV_DECLARE_ATTENTION_INT(avx2);
KV_DECLARE_ATTENTION_INT(avx512);
KV_DECLARE_ATTENTION_INT(avx512vnni);
KV_DECLARE_FLOAT(avx2);
KV_DECLARE_FLOAT(avx512);

#endif
