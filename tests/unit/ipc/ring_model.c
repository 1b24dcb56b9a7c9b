/* SPDX-License-Identifier: MIT */
/* See ring_model.h. Takes the place of ipc/doorbell.c and, by model_barrier.h, of ipc/barrier.h. */
#include "tests/unit/ipc/ring_model.h"

#include <check.h>
#include <setjmp.h>
#include <string.h>

#include "ipc/doorbell.h"
#include "tests/unit/ipc/model_barrier.h"

static struct kvd_sqe sq[MAX_ENTRIES];
static struct kvd_cqe cq[MAX_ENTRIES];
static struct kvd_client_page client_page;
static struct kvd_daemon_page daemon_page;

/* --- one access ------------------------------------------------------------------------ */

static struct state *now;
static struct side *me;
static unsigned n_replayed;
static bool moved, at_once;
static jmp_buf suspended;

uint64_t model_widen(uint8_t v)
{
	return v == GARBAGE ? UINT64_MAX : v;
}

static void flush_one(struct state *s, struct side *side)
{
	s->words[side->buffer[0].word] = side->buffer[0].value;
	side->n_buffer--;
	memmove(side->buffer, side->buffer + 1,
		sizeof(side->buffer) - sizeof(side->buffer[0]));
	memset(&side->buffer[side->n_buffer], 0, sizeof(side->buffer[0]));
}

void model_flush(struct state *s, unsigned side)
{
	flush_one(s, &s->sides[side]);
}

static void flush_all(struct state *s, struct side *side)
{
	while (side->n_buffer)
		flush_one(s, side);
}

/* Return: whether this access is still to be made, and not one of those before. */
static bool is_next(uint8_t *ret_value)
{
	if (at_once)
		return true;
	if (n_replayed < me->n_log) {
		*ret_value = me->log[n_replayed++];
		return false;
	}
	if (moved)
		longjmp(suspended, 1);
	moved = true;
	ck_assert_uint_lt(me->n_log, MAX_LOG);
	return true;
}

static void done(uint8_t value)
{
	if (at_once)
		return;
	me->log[me->n_log++] = value;
	n_replayed++;
}

static uint64_t load(enum word word)
{
	uint8_t value = 0;

	if (is_next(&value)) {
		value = now->words[word];
		for (unsigned i = 0; i < me->n_buffer; i++)
			if (me->buffer[i].word == word)
				value = me->buffer[i].value;
		done(value);
	}
	return model_widen(value);
}

static void store(enum word word, uint64_t v)
{
	uint8_t value = (uint8_t)v;

	if (!is_next(&value))
		return;
	ck_assert_uint_lt(v, GARBAGE);
	if (me->n_buffer == MAX_BUFFER)
		flush_one(now, me);
	me->buffer[me->n_buffer].word = (uint8_t)word;
	me->buffer[me->n_buffer++].value = (uint8_t)v;
	done(0);
}

/* A system call on a doorbell. */
static void bell(enum word word, uint8_t v)
{
	uint8_t value;

	if (!is_next(&value))
		return;
	flush_all(now, me);
	now->words[word] = v;
	done(0);
}

static void barrier(void)
{
	uint8_t value;

	if (!is_next(&value))
		return;
	flush_all(now, me);
	done(0);
}

/* --- what the rings are linked with ---------------------------------------------------- */

/* N_WORDS: contents of an entry, which its seq orders. */
static enum word word_of(const void *p)
{
	for (int i = 0; i < MAX_ENTRIES; i++) {
		if (p == &sq[i].seq)
			return SQ_SEQ + (enum word)i;
		if (p == &cq[i].seq)
			return CQ_SEQ + (enum word)i;
	}
	if (p == &client_page.cq_pos)
		return CQ_POS;
	if (p == &client_page.flags)
		return CLIENT_FLAGS;
	if (p == &daemon_page.sq_pos)
		return SQ_POS;
	if (p == &daemon_page.flags)
		return DAEMON_FLAGS;
	return N_WORDS;
}

uint64_t shm_load_u64(const uint64_t *p)
{
	enum word word = word_of(p);

	return word == N_WORDS ? 0 : load(word);
}

void shm_store_u64(uint64_t *p, uint64_t v)
{
	enum word word = word_of(p);

	if (word != N_WORDS)
		store(word, v);
}

