/* SPDX-License-Identifier: MIT */
#ifndef KVD_PROTO_ADMIN_H
#define KVD_PROTO_ADMIN_H

/*
 * Messages on the socket for administration: statistics, clients, quotas, the contents of
 * the cache, pins and flushes, drain, events. As in <kvd/proto.h>, each request after
 * WELCOME gets its reply, or an ERROR.
 *
 * Lists come in pages. Their entries have the size that the reply states, may grow at
 * their end, and are never shorter than in their first version.
 */

#include <stdint.h>

#include <kvd/proto.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------
 * Statistics. STATS is a bare header.
 */

/**
 * struct kvd_stats - the daemon in numbers; grows at its end only
 * @size:        bytes of the struct as its writer knew it
 * @generation:  see struct kvd_server_info
 * @uptime_ns:   since the daemon began to serve
 * @release, @backend, @cache_format: "0.1.0", "avx512", "fp16" or
 *               "k=int8,v=int4"
 * @model:       arch is empty when there is none
 * @pool_bytes:  memory of the block pool, blocks_total * model.block_bytes
 * @bytes_per_token: of a block, with parameters, for one token
 * @blocks_total: = free + cached + active
 * @blocks_free: empty
 * @blocks_cached: hold a prefix that no request uses; may be evicted
 * @blocks_active: in use by a request, or pinned
 * @blocks_pinned: of the active ones, those that an administrator pinned
 * @queried_tokens: prompt tokens that were looked up in the cache
 * @hit_tokens:  of these, found
 * @shared_hit_tokens: of these, computed by another process than the one served
 * @evicted_blocks: cached blocks that made room
 * @requests_*:  running and waiting now; the others since the start
 * @tokens_prompt, @tokens_generated: since the start
 * @clients:     connected now
 * @rings:       open now
 * @sessions_faulty: sessions ended for breaking the contract, since the start
 * @tail_bytes:  memory beside the pool for the blocks that sequences are filling, where
 *               the format quantizes only whole blocks
 * @draining:    1 while new requests for the model are refused (struct kvd_msg_drain)
 * @affinity_refused: 1 where [cpu] affinity is set, but the daemon may not bind its threads
 * @threads:     compute threads
 * @cpus:        left to them by their affinity and the CPU quota of the control groups
 *
 * Without KVD_FEATURE_ADMIN what clients do is counted for the caller's own user only:
 * requests, tokens, rings, connections and faulty sessions since the first of its
 * connections that are open. blocks_active are those of its requests, all others count as
 * free; queried and hit tokens are those of requests that ended; shared hits and evicted
 * blocks are 0.
 */
struct kvd_stats {
	uint32_t size;
	uint32_t reserved0;
	uint64_t generation;
	uint64_t uptime_ns;
	char release[32];
	char backend[32];
	struct kvd_model_info model;
	char cache_format[32];
	uint64_t pool_bytes;
	double bytes_per_token;
	uint64_t blocks_total;
	uint64_t blocks_free;
	uint64_t blocks_cached;
	uint64_t blocks_active;
	uint64_t blocks_pinned;
	uint64_t queried_tokens;
	uint64_t hit_tokens;
	uint64_t shared_hit_tokens;
	uint64_t evicted_blocks;
	uint64_t requests_running;
	uint64_t requests_waiting;
	uint64_t requests_completed;
	uint64_t requests_failed;
	uint64_t requests_cancelled;
	uint64_t tokens_prompt;
	uint64_t tokens_generated;
	uint64_t clients;
	uint64_t rings;
	uint64_t sessions_faulty;
	uint64_t tail_bytes;
	uint64_t draining;
	uint64_t affinity_refused;
	uint64_t threads;
	uint64_t cpus;
};

/* struct kvd_msg_stats_reply - hdr.len says how much of stats is present */
struct kvd_msg_stats_reply {
	struct kvd_msg_hdr hdr;
	struct kvd_stats stats;
};

/* ------------------------------------------------------------------------
 * Clients, in pages.
 */

/**
 * struct kvd_msg_clients - list connected clients
 * @after_id: 0 for the first page, then next_id of the page before
 * @max:      entries wanted, at most KVD_CLIENTS_PAGE; 0: that many
 *
 * Without KVD_FEATURE_ADMIN only clients of the caller's own uid are listed.
 */
struct kvd_msg_clients {
	struct kvd_msg_hdr hdr;
	uint64_t after_id;
	uint32_t max;
	uint32_t reserved;
};

