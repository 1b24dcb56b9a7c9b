/* SPDX-License-Identifier: MIT */
#ifndef KVCLIENT_H
#define KVCLIENT_H

/*
 * libkvclient: requests to kvd, the daemon that owns this machine's model and
 * its cache. Two levels:
 *
 *  - blocking calls (kvc_generate, kvc_chat, kvc_score, ...): one call, one
 *    answer, with a callback where it should come piece by piece;
 *  - rings (kvc_ring_*): many requests in flight from one thread, in the manner
 *    of liburing: get an entry, prepare it, submit, wait for completions.
 *
 * Errors: functions return 0 or a count on success, and on failure a negative
 * number: -errno, or one of KVD_E_* (<kvd/abi.h>). kvc_strerror() names it,
 * kvc_errmsg() adds what this thread's last failing call knew about it.
 *
 * Threads: a client may be used from several threads at once; a ring belongs to
 * one thread at a time. The library starts no threads, installs no handlers and
 * raises no signals. Every descriptor is close-on-exec. After fork() the child
 * can only kvc_close() what it inherited; all else returns -EOWNERDEAD.
 *
 * Restart: when the daemon goes away and comes back, a client and its rings go on. The
 * library shakes hands again, opens the rings again and resubmits what is in flight,
 * where the answer is bound to be the same: everything but FORK. Of a streamed answer it
 * gives out only what was not given out before, and checks the rest. What cannot be the
 * same ends with KVD_E_RESTARTED: another model, a different answer. If no daemon comes
 * back in time (reconnect_ns), each request ends with a final CQE of -ECONNRESET, and
 * every further call on that client returns -ECONNRESET. Close it and connect again.
 *
 * Option structs begin with their size, so that they can grow: initialise them
 * with KVC_OPTS_INIT, set what you need, leave the rest 0, which means the
 * default. NULL stands for all defaults. Other structs that a caller makes or has room for
 * keep their size for ever: what is new in kvc_input, kvc_message, kvc_result and in the
 * elements of lists takes one of their reserved fields. Those of an input must be 0, those
 * of an output are 0 where the daemon is older. Only kvc_piece, which the library makes,
 * may grow at its end.
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

struct kvc_client; /* one connection */
struct kvc_ring;   /* one pair of queues on it */
struct kvc_sqe;    /* a request being prepared; private memory of the ring */

/* ------------------------------------------------------------------------
 * Library and errors.
 */

/* The library's version at run time: major << 16 | minor << 8 | patch. */
KVC_API unsigned kvc_version(void);

/* Text for a negative return value or a CQE's res. Static, never NULL. */
KVC_API const char *kvc_strerror(int err);

/* Its name, "ENOENT" or "KVD_E_QUOTA". Static, never NULL. */
KVC_API const char *kvc_errname(int err);

/*
 * What the last failing call of this thread had to say: one line that names what
 * was tried and how to mend it. Empty if there was none. Valid until this
 * thread's next failing call. The library holds options, inputs and roles against their
 * ranges before it sends anything; for an entry of a ring kvc_ring_submit() leaves the
 * line, though the entry ends by its CQE.
 */
KVC_API const char *kvc_errmsg(void);

/* ------------------------------------------------------------------------
 * Connection.
 */

/**
 * struct kvc_connect_opts - how to connect
 * @size:        sizeof(struct kvc_connect_opts)
 * @socket_path: NULL: $KVD_SOCKET, or else KVD_SOCKET_DEFAULT
 * @client_name: label shown by `kvctl clients`; NULL: the program's name
 * @timeout_ns:  for connecting and the handshake together, and for every answer on the
 *               socket later; 0: 5 seconds, negative: for ever
 * @spin_ns:     how long a waiting thread may poll before it sleeps. 0: the
 *               default, 50 microseconds, used as far as it proves worthwhile;
 *               negative: sleep at once
 * @reconnect_ns: how long a daemon that went away is waited for; 0: as timeout_ns;
 *               negative: not at all
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
 * kvc_connect() - connect to the daemon and shake hands
 * @ret_client: the client, only on success
 * @opts:       NULL for defaults
 *
 * Return: 0; -ENOENT or -ECONNREFUSED: no daemon there; -EACCES: not allowed;
 * -ETIME: no answer in time; KVD_E_VERSION, KVD_E_QUOTA: it refused; KVD_E_PROTO:
 * what answered is not kvd; -EINVAL, -E2BIG: bad options.
 * kvc_errmsg() holds the advice for each.
 */
