/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_BARRIER_H
#define KVD_IPC_BARRIER_H

/* Stands in for ipc/barrier.h: each access to a shared word is a step of test_ring_model.c, between
 * which the other side may act. The rings are compiled with it a second time. */

#include <stdint.h>

uint64_t shm_load_acquire_u64(const uint64_t *p);
void shm_store_release_u64(uint64_t *p, uint64_t v);
uint64_t shm_load_u64(const uint64_t *p);
void shm_store_u64(uint64_t *p, uint64_t v);
uint32_t shm_load_u32(const uint32_t *p);
void shm_store_u32(uint32_t *p, uint32_t v);
void shm_store_u16(uint16_t *p, uint16_t v);
void shm_store_u8(uint8_t *p, uint8_t v);
void shm_prefetch_write(const void *p);
void shm_full_barrier(void);

#endif
