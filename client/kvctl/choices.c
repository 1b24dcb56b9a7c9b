/* SPDX-License-Identifier: MIT */
/* See choices.h. */
#include "client/kvctl/choices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvctl/utf8.h"

/* Template, roles and parameters beside the text itself. */
#define OVERHEAD_BYTES (256u << 10)

const char *choices_finish_name(uint32_t reason)
{
	switch (reason) {
	case KVD_FINISH_STOP:
		return "stop";
	case KVD_FINISH_LENGTH:
		return "length";
	case KVD_FINISH_CANCELLED:
		return "cancelled";
	case KVD_FINISH_ERROR:
		return "error";
	default:
		return "none";
	}
}

/* Tokens after the first one, over the time that they took. */
static double tokens_per_s(const struct kvd_cqe_usage *usage)
{
	if (usage->generated_tokens < 2 || usage->total_ns <= usage->ttft_ns)
		return 0;
	return (usage->generated_tokens - 1) /
	       ((double)(usage->total_ns - usage->ttft_ns) * 1e-9);
}

void choice_print_keys(struct json *json, const struct kvc_result *result)
{
	const struct kvd_cqe_usage *usage = &result->usage;

	json_str_n(json, "text", result->text ? result->text : "", result->text_len);
	json_open_array(json, "tokens");
	for (size_t i = 0; i < result->n_tokens; i++)
		json_u64(json, NULL, result->tokens[i]);
	json_close_array(json);
	if (result->logprobs) {
		json_open_array(json, "logprobs");
		for (size_t i = 0; i < result->n_tokens; i++)
			json_f64(json, NULL, (double)result->logprobs[i], 9);
		json_close_array(json);
	}
	json_str(json, "finish_reason",
		 choices_finish_name(usage->finish_reason ? usage->finish_reason
							  : KVD_FINISH_ERROR));
	json_u64(json, "prompt_tokens", usage->prompt_tokens);
	json_u64(json, "cached_tokens", usage->cached_tokens);
	json_f64(json, "ttft_ms", (double)usage->ttft_ns * 1e-6, 8);
	json_f64(json, "tokens_per_s", tokens_per_s(usage), 6);
}

void choices_print_json(const struct choices *choices, FILE *f)
{
	struct json json;

	json_init(&json, f);
	json_open_object(&json, NULL);
	json_open_array(&json, "choices");
	for (uint32_t i = 0; i < choices->n; i++) {
		json_open_object(&json, NULL);
		json_u64(&json, "index", i);
		choice_print_keys(&json, &choices->list[i].result);
		json_u64(&json, "seed", choices->seed + i);
		if (choices->list[i].res < 0)
			json_str(&json, "error", kvc_errname(choices->list[i].res));
		json_close_object(&json);
	}
	json_close_array(&json);
	json_close_object(&json);
	json_end(&json);
}

int choices_error(const struct choices *choices)
{
	for (uint32_t i = 0; i < choices->n; i++)
		if (choices->list[i].res < 0)
			return choices->list[i].res;
	return 0;
}

static int grow(void **list, size_t *cap, size_t need, size_t size)
{
	size_t n = *cap ? *cap : 64;
	void *grown;

	if (need <= *cap)
		return 0;
	while (n < need)
		n *= 2;
	grown = reallocarray(*list, n, size);
	if (!grown)
		return -ENOMEM;
	*list = grown;
	*cap = n;
	return 0;
}

/* What one CQE adds to its answer. */
static int gather(struct choice *choice, const struct kvd_cqe *cqe, bool logprobs)
{
	struct kvc_result *result = &choice->result;
	const struct kvd_cqe_token *t = &cqe->u.token;
	size_t cap = choice->tokens_cap;

	if (grow((void **)&result->text, &choice->text_cap,
		 result->text_len + t->n_bytes + 1, 1) < 0)
		return -ENOMEM;
	memcpy(result->text + result->text_len, t->bytes, t->n_bytes);
	result->text_len += t->n_bytes;
	result->text[result->text_len] = '\0';
	if (cqe->flags & KVD_CQE_PIECE)
		return 0;
	if (logprobs && grow((void **)&result->logprobs, &cap, result->n_tokens + 1,
			     sizeof(*result->logprobs)) < 0)
		return -ENOMEM;
	if (grow((void **)&result->tokens, &choice->tokens_cap, result->n_tokens + 1,
		 sizeof(*result->tokens)) < 0)
		return -ENOMEM;
	if (logprobs)
		result->logprobs[result->n_tokens] = t->logprob;
	result->tokens[result->n_tokens++] = (uint32_t)t->token;
	return 0;
}