KVC_API int kvc_connect(struct kvc_client **ret_client,
			const struct kvc_connect_opts *opts);

/*
 * Close the connection. Rings that are still open are closed with it, requests in
 * flight are cancelled. NULL is fine. No other thread may be inside a call.
 */
KVC_API void kvc_close(struct kvc_client *client);

/*
 * One NOP there and back. @timeout_ns (negative: no limit) covers all that it has to wait
 * for. Return: 0, -ETIME, or why not.
 */
KVC_API int kvc_ping(struct kvc_client *client, int64_t timeout_ns);

/* What WELCOME said. Cannot fail. */
KVC_API void kvc_get_server_info(const struct kvc_client *client,
				 struct kvd_server_info *ret_info);

/* Return: 0, or KVD_E_MODEL_NONE when the daemon serves no model. */
KVC_API int kvc_get_model_info(const struct kvc_client *client,
			       struct kvd_model_info *ret_info);

/* ------------------------------------------------------------------------
 * What goes in: text, tokens or a conversation.
 */

/* One message of a conversation; both are terminated UTF-8 strings. */
struct kvc_message {
	const char *role; /* "system", "user", "assistant" */
	const char *content;
	const void *reserved[2];
};

/**
 * struct kvc_input - input of a request, by reference
 * @kind: enum kvd_input
 * @reserved: 0
 * @data: TEXT: char [n]; TOKENS: uint32_t [n]; CHAT: struct kvc_message [n]
 * @n:    count of these
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
 * @size:        sizeof(struct kvc_gen_opts)
 * @max_tokens:  0: until the model ends or the context is full
 * @top_k:       0: off
 * @temperature: 0: greedy
 * @top_p:       0: off
 * @min_p:       0: off
 * @seed:        same seed, same answer. 0 is a seed like any other and the default: draw
 *               one, where every call is to be answered differently
 * @stop:        [n_stop] UTF-8 strings that end the answer and are not part of it
 * @n_stop:      at most KVD_MAX_STOP
 * @gen_flags:   KVD_GEN_LOGPROBS, KVD_GEN_IGNORE_EOS, KVD_GEN_KEEP
 * @input_flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS
 * @n:           sequences, on rings only; 0 is 1
 * @priority:    lower runs earlier among the user's own requests
 * @timeout_ms:  KVD_E_DEADLINE after that time; 0: never. Blocking calls wait half a
 *               second longer for a daemon that does not answer, and no more
 * @fork_at:     kvc_prep_fork() only: how many tokens to begin with; 0: all
 * @salt:        share prefixes only with the same salt; 0: none
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
 * Blocking calls. Each uses a ring of its own behind the scenes, so calls of
 * several threads run side by side.
 */

/**
 * struct kvc_result - an answer; free its memory with kvc_result_clear()
 * @text:     [text_len] bytes and a terminating 0; always valid UTF-8, however it ended
 * @tokens:   [n_tokens] ids
 * @logprobs: [n_tokens], or NULL without KVD_GEN_LOGPROBS
 * @usage:    counts, times, finish reason
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

/* Frees what a result points to and zeroes it. A zeroed one is fine. */
KVC_API void kvc_result_clear(struct kvc_result *result);

