/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_FDPASS_H
#define KVD_IPC_FDPASS_H

/* One packet over the socket, with descriptors only from the daemon to the client. Never blocks,
 * never raises SIGPIPE. Any thread; one at a time may receive from a socket. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The kernel cannot refuse descriptors (before 6.16): the peer is read by fdpass_recv_wary() only,
 * and ended by fdpass_end(). */
enum { FDPASS_WARY = 1 };

/* Daemon: nobody can send descriptors through this socket. Return: 0; FDPASS_WARY; -errno. */
int fdpass_refuse(int sock);

/* Daemon: nor, where the kernel can, before they are accepted can those who connect to @sock. */
void fdpass_refuse_early(int sock);

/* Has the peer something to read yet, or to receive that was sent with descriptors? */
bool fdpass_unread(int sock);

/* @fds: [n_fds], at most KVD_MSG_MAX_FDS, still the caller's. Return: 0; -EAGAIN: the peer does not
 * read; -EPIPE, -ECONNRESET: it is gone; -errno. */
int fdpass_send(int sock, const void *buf, size_t len, const int *fds, size_t n_fds);

/* Daemon. Return: the packet's length; 0: the peer hung up, or sent an empty packet; -EAGAIN: there
 * is none; -EMSGSIZE: longer than @size; -EBADMSG: it had descriptors (not installed); -errno. */
ssize_t fdpass_recv(int sock, void *buf, size_t size);

/* The same, but a packet with descriptors stays where it is: none is dropped. */
ssize_t fdpass_recv_wary(int sock, void *buf, size_t size);

/* Shuts the socket down and drops packets up to one with descriptors. Return: whether there is
 * none, so that closing it does not wait. */
bool fdpass_end(int sock);

/* After fdpass_end(): closes all descriptors in unread packets, without lingering. May wait
 * nevertheless. Return: how many. */
size_t fdpass_drain(int sock);

/* Client. @fds: [KVD_MSG_MAX_FDS], close-on-exec; the rest is set to -1. Return: as fdpass_recv(),
 * but -EBADMSG: more than fit, or other control data. On failure all that came are closed. */
ssize_t fdpass_recv_fds(int sock, void *buf, size_t size, int *fds, size_t *ret_n_fds);

#endif
