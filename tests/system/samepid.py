#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A client whose process ended, and whose process id another user's process has then.

  samepid.py SOCKET UID GROUP DOMAIN

Connects as UID with the one further GROUP, says HELLO when root has the id, and tries to
flush DOMAIN, another user's. Prints as JSON what came back, and keeps the connection until
standard input ends. Needs root; exit status 77 where process ids cannot be chosen.
"""
import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys

SYS_CLONE3 = 435
# WELCOME, and the error to FLUSH of another user's.
REFUSED = {"hello": 0x8001, "flush": 0xffff, "status": -errno.EPERM}


class CloneArgs(ctypes.Structure):
    """struct clone_args of clone(2), up to set_tid_size."""
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size",
        "tls", "set_tid", "set_tid_size")]


def connect_and_end(path, uid, group, keeper):
    """As a process of a user's that ends: its socket lives on in keeper. Return: its pid."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([group])
        os.setgid(uid)
        os.setuid(uid)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(path)
            socket.send_fds(keeper, [b"x"], [s.fileno()])
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def become(pid):
    """Start a process of root's that has this pid."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = ctypes.c_int(pid)
    args = CloneArgs(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted),
                     set_tid_size=1)
    got = libc.syscall(SYS_CLONE3, ctypes.byref(args), ctypes.sizeof(args))
    if got == 0:
        libc.pause()
        os._exit(0)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(path, uid, group, domain):
    ours, theirs = socket.socketpair()
    pid = connect_and_end(path, uid, group, theirs)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    try:
        become(pid)
    except OSError as why:
        if why.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        print(why)
        return 77
    with socket.socket(fileno=fds[0]) as s:
        s.settimeout(20)
        s.send(struct.pack("<IHHIiIIQ64s", 96, 1, 0, 1, 0, 0x3144564b, 1, 0, b"samepid"))
        hello, = struct.unpack_from("<4xH", s.recv(65536))
        s.send(struct.pack("<IHHIiII64s64s", 152, 6, 0, 2, 0, 0, 0, domain.encode(), b""))
        flush, status = struct.unpack_from("<4xH6xi", s.recv(65536))
        print(json.dumps({"hello": hello, "flush": flush, "status": status}), flush=True)
        sys.stdin.read()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