/**
 * struct kvc_piece - one step of a streamed answer
 * @token:    the token id; -1: only more text for the tokens before
 * @logprob:  of the token, 0 without KVD_GEN_LOGPROBS
 * @text:     [text_len] bytes of whole UTF-8 characters; may be none. Valid
 *            during the callback, not terminated. See KVD_OP_GENERATE for what is no
 *            character
 */
struct kvc_piece {
	int32_t token;
	float logprob;
	const char *text;
	size_t text_len;
};

/*
 * Called on the calling thread for each piece. Return 0 to go on; anything else
 * cancels the request, and the call returns -ECANCELED.
 */
typedef int (*kvc_piece_fn)(void *userdata, const struct kvc_piece *piece);

/**
 * kvc_generate_input() - generate from any input; the calls below are short forms of it
 * @client:     connection
 * @input:      prompt
 * @opts:       NULL for defaults
 * @fn:         called for each piece, or NULL
 * @userdata:   for @fn
 * @ret_result: the whole answer, or NULL. Also filled in when the request ended
 *              early; zeroed when nothing came
 *
 * Return: 0; -ECANCELED when @fn ended it; else the error.
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

/* Answer a conversation of n messages. */
KVC_API int kvc_chat(struct kvc_client *client, const struct kvc_message *messages,
		     size_t n, const struct kvc_gen_opts *opts,
		     struct kvc_result *ret_result);
KVC_API int kvc_chat_stream(struct kvc_client *client, const struct kvc_message *messages,
			    size_t n, const struct kvc_gen_opts *opts, kvc_piece_fn fn,
			    void *userdata, struct kvc_result *ret_result);

/**
 * kvc_score() - log probability of each token, given those before it
 * @flags:     KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS, or 0
 * @tokens:    [cap] the input's token ids, or NULL
 * @logprobs:  [cap] of each; the first is 0. Or NULL
 * @ret_usage: counts and times, or NULL
 *
 * Return: number of tokens; if it is above @cap, nothing was written.
 */
KVC_API int kvc_score(struct kvc_client *client, const struct kvc_input *input,
		      uint32_t flags, uint32_t *tokens, float *logprobs, size_t cap,
		      struct kvd_cqe_usage *ret_usage);

/**
 * struct kvc_score_opts - what to score, and where the output goes: kvc_score_top()
 * @size:     sizeof(struct kvc_score_opts)
 * @flags:    KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS, or 0
 * @top:      1..KVD_MAX_TOP: that many of the likeliest tokens that may follow each
 *            position, likeliest first; KVD_TOP_ALL: the whole vocabulary; 0: none
 * @first:    the first position whose alternatives are wanted; m = n - first of them,
 *            and the last one looks beyond the input
 * @tokens:   [cap] the input's token ids, or NULL
 * @logprobs: [cap] of each, given those before it; the first is 0. Or NULL
 * @cap:      elements there; if n is above it, neither is written
 * @top_ids:  [top_cap] of [m][top]; not used, and may be NULL, with KVD_TOP_ALL
 * @top_logprobs: [top_cap] of [m][top], or with KVD_TOP_ALL of [m][n_vocab]
 * @top_cap:  elements there; 64 MiB of them at most go through one ring
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
 * Needs KVD_FEATURE_SCORE_TOP. Return: the number of tokens; -ENOBUFS: @opts->top_cap is
 * too small, and what was written is without meaning; -EINVAL also for a @first that is no
 * position of the input.
 */
KVC_API int kvc_score_top(struct kvc_client *client, const struct kvc_input *input,
			  const struct kvc_score_opts *opts,
			  struct kvd_cqe_usage *ret_usage);

/**
 * kvc_tokenize() - token ids of a text, or of a conversation in its template
 * @flags:  KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS, or 0
 * @tokens: [cap]
 *
 * Return: number of tokens; if it is above @cap, nothing was written.
 */
KVC_API int kvc_tokenize(struct kvc_client *client, const struct kvc_input *input,
			 uint32_t flags, uint32_t *tokens, size_t cap);

