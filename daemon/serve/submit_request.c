/* SPDX-License-Identifier: MIT */
/* See submit_request.h. */
#include "daemon/serve/submit_request.h"

#include <string.h>

#include "daemon/model/tokenizer.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"

void submit_request_init(struct submit_request *request, struct op *op,
			 const struct token_list *list, uint64_t salt)
{
	const struct session *session = op->ring->session;
	const struct user *user = session->user;
	size_t n = 0;

	if (user->domain_name) {
		n = strlen(user->domain_name) + 1;
		memcpy(request->salt, user->domain_name, n);
	}
	if (salt) {
		memcpy(request->salt + n, &salt, sizeof(salt));
		n += sizeof(salt);
	}
	request->desc = (struct request_desc){
		.tokens = list->ids,
		.n_tokens = (uint32_t)list->n,
		.uid = session->cred.uid,
		.client = session->id,
		.quota = &user->quota,
		.domain = user->domain,
		.owner = session->owner,
		.cookie = (uint64_t)(uintptr_t)op,
		.salt = request->salt,
		.salt_len = n,
		.reads_public = !salt,
	};
}
