/* SPDX-License-Identifier: MIT */
/*
 * The loop over io_uring.
 *
 * A watch is a one-shot POLL_ADD. Arming is put off until just before the wait (the dirty
 * list), so a watch that is added and removed between two waits never reaches the kernel,
 * and all requests of an iteration go in with the system call that sleeps. A watch is
 * armed again after its callback, and POLL_ADD looks at the state when it is issued: that
 * makes it level triggered. LOOP_EDGE is a multishot POLL_ADD, which stays armed: each write
 * to an eventfd completes it, also while the counter is above zero. Where one ends, because
 * the CQ was full, the next looks at the state, as above: a signal in between is seen. The
 * open file behind a closed descriptor stays referenced until the loop next submits, before
 * it next sleeps. Spinning costs no system call.
 */
#include "daemon/log.h"
#include "daemon/loop_backend.h"
#include "ipc/base.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define N_SQ 256
#define N_CQ 4096
/* Connections taken before others get their turn. */
#define MAX_ACCEPTS 16
/* Completions that are collected before they are looked at. */
#define MAX_READY 1024

/* Marks completions of ACCEPT: they carry a descriptor even when nobody waits for it. */
#define KEY_ACCEPT (UINT64_C(1) << 31)

struct loop_uring {
	struct io_uring ring;
	uint32_t first_dirty;
	bool single_accept; /* the kernel has no multishot ACCEPT */
};

/*
 * A ring acts with the rights of its maker and past its seccomp filter, so it gets only
 * what the loop needs: not one operation that opens, connects or moves data. No SQE flag
 * and no registration is allowed either, but for giving the ring's own descriptor back.
 */
static const uint8_t allowed_ops[] = {
	IORING_OP_POLL_ADD,
	IORING_OP_POLL_REMOVE,
	IORING_OP_ACCEPT,
	IORING_OP_ASYNC_CANCEL,
};

#define N_ALLOWED KVD_ARRAY_LEN(allowed_ops)

struct io_uring *loop_uring_ring(struct loop *loop)
{
	struct loop_uring *uring = loop->state;

	return loop->backend == LOOP_BACKEND_IO_URING ? &uring->ring : NULL;
}

static int ring_setup(struct io_uring *ring)
{
	/* Newest first: one thread submits, and completions need not interrupt it because
	 * a flag says when the kernel has some to post; those that wait for the call which
	 * asks for them cost the least there. */
	static const unsigned int wishes[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		0,
	};
	int r = -EINVAL;

	for (size_t i = 0; i < KVD_ARRAY_LEN(wishes) && r == -EINVAL; i++) {
		struct io_uring_params params = {
			.flags =
				IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | wishes[i],
			.cq_entries = N_CQ,
		};

		r = io_uring_queue_init_params(N_SQ, ring, &params);
	}
	return r;
}

/* liburing 2.3 declares both calls for this and exports neither. */
static int ring_register(struct io_uring *ring, unsigned int op, void *arg,
			 unsigned int n)
{
	if (syscall(SYS_io_uring_register, ring->ring_fd, op, arg, n) < 0)
		return error_origin(-errno);
	return 0;
}

static int ring_restrict(struct io_uring *ring)
{
	struct io_uring_restriction list[N_ALLOWED + 1] = {0};

	for (size_t i = 0; i < N_ALLOWED; i++) {
		list[i].opcode = IORING_RESTRICTION_SQE_OP;
		list[i].sqe_op = allowed_ops[i];
	}
	list[N_ALLOWED].opcode = IORING_RESTRICTION_REGISTER_OP;
	list[N_ALLOWED].register_op = IORING_UNREGISTER_RING_FDS;
	return ring_register(ring, IORING_REGISTER_RESTRICTIONS, list, N_ALLOWED + 1);
}

