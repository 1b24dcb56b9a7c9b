/* SPDX-License-Identifier: MIT */
#ifndef KVD_PROTO_H
#define KVD_PROTO_H

/*
 * Messages on the socket: the handshake, notices, opening rings. Those for administration
 * are in <kvd/proto_admin.h>. Requests for tokens go through the rings of <kvd/abi.h>,
 * whose general rules (little endian, reserved means 0, numbers are never reused) apply
 * here too.
 *
 * The socket is AF_UNIX, SOCK_SEQPACKET, at $KVD_SOCKET or KVD_SOCKET_DEFAULT.
 * One message is one packet. The client speaks first:
 *
 *     client                                daemon
 *       | HELLO version, features, name       |
 *       |------------------------------------>|
 *       |         WELCOME limits, model info  |
 *       |<------------------------------------|   or REJECT, then it hangs up
 *       | RING_OPEN sizes                     |
 *       |------------------------------------>|
 *       |       RING_OPENED geometry, 4 fds   |
 *       |<------------------------------------|   or ERROR
 *
 * After WELCOME any request may be sent at any time; each gets exactly one
 * reply, with the request's tag: the reply type that belongs to it, or ERROR. A
 * packet with tag 0 is an unsolicited NOTICE. The daemon identifies its peer by the
 * uid and gid that the kernel attests at connect time (SO_PEERCRED), and by
 * nothing the client says.
 *
 * Clients never pass file descriptors. A packet that carries one, is shorter than
 * its type requires or longer than KVD_MSG_MAX, a header with inconsistent fields,
 * any message before HELLO and a second HELLO end the session. An unknown
 * type is answered with an ERROR of KVD_E_UNSUPPORTED. Closing the socket ends the
 * session, with all its rings and requests.
 *
 * Restart: a connection that asked for KVD_FEATURE_KEEP, and got it, outlives the
 * daemon if the service manager keeps it: once it is a second old, and as long as
 * there is room (see struct kvd_msg_notice). Otherwise it ends with the daemon. Its
 * rings and requests do not outlive it: they belong to one generation.
 *
 * Growth: structs grow at their end only. A receiver that knows less ignores the
 * tail of a reply; the daemon refuses a request with a tail that is not zero
 * (-E2BIG in an ERROR). A receiver that knows more treats what is missing as 0.
 */

#include <stdint.h>

#include <kvd/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVD_SOCKET_DEFAULT "/run/kvd/kvd.sock"
#define KVD_SOCKET_ENV     "KVD_SOCKET"

/* Connections to this socket have administrator's rights (KVD_FEATURE_ADMIN). */
#define KVD_SOCKET_ADMIN "/run/kvd/admin.sock"

/* ------------------------------------------------------------------------
 * Limits.
 */
#define KVD_MSG_MAX      65536u /* bytes of a packet, header included */
#define KVD_MSG_MAX_FDS  4u     /* file descriptors of a packet */
#define KVD_NAME_MAX     64u    /* names of clients, domains, models; with the 0 */
#define KVD_TEXT_MAX     240u   /* text of REJECT and ERROR; with the 0 */
#define KVD_CLIENTS_PAGE 128u   /* entries of one CLIENTS_REPLY */
#define KVD_EVENTS_PAGE  256u   /* entries of one EVENTS_REPLY */

/*
 * Strings are fixed char arrays of UTF-8, always terminated inside the array,
 * the rest of it 0. A name has no control or format characters (Unicode Cc, Cf).
 */

/* ------------------------------------------------------------------------
 * Header and types.
 */

/**
 * struct kvd_msg_hdr - start of every message
 * @len:    bytes of the packet, this header included
 * @type:   enum kvd_msg_type
 * @flags:  0
 * @tag:    chosen by the client, not 0; the reply repeats it
 * @status: 0 in requests; in replies 0, or the error (-errno, KVD_E_*)
 */
struct kvd_msg_hdr {
	uint32_t len;
	uint16_t type;
	uint16_t flags;
	uint32_t tag;
	int32_t status;
};

/* A reply's number is its request's plus 0x8000. */
enum kvd_msg_type {
	KVD_MSG_HELLO = 1,
	KVD_MSG_RING_OPEN = 2,
	KVD_MSG_RING_CLOSE = 3,
	KVD_MSG_STATS = 4,
	KVD_MSG_CLIENTS = 5,
	KVD_MSG_CACHE_FLUSH = 6,
	/*
	 * Numbers reserved for administration: 11 RELOAD, 14 MODEL.
	 */
	KVD_MSG_PREFIX_CONTROL = 7,
	KVD_MSG_QUOTA = 9,
	KVD_MSG_DRAIN = 10,
	KVD_MSG_CACHE_LIST = 12,
	KVD_MSG_EVENTS = 13,

