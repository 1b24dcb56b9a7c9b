/* SPDX-License-Identifier: MIT */
#ifndef KVCLIENT_H
#define KVCLIENT_H

/*
 * libkvclient: requests to kvd, the daemon that owns this machine's model and its cache.
 * There are two levels:
 *
 *  - blocking calls (kvc_generate, kvc_chat, kvc_score, ...): one call, one answer, with an
 *    optional callback to receive it piece by piece;
 *  - rings (kvc_ring_*): many requests in flight from one thread, in the style of liburing:
 *    get an entry, prepare it, submit, wait for completions.
 *
 * Errors: functions return 0 or a count on success, and a negative number on failure: -errno,
 * or one of KVD_E_* (<kvd/abi.h>). kvc_strerror() describes it, kvc_errmsg() adds details of
 * this thread's last failing call.
 *
 * Threads: a client may be used from several threads at once; a ring belongs to one thread at a
 * time. The library starts no threads, installs no handlers and raises no signals. Every
 * descriptor is close-on-exec. After fork() the child can only kvc_close() what it inherited;
 * everything else returns -EOWNERDEAD.
 *
 * Restart: when the daemon goes away and comes back, a client and its rings continue. The
 * library reconnects, opens the rings again and resubmits the requests in flight whose answers
 * will be the same, which is all but FORK. The part of a streamed answer that was already
 * delivered is checked and not delivered again. A request ends with KVD_E_RESTARTED if its
 * answer cannot be the same (another model) or turns out different. If no daemon comes back in
 * time (reconnect_ns), each request ends with a final CQE of -ECONNRESET, and every further call
 * on that client returns -ECONNRESET. Close it and connect again.
 *
 * Option structs begin with their size, so that they can grow: initialise them with
 * KVC_OPTS_INIT, set what you need, and leave the rest 0, which means the default. NULL stands
 * for all defaults. Other structs that the caller provides never change size: new fields of
 * kvc_input, kvc_message, kvc_result and the elements of lists take the place of reserved ones,
 * which must be 0 in an input and are 0 in an output of an older daemon. Only kvc_piece, which
 * the library provides, may grow at its end.
 *
 * Strict C99 and C++.
 */

#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>
#include <kvd/proto.h>
#include <kvd/proto_admin.h>

#ifdef __cplusplus
template <typename T> static inline T kvc_opts_init()
{
	T opts = T();

	opts.size = sizeof(T);
	return opts;
}

