#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What one user can hold at most, and ten: what kvd --limits says for the configuration.

hoard.c takes all it can get, with connections, rings, memory and requests. Beside ten of them an
eleventh user is served, nothing is refused to it, and administrators get in. When they have gone,
so has their memory.
"""
import json
import os
import subprocess
import sys

import kvdtest
from kvdtest import PIPE, Skip, equal, limit, prose, until

from fdstore import Kept

HOARD = os.path.join(kvdtest.BUILD, "tests", "system", "hoard")
OPTIONS = {"cache.kv_cache_memory": "64M", "quota.max_arena": "128M", "quota.max_rings": "40"}
FIRST_UID, VICTIM = 61001, dict(user=61100, group=61100, extra_groups=[])
ROOM = 16 << 20
# Smallest ring, and what requests give back while others look: they end, one after the other.
SMALLEST, ENDED = 5 * 4096, 4 << 20


def table():
    """Rows of kvd --limits: of one user and of all; None: no limit."""
    args = [f"-o{key}={value}" for key, value in OPTIONS.items()]
    out = subprocess.run([os.path.join(kvdtest.BUILD, "daemon", "kvd"), "--limits", *args],
                         check=True, stdout=PIPE, encoding="utf-8").stdout
    rows = {}
    for line in out.splitlines()[1:]:
        one, every = line[32:].split()[:2]
        rows[line[:32].strip().split(",")[0]] = tuple(
            None if n == "-" else int(n) for n in (one, every))
    return rows


def hoard(d, uid, n_ended):
    child = d.spawn([HOARD, str(n_ended)], stdin=PIPE, stdout=PIPE, user=uid, group=uid,
                    extra_groups=[])
    return child, told(child)


def told(child):
    line = child.stdout.readline()
    assert line, f"hoard ended with {child.wait()}"
    return json.loads(line)


def go_on(child):
    child.stdin.write(b"x")
    child.stdin.flush()
    return told(child)


def user(d, uid):
    users = json.loads(d.kvctl("cache", "quota", "--json").stdout)["users"]
    return next(u for u in users if u["uid"] == uid)


@limit(600)
def test_worst_of_one_user_and_of_ten():
    if os.getuid():
        raise Skip("other users take root")
    rows = table()
    one = {what: n for what, (n, _) in rows.items()}
    with Kept(OPTIONS) as d:
        os.chmod(d.socket, 0o666)
        d.generate(prose(20, 1), tokens=2, **VICTIM)
        base, files = d.rss(), d.n_fds()
        first, got = hoard(d, FIRST_UID, 0)
        equal((got["connections"], got["rings"]), (one["connections"], one["rings"]),
              "connections and rings of a user")
        # 3 are a kvctl's and what it takes for a moment.
        used = d.n_fds() - files
        assert one["descriptors"] <= used <= one["descriptors"] + 3, used
        got = go_on(first)
        row = user(d, FIRST_UID)
        assert got["taken"] >= one["requests that wait"], got
        assert row["waiting"] <= one["requests that wait"], row
        assert row["running"] <= one["requests that run"], row
        most = one["bytes of rings and requests"]
        assert most - SMALLEST - ENDED <= row["arena_bytes"] <= most, row
        print(f"# one user: {used} descriptors, {row['arena_bytes']} of {most} bytes, "
              f"{got['taken']} requests, {(d.rss() - base) >> 20} MiB resident")
        others = [hoard(d, FIRST_UID + i, 8)[0] for i in range(1, 10)]
        for child in others:
            go_on(child)
        rowset = [user(d, FIRST_UID + i) for i in range(10)]
        for row in rowset:
            equal(row["connections"], one["connections"], f"connections of {row['uid']}")
            assert row["arena_bytes"] <= most, row
        assert sum(r["waiting"] + r["running"] for r in rowset) <= rows["requests that wait"][1], rowset
        assert sum(r["running"] for r in rowset) <= rows["requests that run"][1], rowset
        assert d.n_fds() - files <= 10 * one["descriptors"] + 3, d.n_fds()
        print(f"# ten users: {d.n_fds() - files} descriptors, "
              f"{sum(r['waiting'] for r in rowset)} waiting, {(d.rss() - base) >> 20} MiB resident")
        for i in range(3):
            d.kvctl("tokenize", "some words", **VICTIM)
            equal(len(d.generate(prose(9, i), tokens=2, **VICTIM)["tokens"]), 2, "its answer")
        # Ended rings count until they are let go.
        child = others[0]
        kvdtest.kill(child)
        for child in [first, *others[1:]]:
            kvdtest.kill(child)
        until(lambda: all(u["uid"] not in range(FIRST_UID, FIRST_UID + 10) for u in json.loads(
            d.kvctl("cache", "quota", "--json").stdout)["users"]), 60, "all charges have ended")
        until(lambda: d.rss() <= base + ROOM, 30,
              lambda: f"{(d.rss() - base) >> 20} MiB more than before are resident")
        until(lambda: d.n_fds() <= files + 3, 10, "descriptors have gone")
        print(f"# afterwards: {(d.rss() - base) / (1 << 20):.1f} MiB more than before")
        d.restart()
        d.generate(prose(20, 1), tokens=2, **VICTIM)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