/**
 * struct kvd_client_info - one connection
 * @id:    counts up, never reused within a generation; without KVD_FEATURE_ADMIN it counts
 *         the connections of the caller's user, and may begin again when it has none
 * @uid:   attested by the kernel
 * @pid:   label only: the process that connected may be gone and its pid reused
 * @name:  from HELLO; empty before it, which only an administrator sees, or "(kept)" if
 *         the connection was kept across a restart and has not sent HELLO since
 * @rings, @requests_running, @requests_waiting, @blocks: held now
 * @tokens_*: since it connected
 * @connected_ns: how long ago that was
 * @requests_failed: operations that ended with an error other than -ECANCELED
 * @ttft_ns: time to the first token of the request that ended last; 0: none yet
 * @arena: bytes charged to its user: arenas of its rings, and tokens that they keep for
 *         FORK; the limit is the user's (struct kvd_quota_info)
 */
struct kvd_client_info {
	uint64_t id;
	uint32_t uid;
	uint32_t gid;
	int32_t pid;
	uint32_t rings;
	char name[KVD_NAME_MAX];
	uint32_t requests_running;
	uint32_t requests_waiting;
	uint64_t tokens_prompt;
	uint64_t tokens_generated;
	uint64_t tokens_cached;
	uint64_t blocks;
	uint64_t connected_ns;
	uint64_t requests_failed;
	uint64_t ttft_ns;
	uint64_t arena;
	uint64_t reserved[3];
};
/* Its size in the first version, the least that a daemon sends. */
#define KVD_CLIENT_INFO_SIZE_1 184u

/**
 * struct kvd_msg_clients_reply - one page, by rising id
 * @n:          entries that follow
 * @entry_size: bytes of each (they may grow at their end)
 * @next_id:    after_id of the next page; 0: this was the last
 */
struct kvd_msg_clients_reply {
	struct kvd_msg_hdr hdr;
	uint32_t n;
	uint32_t entry_size;
	uint64_t next_id;
	/* n entries of entry_size bytes follow */
};

/* ------------------------------------------------------------------------
 * Cache flush.
 */

/**
 * struct kvd_msg_cache_flush - flush what may be flushed, in every tier
 * @flags:  0
 * @domain: only this sharing domain ("uid:1000"); empty: every domain that the
 *          caller may flush, for an ordinary client its own
 * @model:  only blocks of this model: its name, or KVD_MODEL_DIGITS or more of the
 *          first hexadecimal digits of its fingerprint; empty: all
 *
 * Running requests keep what they use. -EPERM: not the caller's domain. -ENOENT: the model
 * is not served; the text names the one that is.
 */
#define KVD_MODEL_DIGITS 8u
struct kvd_msg_cache_flush {
	struct kvd_msg_hdr hdr;
	uint32_t flags;
	uint32_t reserved;
	char domain[KVD_NAME_MAX];
	char model[KVD_NAME_MAX];
};

/**
 * struct kvd_flush_counts - what a flush did
 * @flushed_blocks, @flushed_bytes: now free
 * @kept_pinned, @kept_active: blocks that may not be flushed, by reason
 * @remaining: blocks that could be flushed and are still cached; if not 0, the flush
 *             is incomplete
 */
struct kvd_flush_counts {
	uint64_t flushed_blocks;
	uint64_t flushed_bytes;
	uint64_t kept_pinned;
	uint64_t kept_active;
	uint64_t remaining;
	uint64_t reserved[3];
};

struct kvd_msg_cache_flush_reply {
	struct kvd_msg_hdr hdr;
	struct kvd_flush_counts counts;
};

/* ------------------------------------------------------------------------
 * Quotas: limits and use of each user.
 */

/* Bits of kvd_msg_quota.set: which limits to set. */
#define KVD_QUOTA_GUARANTEED  (1u << 0)
#define KVD_QUOTA_BLOCKS      (1u << 1)
#define KVD_QUOTA_RUNNING     (1u << 2)
#define KVD_QUOTA_WAITING     (1u << 3)
#define KVD_QUOTA_CONNECTIONS (1u << 4)
#define KVD_QUOTA_ARENA       (1u << 5)
#define KVD_QUOTA_ALL         63u

/**
 * struct kvd_quota - limits of one user; 0 is no limit, except for guaranteed_blocks
 * @guaranteed_blocks: its running requests keep this many when others need blocks
 * @max_blocks:        held by its requests; a shared one counts for each of them
 * @max_running, @max_waiting: requests
 * @max_connections:   on the socket
 * @max_arena:         bytes of its rings, with what clients still hold of ended ones, and of
 *                     tokens kept for FORK
 */
struct kvd_quota {
	uint32_t guaranteed_blocks;
	uint32_t max_blocks;
	uint32_t max_running;
	uint32_t max_waiting;
	uint32_t max_connections;
	uint32_t reserved;
	uint64_t max_arena;
};

/**
 * struct kvd_msg_quota - list users, or set one's limits first
 * @set:       KVD_QUOTA_* bits: limits of @quota to set for @uid until the daemon exits;
 *             -EPERM without KVD_FEATURE_ADMIN. 0: only list
 * @after_uid: list users above this one; begin with 0, which lists uid 0 as well
 *
 * Lists users that are connected or had limits set; an ordinary client sees only itself.
 */
