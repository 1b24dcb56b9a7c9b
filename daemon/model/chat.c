/* SPDX-License-Identifier: MIT */
#include "daemon/model/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"

/*
 * Model files carry a Jinja program as tokenizer.chat_template. It is not run: the family is
 * recognized by marker strings, and formatted by hand. Markers are emitted as ids, and roles and
 * contents are encoded without control tokens, so that a message cannot forge one.
 *
 *   chatml  <|im_start|>ROLE \n CONTENT <|im_end|> \n ... <|im_start|>assistant \n
 *   plain   the contents, each followed by a newline
 */
enum family { FAMILY_NONE, FAMILY_PLAIN, FAMILY_CHATML };

struct chat_template {
	const struct tokenizer *tok;
	enum family family;
	int refusal; /* condition, where the family is none */
	int32_t im_start, im_end;
	char *system; /* default system message or NULL */
	size_t system_len;
};

static const char im_start[] = "<|im_start|>";
static const char im_end[] = "<|im_end|>";

static const char *find(struct gguf_str hay, const char *needle)
{
	return memmem(hay.data, hay.len, needle, strlen(needle));
}

/*
 * The default system message, for conversations that begin with none, as a template spells it:
 * a literal that opens the system turn, goes on without quotes, and closes the turn. Its escapes
 * are the literal's.
 */
static int load_default_system(struct chat_template *chat, struct gguf_str source)
{
	static const char open[] = "<|im_start|>system";
	const char *start, *end;

	while ((start = find(source, open)) != NULL) {
		size_t n = 0;

		start += sizeof(open) - 1;
		source.len -= (size_t)(start - source.data);
		source.data = start;
		/* The newline stands there as itself or as an escape. */
		if (source.len >= 1 && start[0] == '\n')
			start++;
		else if (source.len >= 2 && start[0] == '\\' && start[1] == 'n')
			start += 2;
		else
			continue;
		end = find(source, im_end);
		if (!end)
			return 0;
		if (end == start || memchr(start, '\'', (size_t)(end - start)) ||
		    memchr(start, '"', (size_t)(end - start)))
			continue;
		chat->system = malloc((size_t)(end - start));
		if (!chat->system)
			return -ENOMEM;
		for (const char *p = start; p < end; p++) {
			if (*p == '\\' && p + 1 < end) {
				p++;
				chat->system[n++] = *p == 'n'   ? '\n'
						    : *p == 't' ? '\t'
								: *p;
			} else {
				chat->system[n++] = *p;
			}
		}
		chat->system_len = n;
		return 0;
	}
	return 0;
}

static bool has_chatml_markers(struct chat_template *chat)
{
	chat->im_start = tokenizer_find_special(chat->tok, im_start);
	chat->im_end = tokenizer_find_special(chat->tok, im_end);
	return chat->im_start != TOKEN_NONE && chat->im_end != TOKEN_NONE;
}

static int recognize(struct chat_template *chat, const struct gguf *gguf,
		     struct load_error *err)
{
	struct gguf_str source = {"", 0};
	int r;

	r = gguf_get_str(gguf, "tokenizer.chat_template", &source, err);
	if (r < 0)
		return r;
	if (r > 0) {
		gguf_fail(err, gguf, 0,
			  "the model has no chat template; to chat with it set "
			  "chat_template = plain or chatml in kvd.conf");
		return CHAT_NO_TEMPLATE;
	}
	if (find(source, im_start) && find(source, im_end) && has_chatml_markers(chat)) {
		chat->family = FAMILY_CHATML;
		return load_default_system(chat, source);
	}
	gguf_fail(
		err, gguf, 0,
		"the model's chat template (\"%.*s...\") is of a family that kvd does not "
		"know; known: chatml plain; chat_template in kvd.conf overrides it",
		(int)(source.len < 48 ? source.len : 48), source.data);
	return CHAT_UNKNOWN_TEMPLATE;
}

static int override_family(struct chat_template *chat, const struct gguf *gguf,
			   const char *name, struct load_error *err)
{
	struct gguf_str source = {"", 0};
	int r;

	if (!strcmp(name, "plain")) {
		chat->family = FAMILY_PLAIN;
		return 0;
	}
	if (strcmp(name, "chatml"))
		return gguf_fail(err, gguf, -EINVAL,
				 "chat_template %.40s is not known; known: chatml plain",
				 name);
	if (!has_chatml_markers(chat))
		return gguf_fail(err, gguf, -EINVAL,
				 "chat_template chatml: the model's vocabulary has no "
				 "%s and %s",
				 im_start, im_end);
	chat->family = FAMILY_CHATML;
	r = gguf_get_str(gguf, "tokenizer.chat_template", &source, err);
	return r == 0 ? load_default_system(chat, source) : r < 0 ? r : 0;
}

