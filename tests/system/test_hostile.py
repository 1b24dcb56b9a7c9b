#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients that break the contract: only they suffer. A minute each under sanitizers.

Field cases 31, 35 and 36; the accounting is checked after each by the harness.
"""
import os
import sys
import time

import kvdtest
from kvdtest import HOSTILE, SANITIZED, Daemon, equal, limit, until
from test_death import Neighbour, back_at, base_of

TIME = kvdtest.seconds(60 if SANITIZED else 8)


def honest(d, neighbour, time_s):
    """Answers a second and times of NOPs that honest clients get for a while."""
    probe = d.spawn_probe("nop")
    begin, before = time.monotonic(), neighbour.count
    time.sleep(time_s)
    rate = (neighbour.count - before) / (time.monotonic() - begin)
    return rate, d.probed(probe)


def report(what, rate, got):
    print(f"# {what}: {rate:.2f} answers a second; NOP median {got['p50_us']:.0f} us, "
          f"p99 {got['p99_us']:.0f} us; without waiting for a CPU p99 "
          f"{got['served_p99_us']:.0f} us, worst {got['served_max_us']:.0f} us")


def play(verb):
    with Daemon({"cache.kv_cache_memory": "256M"}) as d:
        neighbour = Neighbour(d)
        base = base_of(d)
        with neighbour:
            alone = honest(d, neighbour, TIME / 2)
            children = [d.spawn([HOSTILE, verb, str(TIME), str(seed)], stdout=kvdtest.PIPE)
                        for seed in (1, 2)]
            time.sleep(TIME / 8)
            beside = honest(d, neighbour, TIME / 2)
            for child in children:
                out = child.communicate(timeout=TIME + 120)[0].decode()
                print(f"# {out.strip().splitlines()[-1] if out.strip() else 'no output'}")
                equal(child.returncode, 0, "exit status of the hostile client")
            assert d.alive(), "the daemon died"
            before = neighbour.count
            until(lambda: neighbour.count > before or neighbour.problem, 60,
                  "the neighbour is answered")
        report("alone", *alone)
        report(f"beside {verb}", *beside)
        # Of the loop everybody gets a turn; what the attackers take of the CPUs is theirs
        # by the kernel's leave and not counted.
        if os.path.exists("/proc/self/schedstat"):
            most = 4 * alone[1]["served_p99_us"] + 1000
            assert SANITIZED or beside[1]["served_p99_us"] < most, f"NOPs wait: {beside[1]}"
        back_at(d, base)


@limit(600)
def test_never_reads():
    play("noread")


@limit(600)
def test_scribbles_over_its_ring():
    play("scribble")


@limit(600)
def test_sends_random_packets():
    play("packets")


@limit(600)
def test_submits_random_entries():
    play("sqes")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
