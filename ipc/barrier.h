/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_BARRIER_H
#define KVD_IPC_BARRIER_H

/*
 * Every access to a word that two processes share: memory order has one home. The words are
 * plain integers in <kvd/abi.h>. Any thread; relies on the compiler's __atomic builtins.
 *
 * What pairs with what:
 *
 *   store                      load                        carries
 *   sqe.seq, release, client   sqe.seq, acquire, daemon    the SQE, arena bytes
 *   cqe.seq, release, daemon   cqe.seq, acquire, client    the CQE, arena bytes
 *   sq_pos, release, daemon    sq_pos, acquire, client     the slot is free
 *   cq_pos, release, client    cq_pos, acquire, daemon     the slot is free
 *
 * and by a full barrier on both sides (store, barrier, load of the other word;
 * at least one side sees the other's store, so no wakeup is lost):
 *
 *   client                         daemon
 *   sqe.seq      | daemon.flags    daemon NEED_WAKEUP | sqe.seq
 *   client NEED_WAKEUP | cqe.seq   cqe.seq      | client.flags
 *   cq_pos       | daemon.flags    daemon CQ_FULL     | cq_pos
 *   client SQ_FULL | sq_pos        sq_pos       | client.flags
 *
 * Entries are filled field by field, and copied word by word, because a load that is wider than
 * a store shortly before it waits until the CPU has written out all its stores, those to lines
 * that the other side has among them: longer than all else that an entry costs.
 */

#include <stdint.h>

static inline uint64_t shm_load_acquire_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void shm_store_release_u64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* Relaxed: one whole load or store. For entry payloads (ordered by their seq) and flag words
 * (ordered by the barrier). */
static inline uint64_t shm_load_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void shm_store_u64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline uint32_t shm_load_u32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void shm_store_u32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void shm_store_u16(uint16_t *p, uint16_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void shm_store_u8(uint8_t *p, uint8_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

/* Orders earlier stores before later loads. The thread sanitizer knows no fences; there an atomic
 * exchange is a full barrier on the machines that it runs on. */
static inline void shm_full_barrier(void)
{
#if defined(__SANITIZE_THREAD__)
	uint32_t word = 0;

	(void)__atomic_exchange_n(&word, 1, __ATOMIC_SEQ_CST);
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Asks for a line that will be written soon, and that the other side has. A hint, and free of
 * effect where the CPU has none. */
static inline void shm_prefetch_write(const void *p)
{
#if defined(__x86_64__)
	__asm__ __volatile__("prefetchw %0" ::"m"(*(const char *)p));
#else
	__builtin_prefetch(p, 1);
#endif
}

/* In a polling loop: leaves the core to its other hardware thread. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("isb" ::: "memory");
#else
	__asm__ __volatile__("" ::: "memory");
#endif
}

#endif
