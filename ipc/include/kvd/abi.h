/* SPDX-License-Identifier: MIT */
#ifndef KVD_ABI_H
#define KVD_ABI_H

/*
 * The shared-memory contract between kvd and its clients: the contents of the two
 * memory regions of a ring, who may write which word, and what each operation
 * takes and returns. kvd-abi(7) describes the same with drawings, for clients
 * without libkvclient. The messages that set up a ring are in <kvd/proto.h>.
 *
 * Rules that apply everywhere:
 *
 *  - Little endian, fixed widths, natural alignment, no pointers: an address is
 *    an offset from the start of an arena, and a length in bytes.
 *  - Reserved fields and unknown flag bits must be zero. The daemon checks them:
 *    an unknown value completes with -EINVAL and is never ignored.
 *  - Each shared word has one writer, which its comment names.
 *  - Numbers are never reused, and structs of one ABI version never change their
 *    layout. Extensions get a new number, a reserved field or a new struct.
 *
 * Strict C99 and C++, needs <stdint.h> only.
 */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Version of this contract, sent in HELLO. It changes only if old clients would
 * break; anything else is announced by a feature bit of WELCOME.
 */
#define KVD_ABI_VERSION 1u

/* ------------------------------------------------------------------------
 * Limits. A daemon may be configured with lower ones, which WELCOME reports; they
 * are never higher within one ABI version.
 */
#define KVD_MAX_SQ_ENTRIES    4096u       /* power of two, at least 1 */
#define KVD_MAX_CQ_ENTRIES    16384u      /* power of two, at least 1 */
#define KVD_MAX_ARENA_BYTES   (64u << 20) /* each arena; a multiple of 4096, or 0 */
#define KVD_MAX_RINGS         16u         /* open at once on one connection */
#define KVD_MAX_IN_FLIGHT     4096u       /* accepted and not yet final, per ring */
#define KVD_MAX_STOP          16u         /* stop strings of one request */
#define KVD_MAX_STOP_LEN      256u        /* bytes of one stop string, at least 1 */
#define KVD_MAX_CHAT_MESSAGES 1024u       /* messages of one CHAT input */
#define KVD_MAX_CHAT_ROLE_LEN 64u         /* bytes of one role name, at least 1 */
#define KVD_MAX_TOP           256u        /* alternatives of one position of a SCORE */
#define KVD_MAX_TEXT_BYTES    (1u << 20)  /* of a TEXT, or of all records of a CHAT */
#define KVD_MAX_DETOKENIZE    (1u << 20)  /* token ids of one DETOKENIZE */

/* ------------------------------------------------------------------------
 * Rings.
 *
 * Two memory files per ring, both made, sized and sealed by the daemon:
 *
 *   C2D, written by the client          D2C, written by the daemon
 *   0      struct kvd_client_page       0      struct kvd_daemon_page
 *   sq_off SQ entries, 64 bytes each    cq_off CQ entries, 64 bytes each
 *   in_off input arena                  out_off output arena
 *
 * The client maps C2D readable and writable and D2C read-only, as the seals
 * enforce. Offsets come from struct kvd_ring_geometry, never from constants.
 *
 * Entries carry their own sequence word. Positions count from 0 and never wrap
 * (64 bits). Entry i lives in slot i & (entries - 1) and is published by storing
 * seq = i + 1 with release order, after all its other bytes were written. The
 * consumer at position i waits until the slot's seq, loaded with acquire order,
 * is i + 1. A file of zeros is thus an empty ring, and a message moves one cache
 * line. Until it is published the slot holds the seq of one lap ago,
 * i + 1 - entries, or 0 in the first lap. Any other value, and one that goes back
 * after it was published, is a fault of the producer: the daemon ends the session
 * of such a client.
 *
 * A producer may fill slot i only when i - position < entries, where position is
 * the consumer's published word (sq_pos, cq_pos). Consumers publish lazily: at
 * the latest when a quarter of the ring has been consumed since the last time,
 * before they sleep, and at once when the producer has announced that it waits
 * (KVD_CLIENT_SQ_FULL, KVD_DAEMON_CQ_FULL). A published position that goes back,
 * or passes what was produced, ends the session.
 *
 * Arena bytes may change at any moment, even to zero: the daemon copies what it
 * needs once and uses only the copy. A client that changes bytes before the final
 * CQE of a request harms only that request.
 */