struct kvd_msg_quota {
	struct kvd_msg_hdr hdr;
	uint32_t set;
	uint32_t uid;
	uint32_t after_uid;
	uint32_t reserved;
	struct kvd_quota quota;
};

/**
 * struct kvd_quota_info - one user
 * @domain: where it shares: "uid:1000" or the name of a [domain NAME]
 * @quota:  its limits
 * @blocks, @running, @waiting, @connections, @arena: current use
 */
struct kvd_quota_info {
	uint32_t uid;
	uint32_t reserved0;
	char domain[KVD_NAME_MAX];
	struct kvd_quota quota;
	uint32_t blocks;
	uint32_t running;
	uint32_t waiting;
	uint32_t connections;
	uint64_t arena;
	uint64_t reserved[4];
};
/* Its size in the first version, the least that a daemon sends. */
#define KVD_QUOTA_INFO_SIZE_1 160u

/**
 * struct kvd_msg_quota_reply - one page, by rising uid
 * @n, @entry_size: entries that follow
 * @next_uid: after_uid of the next page; 0: this was the last
 */
struct kvd_msg_quota_reply {
	struct kvd_msg_hdr hdr;
	uint32_t n;
	uint32_t entry_size;
	uint32_t next_uid;
	uint32_t reserved;
	/* n entries of entry_size bytes follow */
};

/* ------------------------------------------------------------------------
 * The prefixes in the cache.
 */

/**
 * struct kvd_msg_cache_list - list the ends of all prefixes that are cached
 * @after: 0 for the first page, then next of the page before
 *
 * An ordinary client sees those of its own domain, and of public ones those that are
 * pinned: of them own_blocks, readers and frequent are 0, since others read them too.
 */
struct kvd_msg_cache_list {
	struct kvd_msg_hdr hdr;
	uint64_t after;
};

/**
 * struct kvd_prefix_info - a prefix: a chain of blocks whose last one has none after it,
 *                          or is where a pinned prefix ends
 * @id:      valid until its last block is gone
 * @domain:  its owner; "public": shared by all
 * @tokens:  of the whole chain, including what it shares with others
 * @own_blocks: blocks that no other prefix has
 * @readers: requests that read its last block now
 * @pins:    pinned prefixes that have its last block; 0: none, it may be evicted. A pin is a
 *           flag: pinning twice is pinning once, and one UNPIN ends it
 * @frequent: a later request has found it (evicted after those that were not found again)
 */
struct kvd_prefix_info {
	uint64_t id;
	char domain[KVD_NAME_MAX];
	uint64_t tokens;
	uint32_t own_blocks;
	uint32_t readers;
	uint32_t pins;
	uint32_t frequent;
	uint64_t reserved[4];
};
/* Its size in the first version, the least that a daemon sends. */
#define KVD_PREFIX_INFO_SIZE_1 128u

/* struct kvd_msg_cache_list_reply - one page; prefixes may come and go between pages */
struct kvd_msg_cache_list_reply {
	struct kvd_msg_hdr hdr;
	uint32_t n;
	uint32_t entry_size;
	uint64_t next;
	/* n entries of entry_size bytes follow */
};

/* What to do with a prefix. */
enum kvd_prefix_action { KVD_PREFIX_PIN = 1, KVD_PREFIX_UNPIN = 2, KVD_PREFIX_FLUSH = 3 };

/* PIN: requests of every user may read it from now on, and its hits are not secret. */
#define KVD_PREFIX_PUBLIC (1u << 0)
/* FLUSH: and all prefixes that continue it. */
#define KVD_PREFIX_TREE (1u << 1)

/**
 * struct kvd_msg_prefix_control - pin, unpin or flush one prefix
 * @action: enum kvd_prefix_action
 * @flags:  KVD_PREFIX_* bits that belong to the action
 * @id:     from CACHE_LIST_REPLY or KVD_OP_PREFIX_LOOKUP
 *
 * PIN protects the prefix from eviction and flushes until UNPIN or the end of the
 * daemon. It needs KVD_FEATURE_ADMIN (-EPERM), and cannot take more than half of the pool
 * or any block that users are guaranteed (KVD_E_QUOTA; detail = blocks that may be pinned).
 * PIN of a pinned prefix is no error; UNPIN of one that is not pinned is -ENOENT. A public
 * prefix stays public after UNPIN, until it is evicted or flushed. If an equal prefix is
 * public, PIN with PUBLIC pins that one. -EBUSY: its beginning is public in that way, and
 * requests are reading the rest.
 * FLUSH drops the blocks that no other prefix has, even while requests read them; for other
 * domains it needs KVD_FEATURE_ADMIN. -ENOENT: the prefix is gone.
 */