/**
 * kvc_detokenize() - text of token ids
 * @flags: KVD_SQE_SKIP_SPECIAL, or 0
 * @text:  [cap] bytes, not terminated
 *
 * Return: bytes of the text; if it is above @cap, nothing was written.
 */
KVC_API int kvc_detokenize(struct kvc_client *client, const uint32_t *tokens, size_t n,
			   uint32_t flags, char *text, size_t cap);

/* ------------------------------------------------------------------------
 * Administration. A call during which the daemon restarts is made again if it only asks;
 * one that changes something returns KVD_E_RESTARTED, and has perhaps changed it.
 */

/* Set ret_stats->size to sizeof(*ret_stats) first; at most that is written. */
KVC_API int kvc_stats(struct kvc_client *client, struct kvd_stats *ret_stats);

/*
 * List connected clients (of one's own uid, without administrator's rights).
 * Return: how many there are; if above @cap only @cap were written.
 */
KVC_API int kvc_clients(struct kvc_client *client, struct kvd_client_info *ret_clients,
			size_t cap);

/**
 * kvc_quota_list() - limits and use of each user; without KVD_FEATURE_ADMIN of oneself
 * @ret_users: [cap]
 *
 * Return: number of users, also when it is above @cap.
 */
KVC_API int kvc_quota_list(struct kvc_client *client, struct kvd_quota_info *ret_users,
			   size_t cap);

/* Sets those limits of a user that @set names (KVD_QUOTA_*), until the daemon ends. */
KVC_API int kvc_quota_set(struct kvc_client *client, uint32_t uid, uint32_t set,
			  const struct kvd_quota *quota);

/**
 * kvc_drain() - refuse new requests for the model, or take them again
 * @action: enum kvd_drain_action; KVD_DRAIN_ASK changes nothing, the others need
 *          KVD_FEATURE_ADMIN
 * @ret_requests: operations of all clients that have not ended; may be NULL
 *
 * See struct kvd_msg_drain. Does not wait for them: ask again until none is left.
 *
 * Return: 1 while the daemon drains, 0 when it does not; -EPERM.
 */
KVC_API int kvc_drain(struct kvc_client *client, uint32_t action, uint32_t *ret_requests);

/**
 * kvc_cache_list() - what the cache holds, prefix by prefix
 * @ret_prefixes: [cap]
 *
 * Return: number of prefixes, also when it is above @cap.
 */
KVC_API int kvc_cache_list(struct kvc_client *client,
			   struct kvd_prefix_info *ret_prefixes, size_t cap);

/**
 * kvc_prefix_lookup() - how much of a prompt is cached
 * @flags: KVD_SQE_NO_SPECIAL, KVD_SQE_NO_BOS
 * @ret_id: names the prefix that was found; 0 if none was
 * @ret_n_tokens: tokens of the prompt; may be NULL
 *
 * Return: leading tokens of the prompt that are cached, whole blocks of them.
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
 * kvc_events() - what happened in the daemon since the call before
 * @ret_events: [cap], the oldest first
 * @cap:        KVD_EVENTS_PAGE at least, so that nothing is dropped here
 * @ret_lost:   events after these that the daemon had no room for
 *
 * Needs KVD_FEATURE_ADMIN. Does not wait: the first call begins to watch and finds
 * nothing, and later ones should come a few times a second.
 *
 * Return: number of events.
 */
KVC_API int kvc_events(struct kvc_client *client, struct kvd_event *ret_events,
		       size_t cap, uint64_t *ret_lost);

/*
 * Flush the cache; NULL for domain and model: all that the caller may. A model is named
 * by its name, or by KVD_MODEL_DIGITS or more first digits of its fingerprint. Complete
 * only if ret_counts->remaining is 0.
 */
KVC_API int kvc_cache_flush(struct kvc_client *client, const char *domain,
			    const char *model, struct kvd_flush_counts *ret_counts);

/* ------------------------------------------------------------------------
 * Rings.
 */