	KVD_MSG_WELCOME = 0x8001,
	KVD_MSG_RING_OPENED = 0x8002,
	KVD_MSG_RING_CLOSED = 0x8003,
	KVD_MSG_STATS_REPLY = 0x8004,
	KVD_MSG_CLIENTS_REPLY = 0x8005,
	KVD_MSG_CACHE_FLUSH_REPLY = 0x8006,
	KVD_MSG_PREFIX_CONTROL_REPLY = 0x8007,
	KVD_MSG_QUOTA_REPLY = 0x8009,
	KVD_MSG_DRAIN_REPLY = 0x800a,
	KVD_MSG_CACHE_LIST_REPLY = 0x800c,
	KVD_MSG_EVENTS_REPLY = 0x800d,

	KVD_MSG_REJECT = 0xfffd, /* instead of WELCOME; the daemon hangs up */
	KVD_MSG_NOTICE = 0xfffe, /* unsolicited; tag 0 */
	KVD_MSG_ERROR = 0xffff   /* instead of any other reply; the session continues */
};

/* ------------------------------------------------------------------------
 * Handshake.
 */
#define KVD_HELLO_MAGIC 0x3144564bu /* "KVD1" */

/**
 * struct kvd_msg_hello - client to daemon, the first packet
 * @magic:    KVD_HELLO_MAGIC
 * @version:  KVD_ABI_VERSION of the client
 * @features: KVD_FEATURE_* bits that the client wants, or 0; bits that the
 *            daemon lacks are no error, WELCOME says which ones it has
 * @name:     a label for people (kvctl clients); grants nothing, may be empty
 */
struct kvd_msg_hello {
	struct kvd_msg_hdr hdr;
	uint32_t magic;
	uint32_t version;
	uint64_t features;
	char name[KVD_NAME_MAX];
};

/*
 * What this daemon, with this model, can do for this client.
 *
 *   GENERATE   GENERATE and SCORE: a model is loaded
 *   TEXT       TEXT input, TOKENIZE, DETOKENIZE
 *   CHAT       CHAT input: the template is known
 *   FORK       n > 1, FORK, KVD_GEN_KEEP
 *   KV         reserved: SPACE_OPEN, KV_*
 *   ADMIN      FLUSH of everything, CLIENTS of all uids
 *   SCORE_TOP  arg of SCORE: alternatives of each position
 *   KEEP       HELLO: understands NOTICE; WELCOME: is kept once a second old
 */
#define KVD_FEATURE_GENERATE  (1ull << 0)
#define KVD_FEATURE_TEXT      (1ull << 1)
#define KVD_FEATURE_CHAT      (1ull << 2)
#define KVD_FEATURE_FORK      (1ull << 3)
#define KVD_FEATURE_KV        (1ull << 4)
#define KVD_FEATURE_ADMIN     (1ull << 5)
#define KVD_FEATURE_SCORE_TOP (1ull << 6)
#define KVD_FEATURE_KEEP      (1ull << 7)

/**
 * struct kvd_model_info - the model that the daemon serves
 * @name:           from the model file, or the file's name
 * @arch:           "llama", "qwen2", ...; empty: no model is loaded
 * @n_layers, @n_kv_heads, @head_dim, @n_vocab: its shape
 * @context_length: tokens of prompt and answer together
 * @block_tokens:   tokens of a cache block; prefixes are shared in these units
 * @bos_id, @eos_id: special tokens, -1 if there is none
 * @block_bytes:    size of a block in the pool
 * @fingerprint:    SHA-256 over everything that affects KV data
 */
struct kvd_model_info {
	char name[KVD_NAME_MAX];
	char arch[32];
	uint32_t n_layers;
	uint32_t n_kv_heads;
	uint32_t head_dim;
	uint32_t n_vocab;
	uint32_t context_length;
	uint32_t block_tokens;
	int32_t bos_id;
	int32_t eos_id;
	uint64_t block_bytes;
	uint8_t fingerprint[32];
	uint64_t reserved[6];
};

/**
 * struct kvd_server_info - the daemon, and what it grants this client
 * @version:        KVD_ABI_VERSION of the daemon
 * @max_rings:      rings open at once
 * @max_sq_entries, @max_cq_entries: of one ring
 * @max_in_flight:  requests of one ring that were taken and are not final
 * @max_msg:        bytes of a packet
 * @features:       KVD_FEATURE_* bits
 * @generation:     counts the daemon's starts; cache contents and rings of
 *                  different generations have nothing to do with each other
 * @max_in_bytes, @max_out_bytes: arenas of one ring
 * @release:        "0.1.0"
 */