/**
 * struct kvd_ring_geometry - layout of the two files of a ring
 *
 * Part of RING_OPENED; a copy is at the start of D2C for debuggers. Constant
 * for the life of the ring. Offsets and sizes are in bytes, from the file's
 * start, multiples of 64 (entries) and 4096 (arenas, file sizes).
 *
 * off size
 *   0   4  sq_entries  power of two
 *   4   4  cq_entries  power of two
 *   8   8  sq_off      SQ entries, in C2D
 *  16   8  cq_off      CQ entries, in D2C
 *  24   8  in_off      input arena, in C2D
 *  32   8  in_bytes
 *  40   8  out_off     output arena, in D2C
 *  48   8  out_bytes
 *  56   8  c2d_bytes   size of the file C2D
 *  64   8  d2c_bytes   size of the file D2C
 *  72  24  reserved    0
 */
struct kvd_ring_geometry {
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint64_t sq_off;
	uint64_t cq_off;
	uint64_t in_off;
	uint64_t in_bytes;
	uint64_t out_off;
	uint64_t out_bytes;
	uint64_t c2d_bytes;
	uint64_t d2c_bytes;
	uint64_t reserved[3];
};

/**
 * struct kvd_client_page - first page of C2D; every word written by the client
 * @cq_pos: CQ entries consumed so far (release; the daemon loads with acquire)
 * @flags:  KVD_CLIENT_* bits
 *
 * The two words are 128 bytes apart, so that neither moves the other's cache line,
 * or the adjacent one that the prefetcher fetches with it, between the CPUs.
 */
struct kvd_client_page {
	uint64_t cq_pos;
	uint64_t reserved0[15];
	uint32_t flags;
	uint32_t reserved1;
	uint64_t reserved2[495];
};

/*
 * The client sleeps, or is about to: after posting CQEs the daemon signals the
 * completion doorbell. Set it, full barrier, check the CQ once more, then
 * sleep; clear it after waking. The barrier pairs with the daemon's between its
 * store of a CQE's seq and its load of this word.
 */
#define KVD_CLIENT_NEED_WAKEUP (1u << 0)

/*
 * The SQ is full and the client waits for room: the daemon publishes sq_pos as
 * soon as it has taken entries, and signals the completion doorbell.
 */
#define KVD_CLIENT_SQ_FULL (1u << 1)

/**
 * struct kvd_daemon_page - first page of D2C; every word written by the daemon
 * @magic:    KVD_RING_MAGIC
 * @version:  KVD_ABI_VERSION
 * @geometry: as in RING_OPENED
 * @sq_pos:   SQ entries taken so far (release; the client loads with acquire)
 * @flags:    KVD_DAEMON_* bits
 */
struct kvd_daemon_page {
	uint32_t magic;
	uint32_t version;
	struct kvd_ring_geometry geometry;
	uint64_t reserved0[3];
	uint64_t sq_pos;
	uint64_t reserved1[15];
	uint32_t flags;
	uint32_t reserved2;
	uint64_t reserved3[479];
};

#define KVD_RING_MAGIC 0x3144564bu /* "KVD1" */

/*
 * The daemon does not watch this SQ: after publishing SQEs, full barrier, load
 * flags, and signal the submit doorbell if this bit is set. It is set in a new
 * ring.
 */
#define KVD_DAEMON_NEED_WAKEUP (1u << 0)

/*
 * The daemon holds CQEs for which the CQ had no room; the ring's requests pause,
 * nothing is lost, and no further SQE is taken. After consuming CQEs: publish
 * cq_pos, full barrier, load flags, and signal the submit doorbell if this bit is
 * set.
 */
#define KVD_DAEMON_CQ_FULL (1u << 1)

/* ------------------------------------------------------------------------
 * Submission.
 */

/**
 * struct kvd_sqe - one request, 64 bytes, one cache line
 *
 * off size
 *   0   8  seq         position + 1, stored last
 *   8   8  user_data   returned unchanged in each CQE of the request
 *  16   1  opcode      enum kvd_op
 *  17   1  flags       KVD_SQE_* bits
 *  18   2  input       enum kvd_input: what the input bytes are
 *  20   4  in_len      input bytes
 *  24   8  in_off      where they start in the input arena
 *  32   8  out_off     where the daemon may write in the output arena
 *  40   4  out_len     how many bytes it may write there
 *  44   4  params_len  parameter bytes, 0 for defaults
 *  48   8  params_off  where they start in the input arena
 *  56   8  arg         by opcode
 *
 * Offsets count from the start of their arena; where a length is 0 the offset
 * must be 0 too. They need no alignment except out_off, a multiple of 4. The
 * bytes belong to the daemon from publishing until the final CQE. Bytes outside
 * their arena end the request with -EFAULT.
 *
 * Every SQE that is taken yields exactly one final CQE (without
 * KVD_CQE_MORE), whatever happens to it. Requests run in parallel and complete
 * in any order.
 */