extern "C" {
#endif

#if defined(__GNUC__)
#define KVC_API __attribute__((visibility("default")))
#else
#define KVC_API
#endif

#define KVC_VERSION_MAJOR 0
#define KVC_VERSION_MINOR 1
#define KVC_VERSION_PATCH 0

/* struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts); */
#ifdef __cplusplus
#define KVC_OPTS_INIT(type) kvc_opts_init<type>()
#else
#define KVC_OPTS_INIT(type)                                                              \
	{                                                                                \
		.size = sizeof(type)                                                     \
	}
#endif

/* A connection, a pair of queues on it, and a request being prepared in the ring's memory. */
struct kvc_client;
struct kvc_ring;
struct kvc_sqe;

/* ------------------------------------------------------------------------
 * Library and errors.
 */

/* The library's version at run time: major << 16 | minor << 8 | patch. */
KVC_API unsigned kvc_version(void);

/* Text for a negative return value or the res of a CQE. Static, never NULL. */
KVC_API const char *kvc_strerror(int err);

/* Its name, "ENOENT" or "KVD_E_QUOTA". Static, never NULL. */
KVC_API const char *kvc_errname(int err);

/* The message of this thread's last failing call: one line that says what was tried and how to
 * fix it; empty if no call has failed. Valid until this thread's next failing call. Options,
 * inputs and roles are checked before anything is sent; for an invalid entry of a ring
 * kvc_ring_submit() sets the message, although the error itself is in the entry's CQE. */
KVC_API const char *kvc_errmsg(void);

/* ------------------------------------------------------------------------
 * Connection.
 */

/**
 * struct kvc_connect_opts - how to connect
 * @size: sizeof(struct kvc_connect_opts)
 * @socket_path: NULL: $KVD_SOCKET, or else KVD_SOCKET_DEFAULT
 * @client_name: label shown by `kvctl clients`; NULL: the program's name
 * @timeout_ns: for connecting and the handshake together, and for every later answer on the
 *	socket; 0: 5 seconds; negative: no limit
 * @spin_ns: how long a waiting thread may poll before it sleeps; 0: up to 100 microseconds, less
 *	where polling does not pay; negative: sleep at once
 * @reconnect_ns: how long to wait for a daemon that went away; 0: as timeout_ns; negative: not at
 *	all
 */
struct kvc_connect_opts {
	size_t size;
	const char *socket_path;
	const char *client_name;
	int64_t timeout_ns;
	int64_t spin_ns;
	int64_t reconnect_ns;
};

/**
 * kvc_connect() - connect to the daemon
 * @ret_client: set on success only
 * @opts: NULL for defaults
 *
 * Return: 0; -ENOENT, -ECONNREFUSED: no daemon; -EACCES: not allowed; -ETIME: no answer in time;
 * KVD_E_VERSION, KVD_E_QUOTA: the daemon refused; KVD_E_PROTO: the other side is not kvd;
 * -EINVAL, -E2BIG: bad options. kvc_errmsg() has advice for each.
 */
KVC_API int kvc_connect(struct kvc_client **ret_client,
			const struct kvc_connect_opts *opts);

/* Close the connection and its rings; requests in flight are cancelled. NULL is fine. No other
 * thread may be inside a call. */
KVC_API void kvc_close(struct kvc_client *client);

/* One NOP there and back, within @timeout_ns (negative: no limit). Return: 0, -ETIME, or another
 * error. */
KVC_API int kvc_ping(struct kvc_client *client, int64_t timeout_ns);

/* As of the last handshake. Cannot fail. */
KVC_API void kvc_get_server_info(const struct kvc_client *client,
				 struct kvd_server_info *ret_info);

/* Return: 0, or KVD_E_MODEL_NONE when the daemon serves no model. */
KVC_API int kvc_get_model_info(const struct kvc_client *client,
			       struct kvd_model_info *ret_info);

/* ------------------------------------------------------------------------
 * Inputs: text, tokens or a conversation.
 */

/* One message of a conversation, as terminated UTF-8 strings; the role is "system", "user" or
 * "assistant". */
struct kvc_message {
	const char *role;
	const char *content;
	const void *reserved[2];
};

/**
 * struct kvc_input - input of a request, by reference
 * @kind: enum kvd_input
 * @reserved: 0
 * @data: TEXT: char [n]; TOKENS: uint32_t [n]; CHAT: struct kvc_message [n]
 */
struct kvc_input {
	uint32_t kind;
	uint32_t reserved;
	const void *data;
	size_t n;
};

static inline struct kvc_input kvc_text(const char *text, size_t len)
{
	struct kvc_input in;

	in.kind = KVD_INPUT_TEXT;
	in.reserved = 0;
	in.data = text;
	in.n = len;
	return in;
}

static inline struct kvc_input kvc_tokens(const uint32_t *ids, size_t n)
{
	struct kvc_input in;

	in.kind = KVD_INPUT_TOKENS;
	in.reserved = 0;
	in.data = ids;
	in.n = n;
	return in;
}

static inline struct kvc_input kvc_messages(const struct kvc_message *messages, size_t n)
{
	struct kvc_input in;

	in.kind = KVD_INPUT_CHAT;
	in.reserved = 0;
	in.data = messages;
	in.n = n;
	return in;
}

/**
 * struct kvc_gen_opts - how to generate; see struct kvd_gen_params
 * @size: sizeof(struct kvc_gen_opts)
 * @max_tokens: 0: until the model ends or the context is full
 * @temperature: 0: greedy
 * @top_k, @top_p, @min_p: 0: off
 * @n_stop: at most KVD_MAX_STOP
 * @seed: the same seed gives the same answer. 0, the default, is a seed like any other: set a
 *	random one for a different answer to each call
 * @stop: [n_stop] UTF-8 strings that end the answer and are not part of it
 * @gen_flags: KVD_GEN_LOGPROBS, KVD_GEN_IGNORE_EOS, KVD_GEN_KEEP
 * @input_flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS
 * @n: sequences, on rings only; 0: 1
 * @priority: lower runs earlier among the user's own requests
 * @timeout_ms: KVD_E_DEADLINE after that time; 0: never. If the daemon does not answer, a blocking
 *	call returns at most half a second later
 * @fork_at: kvc_prep_fork() only: how many tokens to begin with; 0: all
 * @salt: share prefixes only with requests of the same salt; 0: none
 */
struct kvc_gen_opts {
	size_t size;
	uint32_t max_tokens;
	uint32_t top_k;
	float temperature;
	float top_p;
	float min_p;
	uint32_t n_stop;
	uint64_t seed;
	const char *const *stop;
	uint32_t gen_flags;
	uint32_t input_flags;
	uint32_t n;
	int32_t priority;
	uint32_t timeout_ms;
	uint32_t fork_at;
	uint64_t salt;
};

/* ------------------------------------------------------------------------
 * Blocking calls. Each uses a ring of its own, so calls of several threads run in parallel.
 */

/**
 * struct kvc_result - an answer; free its memory with kvc_result_clear()
 * @text: [text_len] bytes and a terminating 0; always valid UTF-8
 * @tokens: [n_tokens] ids
 * @logprobs: [n_tokens], or NULL without KVD_GEN_LOGPROBS
 * @usage: counts, times, finish reason
 */
struct kvc_result {
	char *text;
	size_t text_len;
	uint32_t *tokens;
	float *logprobs;
	size_t n_tokens;
	struct kvd_cqe_usage usage;
	uint64_t reserved[4];
};

/* Free what a result points to and zero it. A zeroed one is fine. */
KVC_API void kvc_result_clear(struct kvc_result *result);

/**
 * struct kvc_piece - one step of a streamed answer
 * @token: the token id; -1: only more text of the tokens before
 * @logprob: of the token; 0 without KVD_GEN_LOGPROBS
 * @text: [text_len] bytes of whole UTF-8 characters, not terminated; may be empty. Valid during
 *	the callback. See KVD_OP_GENERATE for bytes that form no character
 */
struct kvc_piece {
	int32_t token;
	float logprob;
	const char *text;
	size_t text_len;
};

/* Called on the calling thread for each piece. Return 0 to continue; anything else cancels the
 * request, and the call returns -ECANCELED. */
typedef int (*kvc_piece_fn)(void *userdata, const struct kvc_piece *piece);

/**
 * kvc_generate_input() - generate from any input; the calls below are short forms of it
 * @input: prompt
 * @opts: NULL for defaults
 * @fn: called with @userdata for each piece, or NULL
 * @ret_result: the whole answer, or NULL. Also filled in when the request ended early; zeroed
 *	if there was no answer
 *
 * Return: 0; -ECANCELED if @fn ended it; else the error.
 */
KVC_API int kvc_generate_input(struct kvc_client *client, const struct kvc_input *input,
			       const struct kvc_gen_opts *opts, kvc_piece_fn fn,
			       void *userdata, struct kvc_result *ret_result);

/* Continue a text. */
KVC_API int kvc_generate(struct kvc_client *client, const char *prompt,
			 const struct kvc_gen_opts *opts, struct kvc_result *ret_result);
KVC_API int kvc_generate_stream(struct kvc_client *client, const char *prompt,
				const struct kvc_gen_opts *opts, kvc_piece_fn fn,
				void *userdata, struct kvc_result *ret_result);

/* Answer a conversation. */
KVC_API int kvc_chat(struct kvc_client *client, const struct kvc_message *messages,
		     size_t n, const struct kvc_gen_opts *opts,
		     struct kvc_result *ret_result);
KVC_API int kvc_chat_stream(struct kvc_client *client, const struct kvc_message *messages,
			    size_t n, const struct kvc_gen_opts *opts, kvc_piece_fn fn,
			    void *userdata, struct kvc_result *ret_result);

/**
 * kvc_score() - log probability of each token, given those before it
 * @flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS, or 0
 * @tokens: [cap] the input's token ids, or NULL
 * @logprobs: [cap] of each token, 0 for the first; or NULL
 * @ret_usage: counts and times, or NULL
 *
 * Return: number of tokens; if it is above @cap, nothing was written.
 */
KVC_API int kvc_score(struct kvc_client *client, const struct kvc_input *input,
		      uint32_t flags, uint32_t *tokens, float *logprobs, size_t cap,
		      struct kvd_cqe_usage *ret_usage);

/**
 * struct kvc_score_opts - what to score, and where the output goes
 * @size: sizeof(struct kvc_score_opts)
 * @flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS, or 0
 * @top: how many of the likeliest tokens to follow each position, 1..KVD_MAX_TOP, likeliest
 *	first; KVD_TOP_ALL: the whole vocabulary; 0: none
 * @first: the first position with alternatives, one of m = n - first for n tokens; those of the
 *	last are for the token after the input
 * @tokens, @logprobs: [cap] as for kvc_score(); not written if there are more tokens
 * @top_ids: [top_cap], of which [m][top] are used; ignored with KVD_TOP_ALL
 * @top_logprobs: [top_cap], of which [m][top] are used, with KVD_TOP_ALL [m][n_vocab]
 * @top_cap: at most 64 MiB of elements go through one ring
 */
struct kvc_score_opts {
	size_t size;
	uint32_t flags;
	uint32_t top;
	uint32_t first;
	uint32_t reserved;
	uint32_t *tokens;
	float *logprobs;
	size_t cap;
	uint32_t *top_ids;
	float *top_logprobs;
	size_t top_cap;
};

/**
 * kvc_score_top() - kvc_score() with the alternatives of each position
 *
 * Needs KVD_FEATURE_SCORE_TOP. Return: number of tokens; -ENOBUFS: @opts->top_cap is too small,
 * and the output is undefined; -EINVAL, also if @opts->first is not a position of the input.
 */
KVC_API int kvc_score_top(struct kvc_client *client, const struct kvc_input *input,
			  const struct kvc_score_opts *opts,
			  struct kvd_cqe_usage *ret_usage);

/**
 * kvc_tokenize() - token ids of a text, or of a conversation in the model's template
 * @flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS, or 0
 * @tokens: [cap]
 *
 * Return: number of tokens; if it is above @cap, nothing was written.
 */
KVC_API int kvc_tokenize(struct kvc_client *client, const struct kvc_input *input,
			 uint32_t flags, uint32_t *tokens, size_t cap);

/**
 * kvc_detokenize() - text of token ids
 * @flags: KVD_SQE_SKIP_SPECIAL, or 0
 * @text: [cap] bytes, not terminated
 *
 * Return: bytes of the text; if it is above @cap, nothing was written.
 */
KVC_API int kvc_detokenize(struct kvc_client *client, const uint32_t *tokens, size_t n,
			   uint32_t flags, char *text, size_t cap);

/* ------------------------------------------------------------------------
 * Administration. If the daemon restarts during a call, a query is repeated; a call that changes
 * something returns KVD_E_RESTARTED, and may or may not have changed it.
 */

/* Set ret_stats->size to sizeof(*ret_stats) first; no more than that is written. Without
 * KVD_FEATURE_ADMIN counters are of the caller's own user, see struct kvd_stats. */
KVC_API int kvc_stats(struct kvc_client *client, struct kvd_stats *ret_stats);

/* List the connected clients; without KVD_FEATURE_ADMIN those of the caller's uid. Return: how many
 * there are; at most @cap were written. */
KVC_API int kvc_clients(struct kvc_client *client, struct kvd_client_info *ret_clients,
			size_t cap);

/* Limits and use of each user; without KVD_FEATURE_ADMIN of the caller. Return: number of users; at
 * most @cap were written. */
KVC_API int kvc_quota_list(struct kvc_client *client, struct kvd_quota_info *ret_users,
			   size_t cap);

/* Set the limits of a user that @set names (KVD_QUOTA_*), until the daemon exits. */
KVC_API int kvc_quota_set(struct kvc_client *client, uint32_t uid, uint32_t set,
			  const struct kvd_quota *quota);

/**
 * kvc_drain() - refuse new requests for the model, or accept them again
 * @action: enum kvd_drain_action; all but KVD_DRAIN_ASK need KVD_FEATURE_ADMIN
 * @ret_requests: operations that have not ended, of all clients, or without
 *                KVD_FEATURE_ADMIN of the caller's user; may be NULL
 *
 * Does not wait for them: ask again until none is left. See struct kvd_msg_drain.
 *
 * Return: 1 while the daemon drains, else 0; -EPERM.
 */
KVC_API int kvc_drain(struct kvc_client *client, uint32_t action, uint32_t *ret_requests);

/* The prefixes in the cache. Return: number of prefixes; at most @cap were written. */
KVC_API int kvc_cache_list(struct kvc_client *client,
			   struct kvd_prefix_info *ret_prefixes, size_t cap);

/**
 * kvc_prefix_lookup() - how much of a prompt is cached
 * @flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS
 * @ret_id: of the prefix that was found; 0 if none was
 * @ret_n_tokens: tokens of the prompt; may be NULL
 *
 * Return: number of leading tokens of the prompt that are cached, in whole blocks.
 */
KVC_API int kvc_prefix_lookup(struct kvc_client *client, const struct kvc_input *input,
			      uint32_t flags, uint64_t *ret_id, uint32_t *ret_n_tokens);

/**
 * kvc_prefix_control() - pin, unpin or flush one prefix; see struct kvd_msg_prefix_control
 * @id: from kvc_prefix_lookup() or kvc_cache_list()
 * @action: KVD_PREFIX_PIN, KVD_PREFIX_UNPIN, KVD_PREFIX_FLUSH
 * @flags: KVD_PREFIX_PUBLIC, KVD_PREFIX_TREE
 * @ret_counts: of a flush; may be NULL
 *
 * Return: tokens of the prefix.
 */
KVC_API int kvc_prefix_control(struct kvc_client *client, uint64_t id, uint32_t action,
			       uint32_t flags, struct kvd_flush_counts *ret_counts);

/**
 * kvc_events() - events in the daemon since the call before
 * @ret_events: [cap], the oldest first
 * @cap: at least KVD_EVENTS_PAGE
 * @ret_lost: events after these that the daemon had no room for
 *
 * Needs KVD_FEATURE_ADMIN. Does not wait: the first call starts watching and returns 0; call it a
 * few times a second from then on.
 *
 * Return: number of events.
 */
KVC_API int kvc_events(struct kvc_client *client, struct kvd_event *ret_events,
		       size_t cap, uint64_t *ret_lost);

/* Flush the cache of a sharing domain and a model; NULL: of all that the caller may flush. The
 * model is given by its name, or by at least the first KVD_MODEL_DIGITS digits of its
 * fingerprint. The flush is complete only if ret_counts->remaining is 0. */
KVC_API int kvc_cache_flush(struct kvc_client *client, const char *domain,
			    const char *model, struct kvd_flush_counts *ret_counts);

/* ------------------------------------------------------------------------
 * Rings.
 */

/**
 * struct kvc_ring_opts - sizes of a ring
 * @size: sizeof(struct kvc_ring_opts)
 * @sq_entries: rounded up to a power of two; 0: 128
 * @cq_entries: likewise; 0: four times sq_entries
 * @in_bytes: room for inputs in flight; 0: 4 MiB, or what the daemon grants if that is less
 * @out_bytes: room for outputs of SCORE, TOKENIZE, DETOKENIZE; 0: 1 MiB, or what the daemon grants
 *	if that is less
 */
struct kvc_ring_opts {
	size_t size;
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint64_t in_bytes;
	uint64_t out_bytes;
};

/* Return: 0; KVD_E_QUOTA: more than the daemon grants; or another error. */
KVC_API int kvc_ring_open(struct kvc_client *client, struct kvc_ring **ret_ring,
			  const struct kvc_ring_opts *opts);

/* Requests in flight are cancelled. NULL is fine. Close a ring before its client. */
KVC_API void kvc_ring_close(struct kvc_ring *ring);

/* The next free entry, a NOP until it is prepared; NULL when as many as the SQ holds are prepared
 * and not submitted. */
KVC_API struct kvc_sqe *kvc_ring_get_sqe(struct kvc_ring *ring);

/* The user_data of each CQE of the request; 0 unless set. */
KVC_API void kvc_sqe_set_data64(struct kvc_sqe *sqe, uint64_t data);

static inline void kvc_sqe_set_data(struct kvc_sqe *sqe, void *data)
{
	kvc_sqe_set_data64(sqe, (uint64_t)(uintptr_t)data);
}

static inline void *kvc_cqe_get_data(const struct kvd_cqe *cqe)
{
	return (void *)(uintptr_t)cqe->user_data;
}

/* Preparing cannot fail and keeps user_data; errors are reported in the CQE. Inputs and options
 * must stay unchanged until kvc_ring_submit() has taken the entry. Outputs must stay valid until
 * the final CQE, and are written then. If an output does not fit, res is -ENOBUFS and usage.detail
 * the number of bytes that the daemon needed: 8 for each token of SCORE, 4 for each of TOKENIZE,
 * 1 for each byte of DETOKENIZE. */
KVC_API void kvc_prep_nop(struct kvc_sqe *sqe);
KVC_API void kvc_prep_generate(struct kvc_sqe *sqe, const struct kvc_input *input,
			       const struct kvc_gen_opts *opts);
KVC_API void kvc_prep_score(struct kvc_sqe *sqe, const struct kvc_input *input,
			    uint32_t flags, uint32_t *tokens, float *logprobs,
			    size_t cap);
KVC_API void kvc_prep_score_top(struct kvc_sqe *sqe, const struct kvc_input *input,
				const struct kvc_score_opts *opts);
/* res is the number of leading tokens that are cached, usage.detail the id of the prefix. */
KVC_API void kvc_prep_prefix_lookup(struct kvc_sqe *sqe, const struct kvc_input *input,
				    uint32_t flags);
KVC_API void kvc_prep_tokenize(struct kvc_sqe *sqe, const struct kvc_input *input,
			       uint32_t flags, uint32_t *tokens, size_t cap);
KVC_API void kvc_prep_detokenize(struct kvc_sqe *sqe, const uint32_t *tokens, size_t n,
				 uint32_t flags, char *text, size_t cap);

/* Branch the request of this ring whose user_data is @target at any of its tokens; @input may be
 * NULL. See KVD_OP_FORK. */
KVC_API void kvc_prep_fork(struct kvc_sqe *sqe, uint64_t target,
			   const struct kvc_input *input,
			   const struct kvc_gen_opts *opts);

/* Cancel the request of this ring whose user_data is @target; of several, the one submitted last.
 * It ends with -ECANCELED unless it has just ended. res of the CANCEL is the number of sequences
 * that it ends (n for a request of n), or -ENOENT. */
KVC_API void kvc_prep_cancel(struct kvc_sqe *sqe, uint64_t target);

/**
 * kvc_ring_submit() - submit prepared entries, in order
 *
 * Entries that do not fit now stay prepared for the next call; completions make room.
 *
 * Return: how many were submitted, 0 if none was prepared. If none could be: -EAGAIN (queue full,
 * or too many in flight), -ENOBUFS (arena full), -ECONNRESET.
 */
KVC_API int kvc_ring_submit(struct kvc_ring *ring);

/* Submit, and wait until @n CQEs can be peeked, or for @timeout_ns (negative: no limit). There may
 * be fewer CQEs when the daemon restarts. Return: how many were submitted, -ETIME, -ECONNRESET. */
KVC_API int kvc_ring_submit_and_wait(struct kvc_ring *ring, unsigned n,
				     int64_t timeout_ns);

/**
 * kvc_ring_wait_cqe() - wait for the next completion
 * @ret_cqe: valid until kvc_ring_cqe_seen()
 * @timeout_ns: negative: no limit
 *
 * Entries that are still prepared after an earlier submit are submitted when there is room.
 *
 * Return: 0; -ETIME; -ENODATA: nothing is in flight; -ECONNRESET, after the last CQE.
 */
KVC_API int kvc_ring_wait_cqe(struct kvc_ring *ring, const struct kvd_cqe **ret_cqe,
			      int64_t timeout_ns);

/* The same without waiting. Return: 0; -EAGAIN: none now; -ECONNRESET. */
KVC_API int kvc_ring_peek_cqe(struct kvc_ring *ring, const struct kvd_cqe **ret_cqe);

/* Done with the current CQE, if any: move on to the next. */
KVC_API void kvc_ring_cqe_seen(struct kvc_ring *ring);

/**
 * kvc_ring_peek_batch() - many completions at once, without waiting
 * @ret_cqes: [cap] oldest first; each is valid until kvc_ring_cq_advance() has passed it
 *
 * CQEs that were peeked and not passed come again. There are at most as many as the CQ holds.
 *
 * Return: how many; 0: none now; -ECONNRESET as kvc_ring_peek_cqe(); -ENOMEM.
 */
KVC_API int kvc_ring_peek_batch(struct kvc_ring *ring, const struct kvd_cqe **ret_cqes,
				unsigned cap);

/* Done with the @n oldest CQEs that were peeked. */
KVC_API void kvc_ring_cq_advance(struct kvc_ring *ring, unsigned n);

/* May prepare and submit; must not peek, wait or advance. Return 0 to continue. */
typedef int (*kvc_cqe_fn)(void *userdata, const struct kvd_cqe *cqe);

/* Call @fn for each completion, including those that arrive meanwhile, and pass it. Return: for how
 * many; 0: none now; -ECONNRESET as kvc_ring_peek_cqe(). */
KVC_API int kvc_ring_for_each_cqe(struct kvc_ring *ring, kvc_cqe_fn fn, void *userdata);

/* Requests that were submitted and whose final CQE was not delivered yet. */
KVC_API unsigned kvc_ring_in_flight(const struct kvc_ring *ring);

/**
 * kvc_ring_event_fd() - a descriptor for poll, epoll or an event loop
 *
 * Readable when there are completions or the daemon went away. It belongs to the ring. When it is
 * readable, call kvc_ring_event_ack() first, then kvc_ring_peek_cqe() until -EAGAIN (or
 * kvc_ring_for_each_cqe()), then poll again. None of these calls waits, whatever other threads
 * do with the client.
 *
 * Return: the descriptor, or -errno.
 */
KVC_API int kvc_ring_event_fd(struct kvc_ring *ring);

/* Clear the descriptor and arm it again. Return: 0, or -errno; then call it again. */
KVC_API int kvc_ring_event_ack(struct kvc_ring *ring);

#ifdef __cplusplus
}
#endif

#endif
