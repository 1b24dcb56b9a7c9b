#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients that break the contract: only they suffer. A minute each under sanitizers.

Field cases 31, 35 and 36; the accounting is checked after each by the harness.
"""
import sys

import kvdtest
from kvdtest import HOSTILE, SANITIZED, Daemon, equal, limit, until
from test_death import Neighbour, back_at, base_of

TIME = kvdtest.seconds(60 if SANITIZED else 8)


def play(verb):
    with Daemon({"cache.kv_cache_memory": "256M"}) as d:
        neighbour = Neighbour(d)
        base = base_of(d)
        with neighbour:
            children = [d.spawn([HOSTILE, verb, str(TIME), str(seed)], stdout=kvdtest.PIPE)
                        for seed in (1, 2)]
            for child in children:
                out = child.communicate(timeout=TIME + 120)[0].decode()
                print(f"# {out.strip().splitlines()[-1] if out.strip() else 'no output'}")
                equal(child.returncode, 0, "exit status of the hostile client")
            assert d.alive(), "the daemon died"
            before = neighbour.count
            until(lambda: neighbour.count > before or neighbour.problem, 60,
                  "the neighbour is answered")
        print(f"# the neighbour was answered {neighbour.count} times")
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