struct kvd_sqe {
	uint64_t seq;
	uint64_t user_data;
	uint8_t opcode;
	uint8_t flags;
	uint16_t input;
	uint32_t in_len;
	uint64_t in_off;
	uint64_t out_off;
	uint32_t out_len;
	uint32_t params_len;
	uint64_t params_off;
	uint64_t arg;
};

/* What a request asks for. Fields that an operation does not name must be 0. */
enum kvd_op {
	/*
	 * Nothing. All fields but user_data and seq are 0. res = 0. Measures
	 * the round trip, and shows that the daemon is alive.
	 */
	KVD_OP_NOP = 0,

	/*
	 * Continue a prompt. Takes input (TOKENS, TEXT, CHAT), params (struct
	 * kvd_gen_params, or none), flags NO_SPECIAL and NO_BOS.
	 *
	 * Each token gives one CQE with MORE set and the token payload: its
	 * id, its logprob and the text bytes that became safe to show with it.
	 * There may be none (half a UTF-8 character, or the beginning of a
	 * possible stop string) or those of several tokens; beyond 28 bytes,
	 * CQEs with MORE and PIECE follow that carry only bytes. Concatenated
	 * they are the text, up to and without a stop string. Each CQE carries
	 * whole UTF-8 characters. An incomplete character at the end of the
	 * answer is dropped; bytes that can never form one become U+FFFD, one
	 * for each maximal subpart. DETOKENIZE returns the bytes of the tokens
	 * themselves. The model's end token is delivered and counted like any
	 * other, but has no text.
	 *
	 * The final CQE carries the usage payload; res = the number of tokens
	 * sent, or an error.
	 */
	KVD_OP_GENERATE = 1,

	/*
	 * The log probability that the model gives to each token of the input,
	 * given those before it. Takes input (all kinds), out, flags NO_SPECIAL
	 * and NO_BOS. For n tokens the output is u32 ids[n], then f32
	 * logprobs[n], 8n bytes; logprobs[0] is 0. res = n. out_len too small:
	 * -ENOBUFS, nothing written, usage.detail = the bytes it needs.
	 *
	 * arg = top | first << 32 asks for alternatives (KVD_FEATURE_SCORE_TOP):
	 * for each of the m = n - first positions from first on, the
	 * distribution of the token after it; for the last one, that of the
	 * token after the input. The 8n bytes above are followed, with top in
	 * 1..KVD_MAX_TOP, by the likeliest tokens of each position, likeliest
	 * first (the lower id among equals):
	 *     u32 ids[m][top], f32 logprobs[m][top]
	 * and with top = KVD_TOP_ALL by the logprobs of the whole vocabulary:
	 *     f32 logprobs[m][n_vocab]
	 * They are written while the request runs. -EINVAL: first is not below
	 * n, top is above KVD_MAX_TOP or n_vocab, or first without top.
	 */
	KVD_OP_SCORE = 2,

	/*
	 * Text to token ids. Takes input (TEXT, CHAT: the template's whole
	 * rendering), out, flags NO_SPECIAL and NO_BOS. Output u32 ids[res].
	 * out_len too small: as SCORE.
	 */
	KVD_OP_TOKENIZE = 3,

	/*
	 * Token ids to text. Takes input (TOKENS), out, flag SKIP_SPECIAL.
	 * Output res bytes, not terminated; UTF-8 characters may be cut at
	 * both ends. out_len too small: as SCORE.
	 */
	KVD_OP_DETOKENIZE = 4,

	/*
	 * End the requests of this ring whose user_data is arg. Each of them
	 * gets its own final CQE, -ECANCELED, unless it has just ended. What
	 * KVD_GEN_KEEP has kept under that user_data is forgotten. res of the
	 * CANCEL itself: how many it ends or forgets, or -ENOENT.
	 */
	KVD_OP_CANCEL = 5,

