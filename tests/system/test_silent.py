#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What others can do to the loop without a word: readers that never read, and signals.

Everything that the loop writes to somebody else has to be able to fail. The service manager
and the log are played here; completions and replies that nobody reads are in test_hostile.py
(deaf, noread), doorbells in tests/unit/ipc/test_ring.c, the journal in test_log.c.
"""
import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys
import time

import kvdtest
from kvdtest import FAILED, OK, Daemon, equal, until

SMALL = {"cache.kv_cache_memory": "32M"}
# Ask one token. The loop has to answer in two seconds, whatever its readers do.
ASK = ("--timeout", "2", "generate", "--raw", "--max-tokens", "1", "Story 1:")


def rubbish(d, n):
    """Connections that break the contract: a line of the log each."""
    for _ in range(n):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(2)
            s.connect(d.socket)
            with contextlib.suppress(OSError):
                s.send(b"\xff" * 64)
                s.recv(4096)


def read_all(fd):
    """What a pipe holds now, and all of it that comes before it is empty."""
    got = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            got += os.read(fd, 65536)
    return got


def full_pipe():
    """Both ends, with no room for one more byte."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, b"x")
    os.set_blocking(into, True)
    os.set_blocking(out, False)
    return out, into


def test_log_that_nobody_reads():
    """A full pipe: clients are served, and one line says later how much was lost."""
    for target in ("stderr", "json"):
        out, into = full_pipe()
        with Daemon({**SMALL, "daemon.log_rate_interval": 0, "daemon.log_level": "debug",
                     "daemon.log_target": target}, start=False) as d:
            d.popen["preexec_fn"] = lambda end=into: os.dup2(end, 2)
            d.start()
            for _ in range(3):
                d.kvctl(*ASK)
            rubbish(d, 600)
            d.kvctl(*ASK)
            assert not fcntl.fcntl(into, fcntl.F_GETFL) & os.O_NONBLOCK, "a flag of others is set"
            read_all(out)
            got = []

            def lost():
                got.append(read_all(out))
                return b"lost here" in b"".join(got)

            until(lost, 15, "a line about what was lost")
            rubbish(d, 1)
            until(lambda: lost() and b"".join(got).count(b"\n") > 1, 15, "lines come again")
            text = b"".join(got).decode()
            equal(text.count("lost here"), 1, text)
        os.close(out)
        os.close(into)


def test_service_manager_that_does_not_read():
    """Its queue is full after some pings: clients are served, pings and status come later."""
    with Daemon(SMALL, start=False) as d:
        path = os.path.join(d.folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            d.popen["env"] = {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
            d.start()
            for _ in range(8):
                time.sleep(0.5)
                d.kvctl(*ASK)
            manager.settimeout(5)
            seen = []
            # All that waited, then a second of life.
            end = time.monotonic() + 2
            while time.monotonic() < end:
                seen.append(manager.recv(4096).decode())
            assert any("READY=1" in s for s in seen), seen
            assert any("STATUS=" in s for s in seen), seen
            assert sum("WATCHDOG=1" in s for s in seen) >= 15, seen


# Sent by others, without a meaning here, and deadly unless something is done.
HARMLESS = ("SIGPIPE", "SIGXFSZ", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF",
            "SIGIO", "SIGPWR", "SIGSTKFLT")


def test_signals_that_mean_nothing():
    with Daemon(SMALL) as d:
        for name in HARMLESS:
            number = getattr(signal, name, 16)  # SIGSTKFLT is new in Python's list
            d.process.send_signal(number)
            time.sleep(0.05)
            assert d.alive(), f"{name} ended the daemon"
        d.kvctl(*ASK)


def test_limit_of_file_sizes():
    """RLIMIT_FSIZE counts a ring's memory: RING_OPEN fails, and nobody else notices."""
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

    with Daemon(SMALL, start=False) as d:
        d.popen["preexec_fn"] = limited
        d.start()
        for _ in range(2):
            done = d.kvctl(*ASK, status=FAILED)
            assert "RLIMIT_FSIZE" in done.stderr, done.stderr
        d.kvctl("status", status=OK)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
