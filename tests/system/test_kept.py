#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients over restarts of the daemon: nothing is lost, nothing comes twice, no token is
wrong. With an FD store, where connections are kept, and without one, where they end.

KVD_KILLS: how often the daemon is killed in each of these, instead of 60 times.
"""
import json
import os
import random
import signal
import socket
import struct
import sys
import time

import fdstore
import kvdtest
import survive
from kvdtest import BUILD, SANITIZED, Daemon, equal, limit, until

SURVIVE = os.path.join(BUILD, "tests", "system", "survive")
POOL = {"cache.kv_cache_memory": "64M"}
KINDS = ("stream", "score", "nop", "calls")


def kills():
    return int(os.environ.get("KVD_KILLS", 0)) or kvdtest.rounds(60)


def spawn(d, kind):
    child = d.spawn([SURVIVE, kind], stdout=kvdtest.PIPE)
    equal(child.stdout.readline(), b"ready\n", f"what {kind} says first")
    return child


def finish(children):
    """Stop them, each with nothing in flight, and hold them to what they promise."""
    for child in children.values():
        child.terminate()
    found = {}
    for kind, child in children.items():
        out = child.communicate(timeout=120)[0].decode()
        equal(child.returncode, 0, f"exit status of {kind}")
        found[kind] = survive.check(kind, out)
    return found


def die(d, ends):
    ends.append(time.monotonic_ns())
    d.process.kill()
    d.process.wait()


def die_and_come_back(d, rng, ends):
    """kill -9 at any instant; one time in four while the next one starts. Return: seconds
    until the last one served."""
    die(d, ends)
    while rng.random() < 0.25:
        d.launch()
        time.sleep(rng.uniform(0, 0.5))
        die(d, ends)
    begin = time.monotonic()
    d.start()
    took = time.monotonic() - begin
    time.sleep(rng.uniform(0, 1.2))
    return took


@limit(1800)
def test_kills_with_a_store():
    """kill -9 under four clients whose connections are kept."""
    rng = random.Random(5)
    with fdstore.Kept(POOL) as d:
        children = {kind: spawn(d, kind) for kind in KINDS}
        kept(d, len(KINDS))
        n = kills()
        ends = []
        starts = sorted(die_and_come_back(d, rng, ends) for _ in range(n))
        print(f"# a start takes p50 {1e3 * starts[n // 2]:.0f} ms, max {1e3 * starts[-1]:.0f} ms")
        kept(d, len(KINDS))
        survive.report("kill -9, kept", finish(children)["nop"], ends)
        kept(d, 0)


@limit(900)
def test_terminations_with_a_store():
    """SIGTERM and start, as systemctl restart does it."""
    rng = random.Random(6)
    with fdstore.Kept(POOL) as d:
        children = {kind: spawn(d, kind) for kind in KINDS}
        n = max(1, kills() // 4)
        ends = []
        for _ in range(n):
            ends.append(time.monotonic_ns())
            d.restart()
            time.sleep(rng.uniform(0, 1.2))
        survive.report("SIGTERM, kept", finish(children)["nop"], ends)


@limit(900)
def test_kills_without_a_store():
    """A daemon started by hand: connections end, and the library makes new ones."""
    rng = random.Random(7)
    with Daemon(POOL) as d:
        children = {kind: spawn(d, kind) for kind in KINDS}
        n = max(1, kills() // 4)
        ends = []
        for i in range(n):
            ends.append(time.monotonic_ns())
            d.stop(signal.SIGTERM if i % 4 == 3 else signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.3))
            d.start()
            time.sleep(rng.uniform(0, 1.2))
        survive.report("kill -9 and SIGTERM, not kept", finish(children)["nop"], ends)


@limit(300)
def test_stop_ends_connections():
    """The store is emptied, as systemctl stop does it: clients come back by the path."""
    with fdstore.Kept(POOL) as d:
        children = {kind: spawn(d, kind) for kind in KINDS}
        equal(d.stop(), 0, "exit status")
        d.manager.empty()
        time.sleep(0.2)
        d.start()
        time.sleep(0.5)
        finish(children)


@limit(300)
def test_a_full_store_keeps_what_fits():
    """Connections beyond FileDescriptorStoreMax= end, and are made again."""
    with fdstore.Kept(POOL, maximum=len(fdstore.STORED) + 2) as d:
        children = {kind: spawn(d, kind) for kind in KINDS}
        kept(d, 2)
        equal(d.manager.n_refused, 0, "pushes that the manager refused")
        for _ in range(3):
            d.restart(signal.SIGKILL)
            time.sleep(0.3)
        finish(children)


# ------------------------------------------------------------------- by hand

HELLO, STATS, WELCOME, REJECT, NOTICE, ERROR = 1, 4, 0x8001, 0xfffd, 0xfffe, 0xffff
KEEP = 1 << 7
RESTARTED = -4098


def message(kind, tag, payload=b""):
    return struct.pack("<IHHIi", 16 + len(payload), kind, 0, tag, 0) + payload


def hello(tag, features=KEEP):
    return message(HELLO, tag, struct.pack("<IIQ", 0x3144564B, 1, features) + b"hand".ljust(64, b"\0"))


def header(packet):
    _, kind, _, tag, status = struct.unpack_from("<IHHIi", packet)
    return kind, tag, status


def connect(d, features=KEEP):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(10)
    s.connect(d.socket)
    s.send(hello(1, features))
    packet = s.recv(65536)
    equal(header(packet)[:2], (WELCOME, 1), "the answer to HELLO")
    equal(bool(struct.unpack_from("<Q", packet, 40)[0] & KEEP), bool(features & KEEP),
          "whether the connection is kept")
    return s


def notice(s):
    packet = s.recv(65536)
    equal(header(packet), (NOTICE, 0, 0), "what a new daemon says first")
    kind, tag, generation = struct.unpack_from("<IIQ", packet, 16)
    equal(kind, 1, "kind of notice")
    assert tag and generation
    return tag


def kept(d, n=None):
    """Names in the store; once there are so many, as the manager gets to it."""
    def names():
        return [name for name in d.manager.names() if name.startswith("client-")]

    if n is not None:
        until(lambda: len(names()) == n, kvdtest.grace(),
              lambda: f"{n} connections in the store: {names()}")
    return names()


@limit(300)
def test_rules_of_the_notice():
    """What kvd-abi(7) says of a kept connection, word by word."""
    with fdstore.Kept(POOL) as d:
        s, old = connect(d), connect(d, features=0)
        before = kept(d, 1)  # only who asks for it
        d.process.kill()
        d.process.wait()
        # Left unread by the dead one: a request, and a HELLO out of place.
        s.send(message(STATS, 7))
        s.send(hello(99))
        d.start()
        equal(old.recv(100), b"", "who cannot understand a notice sees the end")
        tag = notice(s)
        equal(header(s.recv(65536)), (ERROR, 7, RESTARTED), "the answer to what lay there")
        # It may take its time, over more restarts; but nothing else is served.
        equal(d.restart(signal.SIGKILL) >= 0, True, "restart")
        newer = notice(s)
        assert newer != tag
        s.send(message(STATS, 8))
        equal(header(s.recv(65536)), (ERROR, 8, RESTARTED), "before HELLO")
        s.send(hello(tag))
        s.send(message(STATS, 9))
        equal(header(s.recv(65536)), (ERROR, 9, RESTARTED), "after HELLO to a dead daemon")
        s.send(hello(newer))
        equal(header(s.recv(65536))[:2], (WELCOME, newer), "after HELLO to this one")
        equal(kept(d), before, "what lies in the store")
        # HELLO again is what it always was.
        s.send(hello(newer))
        equal(s.recv(100), b"", "a second HELLO")
        kept(d, 0)


@limit(300)
def test_short_connections_are_not_told():
    """Who comes and goes is no matter of the service manager's."""
    with fdstore.Kept(POOL) as d:
        before = d.manager.n_told
        for _ in range(100):
            connect(d).close()
        until(lambda: d.stats()["clients"] == 1, kvdtest.grace(), "all have gone")
        with connect(d):
            kept(d, 1)
        kept(d, 0)
        # on a machine that stands still one or the other may get old
        assert 1 <= d.manager.n_told - before < 50, d.manager.n_told - before