	/*
	 * GENERATE that begins with tokens of another sequence of this ring: arg
	 * is the user_data of a GENERATE or FORK that is running, or has ended
	 * with KVD_GEN_KEEP. The first fork_at tokens of it (prompt and answer
	 * together; 0: all so far) are followed by the input, which may be empty
	 * (TOKENS, or TEXT, with no special tokens put first). The other sequence
	 * does not change. Takes params as GENERATE; the prefix counts as prompt
	 * and is not sent again. What is already computed is shared; rows of the
	 * block that the new sequence writes into are copied or computed again,
	 * as the KV format requires, with the same answer.
	 * -ENOENT: no such sequence, or fork_at beyond its end (detail = its
	 * tokens).
	 */
	KVD_OP_FORK = 8,

	/*
	 * How much of a prompt is cached. Takes input (TOKENS, TEXT, CHAT), flags
	 * NO_SPECIAL and NO_BOS. res = how many of its leading tokens are cached, a
	 * multiple of the block size; usage.prompt_tokens = its tokens, and where res
	 * is not 0 usage.detail = the id of the prefix that was found, for
	 * KVD_MSG_PREFIX_CONTROL. Computes nothing, keeps nothing, and does not count
	 * as a use. Sees what a GENERATE without a salt would find.
	 */
	KVD_OP_PREFIX_LOOKUP = 9

	/*
	 * Numbers reserved for operations that are not implemented yet; they
	 * complete with -EINVAL, like any unknown number:
	 *   16 SPACE_OPEN  17 KV_LOOKUP  18 KV_GET     19 KV_PUT
	 *   20 KV_UNPIN    21 KV_DELETE  22 KV_MAP
	 */
};

/* In text, "<|im_end|>" and the like are plain characters, not control tokens. Tokens that a
 * model defines for text ("<think>") are still recognised. */
#define KVD_SQE_NO_SPECIAL (1u << 0)
/* Do not put a beginning-of-sequence token first, even if the model asks for it. */
#define KVD_SQE_NO_BOS (1u << 1)
/* DETOKENIZE: special tokens give no text. */
#define KVD_SQE_SKIP_SPECIAL (1u << 2)

/* SCORE: every token of the vocabulary, in the order of ids. */
#define KVD_TOP_ALL 0xffffffffu

/* What is at in_off. */
enum kvd_input {
	KVD_INPUT_NONE = 0,

	/* u32 ids[in_len / 4], each below n_vocab; in_len is a multiple of 4. */
	KVD_INPUT_TOKENS = 1,

	/* UTF-8, not terminated. Invalid UTF-8 ends with KVD_E_TEXT. */
	KVD_INPUT_TEXT = 2,

	/*
	 * A conversation, in the chat template of the model. Records of
	 *     u32 role_len, u32 content_len, role bytes, content bytes
	 * packed, without padding, exactly in_len bytes in all. Roles are
	 * exactly "system", "user" or "assistant"; any other ends with -EINVAL,
	 * usage.detail = the index of its message. Content is always plain
	 * characters (never control tokens). The assistant's answer comes next.
	 */
	KVD_INPUT_CHAT = 3
};

/**
 * struct kvd_gen_params - how GENERATE chooses tokens and when it ends
 * @size:        sizeof(struct kvd_gen_params) of the caller; at least
 *               KVD_GEN_PARAMS_SIZE_1, and bytes beyond what the daemon
 *               knows must be 0
 * @flags:       KVD_GEN_* bits
 * @max_tokens:  end after this many; 0: only at the model's end token, a stop
 *               string or the end of the context
 * @n:           sequences, at most KVD_MAX_N; 0 is 1. Each draws with the seed plus
 *               its index. They share the prompt's blocks, and their CQEs are mixed:
 *               KVD_CQE_INDEX() tells them apart. The last CQE of each carries its
 *               usage; all but the request's final one have KVD_CQE_END and MORE set
 * @top_k:       keep the k likeliest tokens; 0: all
 * @temperature: 0: always the likeliest token; else the logits are divided by it
 * @top_p:       keep the likeliest tokens up to this probability sum; 0 or 1: all
 * @min_p:       keep tokens at least this likely relative to the likeliest; 0: all
 * @seed:        the choice depends on seed and position only: same seed, same
 *               model, same prompt, same answer
 * @n_stop:      stop strings, at most KVD_MAX_STOP
 * @priority:    -100..100, lower runs earlier, as in vLLM; it orders the requests of
 *               one user and takes nothing from another
 * @timeout_ms:  ends with KVD_E_DEADLINE when it takes longer than this; 0: never
 * @fork_at:     FORK only, else 0
 * @salt:        prefixes are shared only with requests of the same salt; 0: none. It
 *               narrows sharing inside the domain of the user and never widens it
 *
 * The stop strings follow at params_off + size, as n_stop records of u32 len and
 * len bytes of UTF-8, packed, and fill params_len exactly. NaN and values outside of
 * 0 <= temperature <= 100, 0 <= top_p, min_p <= 1 end with -EINVAL.
 */
