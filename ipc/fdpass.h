/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_FDPASS_H
#define KVD_IPC_FDPASS_H

/*
 * One packet over the socket, with or without file descriptors. Never blocks
 * (the callers poll), never raises SIGPIPE. Any thread; two threads must not
 * receive from one socket at once.
 * Descriptors travel from the daemon to the client only.
 */

#include <stddef.h>
#include <sys/types.h>

/* Daemon: let nobody send descriptors through this socket, where the kernel can. */
void fdpass_refuse(int sock);

/*
 * Send one packet, and @fds with it: [n_fds], at most KVD_MSG_MAX_FDS, still the caller's.
 * Return: 0; -EAGAIN: the peer does not read; -EPIPE, -ECONNRESET: it is gone; -errno.
 */
int fdpass_send(int sock, const void *buf, size_t len, const int *fds, size_t n_fds);

/**
 * fdpass_recv() - daemon: receive one packet, and certainly no descriptors
 *
 * Return: its length; 0: the peer hung up, or sent an empty packet, which ends
 * its session likewise; -EAGAIN: none is there; -EMSGSIZE: longer than @size;
 * -EBADMSG: descriptors came with it (none was installed); -errno.
 */
ssize_t fdpass_recv(int sock, void *buf, size_t size);

/**
 * fdpass_recv_fds() - client: receive one packet with its descriptors
 * @fds:       [KVD_MSG_MAX_FDS], close-on-exec; the rest is set to -1
 * @ret_n_fds: how many came
 *
 * Return: as fdpass_recv(), but -EBADMSG means that there were more than fit or
 * control data of another kind. On any failure all that came are closed.
 */
ssize_t fdpass_recv_fds(int sock, void *buf, size_t size, int *fds, size_t *ret_n_fds);

#endif