struct kvd_server_info {
	uint32_t version;
	uint32_t max_rings;
	uint32_t max_sq_entries;
	uint32_t max_cq_entries;
	uint32_t max_in_flight;
	uint32_t max_msg;
	uint64_t features;
	uint64_t generation;
	uint64_t max_in_bytes;
	uint64_t max_out_bytes;
	char release[32];
	uint64_t reserved[4];
};

/* struct kvd_msg_welcome - daemon to client; hdr.tag is HELLO's */
struct kvd_msg_welcome {
	struct kvd_msg_hdr hdr;
	struct kvd_server_info server;
	struct kvd_model_info model;
};

/**
 * struct kvd_msg_error - REJECT and ERROR; hdr.status holds the code
 * @text:   one line for people, saying what to do about it; never contents of
 *          prompts, addresses or other clients
 * @detail: a number that belongs to the code (a limit, an offset), else 0
 */
struct kvd_msg_error {
	struct kvd_msg_hdr hdr;
	uint64_t detail;
	char text[KVD_TEXT_MAX];
};

/* ------------------------------------------------------------------------
 * Notices.
 */
enum kvd_notice_kind {
	KVD_NOTICE_RESTARTED = 1 /* unknown ones may come; ignore them */
};

/**
 * struct kvd_msg_notice - daemon to client, unasked; hdr.tag and hdr.status are 0
 * @kind:       enum kvd_notice_kind
 * @hello_tag:  RESTARTED: the tag of the HELLO that answers it, not 0
 * @generation: RESTARTED: of the daemon that serves from now on
 *
 * RESTARTED is the first message of a new daemon on a connection that was kept.
 * Everything that the old one granted is void: rings, requests, watching. The client
 * sends HELLO again, with hello_tag as its tag, gets WELCOME, and opens its rings again;
 * the completions in its old rings stay valid, and no more will arrive there.
 *
 * Until that HELLO, for which there is no time limit, the daemon answers every other
 * request with an ERROR of KVD_E_RESTARTED, including those that were unread in the
 * socket when the old daemon died. They were not carried out. A HELLO with another tag
 * answers the notice of a daemon that has died meanwhile, and is dropped: the newest
 * notice counts.
 */
struct kvd_msg_notice {
	struct kvd_msg_hdr hdr;
	uint32_t kind;
	uint32_t hello_tag;
	uint64_t generation;
};

/* ------------------------------------------------------------------------
 * Rings.
 */

/**
 * struct kvd_msg_ring_open - ask for a ring
 * @sq_entries, @cq_entries: powers of two
 * @flags:     0
 * @in_bytes, @out_bytes: arenas, multiples of 4096; 0 where none is needed
 *
 * -EINVAL: other numbers. KVD_E_QUOTA: above the limits of WELCOME.
 */
struct kvd_msg_ring_open {
	struct kvd_msg_hdr hdr;
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint32_t flags;
	uint32_t reserved;
	uint64_t in_bytes;
	uint64_t out_bytes;
};

/* Order of the file descriptors that come with RING_OPENED. */
enum kvd_ring_fd {
	/*
	 * Memory file, client-written. Check before mapping: size, and the
	 * seals SHRINK|GROW|SEAL.
	 */
	KVD_RING_FD_C2D = 0,

	/*
	 * Memory file, daemon-written; PROT_READ only. Check before mapping:
	 * size, and the seals FUTURE_WRITE|SHRINK|GROW|SEAL.
	 */
	KVD_RING_FD_D2C = 1,

	/* Submit doorbell: an eventfd. Write a u64 1 to signal the daemon. */
	KVD_RING_FD_SUBMIT = 2,

	/*
	 * Completion doorbell: the reading end of a pipe, readable when the
	 * daemon has signalled. Read it until EAGAIN; the bytes have no
	 * meaning. It is not an eventfd, because that has one O_NONBLOCK flag
	 * for both sides: a client could clear it and block the daemon's write.
	 */
	KVD_RING_FD_COMPLETE = 3,

	KVD_RING_N_FDS = 4
};

/**
 * struct kvd_msg_ring_opened - a new ring; comes with KVD_RING_N_FDS descriptors
 * @ring_id: names it in RING_CLOSE and in the daemon's log; not 0
 */
struct kvd_msg_ring_opened {
	struct kvd_msg_hdr hdr;
	uint32_t ring_id;
	uint32_t reserved;
	struct kvd_ring_geometry geometry;
};

/*
 * struct kvd_msg_ring_close - end a ring; its requests are cancelled, and their
 * completions are lost. Reply: RING_CLOSED, a bare header. -ENOENT: no such ring.
 */
struct kvd_msg_ring_close {
	struct kvd_msg_hdr hdr;
	uint32_t ring_id;
	uint32_t reserved;
};

#ifdef __cplusplus
}
#endif

#endif