struct kvd_gen_params {
	uint32_t size;
	uint32_t flags;
	uint32_t max_tokens;
	uint32_t n;
	uint32_t top_k;
	float temperature;
	float top_p;
	float min_p;
	uint64_t seed;
	uint32_t n_stop;
	int32_t priority;
	uint32_t timeout_ms;
	uint32_t fork_at;
	uint64_t salt;
};

#define KVD_GEN_PARAMS_SIZE_1 64u
#define KVD_MAX_N             16u /* sequences of one request */
#define KVD_MAX_KEPT          64u /* ended sequences that a ring keeps for FORK */
#define KVD_MAX_PRIORITY      100 /* and the same below 0 */

/* Fill in logprob, and set KVD_CQE_LOGPROB. It costs a little time. */
#define KVD_GEN_LOGPROBS (1u << 0)
/* The model's end token does not end the answer. */
#define KVD_GEN_IGNORE_EOS (1u << 1)
/* Reserved for ECHO (prompt tokens first); not implemented, -EINVAL. */
#define KVD_GEN_ECHO (1u << 2)
/*
 * Remember the tokens after the end, for FORK, until CANCEL or the end of the ring.
 * Beyond KVD_MAX_KEPT the oldest is forgotten. Not with n > 1. A request that is refused,
 * or fails before its first token (res < 0 other than -ECANCELED, generated_tokens 0), is
 * not remembered. When the request is taken, four bytes for each token of prompt and
 * answer, at its greatest length, are charged to the user: KVD_E_QUOTA with detail =
 * max_arena if that is too much.
 */
#define KVD_GEN_KEEP (1u << 3)

/* ------------------------------------------------------------------------
 * Completion.
 */

/* Most text bytes in one CQE. */
#define KVD_CQE_BYTES 28u

/**
 * struct kvd_cqe_token - payload of a CQE with KVD_CQE_MORE
 * @token:   id of the token; with KVD_CQE_PIECE 0, without meaning
 * @logprob: natural logarithm of its probability under the model (before
 *           temperature); 0 unless KVD_CQE_LOGPROB is set
 * @n_bytes: how many of @bytes count, 0..28
 */
struct kvd_cqe_token {
	int32_t token;
	float logprob;
	uint8_t n_bytes;
	uint8_t reserved[3];
	uint8_t bytes[KVD_CQE_BYTES];
};

/**
 * struct kvd_cqe_usage - payload of the final CQE
 * @prompt_tokens:    tokens of the input; if known, also when it is refused
 * @cached_tokens:    of these, how many came from the cache
 * @generated_tokens: tokens delivered
 * @finish_reason:    enum kvd_finish
 * @ttft_ns:          from taking the SQE to the first token; 0 if there was none
 * @total_ns:         from taking the SQE to this CQE
 * @detail:           a number that explains the error, see below; else 0
 */
struct kvd_cqe_usage {
	uint32_t prompt_tokens;
	uint32_t cached_tokens;
	uint32_t generated_tokens;
	uint32_t finish_reason;
	uint64_t ttft_ns;
	uint64_t total_ns;
	uint64_t detail;
};

/**
 * struct kvd_cqe - one completion, 64 bytes, one cache line
 *
 * off size
 *   0   8  seq        position + 1, stored last
 *   8   8  user_data  of the SQE
 *  16   4  res        0 or a count; -1..-4095: -errno; below: KVD_E_*
 *  20   4  flags      KVD_CQE_* bits
 *  24  40  payload    MORE set: token; else: usage
 */
struct kvd_cqe {
	uint64_t seq;
	uint64_t user_data;
	int32_t res;
	uint32_t flags;
	union {
		struct kvd_cqe_token token;
		struct kvd_cqe_usage usage;
		uint8_t raw[40];
	} u;
};

