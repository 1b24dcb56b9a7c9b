/* SPDX-License-Identifier: MIT */
#include "kernels/x86/x86.h"

#define GEMM_INT(isa)                                                                    \
	do {                                                                             \
		ops->act = kv_act_##isa;                                                 \
		ops->gemm[KV_FORM_NIB_SYM] = kv_gemm_nib_sym_##isa;                      \
		ops->gemm[KV_FORM_NIB_MIN] = kv_gemm_nib_min_##isa;                      \
		ops->gemm[KV_FORM_NIB_MIN32] = kv_gemm_nib_min32_##isa;                  \
		ops->gemm[KV_FORM_BYTE_SYM] = kv_gemm_byte_sym_##isa;                    \
		ops->gemm[KV_FORM_BYTE_MIN] = kv_gemm_byte_min_##isa;                    \
		ops->gemm[KV_FORM_BYTE_MIN32] = kv_gemm_byte_min32_##isa;                \
		ops->gemm[KV_FORM_BYTE_HALF] = kv_gemm_byte_half_##isa;                  \
	} while (0)

/* Queries have an order of their own in each bundle: all of these come together. */
#define ATTENTION_INT(isa)                                                               \
	do {                                                                             \
		ops->query = kv_query_##isa;                                             \
		ops->scores[KV_FORMAT_INT8] = kv_scores_int8_##isa;                      \
		ops->scores[KV_FORMAT_INT4] = kv_scores_int4_##isa;                      \
		ops->sums[KV_FORMAT_INT8] = kv_sums_int8_##isa;                          \
		ops->sums[KV_FORMAT_INT4] = kv_sums_int4_##isa;                          \
	} while (0)

#define FLOATS(isa)                                                                      \
	do {                                                                             \
		ops->gemm[KV_FORM_F32] = kv_gemm_f32_##isa;                              \
		ops->gemm[KV_FORM_F16] = kv_gemm_f16_##isa;                              \
		ops->gemm[KV_FORM_BF16] = kv_gemm_bf16_##isa;                            \
		ops->scores[KV_FORMAT_FP16] = kv_scores_fp16_##isa;                      \
		ops->softmax = kv_softmax_##isa;                                         \
		ops->sums[KV_FORMAT_FP16] = kv_sums_fp16_##isa;                          \
		ops->merge = kv_merge_##isa;                                             \
		ops->rms_norm = kv_rms_norm_##isa;                                       \
		ops->silu_mul = kv_silu_mul_##isa;                                       \
		ops->logits = kv_logits_##isa;                                           \
		ops->rope = kv_rope_##isa;                                               \
		ops->store_k[KV_FORMAT_FP16] = kv_store_k_fp16_##isa;                    \
		ops->store_v[KV_FORMAT_FP16] = kv_store_v_fp16_##isa;                    \
	} while (0)

#define QUANT(isa)                                                                       \
	do {                                                                             \
		ops->scores[KV_FORMAT_FP8_E4M3] = kv_scores_fp8_##isa;                   \
		ops->sums[KV_FORMAT_FP8_E4M3] = kv_sums_fp8_##isa;                       \
		ops->scores_own = kv_scores_own_##isa;                                   \
		ops->sums_own = kv_sums_own_##isa;                                       \
		ops->rotate = kv_rotate_##isa;                                           \
		ops->store_k[KV_FORMAT_INT8] = kv_store_k_int8_##isa;                    \
		ops->store_v[KV_FORMAT_INT8] = kv_store_v_int8_##isa;                    \
		ops->store_k[KV_FORMAT_FP8_E4M3] = kv_store_k_fp8_##isa;                 \
		ops->store_v[KV_FORMAT_FP8_E4M3] = kv_store_v_fp8_##isa;                 \
		ops->pack_k4 = kv_pack_k4_##isa;                                         \
		ops->pack_v4 = kv_pack_v4_##isa;                                         \
	} while (0)

void kv_cpu_ops_avx2(struct kv_cpu_ops *ops)
{
	GEMM_INT(avx2);
	ATTENTION_INT(avx2);
	FLOATS(avx2);
	QUANT(avx2);
}

void kv_cpu_ops_avx512(struct kv_cpu_ops *ops)
{
	GEMM_INT(avx512);
	ATTENTION_INT(avx512);
	FLOATS(avx512);
	QUANT(avx512);
}

void kv_cpu_ops_avx512vnni(struct kv_cpu_ops *ops)
{
	GEMM_INT(avx512vnni);
	ATTENTION_INT(avx512vnni);
}

void kv_cpu_ops_amx(struct kv_cpu_ops *ops)
{
	ops->act_many = kv_act_many_amx;
	ops->gemm_many[KV_FORM_NIB_SYM] = kv_gemm_many_nib_sym_amx;
	ops->gemm_many[KV_FORM_NIB_MIN] = kv_gemm_many_nib_min_amx;
	ops->gemm_many[KV_FORM_NIB_MIN32] = kv_gemm_many_nib_min32_amx;
	ops->gemm_many[KV_FORM_BYTE_SYM] = kv_gemm_many_byte_sym_amx;
	ops->gemm_many[KV_FORM_BYTE_MIN] = kv_gemm_many_byte_min_amx;
	ops->gemm_many[KV_FORM_BYTE_MIN32] = kv_gemm_many_byte_min32_amx;
	ops->gemm_many[KV_FORM_BYTE_HALF] = kv_gemm_many_byte_half_amx;
}