/**
 * struct kvc_ring_opts - sizes of a ring
 * @size:       sizeof(struct kvc_ring_opts)
 * @sq_entries: 0: 128; rounded up to a power of two
 * @cq_entries: 0: four times sq_entries; rounded up likewise
 * @in_bytes:   room for inputs in flight; 0: 4 MiB, or what the daemon grants
 * @out_bytes:  room for outputs of SCORE, TOKENIZE, DETOKENIZE; 0: 1 MiB, or what the
 *              daemon grants
 */
struct kvc_ring_opts {
	size_t size;
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint64_t in_bytes;
	uint64_t out_bytes;
};

/* Return: 0; KVD_E_QUOTA: more than the daemon grants; or why not. */
KVC_API int kvc_ring_open(struct kvc_client *client, struct kvc_ring **ret_ring,
			  const struct kvc_ring_opts *opts);

/* Close before its client. Requests in flight are cancelled, NULL is fine. */
KVC_API void kvc_ring_close(struct kvc_ring *ring);

/*
 * Next free entry, or NULL when as many as the SQ holds are prepared and not
 * submitted. It is a NOP until it is prepared otherwise.
 */
KVC_API struct kvc_sqe *kvc_ring_get_sqe(struct kvc_ring *ring);

/* The value that comes back in each CQE of the request. 0 unless set. */
KVC_API void kvc_sqe_set_data64(struct kvc_sqe *sqe, uint64_t data);

static inline void kvc_sqe_set_data(struct kvc_sqe *sqe, void *data)
{
	kvc_sqe_set_data64(sqe, (uint64_t)(uintptr_t)data);
}

static inline void *kvc_cqe_get_data(const struct kvd_cqe *cqe)
{
	return (void *)(uintptr_t)cqe->user_data;
}

/*
 * Preparing only notes what is wanted and cannot fail: a mistake shows in the
 * CQE. Inputs and options must stay as they are until kvc_ring_submit() has taken
 * the entry; outputs must stay until the final CQE, which is when they are
 * written. If the output does not fit, res is -ENOBUFS and usage.detail the bytes
 * that the daemon needed: 8 for each token of SCORE, 4 of TOKENIZE, 1 for each
 * byte of DETOKENIZE. user_data is not touched.
 */
KVC_API void kvc_prep_nop(struct kvc_sqe *sqe);
KVC_API void kvc_prep_generate(struct kvc_sqe *sqe, const struct kvc_input *input,
			       const struct kvc_gen_opts *opts);
KVC_API void kvc_prep_score(struct kvc_sqe *sqe, const struct kvc_input *input,
			    uint32_t flags, uint32_t *tokens, float *logprobs,
			    size_t cap);
KVC_API void kvc_prep_score_top(struct kvc_sqe *sqe, const struct kvc_input *input,
				const struct kvc_score_opts *opts);
/* res is the number of leading tokens that are cached, usage.detail names the prefix. */
KVC_API void kvc_prep_prefix_lookup(struct kvc_sqe *sqe, const struct kvc_input *input,
				    uint32_t flags);
KVC_API void kvc_prep_tokenize(struct kvc_sqe *sqe, const struct kvc_input *input,
			       uint32_t flags, uint32_t *tokens, size_t cap);
KVC_API void kvc_prep_detokenize(struct kvc_sqe *sqe, const uint32_t *tokens, size_t n,
				 uint32_t flags, char *text, size_t cap);

/*
 * Branch the request of this ring whose data is @target at any of its tokens; @input may
 * be NULL. See KVD_OP_FORK.
 */
KVC_API void kvc_prep_fork(struct kvc_sqe *sqe, uint64_t target,
			   const struct kvc_input *input,
			   const struct kvc_gen_opts *opts);

/*
 * Cancel the request of this ring that carries this user_data; of several, the one
 * submitted last. It ends with -ECANCELED unless it had just ended. res of the
 * CANCEL: how many sequences it ends (n of them, for one of n), or -ENOENT.
 */