/* More CQEs of this request follow. The one without it is the last. */
#define KVD_CQE_MORE (1u << 0)
/* Only bytes: more text of the previous token, or text that was held back. */
#define KVD_CQE_PIECE (1u << 1)
/* token.logprob is valid. */
#define KVD_CQE_LOGPROB (1u << 2)
/*
 * With MORE: one sequence of several has ended; the payload is its usage and res its
 * result, the others continue. The request's final CQE is the same without both flags.
 */
#define KVD_CQE_END (1u << 3)
/* Which sequence of a GENERATE with n > 1 a CQE belongs to; else 0. */
#define KVD_CQE_INDEX(flags) ((uint32_t)(flags) >> 24)

/* Why a request ended. */
enum kvd_finish {
	KVD_FINISH_NONE = 0,      /* not a GENERATE */
	KVD_FINISH_STOP = 1,      /* the model's end token, or a stop string */
	KVD_FINISH_LENGTH = 2,    /* max_tokens, or the end of the context */
	KVD_FINISH_CANCELLED = 3, /* CANCEL; res is -ECANCELED */
	KVD_FINISH_ERROR = 4      /* res says which */
};

/* ------------------------------------------------------------------------
 * Errors. Negative numbers from -1 to -4095 are -errno with the usual meaning:
 *
 *   -EINVAL     unknown opcode, flag or input kind; a reserved field that is
 *               not 0; a parameter outside its range; a malformed record
 *   -EFAULT     an offset and length outside the arena
 *   -ENOBUFS    out_len too small; usage.detail = bytes needed
 *   -E2BIG      more than KVD_MAX_TEXT_BYTES of text, KVD_MAX_DETOKENIZE ids, or
 *               KVD_MAX_CHAT_MESSAGES messages; usage.detail = the limit
 *   -ENOENT     CANCEL found nothing
 *   -ECANCELED  ended by CANCEL or by closing the ring
 *   -ENOMEM     the daemon is out of memory for its own bookkeeping
 *   -ECONNRESET the daemon went away (reported by the client library)
 *   -EPERM      an administrative message that the client may not send
 *
 * Below them are kvd's own, KVD_E_BASE down to KVD_E_MIN: res <= KVD_E_BASE tells them from
 * -errno. A number keeps its meaning for ever; new ones may be added.
 */
#define KVD_E_BASE (-4096)
#define KVD_E_MIN  (-8191)

/* A message or ring that breaks the contract; the session ends. */
#define KVD_E_PROTO (-4096)
/* HELLO asked for an ABI version that this daemon does not speak. */
#define KVD_E_VERSION (-4097)
/*
 * The daemon restarted and the request was lost: its answer would not be the same
 * again, or part of it was already delivered. Send it again if that is acceptable.
 */
#define KVD_E_RESTARTED (-4098)
/* A limit of this user is reached; detail = the limit. Others are not affected. */
#define KVD_E_QUOTA (-4099)
/* No model is loaded: only NOP, statistics and administration work. */
#define KVD_E_MODEL_NONE (-4100)
/* The prompt and one token do not fit the context; detail = context length. */
#define KVD_E_CONTEXT (-4101)
/* kvd does not know the model's chat template; send TEXT or TOKENS. */
#define KVD_E_TEMPLATE (-4102)
/* The daemon refuses new requests while it drains; see KVD_MSG_DRAIN. */
#define KVD_E_DRAINING (-4103)
/* The model file has no usable tokenizer; send TOKENS. */
#define KVD_E_TOKENIZER (-4104)
/* A token id is not in the vocabulary; detail = its index in the input. */
#define KVD_E_TOKEN (-4105)
/* The text is not valid UTF-8; detail = offset of the first bad byte. */
#define KVD_E_TEXT (-4106)
/* The input has no tokens, and the operation needs one. */
#define KVD_E_EMPTY (-4107)
/* The request can never fit the block pool; detail = tokens that would fit. */
#define KVD_E_POOL (-4108)
/* The device or its worker failed; the request may be tried again. */
#define KVD_E_DEVICE (-4109)
/* More requests in flight on this ring than allowed; detail = the limit. */
#define KVD_E_BUSY (-4110)
/* The deadline of the request has passed. */
#define KVD_E_DEADLINE (-4111)
/* The requested model or feature is not available. */
#define KVD_E_UNSUPPORTED (-4112)
/* The model's numbers for this request exceeded the range of floats; a retry does not help. */
#define KVD_E_NUMERIC (-4113)

#ifdef __cplusplus
}
#endif

#endif
