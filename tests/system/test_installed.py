#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The daemon under the system calls of kvd.service: it makes no other, and idle costs nothing.

A call that the unit forgets fails with EPERM there, which code written for the worst passes
over in silence, or in a circle. Here it ends the daemon by SIGSYS instead. The container suite
runs the unit itself.
"""
import os
import signal
import subprocess
import sys
import time

import kvdtest
from fdstore import Kept
from kvdtest import PIPE, Daemon, Skip, equal, prose, until

AS_INSTALLED = os.path.join(kvdtest.ROOT, "tests", "bench", "as_installed.py")
# 100 of the clients below, with a ring each, are one user's.
SMALL = {"cache.kv_cache_memory": "64M", "daemon.max_clients_per_uid": 128,
         "quota.max_rings": 128}


def confined(kind):
    class Confined(kind):
        def command(self):
            return [sys.executable, AS_INSTALLED, "--kill", *super().command()]

    def make(*args, **more):
        try:
            return Confined(*args, **more)
        except AssertionError as e:
            if "ended with 77" in str(e):
                raise Skip("no libseccomp") from e
            raise
    return make


def use(d):
    """Each kind of request, and clients that come, go and die."""
    d.generate(prose(60, 3), tokens=24, temperature=0.9)
    d.kvctl("score", "-", text=prose(100, 4))
    d.kvctl("tokenize", "some words")
    d.kvctl("tokenize", "-", text=prose(3000, 5))
    for verb in (("status",), ("clients",), ("stats", "--json"), ("cache", "ls"),
                 ("cache", "quota"), ("latency", "--count", "3"), ("cache", "flush")):
        d.kvctl(*verb, status=None)
    for child in [d.spawn_generate(prose(40, 20 + i), tokens=30) for i in range(4)]:
        kvdtest.kill(child)
        child.out.close()
    d.process.send_signal(signal.SIGHUP)
    until(lambda: "reloaded" in d.log(), 10, "the configuration is read again")
    idle = d.spawn_hostile("idle100")
    time.sleep(1)
    used = d.cpu_seconds()
    time.sleep(2)
    used = d.cpu_seconds() - used
    print(f"# 100 idle clients: {used / 2 * 100:.1f} % of a core")
    assert used < 0.1, f"{used / 2 * 100:.0f} % of a core for 100 idle clients"
    kvdtest.kill(idle)
    until(lambda: d.stats()["clients"] == 1, 10, "they are gone")
    d.generate(prose(20, 9), tokens=2)


def test_its_system_calls_are_enough():
    for backend in ("io_uring", "epoll"):
        for log_target in ("stderr", "json"):
            with confined(Daemon)({**SMALL, "daemon.io_backend": backend,
                                   "daemon.log_target": log_target}) as d:
                use(d)
    with confined(Daemon)({**SMALL, "model.tensor_parallel_size": 3, "cpu.threads": 3}) as d:
        use(d)


def test_they_are_enough_for_a_warm_restart():
    with confined(Kept)(SMALL) as d:
        use(d)
        d.restart()
        use(d)
        d.restart(signal.SIGKILL)
        use(d)


def test_a_call_that_is_missing_shows():
    """The tests above can fail: a daemon that runs a program ends."""

    done = subprocess.run([sys.executable, AS_INSTALLED, "--kill", "/bin/sh", "-c", "/bin/true; :"],
                          stdout=PIPE, stderr=PIPE, check=False)
    if done.returncode == 77:
        raise Skip("no libseccomp")
    equal(done.returncode, -signal.SIGSYS, done.stderr)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