def connect_as(d, uid, groups):
    """A connection of a user with these groups, as the kernel notes them."""
    before = os.getgroups()
    try:
        os.setgroups(groups)
        os.setegid(uid)
        os.seteuid(uid)
        return connect(d)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


@limit(300)
def test_the_first_connection_decides_again():
    """A user who has joined a group meanwhile shares with it no sooner by a restart."""
    if os.geteuid():
        raise kvdtest.Skip("needs root")
    uid, gid = 61001, 61777
    with fdstore.Kept(POOL, start=False) as d:
        with open(os.path.join(d.folder, "kvd.conf"), "w", encoding="ascii") as f:
            f.write(f"[domain research]\ngroups = {gid}\n")
        d.start()

        def domain():
            users = json.loads(d.kvctl("cache", "quota", "--json").stdout)["users"]
            return next(u["domain"] for u in users if u["uid"] == uid)

        os.chmod(d.folder, 0o755)
        os.chmod(d.socket, 0o666)
        first = connect_as(d, uid, [])
        later = [connect_as(d, uid, [gid]) for _ in range(4)]
        kept(d, 5)
        equal(domain(), f"uid:{uid}", "domain")
        for i in range(3):
            d.restart(signal.SIGKILL)
            silent = [c for c in d.clients() if c["uid"] == uid]
            equal([c["name"] for c in silent], ["(kept)"] * 5, "names of who is silent")
            equal(domain(), f"uid:{uid}", f"domain after restart {i}")
        for s in (first, *later):
            s.close()