struct kvd_msg_prefix_control {
	struct kvd_msg_hdr hdr;
	uint32_t action;
	uint32_t flags;
	uint64_t id;
};

/**
 * struct kvd_msg_prefix_control_reply - the result
 * @tokens: of the prefix
 * @counts: FLUSH: what it did
 */
struct kvd_msg_prefix_control_reply {
	struct kvd_msg_hdr hdr;
	uint64_t tokens;
	struct kvd_flush_counts counts;
};

/* ------------------------------------------------------------------------
 * Drain: running requests finish, new ones are refused.
 */
enum kvd_drain_action { KVD_DRAIN_ASK = 0, KVD_DRAIN_ON = 1, KVD_DRAIN_OFF = 2 };

/**
 * struct kvd_msg_drain - refuse new requests for the model, or accept them again
 * @action: enum kvd_drain_action; ON and OFF need KVD_FEATURE_ADMIN (-EPERM)
 *
 * While the daemon drains, new GENERATE, FORK and SCORE requests end with KVD_E_DRAINING.
 * Those accepted before run to their end, and everything else works as usual: connections,
 * other operations, administration. It lasts until OFF or the end of the daemon.
 */
struct kvd_msg_drain {
	struct kvd_msg_hdr hdr;
	uint32_t action;
	uint32_t reserved;
};

/**
 * struct kvd_msg_drain_reply - the state after that
 * @draining: 1 or 0
 * @requests: operations of all clients without their final CQE; without
 *            KVD_FEATURE_ADMIN of the caller's user
 */
struct kvd_msg_drain_reply {
	struct kvd_msg_hdr hdr;
	uint32_t draining;
	uint32_t requests;
	uint64_t reserved[2];
};

/* ------------------------------------------------------------------------
 * Events. EVENTS is a bare header; -EPERM without KVD_FEATURE_ADMIN.
 *
 * The first EVENTS of a connection starts watching, and every later one fetches the
 * events since the one before. The daemon keeps KVD_EVENTS_PAGE events for each watcher:
 * ask often enough. Events that find no room are counted and lost.
 */
enum kvd_event_kind {
	KVD_EVENT_CONNECT = 1,    /* after HELLO */
	KVD_EVENT_DISCONNECT = 2, /* @requests were in flight and are cancelled */
	KVD_EVENT_FAULT = 3,      /* broke the contract; DISCONNECT follows */
	KVD_EVENT_REQUEST = 4,    /* a GENERATE, FORK or SCORE ended */
	KVD_EVENT_EVICT = 5,      /* @blocks made room since the event before */
	KVD_EVENT_FLUSH = 6,      /* @blocks are free now */
	KVD_EVENT_LIMIT = 7,      /* @status: refused for a limit; not a REQUEST */
	KVD_EVENT_QUOTA = 8,      /* an administrator changed limits of @uid */
	KVD_EVENT_DRAIN = 9 /* draining begins (@status 1) or ends (0); @requests left */
};

/**
 * struct kvd_event - something that happened; fields that do not apply are 0
 * @time_ns:   since 1970
 * @kind:      enum kvd_event_kind; unknown ones may come
 * @status:    REQUEST: res of its final CQE; LIMIT: the error; DRAIN: see above
 * @client_id: see struct kvd_client_info; 0: refused before it had one
 * @uid:       whose
 * @opcode, @finish_reason, @prompt_tokens, @cached_tokens, @generated_tokens,
 * @ttft_ns, @total_ns: REQUEST: as its final CQE says
 * @blocks, @requests: see enum kvd_event_kind
 * @name:      of the client
 *
 * Events never hold contents of requests.
 */
struct kvd_event {
	uint64_t time_ns;
	uint32_t kind;
	int32_t status;
	uint64_t client_id;
	uint32_t uid;
	uint32_t opcode;
	uint32_t finish_reason;
	uint32_t prompt_tokens;
	uint32_t cached_tokens;
	uint32_t generated_tokens;
	uint64_t ttft_ns;
	uint64_t total_ns;
	uint64_t blocks;
	uint64_t requests;
	char name[KVD_NAME_MAX];
	uint64_t reserved[4];
};
/* Its size in the first version, the least that a daemon sends. */
#define KVD_EVENT_SIZE_1 176u

/**
 * struct kvd_msg_events_reply - events since the reply before
 * @n, @entry_size: events that follow, the oldest first
 * @lost: events after these that found no room
 */
struct kvd_msg_events_reply {
	struct kvd_msg_hdr hdr;
	uint32_t n;
	uint32_t entry_size;
	uint64_t lost;
	/* n entries of entry_size bytes follow */
};

#ifdef __cplusplus
}
#endif

#endif