int chat_template_new(struct chat_template **ret, const struct gguf *gguf,
		      const struct tokenizer *tok, const char *override,
		      struct load_error *err)
{
	struct chat_template *chat = calloc(1, sizeof(*chat));
	int r;

	if (!chat)
		return gguf_fail(err, gguf, -ENOMEM, "out of memory");
	chat->tok = tok;
	r = override ? override_family(chat, gguf, override, err)
		     : recognize(chat, gguf, err);
	if (r < 0) {
		chat_template_free(chat);
		return r;
	}
	chat->refusal = r;
	*ret = chat;
	return r;
}

void chat_template_free(struct chat_template *chat)
{
	if (!chat)
		return;
	free(chat->system);
	free(chat);
}

/*
 * Those of abi.h, to the letter. A template may paste any other name into its turn, and then
 * the model sees a turn that it was not trained on, beside a system message that nobody wrote.
 */
static bool is_role(const struct chat_message *msg)
{
	static const char *const roles[] = {"system", "user", "assistant"};

	for (size_t i = 0; i < KVD_ARRAY_LEN(roles); i++)
		if (strlen(roles[i]) == msg->role_len &&
		    !memcmp(roles[i], msg->role, msg->role_len))
			return true;
	return false;
}

static int encode_text(const struct chat_template *chat, const char *text, size_t len,
		       struct token_list *list)
{
	int r = tokenizer_encode(chat->tok, text, len, 0, list);

	return r > 0 ? CHAT_TOO_COMPLEX : r;
}

/* Role and content are one stretch of text to the model's tokenizer, so they are joined
 * before they are encoded: a newline may merge with what follows. */
static int encode_turn(const struct chat_template *chat, const struct chat_message *msg,
		       struct token_list *list)
{
	size_t len;
	char *text;
	int r;

	if (msg->content_len > TOKENIZER_MAX_TEXT)
		return CHAT_TOO_COMPLEX;
	len = msg->role_len + 1 + msg->content_len;
	text = malloc(len);
	if (!text)
		return -ENOMEM;
	memcpy(text, msg->role, msg->role_len);
	text[msg->role_len] = '\n';
	if (msg->content_len)
		memcpy(text + msg->role_len + 1, msg->content, msg->content_len);
	r = token_list_add(list, chat->im_start);
	if (r == 0)
		r = encode_text(chat, text, len, list);
	secret_free(text, len);
	if (r == 0)
		r = token_list_add(list, chat->im_end);
	if (r == 0)
		r = encode_text(chat, "\n", 1, list);
	return r;
}

static int encode_chatml(const struct chat_template *chat,
			 const struct chat_message *messages, size_t n,
			 struct token_list *list)
{
	static const char answer[] = "assistant\n";
	int r = 0;

	if (chat->system &&
	    (messages[0].role_len != 6 || memcmp(messages[0].role, "system", 6) != 0)) {
		struct chat_message msg = {
			.role = "system",
			.role_len = 6,
			.content = chat->system,
			.content_len = chat->system_len,
		};

		r = encode_turn(chat, &msg, list);
	}
	for (size_t i = 0; r == 0 && i < n; i++)
		r = encode_turn(chat, &messages[i], list);
	if (r == 0)
		r = token_list_add(list, chat->im_start);
	if (r == 0)
		r = encode_text(chat, answer, sizeof(answer) - 1, list);
	return r;
}

static int encode_plain(const struct chat_template *chat,
			const struct chat_message *messages, size_t n,
			struct token_list *list)
{
	int r = tokenizer_encode(chat->tok, "", 0, TOKENIZER_ADD_BOS, list);

	for (size_t i = 0; r == 0 && i < n; i++) {
		r = encode_text(chat, messages[i].content, messages[i].content_len, list);
		if (r == 0)
			r = encode_text(chat, "\n", 1, list);
	}
	return r;
}

int chat_encode(const struct chat_template *chat, const struct chat_message *messages,
		size_t n, struct token_list *list, size_t *ret_bad)
{
	size_t n_before = list->n;
	int r;

	if (chat->family == FAMILY_NONE)
		return chat->refusal;
	if (!n)
		return CHAT_NO_MESSAGES;
	for (size_t i = 0; i < n; i++) {
		if (is_role(&messages[i]))
			continue;
		*ret_bad = i;
		return CHAT_BAD_ROLE;
	}
	r = chat->family == FAMILY_CHATML ? encode_chatml(chat, messages, n, list)
					  : encode_plain(chat, messages, n, list);
	if (r)
		list->n = n_before;
	return r;
}