@limit(300)
def test_half_packets_before_hello():
    """A kept connection that breaks the contract ends, for the store as well."""
    with fdstore.Kept(POOL) as d:
        sockets = [connect(d) for _ in range(3)]
        kept(d, 3)
        d.restart(signal.SIGKILL)
        for s, packet in zip(sockets, (b"x", message(STATS, 1)[:-1],
                                       message(STATS, 0))):
            notice(s)
            s.send(packet)
            equal(s.recv(100), b"", f"after {packet!r}")
        kept(d, 0)
        equal(d.stats()["clients"], 1, "clients")


@limit(300)
def test_fewer_places_after_the_restart():
    """Limits hold for kept connections: who finds no place is told and let go."""
    with fdstore.Kept(POOL) as d:
        sockets = [connect(d) for _ in range(5)]
        kept(d, 5)
        d.options["daemon.max_clients"] = 3
        d.restart()
        first = [header(s.recv(65536))[0] for s in sockets]
        equal(sorted(first), sorted([NOTICE] * 3 + [REJECT] * 2), "first words")
        for s, kind in zip(sockets, first):
            if kind == REJECT:
                equal(s.recv(100), b"", "after REJECT")
        kept(d, 3)
        for s in sockets:
            s.close()
        until(lambda: d.kvctl("stats", status=None).returncode == 0, kvdtest.grace(),
              "a place that is free again")


@limit(600)
def test_sleepers_and_floods():
    """Who never answers a notice costs a place and no more; who floods is cut off."""
    with fdstore.Kept(POOL) as d:
        child = spawn(d, "calls")
        sleepers = [connect(d) for _ in range(20)]
        flood = connect(d)
        kept(d, 22)
        for _ in range(kvdtest.rounds(10)):
            d.restart(signal.SIGKILL)
        kept(d, 22)
        end = time.monotonic() + 30
        try:
            while time.monotonic() < end:
                flood.send(message(STATS, 5))
        except OSError:
            pass
        kept(d, 21)
        for s in sleepers:
            s.close()
        kept(d, 1)
        child.terminate()
        got = json.loads(child.communicate(timeout=60)[0])
        equal((got["wrong"], got["lost"]), (0, 0), "answers wrong or lost")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals(), timeout=600 if SANITIZED else 300))