KVC_API void kvc_prep_cancel(struct kvc_sqe *sqe, uint64_t target);

/**
 * kvc_ring_submit() - hand prepared entries to the daemon, in order
 *
 * What does not fit now stays prepared for the next call; completions make room.
 *
 * Return: how many were taken, also if some remain. If none could be: -EAGAIN
 * (queue full, or too many in flight), -ENOBUFS (arena full), -ECONNRESET. 0 if
 * nothing was prepared.
 */
KVC_API int kvc_ring_submit(struct kvc_ring *ring);

/*
 * Submit, and return when @n CQEs are there to be peeked, or after @timeout_ns
 * (negative: no limit). Around a restart of the daemon it may return with fewer.
 * Return: how many were submitted, -ETIME, -ECONNRESET.
 */
KVC_API int kvc_ring_submit_and_wait(struct kvc_ring *ring, unsigned n,
				     int64_t timeout_ns);

/**
 * kvc_ring_wait_cqe() - wait for the next completion
 * @ret_cqe:    valid until kvc_ring_cqe_seen()
 * @timeout_ns: negative: no limit
 *
 * Entries that an earlier submit left are submitted as room comes.
 *
 * Return: 0; -ETIME; -ENODATA: nothing is in flight; -ECONNRESET, after every
 * CQE was given out.
 */
KVC_API int kvc_ring_wait_cqe(struct kvc_ring *ring, const struct kvd_cqe **ret_cqe,
			      int64_t timeout_ns);

/* The same without ever waiting. Return: 0; -EAGAIN: none now; -ECONNRESET. */
KVC_API int kvc_ring_peek_cqe(struct kvc_ring *ring, const struct kvd_cqe **ret_cqe);

/* Done with the CQE; the next one can be seen. Without a current CQE: nothing. */
KVC_API void kvc_ring_cqe_seen(struct kvc_ring *ring);

/**
 * kvc_ring_peek_batch() - many completions at once, without ever waiting
 * @ret_cqes: [cap] oldest first; each is valid until kvc_ring_cq_advance() has passed it
 *
 * What was peeked and not passed comes again. At most as many as the CQ holds.
 *
 * Return: how many; 0: none now; -ECONNRESET as kvc_ring_peek_cqe(); -ENOMEM.
 */
KVC_API int kvc_ring_peek_batch(struct kvc_ring *ring, const struct kvd_cqe **ret_cqes,
				unsigned cap);

/* Done with the @n oldest CQEs that were peeked. */
KVC_API void kvc_ring_cq_advance(struct kvc_ring *ring, unsigned n);

/* May prepare and submit; must not peek, wait or advance. Return: not 0 to stop. */
typedef int (*kvc_cqe_fn)(void *userdata, const struct kvd_cqe *cqe);

/*
 * Call @fn for each completion that is there, also those that come meanwhile, and pass it.
 * Return: for how many; 0: none now; -ECONNRESET as kvc_ring_peek_cqe().
 */
KVC_API int kvc_ring_for_each_cqe(struct kvc_ring *ring, kvc_cqe_fn fn, void *userdata);

/* Requests submitted whose final CQE has not been given out. */
KVC_API unsigned kvc_ring_in_flight(const struct kvc_ring *ring);

/**
 * kvc_ring_event_fd() - a descriptor for poll, epoll or an event loop
 *
 * Readable when completions came or the daemon went away. It belongs to the
 * ring. When it is readable: kvc_ring_event_ack() first, then kvc_ring_peek_cqe()
 * until -EAGAIN (or kvc_ring_for_each_cqe()), then poll again. Neither call ever waits,
 * whatever other threads do with the client.
 *
 * Return: the descriptor, or -errno.
 */
KVC_API int kvc_ring_event_fd(struct kvc_ring *ring);

/* Empty the descriptor and arm it again. Return: 0, or -errno; then call it again. */
KVC_API int kvc_ring_event_ack(struct kvc_ring *ring);

#ifdef __cplusplus
}
#endif

#endif
