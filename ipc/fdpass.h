/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_FDPASS_H
#define KVD_IPC_FDPASS_H

/* One packet over the socket, with descriptors only from the daemon to the client. Never blocks,
 * never raises SIGPIPE. Any thread; one at a time may receive from a socket. */

#include <stddef.h>
#include <sys/types.h>

/* Daemon: nobody can send descriptors through this socket, if the kernel supports that. */
void fdpass_refuse(int sock);

/* @fds: [n_fds], at most KVD_MSG_MAX_FDS, still the caller's. Return: 0; -EAGAIN: the peer does not
 * read; -EPIPE, -ECONNRESET: it is gone; -errno. */
int fdpass_send(int sock, const void *buf, size_t len, const int *fds, size_t n_fds);

/* Daemon. Return: the packet's length; 0: the peer hung up, or sent an empty packet; -EAGAIN: there
 * is none; -EMSGSIZE: longer than @size; -EBADMSG: it had descriptors (not installed); -errno. */
ssize_t fdpass_recv(int sock, void *buf, size_t size);

/* Client. @fds: [KVD_MSG_MAX_FDS], close-on-exec; the rest is set to -1. Return: as fdpass_recv(),
 * but -EBADMSG: more than fit, or other control data. On failure all that came are closed. */
ssize_t fdpass_recv_fds(int sock, void *buf, size_t size, int *fds, size_t *ret_n_fds);

#endif