static int uring_open(struct loop *loop, const char **ret_step)
{
	struct loop_uring *uring = calloc(1, sizeof(*uring));
	/* The last came with multishot POLL_ADD, Linux 5.13, which has no bit of its own. */
	unsigned int needed =
		IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG | IORING_FEAT_RSRC_TAGS;
	int r;

	*ret_step = "io_uring_setup";
	if (!uring)
		return error_origin(-ENOMEM);
	r = ring_setup(&uring->ring);
	if (r < 0) {
		free(uring);
		return r;
	}
	if ((uring->ring.features & needed) != needed) {
		*ret_step = "io_uring features";
		r = error_origin(-EOPNOTSUPP);
		goto fail;
	}
	/* Saves a descriptor look-up in each call; does not matter where it fails. */
	(void)io_uring_register_ring_fd(&uring->ring);
	*ret_step = "IORING_REGISTER_RESTRICTIONS";
	r = ring_restrict(&uring->ring);
	if (r < 0)
		goto fail;
	*ret_step = "IORING_REGISTER_ENABLE_RINGS";
	r = ring_register(&uring->ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	if (r < 0)
		goto fail;
	/* A filter may permit the calls above and not this one, which comes while clients are
	 * served. */
	*ret_step = "io_uring_enter";
	r = io_uring_get_events(&uring->ring);
	if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
		goto fail;
	uring->first_dirty = LOOP_NO_SLOT;
	loop->state = uring;
	return 0;
fail:
	io_uring_queue_exit(&uring->ring);
	free(uring);
	return r;
}

/* A non-blocking one would complete with -EAGAIN at once, for ever. */
static int uring_prepare_accept(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
		return error_origin(-errno);
	return 0;
}

static void slot_mark_dirty(struct loop *loop, uint32_t index)
{
	struct loop_uring *uring = loop->state;
	struct loop_slot *slot = &loop->slots[index];

	if (slot->dirty)
		return;
	slot->dirty = true;
	slot->next_dirty = uring->first_dirty;
	uring->first_dirty = index;
}

static struct io_uring_sqe *sqe_get(struct loop_uring *uring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

	if (!sqe) {
		(void)io_uring_submit(&uring->ring);
		sqe = io_uring_get_sqe(&uring->ring);
	}
	return sqe;
}

static int uring_add(struct loop *loop, uint32_t index)
{
	if (loop->slots[index].events)
		slot_mark_dirty(loop, index);
	return 0;
}

static uint64_t slot_request_key(struct loop *loop, uint32_t index)
{
	return loop_slot_key(loop, index) |
	       (loop->slots[index].is_accept ? KEY_ACCEPT : 0);
}

static int slot_cancel(struct loop *loop, uint32_t index)
{
	uint64_t key = slot_request_key(loop, index);
	struct io_uring_sqe *sqe = sqe_get(loop->state);

	if (!sqe)
		return error_origin(-EBUSY);
	if (loop->slots[index].is_accept)
		io_uring_prep_cancel64(sqe, key, 0);
	else
		io_uring_prep_poll_remove(sqe, key);
	io_uring_sqe_set_data64(sqe, 0);
	return 0;
}

static int uring_modify(struct loop *loop, uint32_t index)
{
	struct loop_slot *slot = &loop->slots[index];
	int r;

	if (slot->armed) {
		r = slot_cancel(loop, index);
		if (r < 0)
			return r;
	}
	loop_slot_renew(slot);
	slot->armed = false;
	return uring_add(loop, index);
}

static void uring_remove(struct loop *loop, uint32_t index)
{
	/* If it cannot be cancelled, its completion is still dropped by generation. */
	if (loop->slots[index].armed)
		(void)slot_cancel(loop, index);
	loop->slots[index].events = 0;
}

static void slot_prepare(const struct loop_uring *uring, const struct loop_slot *slot,
			 struct io_uring_sqe *sqe)
{
	int flags = SOCK_CLOEXEC | SOCK_NONBLOCK;
	uint32_t events = loop_events_to_poll(slot->events);

	if (slot->is_accept && uring->single_accept)
		io_uring_prep_accept(sqe, slot->fd, NULL, NULL, flags);
	else if (slot->is_accept)
		io_uring_prep_multishot_accept(sqe, slot->fd, NULL, NULL, flags);
	else if (slot->events & LOOP_EDGE)
		io_uring_prep_poll_multishot(sqe, slot->fd, events);
	else
		io_uring_prep_poll_add(sqe, slot->fd, events);
}

/* Return: whether all dirty slots are armed. */
static bool slots_arm(struct loop *loop)
{
	struct loop_uring *uring = loop->state;
	struct io_uring_sqe *sqe;
	struct loop_slot *slot;
	uint32_t index;

	while ((index = uring->first_dirty) != LOOP_NO_SLOT) {
		slot = &loop->slots[index];
		if (slot->watch && slot->events && !slot->armed) {
			sqe = sqe_get(uring);
			if (!sqe)
				return false;
			slot_prepare(uring, slot, sqe);
			io_uring_sqe_set_data64(sqe, slot_request_key(loop, index));
			slot->armed = true;
		}
		slot->dirty = false;
		uring->first_dirty = slot->next_dirty;
	}
	return true;
}

static void complete_accept(struct loop *loop, uint64_t key, int res, bool more)
{
	struct loop_uring *uring = loop->state;
	struct loop_slot *slot = loop_slot_find(loop, key);

	if (slot && !more) {
		slot->armed = false;
		slot_mark_dirty(loop, (uint32_t)key);
	}
	if (slot && res == -EINVAL && !uring->single_accept) {
		uring->single_accept = true;
		return;
	}
	if (res == -EINTR || res == -ECONNABORTED || res == -EAGAIN)
		return;
	loop_dispatch_accept(loop, key, res);
}

static void complete_io(struct loop *loop, uint64_t key, int res, bool more)
{
	struct loop_slot *slot = loop_slot_find(loop, key);

	if (!slot)
		return;
	if (!more) {
		slot->armed = false;
		slot_mark_dirty(loop, (uint32_t)key);
	}
	loop_dispatch_io(loop, key,
			 res < 0 ? (uint32_t)LOOP_ERROR
				 : loop_events_from_poll((uint32_t)res));
}

static bool has_more(struct io_uring *ring)
{
	return IO_URING_READ_ONCE(*ring->sq.kflags) &
	       (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
}

/* One call posts no more than twenty where completions wait for it; who comes last would stand
 * behind a run of turns for each twenty. */
static void uring_collect(struct io_uring *ring)
{
	for (int i = 0; i < MAX_READY / 16 && has_more(ring); i++)
		if (io_uring_cq_ready(ring) >= MAX_READY || io_uring_get_events(ring) < 0)
			return;
}

static void uring_dispatch(struct loop *loop)
{
	struct loop_uring *uring = loop->state;
	/* Those that arrive meanwhile wait, so that deferred calls and timers get their
	 * turn; and of a crowd that connects at once so do most. Other callbacks only note
	 * what there is to do, and all are called: who comes last may be the first to go on. */
	unsigned int n = io_uring_cq_ready(&uring->ring), n_accepts = 0;
	struct io_uring_cqe *cqe;
	uint64_t key;
	uint32_t flags;
	int res;

	if (n)
		loop_now_refresh(loop);
	while (n-- && io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
		key = cqe->user_data;
		res = cqe->res;
		flags = cqe->flags;
		io_uring_cqe_seen(&uring->ring, cqe);
		if (key == 0) /* result of a cancellation */
			continue;
		if (key & KEY_ACCEPT) {
			complete_accept(loop, key & ~KEY_ACCEPT, res,
					flags & IORING_CQE_F_MORE);
			if (++n_accepts == MAX_ACCEPTS)
				break;
		} else {
			complete_io(loop, key, res, flags & IORING_CQE_F_MORE);
		}
	}
}

static int uring_wait(struct loop *loop, uint64_t timeout_ns)
{
	struct loop_uring *uring = loop->state;
	struct io_uring *ring = &uring->ring;
	struct __kernel_timespec ts = {.tv_sec = (int64_t)(timeout_ns / 1000000000),
				       .tv_nsec = (int64_t)(timeout_ns % 1000000000)};
	struct io_uring_cqe *cqe;
	int r = 0;

	if (!slots_arm(loop) || io_uring_cq_ready(ring))
		timeout_ns = 0;
	if (timeout_ns == LOOP_SLEEP_FOREVER)
		r = io_uring_submit_and_wait(ring, 1);
	else if (timeout_ns != 0)
		r = io_uring_submit_and_wait_timeout(ring, &cqe, 1, &ts, NULL);
	else if (io_uring_sq_ready(ring))
		r = io_uring_submit_and_get_events(ring);
	if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
		return r;
	uring_collect(ring);
	uring_dispatch(loop);
	return 0;
}

static void uring_close(struct loop *loop)
{
	struct loop_uring *uring = loop->state;
	struct io_uring_cqe *cqe;

	/* Connections that were accepted for nobody. */
	while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
		if (cqe->user_data & KEY_ACCEPT && cqe->res >= 0)
			close(cqe->res);
		io_uring_cqe_seen(&uring->ring, cqe);
	}
	io_uring_queue_exit(&uring->ring);
	free(uring);
	loop->state = NULL;
}

const struct loop_backend_ops loop_uring_ops = {
	.open = uring_open,
	.close = uring_close,
	.prepare_accept = uring_prepare_accept,
	.add = uring_add,
	.modify = uring_modify,
	.remove = uring_remove,
	.wait = uring_wait,
};