uint64_t shm_load_acquire_u64(const uint64_t *p)
{
	return shm_load_u64(p);
}

void shm_store_release_u64(uint64_t *p, uint64_t v)
{
	shm_store_u64(p, v);
}

uint32_t shm_load_u32(const uint32_t *p)
{
	return (uint32_t)load(word_of(p));
}

void shm_store_u32(uint32_t *p, uint32_t v)
{
	enum word word = word_of(p);

	if (word != N_WORDS)
		store(word, v);
}

/* Contents of entries only. */
void shm_store_u16(uint16_t *p, uint16_t v)
{
}

void shm_store_u8(uint8_t *p, uint8_t v)
{
}

void shm_prefetch_write(const void *p)
{
}

void shm_full_barrier(void)
{
	barrier();
}

void doorbell_signal_submit(int fd)
{
	bell(SUBMIT, 1);
}

uint64_t doorbell_signal_complete(int fd, bool exact)
{
	bell(COMPLETE, 1);
	return 0;
}

bool doorbell_heard(int fd)
{
	uint8_t value = 0;

	if (is_next(&value)) {
		flush_all(now, me);
		value = now->words[COMPLETE];
		done(value);
	}
	return !value;
}

void doorbell_clear_submit(int fd)
{
	bell(SUBMIT, 0);
}

bool doorbell_clear_complete(int fd)
{
	bell(COMPLETE, 0);
	return true;
}

int doorbell_init_submit(int *ret_fd)
{
	return -1;
}

int doorbell_init_complete(int ret_fds[2])
{
	return -1;
}

/* --- steps -------------------------------------------------------------------------------- */

static uint32_t result;

static void run_op(enum op op, struct ring_daemon *d, struct ring_client *c)
{
	static struct kvd_sqe sqe;
	static struct kvd_cqe cqe;

	switch (op) {
	case D_TAKE:
		result = ring_daemon_take(d, &sqe);
		break;
	case D_POST:
		result = ring_daemon_post(d, &cqe);
		break;
	case D_NOTIFY:
		ring_daemon_notify(d);
		break;
	case D_ARM:
		result = ring_daemon_arm(d);
		break;
	case D_DISARM:
		ring_daemon_disarm(d);
		break;
	case C_PUT:
		result = ring_client_put(c, &sqe);
		break;
	case C_KICK:
		ring_client_kick(c);
		break;
	case C_TAKE:
		result = ring_client_take(c, &cqe);
		break;
	case C_ARM:
		ring_client_arm(c, now->full);
		break;
	case C_LOOK:
		result = ring_client_pending(c);
		break;
	case C_SPACE:
		result = ring_client_sq_space(c);
		break;
	case C_WAKE:
	case C_STAY:
		ring_client_disarm(c, op == C_WAKE);
		break;
	case NONE:
		break;
	}
}

bool model_step(struct state *s, unsigned side, enum op op, uint32_t *ret_result)
{
	static struct ring_daemon d;
	static struct ring_client c;

	now = s;
	me = &s->sides[side];
	d = s->d;
	c = s->c;
	n_replayed = 0;
	moved = false;
	me->op = (uint8_t)op;
	if (setjmp(suspended))
		return false;
	run_op(op, &d, &c);
	now->d = d;
	now->c = c;
	me->op = NONE;
	memset(me->log, 0, me->n_log);
	me->n_log = 0;
	*ret_result = result;
	return true;
}

uint32_t model_call(struct state *s, enum op op)
{
	at_once = true;
	now = s;
	me = &s->sides[0];
	run_op(op, &s->d, &s->c);
	at_once = false;
	return result;
}

struct state model_first(uint32_t sq_entries, uint32_t cq_entries)
{
	struct state s;

	memset(&s, 0, sizeof(s));
	s.d.sq = sq;
	s.d.cq = cq;
	s.d.client = &client_page;
	s.d.daemon = &daemon_page;
	s.d.flags = KVD_DAEMON_NEED_WAKEUP;
	s.c.sq = sq;
	s.c.cq = cq;
	s.c.client = &client_page;
	s.c.daemon = &daemon_page;
	s.d.sq_entries = s.c.sq_entries = sq_entries;
	s.d.cq_entries = s.c.cq_entries = cq_entries;
	s.words[DAEMON_FLAGS] = KVD_DAEMON_NEED_WAKEUP;
	return s;
}