/* Prints answers from *@at on as far as they are whole. Return: whether stdout lives. */
static bool show_ended(const struct choices *choices, uint32_t *at)
{
	for (; *at < choices->n && choices->list[*at].ended; ++*at) {
		const struct choice *choice = &choices->list[*at];
		const struct kvc_result *result = &choice->result;

		printf("%s== answer %u of %u ==\n", *at ? "\n" : "", *at + 1, choices->n);
		if (isatty(STDOUT_FILENO))
			utf8_put_shown(stdout, result->text, result->text_len);
		else
			fwrite(result->text, 1, result->text_len, stdout);
		putchar('\n');
	}
	return fflush(stdout) != EOF;
}

/* Whether any answer has begun or ended. */
static bool begun(const struct choices *choices)
{
	for (uint32_t i = 0; i < choices->n; i++)
		if (choices->list[i].ended || choices->list[i].result.n_tokens)
			return true;
	return false;
}

static void end(struct choice *choice, int res, const struct kvd_cqe_usage *usage)
{
	choice->res = res;
	choice->result.usage = *usage;
	choice->ended = true;
}

/*
 * The final CQE is that of the answer which ended last. Where the request was lost as a
 * whole it names none: all that had not ended end alike.
 */
static void end_all(struct choices *choices, const struct kvd_cqe *cqe)
{
	struct choice *last = &choices->list[KVD_CQE_INDEX(cqe->flags)];
	uint32_t n_open = 0;

	for (uint32_t i = 0; i < choices->n; i++)
		n_open += !choices->list[i].ended;
	if (n_open == 1 && !last->ended) {
		end(last, cqe->res, &cqe->u.usage);
		return;
	}
	for (uint32_t i = 0; i < choices->n; i++) {
		struct choice *choice = &choices->list[i];
		struct kvd_cqe_usage usage = cqe->u.usage;

		usage.generated_tokens = (uint32_t)choice->result.n_tokens;
		if (!choice->ended)
			end(choice, cqe->res, &usage);
	}
}

static int gather_all(struct choices *choices, struct kvc_ring *ring, bool show)
{
	const struct kvd_cqe *cqe;
	uint32_t shown = 0;
	bool more = true;

	while (more) {
		struct choice *choice;
		int refused = 0;
		int r = kvc_ring_wait_cqe(ring, &cqe, -1);

		if (r < 0)
			return r;
		more = cqe->flags & KVD_CQE_MORE;
		if (KVD_CQE_INDEX(cqe->flags) >= choices->n)
			return KVD_E_PROTO;
		choice = &choices->list[KVD_CQE_INDEX(cqe->flags)];
		if (more && !(cqe->flags & KVD_CQE_END)) {
			r = gather(choice, cqe, choices->logprobs);
		} else if (more) {
			end(choice, cqe->res, &cqe->u.usage);
		} else {
			if (cqe->res < 0 && !begun(choices))
				refused = cqe->res;
			end_all(choices, cqe);
		}
		kvc_ring_cqe_seen(ring);
		if (r < 0)
			return r;
		if (refused)
			return refused;
		/* nobody can read the rest; closing the ring cancels it */
		if (show && !show_ended(choices, &shown))
			return 0;
	}
	return 0;
}

static uint64_t input_bytes(const struct kvc_input *input)
{
	const struct kvc_message *messages = input->data;
	uint64_t bytes = OVERHEAD_BYTES;

	if (input->kind != KVD_INPUT_CHAT)
		return bytes + input->n;
	for (size_t i = 0; i < input->n; i++)
		bytes += strlen(messages[i].content);
	return bytes;
}

int choices_run(struct choices *choices, struct kvc_client *client,
		const struct kvc_input *input, const struct kvc_gen_opts *opts, bool show)
{
	struct kvc_ring_opts ring_opts = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_ring *ring;
	int r;

	*choices = (struct choices){
		.n = opts->n,
		.seed = opts->seed,
		.logprobs = opts->gen_flags & KVD_GEN_LOGPROBS,
	};
	ring_opts.in_bytes = input_bytes(input);
	r = kvc_ring_open(client, &ring, &ring_opts);
	if (r < 0)
		return r;
	kvc_prep_generate(kvc_ring_get_sqe(ring), input, opts);
	r = kvc_ring_submit(ring);
	if (r >= 0)
		r = gather_all(choices, ring, show);
	kvc_ring_close(ring);
	return r < 0 ? r : 0;
}

void choices_deinit(struct choices *choices)
{
	for (uint32_t i = 0; i < choices->n; i++) {
		free(choices->list[i].result.text);
		free(choices->list[i].result.tokens);
		free(choices->list[i].result.logprobs);
	}
	memset(choices, 0, sizeof(*choices));
}
